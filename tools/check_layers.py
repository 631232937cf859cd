#!/usr/bin/env python3
"""The layout of docs/design.md, checked: who may include whom, and how long a file may be."""
import os, re, sys

RANK = "base checkpoint text quant backend cache lora model vision engine cli".split()
LEAVES = {"cpu", "cuda"}
SEEN_BY_LEAF = {"base", "quant", "backend"}
LIMIT = 800


def may_include(folder, other):
    if folder == other: return True
    if folder == "server": return other == "base"
    if folder in LEAVES: return other in SEEN_BY_LEAF
    if other in LEAVES: return False
    return RANK.index(other) < RANK.index(folder)


bad = []
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
for top in ("src", "bench", "tests", "tools"):
    for d, _, files in os.walk(os.path.join(root, top)):
        for f in files:
            path = os.path.join(d, f)
            if not f.endswith((".c", ".h", ".cu", ".cuh", ".py", ".sh")): continue
            lines = open(path, encoding="utf8").read().split("\n")
            name = os.path.relpath(path, root)
            if len(lines) > LIMIT and not any("generated" in l.lower() for l in lines[:5]):
                bad.append(f"{name}: {len(lines)} lines, at most {LIMIT}")
            if top != "src": continue
            folder = os.path.relpath(path, os.path.join(root, "src")).split(os.sep)[0]
            for number, line in enumerate(lines, 1):
                m = re.match(r'\s*#\s*include\s+"(\w+)/', line)
                if m and not may_include(folder, m.group(1)):
                    bad.append(f"{name}:{number}: {folder} may not include {m.group(1)}")
for line in bad: print(line)
print(f"layout: {'ok' if not bad else str(len(bad)) + ' faults'}")
sys.exit(1 if bad else 0)
