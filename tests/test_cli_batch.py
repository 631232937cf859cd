#!/usr/bin/env python3
from help_cli import *

PROMPTS = [[12001, 2494, 198, 1806, 78, 422, 486, 30, 12002, 198, 12001, 516, 350, 419, 198, 12024, 258, 12025, 258],
           [(i * 31) % 12000 for i in range(70)], [5, 6, 7], [(i * 17) % 12000 for i in range(200)]]


def lines(path):
    with open(path) as f: return [json.loads(x) for x in f]


def answer_alone(tokens, *more):
    return good_json("generate", TINY, "--tokens", ",".join(map(str, tokens)), "--json", *more)["tokens"]


@test
def many_requests_at_once_give_what_each_gives_alone():
    requests = [{"id": f"r{i}", "tokens": p, "max_tokens": 20, "temperature": 0 if i % 2 else 1, "seed": i, "ignore_eos": True}
                for i, p in enumerate(PROMPTS)]
    f, out = write("in.jsonl", "\n".join(map(json.dumps, requests)) + "\n"), temp("out.jsonl")
    good("batch", TINY, "--in", f, "--out", out, "--parallel", "3")
    got = {o["id"]: o for o in lines(out)}
    equal(sorted(got), ["r0", "r1", "r2", "r3"])
    for r in requests:
        o = got[r["id"]]
        equal(o["tokens"], answer_alone(r["tokens"], "--max-tokens", "20", "--ignore-eos", "--temperature", r["temperature"], "--seed",
                                        r["seed"]))
        assert set(o) >= {"id", "text", "tokens", "finish_reason", "cached_tokens", "drafted", "accepted"}, o
        equal((o["finish_reason"], len(o["tokens"])), ("length", 20))


@test
def messages_prompts_stops_and_drafts_work_as_in_generate():
    requests = [{"id": 1, "messages": [{"role": "user", "content": "Who are you?"}], "thinking": False, "temperature": 0},
                {"id": 2, "prompt": "Who are you?", "thinking": False, "temperature": 0, "stop": ["test"]}]
    f, out = write("in2.jsonl", "\n".join(map(json.dumps, requests))), temp("out2.jsonl")
    good("batch", TINY, "--in", f, "--out", out, "--draft", "mtp")
    got = {o["id"]: o for o in lines(out)}
    equal(got[1]["text"], "I am a very small test model with the shape of a big one.")
    equal((got[2]["text"], got[2]["finish_reason"]), ("I am a very small ", "stop"))


@test
def adapters_are_chosen_line_by_line_and_the_others_do_not_notice():
    tiny, shout, short = (shared("checkpoints/" + x) for x in ("tiny", "tiny-lora/shout", "tiny-lora/short"))
    lora = [None, shout, f"{shout}=0.5+{short}", [shout, short], ""]
    requests = [dict({"id": i, "tokens": PROMPTS[0], "max_tokens": 12, "temperature": 0}, **({} if x is None else {"lora": x}))
                for i, x in enumerate(lora)]
    f, out = write("in6.jsonl", "\n".join(map(json.dumps, requests))), temp("out6.jsonl")
    good("batch", tiny, "--in", f, "--out", out, "--parallel", "5")
    got = {o["id"]: o["tokens"] for o in lines(out)}
    def alone(*lora):
        return good_json("generate", tiny, "--tokens", ",".join(map(str, PROMPTS[0])), "--json", "--max-tokens", "12", "--temperature",
                         "0", *(y for x in lora for y in ("--lora", x)))["tokens"]
    equal([got[i] for i in range(5)], [alone(), alone(shout), alone(shout + "=0.5", short), alone(shout, short), alone()])
    assert got[1] != got[0] != got[3], got


@test
def a_bad_line_is_answered_by_an_error_and_the_others_go_on():
    text = "\n".join(['{"id": "ok", "tokens": [5, 6], "max_tokens": 3, "temperature": 0}', "{not json", "[]", "",
                      '{"id": "none"}', '{"id": "both", "tokens": [1], "prompt": "x"}', '{"id": "big", "tokens": [99999]}',
                      '{"id": "word", "tokens": ["x"]}', '{"id": "typo", "tokens": [1], "max_token": 3}',
                      '{"id": "heat", "tokens": [1], "temperature": "hot"}', '{"id": "ok", "tokens": [7]}',
                      '{"id": "lora", "tokens": [1], "lora": "nowhere"}', '{"id": "long", "tokens": [1], "max_tokens": -5}',
                      '{"tokens": [5, 6], "max_tokens": 3, "temperature": 0}', '{"id": "empty", "messages": []}'])
    f, out = write("in3.jsonl", text), temp("out3.jsonl")
    good("batch", TINY, "--in", f, "--out", out)
    got = lines(out)
    named = {o["id"]: o for o in got if o["id"] is not None}
    by_line = {o["line"]: o for o in got if o["id"] is None}
    equal(sorted(named), sorted("both big empty heat long lora none ok typo word".split()))
    equal(sorted(by_line), [2, 3, 11, 14])
    for i, o in list(named.items()) + list(by_line.items()):
        equal("error" in o, i not in ("ok", 14), i)
    equal(named["ok"]["tokens"], by_line[14]["tokens"])
    for i, word in (("typo", "max_token"), ("big", "99999"), ("heat", "temperature"), ("lora", "nowhere"), ("long", "max_tokens")):
        assert word in named[i]["error"], named[i]
    assert "line 1" in by_line[11]["error"], by_line[11]


@test
def a_rerun_does_only_what_is_missing():
    requests = [{"id": i, "tokens": PROMPTS[i], "max_tokens": 5, "temperature": 0} for i in range(4)]
    f, out = write("in4.jsonl", "\n".join(map(json.dumps, requests))), temp("out4.jsonl")
    good("batch", TINY, "--in", f, "--out", out)
    whole = sorted(open(out).read().splitlines())
    with open(out, "w") as g: g.write(whole[0] + "\n" + whole[2] + "\n" + whole[3][:20])  # the last line was being written
    p = weft("batch", TINY, "--in", f, "--out", out)
    equal(p.returncode, 0)
    assert b"2 answered" in p.stderr and b"2 were there" in p.stderr, p.stderr
    strip = lambda x: sorted((o["id"], o["tokens"]) for o in map(json.loads, x))
    equal(strip(open(out).read().splitlines()), strip(whole))


@test
def what_is_wrong_with_the_files_is_named():
    f = write("in5.jsonl", '{"id": 1, "tokens": [5], "max_tokens": 2}\n')
    bad("batch", TINY, "--in", f, says="--out")
    bad("batch", TINY, "--in", temp("nowhere"), "--out", temp("o"), says="nowhere")
    bad("batch", TINY, "--in", f, "--out", temp("no/folder"), says="no/folder")
    bad("batch", TINY, "--in", f, "--out", "/dev/full", says=["/dev/full", "No space left"])


if __name__ == "__main__": main()
