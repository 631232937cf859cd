#!/usr/bin/env python3
"""What README and the man page say is so."""
import re, shlex, subprocess
from help_cli import *

README = open(os.path.join(ROOT, "README.md")).read()


def commands(): return [l.split()[0] for l in good("--help").decode().splitlines() if l.startswith("  ")]


@test
def the_c_program_in_readme_is_the_example():
    program = re.search(r"```c\n(.*?)```", README, re.S).group(1)
    equal(program, open(os.path.join(ROOT, "examples", "hello.c")).read())


@test
def the_use_of_the_command_line_in_readme_prints_what_it_says():
    line, answer = re.search(r"    \$ build/weft (.*)\n    (.*)\n", README).groups()
    p = subprocess.run([WEFT, *shlex.split(line)], capture_output=True, cwd=ROOT)
    equal((p.returncode, p.stdout.decode()), (0, answer + "\n"))


@test
def every_command_and_file_that_readme_names_exists():
    for c in commands(): assert f"`weft {c}`" in README, c
    for c in re.findall(r"`weft ([a-z]+)`", README): assert c in commands(), c
    for path in re.findall(r"`((?:docs|examples|models)/[^`]*)`", README): assert os.path.exists(os.path.join(ROOT, path)), path


@test
def the_man_page_is_what_the_help_of_every_command_says():
    page = temp("weft.1")
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_man.py"), WEFT, page], check=True)
    equal(open(page).read() == open(os.path.join(ROOT, "docs", "weft.1")).read(), True, "run tools/make_man.py:")


if __name__ == "__main__": main()
