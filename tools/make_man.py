#!/usr/bin/env python3
"""Writes docs/weft.1 from what `weft --help` and `weft COMMAND --help` print: make_man.py [WEFT] [OUT]."""
import os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
WEFT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "build", "weft")
OUT = sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "..", "docs", "weft.1")


def said(*args): return subprocess.run([WEFT, *args], capture_output=True, text=True, check=True).stdout
def plain(text): return re.sub(r"(?m)^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-").replace(chr(34), "\\(dq"))


def options(block):
    """(option with its value, help) of one group."""
    out = []
    for line in block:
        if line.startswith("  -"):
            head, _, tail = line[2:].partition("  ")
            out.append([head.strip(), tail.strip()])
        else: out[-1][1] += " " + line.strip()
    return [(a, b.strip()) for a, b in out]


def command(name, summary, groups):
    text = said(name, "--help").rstrip("\n").split("\n\n")
    usage = text[0].removeprefix("usage: ")
    page = [f".SS {name}", ".B " + plain(usage.replace("\n", " ")), ".PP", plain(" ".join(text[1].split()))]
    for part in text[2:]:
        title, *block = part.split("\n")
        key = (title, tuple(block))
        if title in SHARED: groups.setdefault(key, []).append(name); continue
        page.append(".PP\n" + plain(title) + ":")
        for option, help in options(block): page += [".TP", ".B " + plain(option), plain(help) or "\\&"]
    return page


SHARED = {"Model", "Memory, adapters, speculation", "Sampling (by default what the model's generation_config.json says)"}
version = said("--version").split()[1]
commands = [line.split(None, 1) for line in said("--help").splitlines() if re.match(r"  [a-z]", line)]
groups, body = {}, []
for name, summary in commands: body += command(name, summary, groups)
page = [f'.TH WEFT 1 "" "weft {version}" "User Commands"', ".SH NAME", "weft \\- run language models of the Qwen3.5 family",
        ".SH SYNOPSIS", ".B weft", ".I command", "[options]", ".SH DESCRIPTION",
        "weft reads checkpoints as they are published (Hugging Face or MLX layout), by folder or by a Hub name that is in the local",
        "cache, and answers prompts, chats, measures and inspects. The answer to a request does not depend on how its prompt was cut,",
        "on what else runs, on the number of threads, on the prefix cache or on drafting.", ".SH COMMANDS"]
for name, summary in commands: page += [".TP", f".B {name}", plain(summary)]
page += [".SH THE COMMANDS IN DETAIL"] + body
for (title, block), names in groups.items():
    page += [f".SH OPTIONS: {title.split(' (')[0].upper()}", "Of: " + ", ".join(dict.fromkeys(names)) + "."]
    for option, help in options(block): page += [".TP", ".B " + plain(option), plain(help)]
page += [".SH VALUES", "Sizes and counts take k, M and G, powers of 1024. Of a repeated option the last wins, except for those that",
         "\\(lqmay be repeated\\(rq.", ".SH ENVIRONMENT", ".TP", ".B HF_HUB_CACHE, HF_HOME",
         "Where the Hugging Face cache lies; by default ~/.cache/huggingface/hub.", ".TP", ".B TMPDIR",
         "Where random models for benchmarks are written when they do not fit in memory.", ".SH EXIT STATUS",
         "0, or 1 after an error, which one sentence on standard error names.", ".SH FILES",
         "config.json, model*.safetensors, tokenizer.json, chat_template.jinja, generation_config.json, kv_config.json: a model's folder."]
with open(OUT, "w") as f: f.write("\n".join(page) + "\n")
