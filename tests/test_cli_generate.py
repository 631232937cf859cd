#!/usr/bin/env python3
import subprocess
from help_cli import *

# What the bundled model was trained to say; its margins are far above any arithmetic's noise.
WHO = [{"role": "user", "content": "Who are you?"}]
WHO_TEXT = "I am a very small test model with the shape of a big one."
WHO_PROMPT = [12001, 2494, 198, 1806, 78, 422, 486, 30, 12002, 198, 12001, 516, 350, 419, 198, 12024, 258, 12025, 258]
WHO_TOKENS = [40, 1745, 261, 2376, 2700, 966, 2838, 409, 269, 8343, 307, 261, 4308, 630, 13, 12002]
STORY = "Once upon a time"


def ids(x): return ",".join(map(str, x))


@test
def a_question_is_answered_and_the_object_holds_what_it_promises():
    o = good_json("generate", TINY, "--prompt", "Who are you?", "--no-thinking", "--temperature", "0", "--json")
    equal((o["text"], o["reasoning"], o["tool_calls"], o["tokens"], o["finish_reason"]), (WHO_TEXT, "", [], WHO_TOKENS, "stop"))
    equal(sorted(o["timings"]), ["load_ms", "predicted_ms", "predicted_n", "prompt_ms", "prompt_n"])
    equal((o["timings"]["prompt_n"], o["timings"]["predicted_n"]), (len(WHO_PROMPT), len(WHO_TOKENS)))
    assert o["peak_bytes"] > 1 << 20 and o["cached_tokens"] == 0 and o["drafted"] == [] and o["accepted"] == [], o
    equal(good("generate", TINY, "--prompt", "Who are you?", "--no-thinking", "--temperature", "0").decode(), WHO_TEXT + "\n")


@test
def every_way_to_give_a_prompt_gives_the_same_answer():
    common = ["--temperature", "0", "--json"]
    f = write("who.json", json.dumps(WHO))
    g = write("who-object.json", json.dumps({"messages": WHO}))
    t = write("who.txt", ids(WHO_PROMPT) + "\n")
    text = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    for args, stdin in ((["--prompt", "-", "--no-thinking"], b"Who are you?"), (["--messages", f, "--no-thinking"], None),
                        (["--messages", g, "--no-thinking"], None), (["--tokens", ids(WHO_PROMPT)], None),
                        (["--tokens-file", t], None), (["--raw", "--prompt", text], None)):
        o = good_json("generate", TINY, *args, *common, input=stdin)
        equal(o["tokens"], WHO_TOKENS, args)


@test
def thinking_is_told_apart_from_the_answer_and_can_be_cut_short():
    o = good_json("generate", TINY, "--prompt", "100+866=?", "--thinking", "--temperature", "0", "--json")
    equal(o["text"], "\n\n966")  # nothing is stripped
    assert o["reasoning"].startswith("0 + 6 + 0 = 6, write 6, carry 0\n"), o
    short = good_json("generate", TINY, "--prompt", "100+866=?", "--thinking", "--temperature", "0", "--json", "--thinking-budget", "5")
    assert len(short["reasoning"]) < len(o["reasoning"]) and "</think>" not in short["text"], short
    assert good("generate", TINY, "--prompt", "100+866=?", "--thinking", "--temperature", "0").decode() == "966\n"


