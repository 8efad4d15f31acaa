# A git repository of more than 5,000 files in three commits, as a tar of it without a work tree. Always the same.
import os, random, subprocess, sys

chance = random.Random(4)


def git(*arguments):
    subprocess.run(["git", *arguments], check=True, stdout=subprocess.DEVNULL)


def commit(subject):
    git("add", "--all")
    git("commit", "--quiet", "--message", subject)


def write(path, size):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        while file.tell() < size:
            file.write(f"{chance.getrandbits(64):016x} of {path}\n")


os.mkdir("origin")
os.chdir("origin")
git("init", "--quiet", "--initial-branch", "main")
paths = [f"part{n % 40}/of {n % 7}/sub/ä{n % 3}/file{n}.txt" for n in range(5200)]
for n, path in enumerate(paths):
    write(path, chance.choice([0, 100, 1000, 9000]))
    if n % 10 == 0:
        os.chmod(path, 0o755)
for n in range(50):
    os.symlink(f"../{paths[n]}" if n % 2 else "nowhere", f"part{n % 40}/link{n}")
commit("the first one")
for path in paths[:300]:
    write(path, 2000)
for path in paths[300:350]:
    os.remove(path)
commit("some are other, some are gone")
for n, path in enumerate(paths[400:500]):
    os.rename(path, f"{path}.moved")
os.rename("part1", "moved1")
commit("some have other names")
git("repack", "-q", "-a", "-d")
os.chdir("..")
git("clone", "--quiet", "--bare", "origin", "origin.git")
subprocess.run(["tar", "--create", "origin.git"], check=True, stdout=sys.stdout)
