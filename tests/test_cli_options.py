#!/usr/bin/env python3
import os, subprocess
from help_cli import *

COMMANDS = "generate chat tokenize render perplexity inspect bench logits batch".split()


@test
def help_lists_every_command_and_each_command_its_options():
    text = good("--help").decode()
    for c in COMMANDS:
        assert f"\n  {c} " in text, c
        own = good(c, "--help").decode()
        assert own.startswith(f"usage: weft {c} ") and "\n  --" in own, own


@test
def the_version_is_one_line():
    equal(good("--version").decode().split()[0], "weft")


@test
def a_missing_or_unknown_command_is_an_error():
    bad("dance", says=["dance", "--help"])
    equal(weft().returncode, 1)


@test
def an_unknown_option_is_named_and_the_nearest_one_suggested():
    bad("inspect", TINY, "--verfy", says=["--verfy", "did you mean --verify"])
    bad("generate", TINY, "--tempature", "1", says=["--tempature", "did you mean --temperature"])
    bad("inspect", TINY, "--xyzzy", says=["--xyzzy", "--help"])


@test
def a_value_that_is_missing_or_wrong_is_named():
    bad("inspect", TINY, "--context", says=["--context", "wants a value"])
    bad("inspect", TINY, "--context", "many", says=["--context", "many"])
    bad("inspect", TINY, "--context", "0", says="--context")
    bad("inspect", TINY, "--threads", "-3", says="--threads")
    bad("inspect", TINY, "--precision", "medium", says=["default|high", "medium"])
    bad("inspect", TINY, "--plan=yes", says="takes no value")
    bad("inspect", says="too few arguments")
    bad("inspect", TINY, TINY, says="unexpected argument")


@test
def of_a_repeated_option_the_last_wins_and_sizes_are_powers_of_1024():
    for given, context in (("2k", 2048), ("1K", 1024), ("0.5M", 524288), ("777", 777)):
        o = good_json("inspect", TINY, "--json", "--context", "5", "-c", given)
        equal(o["memory"]["context"], context)
    equal(good_json("inspect", TINY, "--json", "--context=4k")["memory"]["context"], 4096)
    equal(good_json("inspect", TINY, "--json", "-c64")["memory"]["context"], 64)


@test
def behind_two_dashes_nothing_is_an_option():
    bad("inspect", "--", "--json", says="--json")


@test
def a_full_disk_or_a_reader_that_left_is_reported():
    for args in (["--help"], ["inspect", TINY], ["inspect", TINY, "--json"], ["tokenize", TINY, "hello", "--json"]):
        with open("/dev/full", "wb") as full:
            p = subprocess.run([WEFT, *args], stdout=full, stderr=subprocess.PIPE)
        assert p.returncode == 1 and b"standard output: No space left" in p.stderr, (args, p)
        r, w = os.pipe()
        os.close(r)
        p = subprocess.run([WEFT, *args], stdout=w, stderr=subprocess.PIPE)
        os.close(w)
        assert p.returncode == 1 and b"standard output: Broken pipe" in p.stderr, (args, p)


if __name__ == "__main__": main()
