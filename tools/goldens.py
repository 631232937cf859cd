#!/usr/bin/env python3
"""Runs the weft command over recorded answers of the reference implementation and prints one table.

    goldens.py SHARED [--weft build/weft] [--only WORD ...] [--isa NAME] [--threads N]

SHARED holds checkpoints/ and goldens/. Each row: what was compared, weft's figure, the bar, the reference's own bf16 error where
there is one, verdict. Exit code 1 when a bar is missed. Standard library only.
"""
import argparse, array, json, math, os, shutil, struct, subprocess, sys, tempfile

MICRO = "text-tied vl-mtp odd f16 moe moe-split mlx-mixed mlx-prefix mlx-moe".split()
LORA_TINY = {"shout": ["shout"], "short": ["short"], "stacked": ["shout", "short"], "shout@0.5": ["shout=0.5"]}
failures = []


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("shared")
    p.add_argument("--weft", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "weft"))
    p.add_argument("--only", nargs="*", default=[], help="rows whose name holds one of these words")
    p.add_argument("--isa")
    p.add_argument("--threads")
    return p.parse_args()


def wanted(name): return not args.only or any(w in name for w in args.only)


def row(name, ours, bar="", bf16="", ok=True):
    """One line of the table; figures as text."""
    if not ok: failures.append(name)
    print(f"| {name} | {ours} | {bar} | {bf16} | {'ok' if ok else 'MISSED'} |", flush=True)


def figure(name, ours, bar, bf16=""):
    row(name, f"{ours:.3g}", f"{bar:.3g}", f"{bf16:.3g}" if bf16 != "" else "", ours <= bar)


def weft(command, *rest, check=True):
    more = (["--isa", args.isa] if args.isa else []) + (["--threads", args.threads] if args.threads else [])
    p = subprocess.run([args.weft, command, *map(str, rest), *more], capture_output=True)
    if check and p.returncode != 0:
        raise RuntimeError(f"weft {command} {' '.join(map(str, rest))}: {p.stderr.decode(errors='replace').strip()}")
    return p


def read(path):
    """name: (dtype, shape, bytes)"""
    with open(path, "rb") as f: data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            out[name] = (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
    return out


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values(): f.write(data)


def values(t):
    dtype, _, data = t
    if dtype == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return array.array("f", bytes(wide))
    return array.array({"F32": "f", "I32": "i"}[dtype], data)


def error(x, ref):
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(x, ref)) / math.fsum(b * b for b in ref))


def ids(x): return ",".join(map(str, x))


def temp(name, text=None):
    path = os.path.join(folder, name)
    if text is not None:
        with open(path, "w") as f: f.write(text)
    return path


def logits(model, tokens, *more):
    out = temp("out.safetensors")
    weft("logits", model, "--tokens-file", temp("tokens", ids(tokens)), "--out", out, *more)
    return read(out)


def checkpoint(path): return os.path.join(args.shared, "checkpoints", path)
def golden(path): return os.path.join(args.shared, "goldens", path)
def read_json(path):
    with open(path) as f: return json.load(f)


# ---- the micro models ----

def micro(name):
    model, about = checkpoint("micro/" + name), read_json(golden(f"model/{name}.json"))
    g = read(golden("model/" + about["golden"]))
    if "noise" not in about: about = read_json(golden("model/" + about["golden"].replace(".safetensors", ".json")))
    is_f32 = name == "odd"
    for n in about["prompts"]:
        tokens, noise = values(g[f"prompt.{n}"]), about["noise"][str(n)]["bf16"]["rel"]
        bar = 1e-4 if is_f32 else noise
        taps = n == 17
        layers = g["taps.17.f32"][1][0]
        more = ["--taps", ids(range(layers))] if taps else []
        if f"mtp.{n}.f32" in g: more.append("--mtp")
        t = logits(model, tokens, "--precision", "high", *more)
        figure(f"{name} {n} logits", error(values(t["logits"]), values(g[f"logits.{n}.f32"])), bar, noise)
        if taps:
            ours = array.array("f")
            for i in range(layers): ours += values(t[f"tap.{i}"])[-t[f"tap.{i}"][1][1]:]
            figure(f"{name} {n} taps", error(ours, values(g["taps.17.f32"])), bar, noise)
        if f"mtp.{n}.f32" in g: figure(f"{name} {n} mtp", error(values(t["mtp"]), values(g[f"mtp.{n}.f32"])), bar, noise)
        if name.startswith("mlx"):
            row(f"{name} {n} logits, int8 inputs",
                f"{error(values(logits(model, tokens)['logits']), values(g[f'logits.{n}.f32'])):.3g}", "", f"{noise:.3g}")
        greedy(name, model, n, tokens, g)
    noise = about["noise"]["130"]["bf16"]["rel"]
    for what in ("offset", "gap"):
        if what + ".f32" not in g: continue
        f = temp("positions", ids(values(g[what + ".positions"])))
        t = logits(model, values(g["prompt.130"]), "--precision", "high", "--positions", f)
        figure(f"{name} 130 {what}", error(values(t["logits"]), values(g[what + ".f32"])), noise, noise)
    if "image.prompt" in g: image(name, model, g, about)


