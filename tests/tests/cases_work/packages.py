# A set of Python packages that need each other, as a tar of `archives`: wheels, and a source archive that pip has to build.
# Always the same.
import base64, hashlib, io, os, sys, tarfile, zipfile

MODULES = 120


def modules(name, uses):
    said = "".join(f"import {other}\n" for other in uses)
    total = " + ".join(f"m{n}.value()" for n in range(MODULES))
    imported = ", ".join(f"m{n}" for n in range(MODULES))
    yield f"{name}/__init__.py", f"{said}from {name}.sub import {imported}\n\ndef total():\n    return {total}\n"
    yield f"{name}/sub/__init__.py", ""
    yield f"{name}/data/text.txt", "text\n" * 1000
    for n in range(MODULES):
        yield f"{name}/sub/m{n}.py", f"def value():\n    return {n}\n"


def needs(uses):
    return "".join(f"Requires-Dist: {other} >= 1.0\n" for other in uses)


def wheel(name, uses, script):
    info = f"{name}-1.2.dist-info"
    files = dict(modules(name, uses))
    if script:
        files[f"{name}/main.py"] = script
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}.main:main\n"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n{needs(uses)}"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(f"archives/{name}-1.2-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as out:
        for path, text in files.items():
            out.writestr(path, text)


def source(name):
    files = dict(modules(name, []))
    files["setup.py"] = (
        f"from setuptools import find_packages, setup\n"
        f"setup(name='{name}', version='1.2', packages=find_packages(), package_data={{'{name}': ['data/*']}})\n"
    )
    files["PKG-INFO"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"
    with tarfile.open(f"archives/{name}-1.2.tar.gz", "w:gz") as out:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-1.2/{path}")
            member.size, member.mode = len(text), 0o644
            out.addfile(member, io.BytesIO(text.encode()))


os.mkdir("archives")
source("dawn")
wheel("noon", ["dawn"], "")
for n in range(6):
    wheel(f"hour{n}", ["noon"], "")
hours = [f"hour{n}" for n in range(6)]
wheel("dusk", hours, f"import dusk, {', '.join(hours)}\n\ndef main():\n    print(dusk.total() + hour5.total())\n")
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as out:
    out.add("archives")