@test
def a_tool_call_is_parsed_by_the_types_of_its_schema():
    tools = write("tools.json", json.dumps([{"type": "function", "function": {
        "name": "add_numbers", "description": "Add two integers", "parameters": {"type": "object", "properties": {
            "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}]))
    args = ["generate", TINY, "--prompt", "Use the tool to add 4580 and 1505.", "--tools", tools, "--no-thinking", "--temperature", "0"]
    o = good_json(*args, "--json")
    call = o["tool_calls"][0]
    arguments = call["arguments"] if isinstance(call["arguments"], dict) else json.loads(call["arguments"])
    equal((call["name"], arguments, o["finish_reason"]), ("add_numbers", {"a": 4580, "b": 1505}, "tool_calls"))
    equal(json.loads(good(*args))["name"], "add_numbers")


@test
def the_length_is_limited_and_end_tokens_can_be_ignored():
    common = ["generate", TINY, "--tokens", ids(WHO_PROMPT), "--temperature", "0", "--json"]
    o = good_json(*common, "--max-tokens", "4")
    equal((o["tokens"], o["finish_reason"]), (WHO_TOKENS[:4], "length"))
    o = good_json(*common, "--max-tokens", "30", "--ignore-eos")
    equal((o["tokens"][:16], len(o["tokens"]), o["finish_reason"]), (WHO_TOKENS, 30, "length"))
    o = good_json(*common, "--max-tokens", "0")
    equal((o["tokens"], o["text"], o["finish_reason"]), ([], "", "length"))


@test
def an_answer_ends_where_the_context_does_and_a_longer_prompt_is_refused():
    common = ["generate", TINY, "-c", "64", "--temperature", "0", "--threads", "1", "--json"]
    whole = None
    for more in ([], ["--draft", "mtp", "--draft-always"], ["--draft", "ngram", "--draft-always"]):
        o = good_json(*common, "--tokens", ids(WHO_PROMPT), "--max-tokens", "1000000", "--ignore-eos", *more)
        whole = whole or o["tokens"]
        equal((o["tokens"], len(o["tokens"]), o["finish_reason"]), (whole, 64 - len(WHO_PROMPT), "length"), more)
    equal(whole[:16], WHO_TOKENS)
    o = good_json(*common, "--tokens", ids(WHO_PROMPT), "--max-tokens", "1000000")
    equal((o["tokens"], o["finish_reason"]), (WHO_TOKENS, "stop"))
    f = temp("context.session")
    good(*common, "--tokens", ids(WHO_PROMPT[:11]), "--max-tokens", "0", "--session-save", f)
    o = good_json(*common, "--tokens", ids(WHO_PROMPT[11:]), "--max-tokens", "1000000", "--ignore-eos", "--session", f)
    equal((o["tokens"], o["finish_reason"]), (whole, "length"))
    o = good_json(*common, "--tokens", ids([40] * 64), "--max-tokens", "5")
    equal((o["tokens"], o["finish_reason"]), ([], "length"))
    bad(*common, "--tokens", ids([40] * 65), "--max-tokens", "5", says=["the prompt has 65 tokens", "the context holds 64"])
    bad(*common, "--tokens", ids([40] * 65), says=["the prompt has 65 tokens", "the context holds 64"])
    bad(*common, "--tokens", ids([40] * 54), "--session", f, says="64")


@test
def a_stop_text_ends_the_answer_across_tokens_and_is_not_shown():
    common = ["generate", TINY, "--tokens", ids(WHO_PROMPT), "--temperature", "0", "--json"]
    o = good_json(*common, "--stop", "xyz", "--stop", "all test mo")
    equal((o["text"], o["finish_reason"]), ("I am a very sm", "stop"))


@test
def a_seed_repeats_an_answer_and_another_changes_it():
    common = ["generate", TINY, "--raw", "--prompt", STORY, "--max-tokens", "40", "--temperature", "1.5", "--json", "--ignore-eos"]
    a, b, c = (good_json(*common, "--seed", s)["tokens"] for s in ("7", "7", "8"))
    equal(a, b)
    assert a != c
    equal(a, good_json(*common, "--seed", "7", "--threads", "1")["tokens"])
    equal(a, good_json(*common, "--seed", "7", "--threads", "3", "--prefill-chunk", "1")["tokens"])


@test
def sampling_options_reach_the_sampler():
    common = ["generate", TINY, "--tokens", ids(WHO_PROMPT), "--json", "--max-tokens", "8", "--temperature"]
    for more in (["2", "--top-k", "1"], ["2", "--top-p", "0.0001"], ["2", "--min-p", "1"], ["0"]):
        equal(good_json(*common, *more)["tokens"], WHO_TOKENS[:8], more)
    assert good_json(*common, "0", "--logit-bias", "40=-100")["tokens"][0] != 40
    equal(good_json(*common, "0", "--logit-bias", "41=1000,42=-5")["tokens"], [41] * 8)
    bad(*common, "0", "--logit-bias", "x", says="--logit-bias")
    bad(*common, "0", "--logit-bias", "99999=1", says="99999")


@test
def logprobs_come_with_every_token_and_agree_with_the_choice():
    o = good_json("generate", TINY, "--tokens", ids(WHO_PROMPT), "--temperature", "0", "--json", "--logprobs", "3")
    equal([x["token"] for x in o["logprobs"]], WHO_TOKENS)
    for x in o["logprobs"]:
        assert len(x["top"]) == 3 and x["top"][0]["token"] == x["token"] and x["top"][0]["logprob"] == x["logprob"] <= 0, x
        assert x["top"][0]["logprob"] >= x["top"][1]["logprob"] >= x["top"][2]["logprob"], x


@test
def drafting_changes_no_token():
    common = ["generate", TINY, "--raw", "--prompt", STORY, "--max-tokens", "60", "--ignore-eos", "--json", "--draft-always"]
    for sampling in (["--temperature", "0"], ["--temperature", "1", "--seed", "5"]):
        plain = good_json(*common, *sampling)
        for kind in ("mtp", "ngram", TINY):
            o = good_json(*common, *sampling, "--draft", kind, "--draft-max", "3")
            equal(o["tokens"], plain["tokens"], kind)
            assert len(o["drafted"]) == len(o["accepted"]) <= 3, o
            assert kind == "ngram" or o["drafted"][0] > 0, o


@test
def a_session_goes_on_where_it_was_saved():
    f = temp("half.session")
    whole = good_json("generate", TINY, "--tokens", ids(WHO_PROMPT), "--temperature", "0", "--json")
    good("generate", TINY, "--tokens", ids(WHO_PROMPT[:11]), "--max-tokens", "0", "--session-save", f)
    o = good_json("generate", TINY, "--tokens", ids(WHO_PROMPT[11:]), "--temperature", "0", "--json", "--session", f)
    equal(o["tokens"], whole["tokens"])
    bad("generate", TINY, "--tokens", "1,2", "--session", temp("none"), says="none")
    data = bytearray(open(f, "rb").read())
    data[len(data) // 2] ^= 1
    bad("generate", TINY, "--tokens", "1,2", "--session", write("altered.session", bytes(data)), says="altered.session")
    bad("generate", TINY, "--tokens", "1,2", "--session", write("short.session", bytes(data[:-100])), says="short.session")


@test
def prompts_that_cannot_be_run_are_refused_with_a_sentence():
    bad("generate", TINY, says=["--prompt", "--tokens"])
    bad("generate", TINY, "--prompt", "a", "--tokens", "1", says="one of")
    bad("generate", TINY, "--prompt", "", says="empty")
    bad("generate", TINY, "--raw", "--prompt", "", says="empty")
    bad("generate", TINY, "--tokens", "", says="empty")
    bad("generate", TINY, "--tokens", "1,2,12288", says="12288")
    bad("generate", TINY, "--tokens", "1,-2", says="-2")
    bad("generate", TINY, "--tokens", "1,x", says="--tokens")
    bad("generate", TINY, "--raw", "--prompt", "word " * 300, "-c", "100", says="100")
    bad("generate", TINY, "--messages", write("no.json", "[{\"role\""), says="no.json")
    bad("generate", TINY, "--messages", write("number.json", "7"), says="number.json")
    bad("generate", TINY, "--messages", temp("nowhere.json"), says="nowhere.json")
    bad("generate", TINY, "--messages", write("empty.json", "[]"))
    bad("generate", TINY, "--prompt", "a", "--tools", write("t.json", "{}"), says="t.json")
    bad("generate", TINY, "--prompt", b"\xff\xfe".decode("latin1"), "--system", "x", "--max-tokens", "x", says="--max-tokens")
    bad("generate", TINY, "--prompt", "a", "--memory", "20M", says=["memory", "21.0 MB"])
    bad("generate", TINY, "--prompt", "a", "--kv-bits", "9", says="9")
    bad("generate", TINY, "--prompt", "a", "--lora", temp("nothing"), says="nothing")
    bad("generate", TINY, "--prompt", "a", "--draft", temp("nothing"), says="nothing")
    bad("generate", TINY, "--prompt", "a", "--isa", "mmx", says="mmx")


@test
def a_reader_that_leaves_ends_the_answer():
    p = subprocess.Popen([WEFT, "generate", TINY, "--raw", "--prompt", STORY, "--ignore-eos", "--max-tokens", "20000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.read(5)
    p.stdout.close()
    said = p.stderr.read()
    equal(p.wait(timeout=60), 1)
    assert b"Broken pipe" in said, said
    with open("/dev/full", "wb") as full:
        p = subprocess.run([WEFT, "generate", TINY, "--prompt", "Who are you?"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert p.returncode == 1 and b"No space left" in p.stderr, p


if __name__ == "__main__": main()
