#!/usr/bin/env bash
# Real commands in a real sandbox, with their real output. Starts a daemon of its own, in directories and a cgroup of
# its own, and removes all of it at the end, also when a step fails or the user interrupts.
# Does not touch a daemon that is installed on this host.
#
# usage: demo.sh BINARIES   (the directory with lodged and lodge)
set -euo pipefail

readonly HERE=$(cd "$(dirname "$0")/../.." && pwd)
readonly BINARIES=$(cd "$1" && pwd)
readonly PARENT=lodge-demo-$$
readonly READY_TRIES=200 # of 0.1 s
readonly STOP_TRIES=100  # of 0.1 s
# Below the user ids of the tests and above those of an installed daemon's first sandboxes.
readonly UID_START=1342177280

dir=$(mktemp -d /tmp/lodge-demo.XXXXXX)
daemon=
export LODGE_ENDPOINT=unix://$dir/lodged.sock
export PATH=$BINARIES:$PATH

# The groups of this demo, children before parents.
groups() { find /sys/fs/cgroup -depth -type d -path "*/$PARENT*" 2>/dev/null || true; }

clean_up() {
  local status=$? i group pid
  trap - EXIT INT TERM
  if [ -n "$daemon" ]; then
    lodge rm demo >/dev/null 2>&1 || true
    kill -TERM "$daemon" 2>/dev/null || true
    for ((i = 0; i < STOP_TRIES; i++)); do
      [ -d "/proc/$daemon" ] || break
      sleep 0.1
    done
    kill -KILL "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  # What a failed step left: only processes in groups of this demo's own name.
  for ((i = 0; i < STOP_TRIES && $(groups | wc -l) > 0; i++)); do
    groups | while read -r group; do
      while read -r pid; do kill -KILL "$pid" 2>/dev/null || true; done <"$group/cgroup.procs" || true
      rmdir "$group" 2>/dev/null || true
    done
    [ "$i" -eq 0 ] || sleep 0.1
  done
  grep -o " $dir[^ ]*" /proc/mounts | sort -r | xargs -r -n1 umount -l || true
  rm -rf "$dir"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start_daemon() {
  local i
  mkdir "$dir/run"
  lodged --state-dir "$dir/state" --runtime-dir "$dir/run" --listen "$LODGE_ENDPOINT" --socket-group root \
    --cgroup-parent "$PARENT" --uid-range-start "$UID_START" --uid-range-count 16 --log-level warn \
    >"$dir/lodged.log" 2>&1 &
  daemon=$!
  for ((i = 0; i < READY_TRIES; i++)); do
    [ ! -S "$dir/lodged.sock" ] || return 0
    [ -d "/proc/$daemon" ] || break
    sleep 0.1
  done
  echo "demo: the daemon did not start; its log:" >&2
  cat "$dir/lodged.log" >&2
  exit 1
}

# expect CODE COMMAND: prints a command as one would type it and what it really prints; fails on another exit code.
expect() {
  local want=$1 status=0
  printf '\n$ %s\n' "$2"
  eval "$2" || status=$?
  [ "$status" -eq 0 ] || printf '[exit code %s]\n' "$status"
  [ "$status" -eq "$want" ] || { echo "demo: expected exit code $want" >&2; exit 1; }
}

start_daemon
expect 0 "lodge image import $(realpath --relative-to=. "$HERE/target/images/base.tar") --name base"
expect 0 "lodge create demo"

# Python.
expect 0 "lodge run -s demo 'python3 -c \"print(sum(n * n for n in range(10)))\"'"
# A repository with a commit.
expect 0 "lodge run -s demo 'git init -q repo && cd repo && echo hello >a.txt && git add . && git -c user.name=me -c user.email=me@example.org commit -qm first && git log --oneline | wc -l'"
# A pipeline with jq.
expect 0 "lodge run -s demo 'echo \"[{\\\"n\\\":1},{\\\"n\\\":2}]\" | jq -c \"map(.n * 10)\"'"
# A second run sees the first one's files, and nothing else of it.
expect 0 "lodge run -s demo -w /home/user/repo 'cat a.txt; git status --short | wc -l'"
# A variable of this call alone.
expect 0 "lodge run -s demo -e WHO=agent 'echo \"hello \$WHO\"'"
expect 0 "lodge run -s demo 'echo \"hello \${WHO:-nobody}\"'"
# A timeout ends everything that the run started, and what was printed is there.
expect 124 "lodge run -s demo -t 1s 'echo started; setsid sleep 300 & sleep 300'"
# A flood: the command is not killed for talking, and every byte comes.
expect 0 "lodge run -s demo 'yes flood | head -c 200000000' | wc -c"
# Root inside is nobody outside.
expect 0 "lodge run -s demo 'sudo id -u; cat /proc/self/uid_map'"
expect 0 "lodge ls"
