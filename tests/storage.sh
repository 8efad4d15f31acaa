#!/usr/bin/env bash
# The btrfs on which the tests of the storage driver `btrfs` keep state and images: one file system in a file under target/, on
# a loop device, so that no test needs a pool of its own but those that are about pools. And a `btrfs` that knows all that
# the kernel does.
# Leaves file systems alone that it did not make.
#
# usage: storage.sh up | down | tools | run DRIVER COMMAND...
#   up     makes and mounts it; one that is mounted is kept
#   down   unmounts it, checks it (where `tools` were brought), and removes it
#   tools  brings target/btrfs-progs/btrfs, once
#   run    runs tests on the driver overlay or btrfs, with what that needs, and sees that they leave nothing mounted or attached
set -euo pipefail

readonly HERE=$(cd "$(dirname "$0")/.." && pwd)
readonly FILE=$HERE/target/btrfs.img MOUNT=$HERE/target/btrfs
readonly TOOLS=$HERE/target/btrfs-progs
readonly SIZE=24G       # sparse: what is not written takes nothing
readonly TRIES=600      # of 0.1 s: sandboxes of a test that was cut off end in the background
readonly SUITE=trixie   # its btrfs-progs know simple quotas; those of Debian 12 do not

say() { printf 'storage: %s\n' "$*" >&2; }

mounted() { mountpoint --quiet "$MOUNT"; }

devices() { losetup --noheadings --output NAME --associated "$FILE"; }

up() {
  if mounted; then
    return
  fi
  mkdir -p "$MOUNT"
  [ ! -e "$FILE" ] || [ -z "$(devices)" ] || { say "$FILE is in use: tests/storage.sh down"; exit 1; }
  rm -f "$FILE"
  truncate --size "$SIZE" "$FILE"
  # As the product makes a pool.
  mkfs.btrfs --quiet --metadata single --data single "$FILE" >/dev/null
  local device
  device=$(losetup --find --show --direct-io=on "$FILE")
  if ! mount -o noatime,discard=async "$device" "$MOUNT"; then
    losetup --detach "$device"
    exit 1
  fi
  # It goes with the last mount.
  losetup --detach "$device"
}

# Whatever fails, the rest is done: nothing may stay attached.
down() {
  local failed=0
  if mounted; then
    umount "$MOUNT" || { umount --lazy "$MOUNT"; say "$MOUNT was in use"; failed=1; }
  fi
  if [ -e "$FILE" ]; then
    local try=0
    while [ -n "$(devices)" ] && [ $((try += 1)) -lt "$TRIES" ]; do sleep 0.1; done
    if [ -n "$(devices)" ]; then
      say "$FILE is still attached: $(devices)"
      exit 1
    fi
    [ ! -x "$TOOLS/btrfs" ] || check || failed=1
    rm -f "$FILE"
  fi
  return "$failed"
}

check() {
  local found=$HERE/target/btrfs.check
  if "$TOOLS/btrfs" check --readonly "$FILE" >"$found" 2>&1; then
    return 0
  fi
  # The check of btrfs-progs 6.14 misses groups as soon as the quota tree is larger than a leaf or two: also where its own commands
  # made it, 100 groups in one (60 are fine). The kernel finds all of them. What the check would have told is looked for here.
  local own='^ERROR: (failed to add qgroup relation, member=[0-9]+ parent=[0-9]+: No such file or directory|loading qgroups from disk: -2|failed to check quota groups)$'
  local whole='other findings than that'
  if grep --quiet '^ERROR: failed to add qgroup relation' "$found" &&
    ! grep '^ERROR' "$found" | grep --extended-regexp --invert-match --quiet "$own" && whole=$(relations); then
    say "btrfs check does not know all groups of a large quota tree; that is whole: $whole"
    return 0
  fi
  cat "$found" >&2
  say "btrfs check found the above ($whole)"
  return 1
}

# Whether each relation of the quota tree is there both ways, between groups that are there with their limits.
relations() {
  "$TOOLS/btrfs" inspect-internal dump-tree -t quota "$FILE" 2>/dev/null | awk '
    match($0, /key \([^)]*\)/) {
      split(substr($0, RSTART + 5, RLENGTH - 6), key, " ")
      if (key[2] == "QGROUP_INFO") groups[key[3]]
      if (key[2] == "QGROUP_LIMIT") limits[key[3]]
      if (key[2] == "QGROUP_RELATION") there[key[1] " " key[3]]
    }
    END {
      for (group in groups) if (!(group in limits)) { print "group " group " has no limit"; bad = 1 }
      for (pair in there) {
        split(pair, of, " ")
        if (!((of[2] " " of[1]) in there)) { print "relation of " pair " is there one way"; bad = 1 }
        if (!(of[1] in groups)) { print "relation of " pair ", and no group " of[1]; bad = 1 }
      }
      if (!bad && length(groups) == 0) { print "no group at all"; bad = 1 }
      if (!bad) print length(groups) " groups, " length(there) / 2 " relations"
      exit bad
    }'
}

# Its own loader and libraries: the host's may be older.
tools() {
  if [ -x "$TOOLS/btrfs" ]; then
    return
  fi
  "$HERE/.ci/deps.sh" image
  say "bringing btrfs-progs of $SUITE (once)"
  rm -rf "$TOOLS"
  mkdir -p "$TOOLS"
  mmdebstrap --quiet --variant=extract --include=btrfs-progs "$SUITE" "$TOOLS/tree"
  local loader libraries
  loader=$(find "$TOOLS/tree/usr" -name 'ld-linux*' -path '*-linux-gnu*/*' | head -n 1)
  libraries=$(dirname "$loader")
  # Written last: it says that the rest is there.
  printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' "$loader" "$libraries" "$TOOLS/tree/usr/bin/btrfs" >"$TOOLS/btrfs.part"
  chmod 0755 "$TOOLS/btrfs.part"
  mv "$TOOLS/btrfs.part" "$TOOLS/btrfs"
}

# What is mounted or attached of target/.
left() {
  losetup --noheadings --output NAME,BACK-FILE | grep --fixed-strings "$HERE/target/" || true
  findmnt --noheadings --list --output TARGET,SOURCE | grep --fixed-strings "$HERE/target/" || true
}

# Also when it is interrupted.
finish() {
  local status=$?
  [ "$LODGE_TEST_STORAGE" != btrfs ] || down || status=1
  if [ -n "$(left)" ]; then
    say "still mounted or attached:"
    left >&2
    status=1
  fi
  exit "$status"
}

run() {
  export LODGE_TEST_STORAGE=$1
  shift
  case $LODGE_TEST_STORAGE in
    btrfs | overlay) ;;
    *) say "no storage driver: $LODGE_TEST_STORAGE"; exit 2 ;;
  esac
  tools
  trap finish EXIT
  [ "$LODGE_TEST_STORAGE" != btrfs ] || up
  "$@"
}

case ${1:-} in
  up | down | tools | run) "$@" ;;
  *) echo "usage: storage.sh up | down | tools | run DRIVER COMMAND..." >&2; exit 2 ;;
esac
