#!/usr/bin/env bash
# Installs what a make target needs from the distribution's packages. Quick and silent where all is there.
# Does not install Rust itself, and never adds a package source.
#
# usage: deps.sh build | image | python | faults | storage | vm | redteam | fuzz | bench-peers ...
set -euo pipefail

packages_of() {
  case $1 in
    # A C compiler and linker: zstd's library is C, and rustc links with cc.
    build) echo gcc libc6-dev ca-certificates ;;
    # A root file system from the distribution's packages.
    image) echo mmdebstrap ;;
    # The test that generates a Python client.
    python) echo python3 python3-pip python3-venv ;;
    # The tests that have single system calls fail, or the daemon die in one.
    faults) echo strace ;;
    # Pools and layers with a limit, and what the tests see of their devices and mounts.
    storage) echo btrfs-progs e2fsprogs mount util-linux ;;
    # The machine in which tests run on another kernel, and what makes its disk.
    vm) echo qemu-system-x86 busybox-static cpio e2fsprogs binutils python3 ;;
    # libFuzzer is C++.
    fuzz) echo g++ ;;
    # What the catalogue of attacks is tried against beside Lodge.
    redteam) echo bubblewrap runc ;;
    # What the bench measures against.
    bench-peers) echo docker.io containerd runc curl ;;
    *) echo "deps: unknown group '$1'" >&2; exit 2 ;;
  esac
}

installed() {
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=()
for group in "$@"; do
  packages=$(packages_of "$group")
  for package in $packages; do
    installed "$package" || missing+=("$package")
  done
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "deps: not a Debian or Ubuntu host; make sure that it has what these packages bring: ${missing[*]}" >&2
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "deps: missing packages: ${missing[*]}" >&2
  echo "hint: run this as root, or: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "deps: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" >/dev/null
