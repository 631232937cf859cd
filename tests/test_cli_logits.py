#!/usr/bin/env python3
from help_cli import *

N = 80
TOKENS = [(i * 7919 + 13) % 12000 for i in range(N)]


def ids(x): return ",".join(map(str, x))


def logits(*args, model=TINY):
    """The raw bytes of every tensor written."""
    out = temp("out.safetensors")
    if os.path.exists(out): os.unlink(out)
    good("logits", model, "--out", out, *args)
    return read_safetensors(out)


def isas():
    """Those that run here."""
    found = []
    for name in ("portable", "avx2", "avxvnni", "avx512", "avx512bf16", "amx", "neon"):
        if weft("inspect", TINY, "--json", "--isa", name).returncode == 0: found.append(name)
    assert "portable" in found
    return found


@test
def the_file_holds_logits_taps_and_the_head_with_their_shapes():
    t = logits("--tokens", ids(TOKENS[:20]), "--taps", "0,3,7", "--mtp")
    equal({k: (v[0], v[1]) for k, v in t.items()},
          {"logits": ("F32", [20, 12288]), "tap.0": ("F32", [20, 512]), "tap.3": ("F32", [20, 512]), "tap.7": ("F32", [20, 512]),
           "mtp": ("F32", [19, 12288])})
    for name in t: assert all(x == x and abs(x) < 1e5 for x in floats(t[name])), name


@test
def however_a_prompt_is_cut_and_with_any_number_of_threads_the_bits_are_the_same():
    found = isas()
    for isa, precision in [(i, "default") for i in found] + [(found[-1], "high")]:
        common = ["--tokens", ids(TOKENS), "--isa", isa, "--precision", precision, "--taps", "7", "--mtp"]
        whole = logits(*common, "--threads", "1")
        for more in (["--threads", "3", "--chunks", "1"], ["--threads", "2", "--chunks", "63,1,7"]):
            equal(logits(*common, *more) == whole, True, f"{isa} {precision} {more}:")


@test
def a_chunk_may_be_larger_than_the_prompt_or_a_step():
    tokens = [(i * 31 + 5) % 12000 for i in range(600)]
    equal(logits("--tokens", ids(tokens), "--chunks", "600") == logits("--tokens", ids(tokens)), True)
    equal(logits("--tokens", ids(tokens[:5]), "--chunks", "1000000") == logits("--tokens", ids(tokens[:5])), True)
    equal(logits("--tokens", ids(tokens[:40]), "--prefill-chunk", "9") == logits("--tokens", ids(tokens[:40])), True)


@test
def a_longer_prompt_begins_with_the_rows_of_a_shorter_one():
    long, short = (logits("--tokens", ids(TOKENS[:n]))["logits"][2] for n in (80, 33))
    equal(long[:len(short)] == short, True)


@test
def positions_count_and_three_equal_rows_are_one():
    base = logits("--tokens", ids(TOKENS[:30]))
    counted, shifted = (write(f"p{i}", ids(range(i, 30 + i))) for i in (0, 9))
    three = write("p3", "\n".join([ids(range(30))] * 3) + "\n")
    jump = write("pj", ids([*range(10), *range(500, 520)]))
    axes = write("pa", "\n".join([ids(range(30)), ids([5] * 30), ids([2] * 30)]))
    equal(logits("--tokens", ids(TOKENS[:30]), "--positions", counted) == base, True)
    equal(logits("--tokens", ids(TOKENS[:30]), "--positions", three) == base, True)
    near = relative_error(floats(logits("--tokens", ids(TOKENS[:30]), "--positions", shifted)["logits"]), floats(base["logits"]))
    assert near < 0.05, near  # rotation is relative
    for f in (jump, axes):
        far = logits("--tokens", ids(TOKENS[:30]), "--positions", f)
        assert far != base
        equal(logits("--tokens", ids(TOKENS[:30]), "--positions", f, "--chunks", "3,11") == far, True)


