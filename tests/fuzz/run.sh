#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while, two at a time, from the seeds that this makes and from what earlier runs have found.
# Fails where a target finds something; the input is then in target/fuzz/<target>/.
#
# usage: run.sh MINUTES [TARGET...]
set -euo pipefail

readonly HERE=$(cd "$(dirname "$0")/../.." && pwd)
readonly OUT=$HERE/target/fuzz
readonly MINUTES=$1
shift
readonly ALL=(frames archive record names)
# Named, so that build scripts, which run here as well, are built without the counters.
HOST=$(rustc --version --verbose | sed -n 's/^host: //p')
readonly HOST
readonly INPUT_MAX=65536 SECONDS_MAX=10 MEMORY_MAX_MB=2048
# To libFuzzer, 0 means for ever.
[ "$MINUTES" -gt 0 ] || { echo "fuzz: MINUTES is a number above 0" >&2; exit 2; }
# Coverage counters of LLVM, as libFuzzer reads them; the compiler is the stable one.
readonly COVERAGE="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code"

# One of each kind that a parser knows: from there the fuzzer finds the rest.
seeds() {
  local dir=$OUT/seeds tree
  mkdir -p "$dir"/{frames,archive,record,names}
  tree=$(mktemp -d)
  mkdir -p "$tree/etc" "$tree/bin"
  echo root:x:0:0::/root:/bin/sh >"$tree/etc/passwd"
  ln -s ../etc/passwd "$tree/bin/link"
  ln "$tree/etc/passwd" "$tree/etc/hard"
  local format
  for format in gnu pax ustar v7; do
    { printf '\1'; tar --create --format=$format --directory "$tree" .; } >"$dir/archive/$format"
  done
  { printf '\0'; tar --create --gzip --directory "$tree" .; } >"$dir/archive/gzip"
  tar --create --directory "$tree" --file "$tree.layer" .
  mkdir "$tree.save" && mv "$tree.layer" "$tree.save/layer.tar"
  echo '{"architecture":"amd64","os":"linux","config":{"Env":["A=b"],"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:'"$(sha256sum "$tree.save/layer.tar" | cut -d' ' -f1)"'"]}}' >"$tree.save/config.json"
  echo '[{"Config":"config.json","RepoTags":["x:y"],"Layers":["layer.tar"]}]' >"$tree.save/manifest.json"
  { printf '\1'; tar --create --directory "$tree.save" .; } >"$dir/archive/save"
  rm -rf "$tree" "$tree.save"
  printf '\3{"id":"aaaaaaaaaaaaaaaaaaaa","created_at_ms":1,"uid_base":1879048192,"spec":{"tenant":"default","name":"a","image":"base","image_digest":"sha256:00","env":{"A":"b"},"labels":{},"requested":{},"limits":{"memory_bytes":16777216,"pids":64,"cpu_millis":1000,"open_files":64,"shm_bytes":1048576,"disk_bytes":67108864,"inodes":4096},"shortfall":"refuse","idle":{"freeze":{"seconds":1},"stop":"never","delete":"never"}}}' >"$dir/record/plain"
  local n
  for n in 0 1 2 3 4 5; do printf "\\$n\\012\\002hi\\020\\001" >"$dir/frames/$n"; done
  printf 'agent-7' >"$dir/names/name"
  printf 'aaaaaaaaaaaaaaaaaaaa' >"$dir/names/id"
  printf 'sha256:%064d' 0 >"$dir/names/digest"
}

run() {
  local target=$1 dir=$OUT/$1
  mkdir -p "$dir/corpus"
  "$OUT/build/$HOST/release/$target" -max_total_time=$((MINUTES * 60)) -max_len=$INPUT_MAX -timeout=$SECONDS_MAX \
    -rss_limit_mb=$MEMORY_MAX_MB -artifact_prefix="$dir/" -print_final_stats=1 "$dir/corpus" "$OUT/seeds/$target" >"$dir/log" 2>&1
}

seeds
(cd "$HERE/tests/fuzz" && RUSTFLAGS=$COVERAGE CARGO_TARGET_DIR=$OUT/build cargo build --quiet --release --target "$HOST")
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=("${ALL[@]}")
failed=0
while [ ${#targets[@]} -gt 0 ]; do
  pair=("${targets[@]:0:2}")
  targets=("${targets[@]:2}")
  declare -A pids=()
  for target in "${pair[@]}"; do
    run "$target" &
    pids[$target]=$!
  done
  for target in "${pair[@]}"; do
    if wait "${pids[$target]}"; then
      word=fine
    else
      word=FOUND failed=1
    fi
    printf '%-8s %s %s\n' "$target" "$word" "$(grep --text -h 'stat::number_of_executed_units\|DONE' "$OUT/$target/log" | tr '\n' ' ')"
  done
done
exit $failed
