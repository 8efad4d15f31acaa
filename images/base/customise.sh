#!/bin/sh
# Runs on the host after the packages are in; $1 is the root file system. Makes the user that runs get by default.
set -eu
root=$1

chroot "$root" useradd --uid 1000 --user-group --create-home --shell /bin/bash user

# Root inside a sandbox is an unprivileged user of the host, so the agent may have it for the asking.
echo 'user ALL=(ALL) NOPASSWD: ALL' > "$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"