@test
def rows_may_be_given_as_embeddings():
    rows = [0.01 * ((i * 37) % 101 - 50) for i in range(9 * 512)]
    import array
    f = write_safetensors(temp("e.safetensors"), {"embeddings": ("F32", [9, 512], array.array("f", rows).tobytes())})
    a = logits("--embeddings", f)
    equal(a["logits"][1], [9, 12288])
    equal(logits("--embeddings", f, "--chunks", "2,5") == a, True)
    bad("logits", TINY, "--out", temp("x"), "--embeddings",
        write_safetensors(temp("w.safetensors"), {"embeddings": ("F32", [9, 511], array.array("f", rows[:9 * 511]).tobytes())}),
        says=["w.safetensors", "512"])


@test
def a_saved_session_goes_on_with_the_same_bits():
    f = temp("half.session")
    whole, first = logits("--tokens", ids(TOKENS[:70])), logits("--tokens", ids(TOKENS[:41]), "--session-save", f)
    rest = logits("--tokens", ids(TOKENS[41:70]), "--session", f)
    equal(first["logits"][2] + rest["logits"][2] == whole["logits"][2], True)
    answer = good_json("generate", TINY, "--tokens", ids(TOKENS[41:70]), "--session", f, "--max-tokens", "5", "--temperature", "0", "--json")
    alone = good_json("generate", TINY, "--tokens", ids(TOKENS[:70]), "--max-tokens", "5", "--temperature", "0", "--json")
    equal(answer["tokens"], alone["tokens"])
    bad("logits", TINY, "--out", temp("x"), "--tokens", "1", "--session", f, "--precision", "high", says="half.session")


@test
def text_and_token_files_are_read():
    f = write("text", "Special <|im_end|> stays text.")
    tokens = good_json("tokenize", TINY, "--json", "--text-file", f)["ids"]
    equal(logits("--text-file", f) == logits("--tokens-file", write("ids", ids(tokens) + "\n")), True)


@test
def what_is_wrong_is_named():
    out = ["--out", temp("x.safetensors")]
    bad("logits", TINY, "--tokens", "1", says="--out")
    bad("logits", TINY, *out, says="--tokens")
    bad("logits", TINY, *out, "--tokens", "1,2", "--text-file", "f", says="one of")
    bad("logits", TINY, *out, "--tokens", " ", says="no tokens")
    bad("logits", TINY, *out, "--tokens", "12288", says="12288")
    bad("logits", TINY, *out, "--tokens", "1,,2", says="--tokens")
    bad("logits", TINY, *out, "--tokens", "99999999999", says="--tokens")
    bad("logits", TINY, *out, "--tokens-file", write("two", "1,2\n3,4\n"), says=["two", "2 lines"])
    bad("logits", TINY, *out, "--tokens-file", write("none", "\n"), says="none")
    bad("logits", TINY, *out, "--tokens", "1,2", "--taps", "8", says="--taps")
    bad("logits", TINY, *out, "--tokens", "1,2", "--taps", "3,1", says="--taps")
    bad("logits", TINY, *out, "--tokens", "1,2", "--chunks", "0", says="--chunks")
    bad("logits", TINY, *out, "--tokens", "1,2", "--positions", write("p", "1"), says=["p:", "2 tokens"])
    bad("logits", TINY, *out, "--tokens", "1,2", "--positions", write("q", "1,2\n1,2\n"), says="three")
    bad("logits", TINY, *out, "--tokens", "1,2", "--chunks", "2,0", says="--chunks")
    bad("logits", TINY, "--out", temp("no/such/folder"), "--tokens", "1,2", says="no/such/folder")
    bad("logits", TINY, "--out", "/dev/full", "--tokens", "1,2", says=["/dev/full", "No space left"])
    assert not os.path.exists(temp("x.safetensors")) and os.path.exists("/dev/full")


if __name__ == "__main__": main()
