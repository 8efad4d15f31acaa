# A build of the project that comes by standard input; then one after a change, which makes anew what depends on it alone.
tar --extract
cd project
make --silent -j2 all
make --silent check
make --question all
sed --in-place 's/STEP 3/STEP 4/' shared.h
make --question all && exit 1
make -j2 all | grep --count --word-regexp -- -c
make --silent check
make --question all
python3 -c "$LISTING" .
