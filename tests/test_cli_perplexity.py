#!/usr/bin/env python3
import math
from help_cli import *

TOKENS = [(i * i * 31 + 7 * i) % 12000 for i in range(100)]


def ids(x): return ",".join(map(str, x))


def from_logits(tokens, *more):
    """The same figure by hand: nats a token."""
    out = temp("logits.safetensors")
    good("logits", TINY, "--tokens", ids(tokens), "--out", out, *more)
    x, total = floats(read_safetensors(out)["logits"]), 0.0
    for t in range(len(tokens) - 1):
        row = x[t * 12288:(t + 1) * 12288]
        high = max(row)
        total += high + math.log(math.fsum(math.exp(v - high) for v in row)) - row[tokens[t + 1]]
    return total / (len(tokens) - 1)


@test
def the_figure_is_the_mean_over_predicted_tokens_of_every_row():
    f = write("rows", ids(TOKENS[:60]) + "\n" + ids(TOKENS[60:]) + "\n")
    o = good_json("perplexity", TINY, "--tokens-file", f, "--json")
    equal((sorted(o), o["tokens"], len(o["nll_rows"])), (["nll", "nll_rows", "tokens"], 98, 2))
    for part, nll in zip((TOKENS[:60], TOKENS[60:]), o["nll_rows"]):
        assert abs(from_logits(part) - nll) < 1e-9, (from_logits(part), nll)
    assert abs(o["nll"] - (59 * o["nll_rows"][0] + 39 * o["nll_rows"][1]) / 98) < 1e-12, o
    assert b"perplexity" in good("perplexity", TINY, "--tokens-file", f)


@test
def a_text_is_cut_into_windows_of_the_context():
    f = write("text.txt", "All happy families are alike. " * 20)
    n = len(good_json("tokenize", TINY, "--json", "--text-file", f)["ids"])
    o = good_json("perplexity", TINY, f, "--json", "--context", "50")
    equal(len(o["nll_rows"]), n // 50 + (n % 50 >= 2))
    equal(o["tokens"], n - n // 50 - (1 if n % 50 else 0))
    equal(good_json("perplexity", TINY, f, "--json")["tokens"], n - 1)


@test
def the_same_model_has_no_distance_to_itself_and_another_arithmetic_a_small_one():
    f, ref = write("kl", ids(TOKENS)), temp("ref.safetensors")
    plain = good_json("perplexity", TINY, "--tokens-file", f, "--json", "--kl-save", ref)
    o = good_json("perplexity", TINY, "--tokens-file", f, "--json", "--kl", ref)
    equal((o["nll"], o["top1"], len(o["kl_rows"])), (plain["nll"], 1, 1))
    assert abs(o["kl"]) < 1e-12, o
    o = good_json("perplexity", TINY, "--tokens-file", f, "--json", "--kl", ref, "--precision", "high")
    assert 1e-9 < o["kl"] < 1e-2 and o["top1"] > 0.9, o
    good("logits", TINY, "--tokens-file", f, "--out", temp("logits.safetensors"))
    equal(open(temp("logits.safetensors"), "rb").read() == open(ref, "rb").read(), True)
    bad("perplexity", TINY, "--tokens-file", write("kl2", ids(TOKENS[:50])), "--kl", ref, says=["ref.safetensors", "50 rows"])
    bad("perplexity", TINY, "--tokens-file", f, "--kl", TINY + "/model.safetensors", says="logits")


@test
def the_multi_token_head_is_judged_at_every_depth():
    f = write("mtp", ids(TOKENS))
    o = good_json("perplexity", TINY, "--tokens-file", f, "--json", "--mtp", "3")
    equal((len(o["agree"]), len(o["agree_when_kept"])), (3, 3))
    assert o["agree"][0] == o["agree_when_kept"][0] and all(0 <= x <= 1 for x in o["agree"] + o["agree_when_kept"]), o


@test
def what_is_wrong_is_named():
    bad("perplexity", TINY, says="FILE")
    bad("perplexity", TINY, temp("nowhere"), says="nowhere")
    bad("perplexity", TINY, write("e", ""), says="two tokens")
    bad("perplexity", TINY, "--tokens-file", write("o", "5\n"), says="two tokens")
    bad("perplexity", TINY, "--tokens-file", write("b", "5,12288\n"), says="12288")
    bad("perplexity", TINY, "--tokens-file", write("c", "5,6\n7;8\n"), says="line 2")
    bad("perplexity", TINY, "--tokens-file", write("d", "5,6,7\n"), "--kl-save", "/dev/full", says=["/dev/full", "No space left"])


if __name__ == "__main__": main()
