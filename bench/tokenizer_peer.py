#!/usr/bin/env python3
"""tiktoken on the corpus of bench_tokenizer: tokenizer_peer.py tokenizer.json CORPUS [ROUNDS] (needs the package tiktoken).
tiktoken has ranks instead of merges: the ids of the vocabulary, as in the published .tiktoken file. One thread, processor time,
best of the rounds; it does not normalize, so unicodedata's NFC is in its time."""
import json, sys, time, unicodedata

import tiktoken


def byte_letters():
    keep = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = [b for b in range(256) if b not in keep]
    return {**{chr(b): b for b in keep}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def encoding(path):
    with open(path, encoding="utf8") as f: t = json.load(f)
    letters = byte_letters()
    ranks = {bytes(letters[c] for c in text): i for text, i in t["model"]["vocab"].items()}
    return tiktoken.Encoding("peer", pat_str=t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], mergeable_ranks=ranks,
                             special_tokens={a["content"]: a["id"] for a in t["added_tokens"]})


if __name__ == "__main__":
    if len(sys.argv) < 3: sys.exit(__doc__)
    peer = encoding(sys.argv[1])
    with open(sys.argv[2], "rb") as f: documents = [d.decode("utf8") for d in f.read().split(b"\0")]
    megabytes = sum(len(d.encode("utf8")) for d in documents) / 1e6
    encode = decode = 1e9
    for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 3):
        start = time.process_time()
        ids = [peer.encode(unicodedata.normalize("NFC", d), allowed_special="all") for d in documents]
        middle = time.process_time()
        texts = [peer.decode(i) for i in ids]
        encode, decode = min(encode, middle - start), min(decode, time.process_time() - middle)
    print(f"tiktoken {tiktoken.__version__}: {sum(map(len, ids))} tokens")
    print(f"encode: {megabytes / encode:.2f} MB/s\ndecode: {megabytes / decode:.2f} MB/s")
