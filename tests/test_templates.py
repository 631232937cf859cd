#!/usr/bin/env python3
"""`weft render` prints what jinja2 makes of the same template, for the bundled template and those in tests/templates.

Needs jinja2 and the goldens beside the repository; without either it has nothing to compare with and passes."""
import os, shutil, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
check = os.path.join(here, "..", "..", "shared", "goldens", "template", "check_templates.py")
try:
    import jinja2  # noqa: F401
except ImportError:
    sys.exit(print("skipped: no jinja2 here"))
if not os.path.exists(check):
    sys.exit(print("skipped: no goldens here"))
weft = os.environ.get("WEFT", os.path.join(here, "..", "build", "weft"))
with tempfile.TemporaryDirectory() as tmp:
    shutil.copytree(os.path.join(here, "templates"), tmp, dirs_exist_ok=True)
    shutil.copy(os.path.join(here, "..", "models", "tiny", "chat_template.jinja"), os.path.join(tmp, "tiny.jinja"))
    run = subprocess.run([sys.executable, check, tmp, "--weft", weft, "--verbose"], capture_output=True, text=True)
print(run.stdout[-4000:], run.stderr[-2000:])
ok = run.returncode == 0 and "3 templates" in run.stdout and "with another text" not in run.stdout and "whose text differs" not in run.stdout
sys.exit(0 if ok else 1)
