#!/usr/bin/env python3
import shutil
from help_cli import *


@test
def inspect_tells_what_the_bundled_model_is():
    o = good_json("inspect", TINY, "--json")
    c = o["config"]
    equal((c["hidden"], c["layers"], c["vocab"], c["ends"]), (512, 8, 12288, [12002, 12000]))
    forms = {(f["name"], f["bits"], f["group"]): f for f in o["representations"]}
    equal(sorted(forms), [("affine", 4, 64), ("affine", 6, 64), ("affine", 8, 64)])
    equal(forms["affine", 4, 64]["bits_per_weight"], 4.5)
    equal(sum(f["parameters"] for f in forms.values()), o["parameters"])
    assert "folded" in o["norms"]["text"] and "folded" in o["norms"]["mtp_final"], o["norms"]
    assert all(t["name"].startswith("visual.") for t in o["skipped_tensors"]) and len(o["skipped_tensors"]) > 10
    m = o["memory"]
    equal(m["total_bytes"], sum(m[k] for k in ("packed_bytes", "mapped_bytes", "workspace_bytes", "state_bytes", "kv_bytes",
                                              "program_bytes")))
    for word in ("affine 4/64", "bits a weight", "packed weights", "visual.*", "folded"):
        assert word in good("inspect", TINY).decode(), word


@test
def memory_grows_with_the_context_and_shrinks_with_fewer_bits():
    def at(*more): return good_json("inspect", TINY, "--json", *more)["memory"]
    short, long = at("-c", "1k"), at("-c", "32k")
    equal(long["kv_bytes"] / short["kv_bytes"], 32)
    equal(short["kv_bytes_per_token"], 2 * 2 * 2 * 256 * 2)  # two attention layers, K and V, two heads, bf16
    assert at("-c", "32k", "--kv-bits", "8")["kv_bytes"] < 0.6 * long["kv_bytes"]
    assert at("-c", "32k", "--kv-bits", "turbo:k4v3")["kv_bytes"] < 0.4 * long["kv_bytes"]
    bad("inspect", TINY, "--kv-bits", "7", says=["--kv-bits", "7"])


@test
def the_process_takes_what_inspect_says():
    tokens = ",".join(str(i * 7919 % 12000) for i in range(3000))
    for kv in ("16", "turbo:k4v3"):
        said = good_json("inspect", TINY, "--json", "-c", "3000", "--kv-bits", kv)["memory"]["total_bytes"]
        took = good_json("generate", TINY, "--tokens", tokens, "--raw", "--json", "--max-tokens", "0", "-c", "3000", "--kv-bits", kv)["peak_bytes"]
        assert abs(took / said - 1) < 0.1, (kv, took, said)  # pages of 2 MiB weigh on so small a model


@test
def the_plan_names_arithmetic_and_kernels_of_every_matrix():
    text = good("inspect", TINY, "--plan", "--isa", "portable").decode()
    for word in ("arithmetic", "portable", "row classes", "self_attn.q_proj", "71 matrices"):
        assert word in text, word
    assert "plan" in good_json("inspect", TINY, "--plan", "--json")


@test
def every_tensor_is_listed_on_demand():
    o = good_json("inspect", TINY, "--tensors", "--json")
    names = {t["name"] for t in o["tensors"]}
    assert "layers.3.self_attn.q_proj.scales" in names and "mtp.fc.weight" in names, sorted(names)[:5]


@test
def verify_finds_a_value_in_place_that_is_not_finite():
    assert "finite" in good("inspect", TINY, "--verify").decode()
    folder = temp("damaged")
    shutil.copytree(shared("checkpoints/micro/f16"), folder)
    path = folder + "/model.safetensors"
    os.chmod(path, 0o644)
    tensors = read_safetensors(path)
    name = "model.layers.1.mlp.up_proj.weight"
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, data[:100] + b"\x00\x7e" + data[102:])
    write_safetensors(path, tensors)
    good("inspect", folder)  # used in place: opening does not look
    p = weft("inspect", folder, "--verify")
    assert p.returncode == 1 and name.encode() in p.stdout and b"1 of" in p.stderr, p


@test
def a_hub_name_is_found_in_the_cache_or_the_download_command_given():
    hub = temp("hub")
    snapshot = hub + "/models--org--small/snapshots/abc"
    os.makedirs(hub + "/models--org--small/refs")
    os.makedirs(os.path.dirname(snapshot))
    os.symlink(TINY, snapshot)
    with open(hub + "/models--org--small/refs/main", "w") as f: f.write("abc")
    equal(good_json("inspect", "org/small", "--json", env={"HF_HUB_CACHE": hub})["config"]["hidden"], 512)
    home = temp("home")
    os.makedirs(home)
    os.symlink(hub, home + "/hub")
    equal(good_json("inspect", "org/small", "--json", env={"HF_HOME": home, "HF_HUB_CACHE": ""})["config"]["hidden"], 512)
    bad("inspect", "org/other", says=["org/other", "hf download org/other"], env={"HF_HUB_CACHE": hub})
    good("tokenize", "org/small", "hello", env={"HF_HUB_CACHE": hub})


if __name__ == "__main__": main()
