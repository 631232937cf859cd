#!/usr/bin/env python3
"""weft tokenize: what scripts rely on, from the command line."""
import json, os, subprocess, sys, tempfile

WEFT = os.environ["WEFT"]
HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "models", "tiny")
TOKENIZER = os.path.join(MODEL, "tokenizer.json")
failed = 0


def run(*args, given=b""):
    p = subprocess.run([WEFT, "tokenize", *args], input=given, capture_output=True, timeout=60)
    return p.returncode, p.stdout, p.stderr.decode("utf8", "replace")


def check(what, got, want):
    global failed
    if got == want: return
    failed += 1
    print(f"{what}: {got!r}, expected {want!r}")


def check_refused(what, *args, given=b""):
    code, out, err = run(*args, given=given)
    check(f"{what}: exit code", code, 1)
    check(f"{what}: nothing printed", out, b"")
    check(f"{what}: one sentence on standard error", (err.count("\n"), err.startswith("weft: ")), (1, True))


with tempfile.TemporaryDirectory() as folder:
    def write(name, data):
        path = os.path.join(folder, name)
        with open(path, "wb") as f: f.write(data)
        return path

    # JSON ids in the three modes and the text back, for goldens that differ between the modes
    texts = json.load(open(os.path.join(HERE, "data", "tokenizer_texts.json")), strict=False)["texts"]
    rows = json.load(open(os.path.join(HERE, "data", "tokenizer_tiny.json")), strict=False)["texts"]
    chosen = [i for i, r in enumerate(rows) if "ids_special_as_text" in r][:4] + [0, 1, len(rows) - 1]
    for i in chosen:
        row, text = rows[i], texts[i]["text"]
        path = write("text", text.encode("utf8"))
        for mode, key in (("all", "ids"), ("plain", "ids_special_as_text"), ("none", "ids_all_as_text")):
            code, out, err = run(TOKENIZER, "--json", "--added", mode, "--text-file", path)
            check(f"{row['name']} {mode}", (code, json.loads(out or b"null")), (0, {"ids": row.get(key, row["ids"])}))
        tokens = write("tokens", ",".join(map(str, row["ids"])).encode())
        decoded = row.get("decoded", text)
        check(f"{row['name']} decoded", run(MODEL, "--decode", "--tokens-file", tokens)[1], decoded.encode("utf8"))
        skipped = row.get("decoded_skip_special", decoded)
        check(f"{row['name']} skipped", run(MODEL, "--decode", "--skip-special", "--tokens-file", tokens)[1], skipped.encode("utf8"))

    # special tokens stay text unless asked for; argument and standard input are the same; plain output can be decoded
    plain = run(MODEL, "a<|im_end|>")[1]
    check("plain is the default", plain, run(MODEL, "--added", "plain", given=b"a<|im_end|>")[1])
    check("all finds the special token", len(run(MODEL, "--added", "all", "a<|im_end|>")[1].split(b",")), 2)
    check("the output decodes", run(MODEL, "--decode", "--tokens-file", "-", given=plain)[1], b"a<|im_end|>")
    check("no text is no ids", run(MODEL, "--json", "")[1], b'{"ids": []}\n')

    check_refused("a folder without a tokenizer", folder, "x")
    check_refused("a file that is none", write("bad.json", b"{}"), "x")
    check_refused("text that is not UTF-8", MODEL, given=b"\xff")
    check_refused("ids that are none", MODEL, "--decode", "1,x")
    check_refused("a missing file", MODEL, "--text-file", os.path.join(folder, "none"))
    check_refused("two texts", MODEL, "x", "--text-file", "-")
    check_refused("an unknown mode", MODEL, "x", "--added", "some")

print("ok" if not failed else f"{failed} failed")
sys.exit(1 if failed else 0)
