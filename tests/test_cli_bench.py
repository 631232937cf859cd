#!/usr/bin/env python3
from help_cli import *


@test
def only_the_tests_named_are_run_and_each_has_its_row():
    o = good_json("bench", TINY, "--pp", "32,64", "--depth", "0,40", "--repeat", "1", "--json")
    equal([(r["test"], r["n"], r["depth"], r["batch"]) for r in o["rows"]],
          [("pp", 32, 0, 1), ("pp", 32, 40, 1), ("pp", 64, 0, 1), ("pp", 64, 40, 1)])
    o = good_json("bench", TINY, "--tg", "4", "--batch", "1,3", "--repeat", "1", "--json")
    equal([(r["test"], r["n"], r["depth"], r["batch"]) for r in o["rows"]], [("tg", 4, 0, 1), ("tg", 4, 0, 3)])
    for r in o["rows"]: assert r["tok_per_s"] > 0 and 0 < r["fraction"] < 2, r
    assert o["machine"]["read_gb_per_s"] > 0 and o["machine"]["threads"] >= 1, o["machine"]
    assert b"tok/s" in good("bench", TINY, "--tg", "2", "--repeat", "1")


@test
def a_random_model_is_written_as_a_checkpoint_that_runs():
    for repr, name in (("bf16", "random:0.8b,repr=bf16,layers=2"), ("affine3", "random:0.8b,repr=affine3,group=128,layers=4"),
                       ("experts", "random:35b-a3b,repr=affine2,group=128,layers=1")):
        folder = temp(repr)
        equal(good("bench", name, "--write", folder), b"")
        equal(sorted(os.listdir(folder)), ["config.json", "generation_config.json", "model.safetensors"])
        o = good_json("inspect", folder, "--json")
        equal((o["config"]["vocab"], o["skipped_tensors"], o["skipped_files"]), (248320, [], []))
        equal("experts" in repr, o["config"]["experts"] == 256)
        bits = {"bf16": 16, "affine3": 3.25, "experts": 2.25}[repr]
        assert abs(o["bits_per_weight"] - bits) < 0.05, o["bits_per_weight"]
        out = temp("logits.safetensors")
        good("logits", folder, "--tokens", "1,2,3", "--out", out, "--memory", "4G")
        x = floats(read_safetensors(out)["logits"])
        assert all(abs(v) < 100 for v in x) and max(x) - min(x) > 0.1
        bad("bench", name, "--write", folder, says="already")
        shutil.rmtree(folder)
    before = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    o = good_json("bench", "random:0.8b,layers=1", "--tg", "2", "--repeat", "1", "--json")
    equal(len(o["rows"]), 1)
    after = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    equal([x for x in after if x.startswith("weft-random") and x not in before], [])


@test
def a_geometry_or_setting_that_does_not_exist_is_named():
    bad("bench", "random:5b", says="0.8b")
    bad("bench", "random:0.8b,repr=affine7", says="affine7".replace("7", "8"))
    bad("bench", "random:0.8b,group=48", says="48")
    bad("bench", "random:0.8b,layers=25", says="24")
    bad("bench", "random:0.8b,colour=red", says="colour")
    bad("bench", TINY, "--write", temp("w"), says="random")
    bad("bench", TINY, "--tg", "0", says="--tg")
    bad("bench", TINY, "--batch", "x", says="--batch")


if __name__ == "__main__": main()
