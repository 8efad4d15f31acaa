# A C project, as a tar of it: a static and a shared library of 60 files, and a program that tests them. Always the same.
import os, subprocess, sys

FILES = 60
MAKEFILE = """
CFLAGS := -O1 -g -fPIC -Wall -Werror -MMD
OBJECTS := $(patsubst %.c,%.o,$(wildcard part*.c))
all: program program-shared
libparts.a: $(OBJECTS)
\t$(AR) rcs $@ $^
libparts.so: $(OBJECTS)
\t$(CC) -shared -o $@ $^
program: main.o libparts.a
\t$(CC) -o $@ main.o libparts.a
program-shared: main.o libparts.so
\t$(CC) -o $@ main.o -L. -lparts -Wl,-rpath,$(CURDIR)
check: all
\t./program && ./program-shared
-include $(wildcard *.d)
.PHONY: all check
"""

os.mkdir("project")
os.chdir("project")
with open("Makefile", "w") as out:
    out.write(MAKEFILE.lstrip())
with open("shared.h", "w") as out:
    out.write("#define STEP 3\n")
with open("parts.h", "w") as out:
    out.writelines(f"long part{n}(long x);\n" for n in range(FILES))
for n in range(FILES):
    with open(f"part{n}.c", "w") as out:
        out.write('#include "parts.h"\n')
        if n % 4 == 0:
            out.write('#include "shared.h"\n')
        out.write(f"static const char name[] = __FILE__;\nlong part{n}(long x) {{\n  long sum = x;\n")
        step = "STEP" if n % 4 == 0 else n
        out.write(f"  for (const char *c = name; *c; c++) sum = sum * 31 + *c + {step};\n  return sum;\n}}\n")
with open("main.c", "w") as out:
    out.write('#include <stdio.h>\n#include "parts.h"\nint main(void) {\n  long x = 1;\n')
    out.writelines(f"  x = part{n}(x) % 1000003;\n" for n in range(FILES))
    out.write('  return printf("%ld\\n", x) < 0;\n}\n')
os.chdir("..")
subprocess.run(["tar", "--create", "project"], check=True, stdout=sys.stdout)
