#!/usr/bin/env python3
"""Bad input, end to end: each gives one clear sentence and exit code 1; nothing crashes, hangs or answers anyway."""
import copy, struct
from help_cli import *

CONFIG = json.load(open(os.path.join(TINY, "config.json")))
TOKENIZER = json.load(open(os.path.join(TINY, "tokenizer.json")))


def weights():
    with open(os.path.join(TINY, "model.safetensors"), "rb") as f: data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]


HEADER, DATA = weights()
counter = 0


def folder(**files):
    global counter
    counter += 1
    return copy_tiny(f"m{counter}", **files)


def pack(header, data=None, n=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if n is None else n) + text + (DATA if data is None else data)


def refused(model, *says):
    for command in (["inspect", model], ["generate", model, "--tokens", "1,2", "--max-tokens", "1"]):
        bad(*command, says=says)


def with_tensor(name, change):
    header = copy.deepcopy(HEADER)
    change(header[name])
    return folder(model__safetensors=pack(header), model__safetensors__index__json=None)


def with_config(change):
    config = copy.deepcopy(CONFIG)
    change(config)
    return folder(config__json=json.dumps(config))


NAME = "language_model.model.layers.3.self_attn.q_proj.weight"


@test
def safetensors_that_are_cut_or_lie_are_refused():
    def model(content): return folder(model__safetensors=content, model__safetensors__index__json=None)
    whole = pack(HEADER)
    refused(model(b""), "model.safetensors")
    refused(model(whole[:7]), "model.safetensors")
    refused(model(whole[:500]), "model.safetensors")
    refused(model(whole[:-1000]), "model.safetensors")
    refused(model(pack(HEADER, n=1 << 62)), "model.safetensors", "header")
    refused(model(pack(b"{\"a\": ")), "model.safetensors")
    refused(model(pack(b"[]")), "model.safetensors")
    for change in (lambda t: t.update(data_offsets=[0, 1 << 60]), lambda t: t.update(data_offsets=[100, 50]),
                   lambda t: t.update(data_offsets=[t["data_offsets"][0] - 64, t["data_offsets"][1] - 64]),
                   lambda t: t.update(dtype="Q7"), lambda t: t.update(shape=[1 << 40, 1 << 40]), lambda t: t.update(shape=[-2, 64]),
                   lambda t: t.update(shape="wide"), lambda t: t.update(shape=[t["shape"][0], t["shape"][1] + 1]),
                   lambda t: t.pop("dtype"), lambda t: t.pop("data_offsets")):
        refused(with_tensor(NAME, change), NAME)


@test
def tensors_that_are_missing_doubled_or_misshapen_are_named():
    def without(name):
        header = {k: v for k, v in HEADER.items() if k != name}
        return folder(model__safetensors=pack(header), model__safetensors__index__json=None)
    refused(without(NAME), "layers.3.self_attn.q_proj")
    refused(without(NAME.replace(".weight", ".scales")), "layers.3.self_attn.q_proj")
    refused(without("language_model.model.norm.weight"), "norm.weight")
    doubled = dict(HEADER)
    doubled["model.norm.weight"] = dict(HEADER["language_model.model.layers.0.input_layernorm.weight"])
    doubled.pop("language_model.model.layers.0.input_layernorm.weight")
    refused(folder(model__safetensors=pack(doubled), model__safetensors__index__json=None), "norm.weight")
    stray = dict(HEADER)
    moved = stray.pop("vision_tower.patch_embed.proj.bias")
    stray["language_model.model.layers.3.self_attn.x_proj.weight"] = moved
    refused(folder(model__safetensors=pack(stray), model__safetensors__index__json=None), "x_proj")


@test
def an_index_must_be_satisfied():
    index = json.load(open(os.path.join(TINY, "model.safetensors.index.json")))
    missing = copy.deepcopy(index)
    missing["weight_map"][NAME] = "model-00002-of-00002.safetensors"
    refused(folder(model__safetensors__index__json=json.dumps(missing)), "model-00002-of-00002.safetensors")
    wrong = copy.deepcopy(index)
    wrong["weight_map"]["no.such.tensor"] = "model.safetensors"
    refused(folder(model__safetensors__index__json=json.dumps(wrong)), "no.such.tensor")
    away = copy.deepcopy(index)
    away["weight_map"][NAME] = "../model.safetensors"
    refused(folder(model__safetensors__index__json=json.dumps(away)), NAME)
    refused(folder(model__safetensors__index__json="{"), "index.json")


