#!/usr/bin/env python3
"""Every example does what its head says."""
import subprocess
from help_cli import *

BUILD = os.environ.get("BUILD_DIR", os.path.join(ROOT, "build"))
WHO = "I am a very small test model with the shape of a big one."


def example(name, *args):
    p = subprocess.run([os.path.join(BUILD, "example_" + name), TINY, *args], capture_output=True, timeout=120)
    assert p.returncode == 0, p.stderr
    return p.stdout.decode().splitlines()


@test
def hello_answers_a_question():
    equal(example("hello")[0], WHO)


@test
def taps_gives_the_rows_of_chosen_layers_and_the_head_agrees():
    lines = example("taps", "A text of some words.")
    equal([l.rpartition(":")[0] for l in lines[:4]], ["after layer 0", "after layer 4", "after layer 7", "after the final norm"])
    assert all(float(l.rpartition(":")[2]) > 0 for l in lines[:4])
    equal(lines[4], "the head gives the same logits")


@test
def spans_appends_known_tokens_and_the_model_fills_the_blank():
    equal(example("spans"), ["[You live in] Prague"])


@test
def embeddings_gives_the_answer_that_tokens_give():
    equal(example("embeddings"), [WHO, WHO])


@test
def an_example_with_a_wrong_folder_says_so():
    for name in ("hello", "taps", "spans", "embeddings"):
        p = subprocess.run([os.path.join(BUILD, "example_" + name), temp("nowhere")], capture_output=True, timeout=60)
        assert p.returncode == 1 and b"nowhere" in p.stderr, (name, p)


if __name__ == "__main__": main()