def greedy(name, model, n, tokens, g):
    """Equal up to the first step whose margin is within the noise."""
    p = weft("generate", model, "--tokens-file", temp("tokens", ids(tokens)), "--raw", "--ignore-eos", "--max-tokens", 48,
             "--temperature", 0, "--precision", "high", "--json")
    ours, ref = json.loads(p.stdout)["tokens"], list(values(g[f"greedy.{n}"]))
    margin, noise = values(g[f"greedy.{n}.margin"]), values(g[f"greedy.{n}.noise"])
    same = next((i for i, (a, b) in enumerate(zip(ours, ref)) if a != b), len(ref))
    firm = next((i for i, (m, x) in enumerate(zip(margin, noise)) if m <= x), len(ref))
    row(f"{name} {n} greedy", f"{same} of {len(ref)} equal", f"{firm}", "", same >= firm and len(ours) == len(ref))


def image(name, model, g, about):
    """Every row given as an embedding: image rows from the golden's tower, text rows from the file; three position axes."""
    prompt, features = values(g["image.prompt"]), values(g["image.features.f32"])
    hidden = g["image.features.f32"][1][1]
    config = read_json(os.path.join(model, "config.json"))
    index = read_json(os.path.join(model, "model.safetensors.index.json"))["weight_map"]
    key = next(k for k in index if k.endswith("embed_tokens.weight"))
    table = values(read(os.path.join(model, index[key]))[key])
    rows, at = array.array("f"), 0
    for t in prompt:
        if t == config["image_token_id"]: rows += features[at * hidden:(at + 1) * hidden]; at += 1
        else: rows += table[t * hidden:(t + 1) * hidden]
    write(temp("rows.safetensors"), {"embeddings": ("F32", [len(prompt), hidden], rows.tobytes())})
    n = len(prompt)
    positions = values(g["image.positions"])
    temp("axes", "\n".join(ids(positions[i * n:(i + 1) * n]) for i in range(3)))
    weft("logits", model, "--embeddings", temp("rows.safetensors"), "--positions", temp("axes"), "--out", temp("image.safetensors"))
    bar = about["noise"]["image"]["logits"]["bf16"]["rel"]
    figure(f"{name} image, embedding rows", error(values(read(temp("image.safetensors"))["logits"]), values(g["image.logits.f32"])),
           bar, bar)


# ---- adapters ----

def micro_lora(name):
    about = read_json(golden(f"lora/{name}.json"))
    g, base = read(golden("lora/" + about["golden"])), about["base"]
    if "130" not in about: about = read_json(golden("lora/" + about["golden"].replace(".safetensors", ".json")))
    for n in (17, 130):
        t = logits(checkpoint(base), values(g[f"prompt.{n}"]), "--precision", "high", "--lora", checkpoint("micro-lora/" + name))
        ours, vocab = values(t["logits"]), t["logits"][1][1]
        if f"rows.{n}" in g:
            picked = array.array("f")
            for r in values(g[f"rows.{n}"]): picked += ours[r * vocab:(r + 1) * vocab]
            ours = picked
        noise = about[str(n)]["bf16"]["rel"]
        figure(f"lora {name} {n}", error(ours, values(g[f"logits.{n}.f32"])), noise, noise)


def bad_lora(name):
    p = weft("logits", checkpoint("micro/text-tied"), "--tokens", "1,2,3", "--out", temp("x"), "--lora",
             checkpoint("micro-lora/" + name), check=False)
    said = p.stderr.decode(errors="replace").strip().removeprefix("weft: ").replace(args.shared, "...")
    row(f"lora {name} refused", said.replace("|", "/")[:160], "a sentence", "", p.returncode == 1 and len(said) > 20)