@test
def config_fields_that_are_missing_null_huge_or_negative_are_named():
    for field in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "head_dim", "linear_num_value_heads"):
        for value in (None, -1, 0, 1 << 40, "many", 1.5):
            def change(c): c["text_config"][field] = value
            if field == "head_dim" and value is None: continue  # legal: derived
            refused(with_config(change), field)
    for field in ("hidden_size", "num_hidden_layers", "vocab_size"):
        refused(with_config(lambda c: c["text_config"].pop(field)), field)
    refused(with_config(lambda c: c.update(model_type="llama")), "llama")
    refused(folder(config__json="{"), "config.json")
    refused(folder(config__json="[1]"), "config.json")
    refused(folder(config__json=None), "config.json")


@test
def a_folder_that_is_not_a_model_is_refused():
    os.makedirs(temp("empty"))
    refused(temp("empty"), "config.json")
    refused(temp("nowhere"), "nowhere")
    refused(write("file", "x"), "file")
    refused(folder(model__safetensors=None, model__safetensors__index__json=None), "safetensors")


@test
def a_value_that_is_not_finite_in_gains_or_scales_is_named():
    for name in ("language_model.model.norm.weight", "language_model.model.layers.3.self_attn.q_proj.scales",
                 "language_model.model.layers.0.linear_attn.A_log", "language_model.model.layers.0.linear_attn.dt_bias"):
        data = bytearray(DATA)
        at = HEADER[name]["data_offsets"][0]
        nan = struct.pack("<f", float("nan"))
        if HEADER[name]["dtype"] == "F32": data[at:at + 4] = nan
        else: data[at:at + 2] = nan[2:]
        model = folder(model__safetensors=pack(HEADER, bytes(data)), model__safetensors__index__json=None)
        bad("generate", model, "--tokens", "1,2", "--max-tokens", "1", says=name.split("language_model.model.")[1].replace(".scales", ""))


@test
def a_tokenizer_with_a_broken_merge_is_refused():
    t = copy.deepcopy(TOKENIZER)
    t["model"]["merges"][7] = "onlyone"
    model = folder(tokenizer__json=json.dumps(t))
    bad("generate", model, "--prompt", "hi", says=["tokenizer.json", "merge"])
    bad("tokenize", model, "hi", says=["tokenizer.json", "merge"])
    model = folder(tokenizer__json=None)
    bad("generate", model, "--prompt", "hi", says="tokenizer")
    good("generate", model, "--tokens", "1,2", "--max-tokens", "2", "--temperature", "0", "--raw", "--json")


@test
def a_template_that_loops_raises_or_is_missing_is_an_error_of_the_request():
    for text, word in (("{% for i in range(100000000) %}{% for j in range(100000000) %}x{% endfor %}{% endfor %}", ""),
                       ("{{ raise_exception('no such role') }}", "no such role"), ("{% if %}", ""), ("{{ messages[0 }}", ""),
                       ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "")):
        model = folder(chat_template__jinja=text)
        bad("generate", model, "--prompt", "hi", "--max-tokens", "1", says=word)
        good("generate", model, "--raw", "--prompt", "hi", "--max-tokens", "1", "--temperature", "0")
    bare = json.load(open(os.path.join(TINY, "tokenizer_config.json")))
    bare.pop("chat_template", None)
    model = folder(chat_template__jinja=None, tokenizer_config__json=json.dumps(bare))
    bad("generate", model, "--prompt", "hi", says="template")


@test
def a_prompt_that_is_empty_or_longer_than_the_context_is_refused():
    bad("generate", TINY, "--prompt", "", says="empty")
    bad("generate", TINY, "--raw", "--prompt", "one two three four five six", "-c", "4", says="4")
    bad("generate", TINY, "--tokens", "1,2,3,4,5", "-c", "4", says="4")
    bad("logits", TINY, "--tokens", "1,2,3,4,5", "-c", "4", "--out", temp("x"), says="4")


if __name__ == "__main__": main()
