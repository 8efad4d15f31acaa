# What lies below a directory, a line each: kind, mode, owner, and of files links, size and hash. Times are left out, and of
# directories what each file system counts in its own way. Arguments: the directory, then names to leave out.
import hashlib, os, stat, sys

top, left_out = sys.argv[1], set(sys.argv[2:])


def line(path):
    meta = os.lstat(path)
    kind = stat.filemode(meta.st_mode)
    said = [os.path.relpath(path, top), kind, str(meta.st_uid), str(meta.st_gid)]
    if stat.S_ISLNK(meta.st_mode):
        said += ["->", os.readlink(path)]
    elif stat.S_ISREG(meta.st_mode):
        with open(path, "rb") as file:
            said += [str(meta.st_nlink), str(meta.st_size), hashlib.sha256(file.read()).hexdigest()]
    return " ".join(said)


for directory, below, files in os.walk(top):
    below[:] = sorted(name for name in below if name not in left_out)
    for name in sorted(below + [name for name in files if name not in left_out]):
        print(line(os.path.join(directory, name)))
