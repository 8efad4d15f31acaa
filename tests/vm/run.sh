#!/usr/bin/env bash
# Runs tests in a virtual machine that has what this host may not have: Debian's own kernel, version 2 of cgroups alone, and a root
# with every capability. No KVM is needed: qemu interprets, and everything takes ten times as long.
# The kernel and the disk are made under target/vm; nothing of it is installed. The machine has no network.
#
# usage: run.sh [FILTER]   (of nextest; without, what tests/vm/tests says)
set -euo pipefail

readonly HERE=$(cd "$(dirname "$0")/../.." && pwd)
readonly VM=$HERE/target/vm TESTS=$HERE/tests/vm
readonly FEATURES=lodged/fault-points
readonly KERNEL=linux-image-cloud-amd64
# Needed to see the disk, each after those that it needs.
readonly DISK_MODULES="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk"
readonly MODULES="loop overlay"
readonly DISK_BYTES=8G    # sparse
readonly MEMORY=3G
readonly SECONDS_MAX=1200 # of a machine that hangs

say() { printf 'vm: %s\n' "$*" >&2; }

# The package that the current one of Debian's cloud kernels depends on, unpacked.
kernel() {
  local package
  package=$(apt-cache depends "$KERNEL" | sed -n 's/.*Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
  [ -n "$package" ] || { say "$KERNEL is not among the distribution's packages: apt-get update"; exit 1; }
  if [ -e "$VM/kernel/$package" ]; then
    return
  fi
  rm -rf "$VM/kernel" && mkdir -p "$VM/kernel"
  (cd "$VM/kernel" && apt-get -o APT::Sandbox::User=root download --quiet=2 "$package" && dpkg -x "$package"_*.deb . && rm "$package"_*.deb)
  touch "$VM/kernel/$package"
}

module() { find "$VM/kernel/lib/modules" -name "$1.ko"; }

# Finds the disk and goes on there.
initramfs() {
  local dir=$VM/initramfs name
  rm -rf "$dir" && mkdir -p "$dir"/{bin,mnt,modules}
  cp "$(command -v busybox)" "$dir/bin/busybox"
  for name in $DISK_MODULES; do cp "$(module "$name")" "$dir/modules/"; done
  {
    echo '#!/bin/busybox sh'
    echo '/bin/busybox mkdir -p /proc /dev'
    echo '/bin/busybox mount -t devtmpfs none /dev'
    for name in $DISK_MODULES; do echo "/bin/busybox insmod /modules/$name.ko"; done
    echo 'while [ ! -b /dev/vda ]; do /bin/busybox sleep 0.1; done'
    echo '/bin/busybox mount -t ext4 -o noatime /dev/vda /mnt'
    echo 'exec /bin/busybox switch_root /mnt /vm/init'
  } >"$dir/init"
  chmod +x "$dir/init"
  (cd "$dir" && find . | cpio --quiet --create --format=newc) | gzip -1 >"$VM/initramfs.gz"
}

# The tests' image, imported: in the machine that would take two minutes.
image() {
  [ -e "$HERE/target/test-images/stamp" ] ||
    (cd "$HERE" && tests/storage.sh run overlay cargo nextest run --workspace --features "$FEATURES" -E 'test(=attack_p24_oom_score)')
}

# The base image with this checkout at its own path: what tests were told when they were built is true there.
disk() {
  local root=$VM/root file name
  rm -rf "$root" && mkdir -p "$root/vm/modules" "$root$HERE/target/images"
  tar --extract --file "$HERE/target/images/base.tar" --directory "$root"
  (cd "$HERE" && git ls-files -z | cpio --quiet --null --pass-through --make-directories --preserve-modification-time "$root$HERE")
  # The stamp of an image tells its archive by its time, of which this disk keeps whole seconds.
  for file in base.tar base.tar.recipe; do
    cp "$HERE/target/images/$file" "$root$HERE/target/images/"
    touch --date "@$(stat --format %Y "$HERE/target/images/$file")" "$root$HERE/target/images/$file"
  done
  cp -a "$HERE/target/test-images" "$root$HERE/target/"
  printf '%s 0' "$(stat --format '%s %Y' "$HERE/target/images/base.tar")" >"$root$HERE/target/test-images/stamp"
  for name in $MODULES; do cp "$(module "$name")" "$root/vm/modules/"; done
  cp "$(command -v busybox)" "$root/vm/busybox"
  cp "$(command -v cargo-nextest)" "$root/vm/nextest"
  cp "$TESTS/init" "$root/vm/init"
  printf "%s\n" "$1" >"$root/vm/filter"
  printf "%s\n" "$HERE" >"$root/vm/workspace"
  binaries "$root"
  rm -f "$VM/disk.img"
  mke2fs -q -t ext4 -O ^has_journal -d "$root" "$VM/disk.img" "$DISK_BYTES"
}

# The tests' binaries and lodged, without what only a debugger wants, and what nextest has to know of them.
binaries() {
  local root=$1 binary
  (cd "$HERE" && cargo metadata --format-version 1) >"$root/vm/metadata.json"
  (cd "$HERE" && cargo nextest list --workspace --features "$FEATURES" --list-type binaries-only --message-format json) \
    >"$root/vm/all.json"
  python3 "$TESTS/binaries.py" "$TESTS/binaries" "$root/vm/all.json" "$root/vm/binaries.json" |
    while read -r binary; do
      mkdir -p "$root$(dirname "$binary")"
      strip --strip-debug -o "$root$binary" "$binary"
    done
  rm "$root/vm/all.json"
}

machine=
stop() { [ -z "$machine" ] || kill "$machine" 2>/dev/null || true; }
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

boot() {
  local log=$VM/console.log
  timeout "$SECONDS_MAX" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "$MEMORY" \
    -nodefaults -no-reboot -display none -net none -serial stdio \
    -kernel "$VM"/kernel/boot/vmlinuz-* -initrd "$VM/initramfs.gz" -append 'console=ttyS0 quiet loglevel=3 panic=-1' \
    -drive "file=$VM/disk.img,format=raw,if=virtio,cache=unsafe" </dev/null >"$log" 2>&1 &
  machine=$!
  local status=0
  wait "$machine" || status=$?
  machine=
  # As it was written, without the carriage returns of a serial line.
  tr -d '\r' <"$log" | sed '/^vm: exit/d; /reboot: Power down/d; /^$/N; /^\n$/D'
  [ "$status" -eq 0 ] || { say "the machine was ended after $SECONDS_MAX s, or qemu failed ($status): $log"; exit 1; }
  grep --quiet --text '^vm: exit 0' "$log"
}

[ "$(uname -m)" = x86_64 ] || { say "the machine is an x86_64"; exit 1; }
mkdir -p "$VM"
say "making the disk"
kernel
initramfs
image
disk "${1:-$(sed '/^#/d; /^$/d' "$TESTS/tests" | paste --serial --delimiters ' ')}"
say "booting"
boot
