"""Leaves, of what nextest knows of binaries, those that a list names, and prints the paths of all that they need.

usage: binaries.py LIST ALL.json CHOSEN.json
"""

import json
import os
import sys

names, everything, chosen = sys.argv[1:]
with open(names) as file:
    wanted = {line.strip() for line in file if line.strip() and not line.startswith("#")}
with open(everything) as file:
    known = json.load(file)
binaries = known["rust-binaries"]
if missing := wanted - set(binaries):
    sys.exit(f"there are no binaries {sorted(missing)}")
known["rust-binaries"] = {name: binaries[name] for name in wanted}
with open(chosen, "w") as file:
    json.dump(known, file)
build = known["rust-build-meta"]
target = build["target-directory"]
paths = {binary["binary-path"] for binary in known["rust-binaries"].values()}
paths |= {os.path.join(target, "debug", name) for name in ("lodge", "lodged")}
for programs in build["non-test-binaries"].values():
    paths |= {os.path.join(target, program["path"]) for program in programs if program["name"] in ("lodge", "launcher")}
print("\n".join(sorted(paths)))