def tiny_lora(form="shout"):
    g, about = read(golden("lora/tiny.safetensors")), read_json(golden("lora/tiny.json"))
    cols = values(g["cols"])
    for variant, adapters in LORA_TINY.items():
        if form == "shout-mlx" and variant != "shout": continue
        use = [x for a in adapters for x in ("--lora", checkpoint("tiny-lora/" + a.replace("shout", form)))]
        for n in (17, 130):
            t = logits(checkpoint("tiny"), values(g[f"prompt.{n}"]), *use)
            x, vocab = values(t["logits"]), t["logits"][1][1]
            ours, ref = array.array("f"), array.array("f")
            for i, r in enumerate(values(g[f"rows.{n}"])): ours += x[r * vocab:(r + 1) * vocab]
            ref += values(g[f"{variant}.logits.{n}.f32"])
            noise = about[variant][str(n)]["bf16"]["rel"]
            figure(f"tiny {form} as {variant} {n}" if form != "shout" else f"tiny lora {variant} {n}", error(ours, ref), noise, noise)
            picked = array.array("f", (x[r * vocab + c] for r in range(t["logits"][1][0]) for c in cols))
            figure(f"tiny {form if form != 'shout' else 'lora'} {variant} {n}, 66 columns",
                   error(picked, values(g[f"{variant}.cols.{n}.f32"])), 2 * noise, noise)


def batch(model, lines, *more):
    """Answers by id."""
    source, out = temp("in.jsonl", "\n".join(map(json.dumps, lines))), temp("out.jsonl")
    if os.path.exists(out): os.unlink(out)
    weft("batch", model, "--in", source, "--out", out, *more)
    with open(out) as f: answers = [json.loads(line) for line in f]
    for a in answers:
        if "error" in a: raise RuntimeError(f"batch {a['id']}: {a['error']}")
    return {a["id"]: a for a in answers}


def tiny_lora_answers():
    questions, about = read_json(golden("lora/tiny-answers.json")), read_json(golden("lora/tiny.json"))
    if isinstance(questions, dict): questions = questions["answers"] if "answers" in questions else questions["questions"]
    for variant, adapters in {"base": [], **LORA_TINY}.items():
        lora = "+".join(checkpoint("tiny-lora/" + a) for a in adapters)
        got = batch(checkpoint("tiny"), [dict({"id": i, "tokens": q["prompt"], "max_tokens": 64, "temperature": 0},
                                              **({"lora": lora} if lora else {})) for i, q in enumerate(questions)])
        equal = firm = 0
        for i, q in enumerate(questions):
            ref, ours = q[variant]["ids"], got[i]["tokens"]
            same = next((k for k, (a, b) in enumerate(zip(ours, ref)) if a != b), min(len(ours), len(ref)))
            equal += ours == ref
            firm += ours == ref or q[variant]["margin"][same] < 0.35  # twice the bf16 run's largest error on this model
        row(f"tiny lora {variant} answers", f"{equal} of {len(questions)} equal", "differ only at small margins",
            about[variant].get("answers_equal_in_bf16", ""), firm == len(questions))


# ---- the trained model ----

def tiny_answers(name):
    questions = read_json(golden("tiny/questions.json"))["questions"]
    key = "fp32" if name == "tiny" else name
    for precision in ("default", "high"):
        got = batch(checkpoint(name), [{"id": q["id"], "tokens": q["prompt_ids"], "max_tokens": 120, "temperature": 0}
                                       for q in questions], "--precision", precision)
        equal = [q for q in questions if got[q["id"]]["tokens"] == q[key]["ids"]]
        firm = [q for q in questions if q[key]["margin"] >= 0.3]
        missed = [q["id"] for q in firm if q not in equal]
        row(f"{name} answers, {precision}", f"{len(equal)} of {len(questions)} equal; {len(firm) - len(missed)} of {len(firm)} firm ones"
            + (": " + " ".join(missed[:8]) if missed else ""), "all firm ones", "", not missed)


def text_rows(first, last, n=1024):
    t = read(golden("tiny/text.safetensors"))
    tokens = values(t["tokens"]) if t["tokens"][0] == "I32" else array.array("i", struct.unpack(f"<{len(t['tokens'][2]) // 8}q", t["tokens"][2]))
    return t, temp("text", "\n".join(ids(tokens[r * 1024:r * 1024 + n]) for r in range(first, last)))


