#!/usr/bin/env bash
# Breaks the product line by line, as the files beside this one say, and sees that the named test turns red each time.
# Names of breaks as arguments make only those.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --quiet -p lodge-tests --bin mutate
# Some breaks show on the storage driver btrfs alone.
tests/storage.sh run btrfs target/debug/mutate "$@"
