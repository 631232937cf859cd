#!/usr/bin/env python3
"""The recorded answers of the reference implementation, where they lie beside the repository."""
import subprocess
from help_cli import *


def goldens(*only):
    p = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "goldens.py"), shared("."), "--weft", WEFT, "--only", *only],
                       capture_output=True, text=True, timeout=900)
    rows = [l for l in p.stdout.splitlines() if l.startswith("| ") and not l.startswith("| what")]
    assert p.returncode == 0 and rows and "\n0 bars missed" in p.stdout, "\n".join(l for l in rows if "MISSED" in l) + p.stderr
    return len(rows)


@test
def small_models_of_every_shape_are_as_near_as_the_reference_in_bf16():
    assert goldens("micro ") >= 80


@test
def adapters_are_as_near_and_damaged_ones_are_refused():
    assert goldens("micro-lora") >= 30


if __name__ == "__main__": main()