def tiny_text(name):
    t, _ = text_rows(0, 1)
    key = "nll.fp32" if name == "tiny" else "nll." + name
    ref = values(t[key])
    runs = read_json(golden("tiny/kl_by_bits.json"))["runs"]
    for precision in ("default", "high"):
        _, f = text_rows(0, 16)
        o = json.loads(weft("perplexity", checkpoint(name), "--tokens-file", f, "--json", "--precision", precision).stdout)
        differ = max(abs(a - b) for a, b in zip(o["nll_rows"], ref))
        if name == "tiny" or precision == "high": figure(f"{name} {precision}: NLL of a row, largest difference", differ, 1.1e-3)
        else: row(f"{name} {precision}: NLL of a row, largest difference", f"{differ:.3g}")
        row(f"{name} {precision}: NLL", f"{o['nll']:.5f}", f"{runs['fp32' if name == 'tiny' else name]['nll']:.5f}")
        _, f = text_rows(0, 1, 256)
        if name == "tiny":
            write(temp("ref.safetensors"), {"logits": t["logits.row0.f16"]})
            o = json.loads(weft("perplexity", checkpoint(name), "--tokens-file", f, "--kl", temp("ref.safetensors"), "--json", "--precision",
                                precision).stdout)
            figure(f"{name} {precision}: KL, 256 rows", o["kl"], runs["bf16"]["kl"], runs["bf16"]["kl"])
        weft("logits", checkpoint(name), "--tokens-file", f, "--out", temp("out.safetensors"), "--precision", precision)
        x = read(temp("out.safetensors"))["logits"]
        last = next(k for k in t if "last16" in k and (("tiny-mlx" in k) == (name == "tiny-mlx")))
        bar = runs["bf16"]["kl"] if name == "tiny" else 1.6e-4 if precision == "default" else 2e-5
        figure(f"{name} {precision}: KL, last 16 rows", mean_kl(values(t[last]), values(x)[240 * x[1][1]:], x[1][1]), bar)


def mean_kl(p, q, vocab):
    total = 0.0
    for r in range(0, len(p), vocab):
        a, b = p[r:r + vocab], q[r:r + vocab]
        la = max(a) + math.log(math.fsum(math.exp(x - max_a) for x in a)) if (max_a := max(a)) is not None else 0
        max_b = max(b)
        lb = max_b + math.log(math.fsum(math.exp(x - max_b) for x in b))
        total += math.fsum(math.exp(x - la) * ((x - la) - (y - lb)) for x, y in zip(a, b))
    return total / (len(p) // vocab)


def tiny_mtp(name):
    _, f = text_rows(0, 16)
    want = read_json(golden("tiny/mtp.json"))["fp32" if name == "tiny" else name]["held text"]
    o = json.loads(weft("perplexity", checkpoint(name), "--tokens-file", f, "--mtp", 4, "--json").stdout)
    for w, a, k in zip(want, o["agree"], o["agree_when_kept"]):
        row(f"{name} mtp depth {w['depth']}", f"{a:.4f}, kept {k:.4f}", f"{w['agree']:.4f}, {w['agree_when_kept']:.4f}", "",
            abs(a - w["agree"]) <= .01 and abs(k - w["agree_when_kept"]) <= .01)


def tiny_kv():
    about = read_json(golden("tiny/kv_kl.json"))
    _, f = text_rows(0, 4)
    common = ["perplexity", checkpoint("tiny"), "--tokens-file", f, "--json", "--precision", "high"]
    weft(*common, "--kl-save", temp("kv.safetensors"))
    schemes = [(str(s["bits"]), s["kl"]) for s in about["affine"] if s["input"] == "bf16"]
    schemes += [("turbo:" + s["scheme"], s["kl"]) for s in about["turbo"]]
    for scheme, kl in schemes:
        o = json.loads(weft(*common, "--kl", temp("kv.safetensors"), "--kv-bits", scheme).stdout)
        figure(f"tiny kv {scheme}: KL against bf16 KV", o["kl"], 1.1 * kl + 1e-5)
    os.unlink(temp("kv.safetensors"))


def attempt(name, f, *a):
    if not wanted(name): return
    try:
        f(*a)
    except Exception as e:
        row(name, str(e).replace("|", "/")[:300], "", "", False)


def main():
    print("| what | weft | bar | bf16 reference | |\n|---|---|---|---|---|")
    for name in MICRO: attempt("micro " + name, micro, name)
    for name in sorted(os.listdir(checkpoint("micro-lora"))):
        refused = name.startswith("bad-") or name == "zero-b"
        attempt("micro-lora " + name, bad_lora if refused else micro_lora, name)
    attempt("tiny-lora", tiny_lora)
    attempt("tiny-lora shout-mlx", tiny_lora, "shout-mlx")
    attempt("tiny-lora answers", tiny_lora_answers)
    for name in ("tiny", "tiny-mlx"):
        attempt(f"answers {name}", tiny_answers, name)
        attempt(f"text {name}", tiny_text, name)
        attempt(f"mtp {name}", tiny_mtp, name)
    attempt("kv", tiny_kv)
    print(f"\n{len(failures)} bars missed" + (": " + "; ".join(failures) if failures else ""))


args, folder = parse(), tempfile.mkdtemp(prefix="weft-goldens-")
try:
    main()
finally:
    shutil.rmtree(folder, ignore_errors=True)
sys.exit(1 if failures else 0)
