# A clone of the repository that comes by standard input, and what is done in one.
tar --extract
git clone --quiet origin.git clone
cd clone
git fsck --full --strict --no-progress
git status --porcelain
git log --format='%H %T %s'
git checkout --quiet HEAD~2
git ls-files --stage | sha256sum
git checkout --quiet -b work main
mv part2 renamed2
sed --in-place 's/of/OF/' part3/*/sub/*/*.txt
rm -r part4
git add --all
git commit --quiet --message 'work'
git merge --quiet main
git repack -q -a -d
git fsck --full --strict --no-progress
git status --porcelain
git rev-parse HEAD
git ls-files | wc -l
python3 -c "$LISTING" . .git
