#!/usr/bin/env bash
# Builds an image's archive with `lodge image build`, once per state of its recipe.
# Does not import it: a daemon's image store is not touched.
#
# usage: build.sh NAME LODGE   (NAME is a folder of images/ or tests/images/, LODGE the command's path)
set -euo pipefail

readonly HERE=$(cd "$(dirname "$0")/.." && pwd)
readonly NAME=$1 LODGE=$2
RECIPE=$HERE/images/$NAME
[ -d "$RECIPE" ] || RECIPE=$HERE/tests/images/$NAME
readonly RECIPE OUT=$HERE/target/images/$NAME.tar

# The agent recipe stands on the base one, so each name's key covers all recipes.
key_of() {
  cd "$HERE/images"
  local recipes=(./*/)
  [ -d "./$NAME" ] || recipes+=("../tests/images/$NAME/")
  find "${recipes[@]}" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64
}
key=$(key_of)
if [ -f "$OUT" ] && [ "$(cat "$OUT.recipe" 2>/dev/null)" = "$key" ]; then
  exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
  echo "image: building $NAME needs root (file owners, device-free chroot): run it as root" >&2
  exit 1
fi
"$HERE/.ci/deps.sh" image
mkdir -p "$(dirname "$OUT")"
echo "image: building $NAME from ${RECIPE#"$HERE/"} (some minutes, once)" >&2
# Written beside and renamed, so that an interrupted build leaves no half archive.
"$LODGE" image build "$RECIPE" -o "$OUT.part"
mv "$OUT.part" "$OUT"
printf '%s\n' "$key" >"$OUT.recipe"
