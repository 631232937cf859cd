#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/run.h"

enum { INPUT_BYTES_MAX = 1 << 30 };

struct options {
    const char *prompt, *prompt_file, *tokens, *tokens_file, *messages, *system, *tools, *template_args, *session, *session_save;
    struct arg_texts stop;
    int raw, max_tokens, ignore_eos, thinking, no_thinking, thinking_budget, logprobs, json, continue_last;
};

/* What is printed while the answer grows, and the logprobs that go into the object at the end. */
struct printer {
    const struct options *o;
    json_t *logprobs;  /* with --logprobs and --json */
    int dimmed, any;   /* on a terminal reasoning is dimmed; elsewhere it is left out */
    int ends_line;     /* what was printed last was a newline */
    int lost;
};

static json_t *logprob_entry(const struct weft_event *v) {
    json_t *top = json_array();
    for (int i = 0; i < v->n_top; i++)
        json_array_append_new(top, json_pack("{s:i,s:f}", "token", v->top[i].token, "logprob", (double)v->top[i].logprob));
    return json_pack("{s:i,s:f,s:o}", "token", v->token, "logprob", (double)v->logprob, "top", top);
}

static void dim(struct printer *p, int on) {
    if (p->dimmed == on) return;
    p->dimmed = on;
    out_text(on ? "\033[2m" : "\033[0m\n\n");
}

static void show_token(struct printer *p, const struct weft_event *v) {
    if (p->logprobs) json_array_append_new(p->logprobs, logprob_entry(v));
    else if (p->o->logprobs >= 0) {
        out_printf("%d %.5f", v->token, (double)v->logprob);
        for (int i = 0; i < v->n_top; i++) out_printf("  %d %.5f", v->top[i].token, (double)v->top[i].logprob);
        out_text("\n");
    }
}

/* Templates put empty lines between thinking and answer: they are part of the text, but nothing to look at. */
static void show_text(struct printer *p, const char *text, size_t n) {
    for (; n && *text == '\n' && !p->any && !p->o->raw; n--) text++;
    dim(p, 0);
    if (!n) return;
    out_bytes(text, n);
    p->any = 1, p->ends_line = text[n - 1] == '\n';
}

static int on_event(void *arg, const struct weft_event *v) {
    struct printer *p = arg;
    if (v->kind == WEFT_EVENT_PROGRESS) {
        progress_show(NULL, "reading the prompt", v->total ? (double)v->done / v->total : -1);
        return 0;
    }
    progress_end();
    if (v->kind == WEFT_EVENT_TOKEN) show_token(p, v);
    if (p->o->json || p->o->logprobs >= 0) return 0;
    if (v->kind == WEFT_EVENT_REASONING && isatty(1)) dim(p, 1), out_bytes(v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_TEXT && v->n_bytes) show_text(p, v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_TOOL_CALL) {
        dim(p, 0);
        json_t *name = json_string(v->name ? v->name : "");
        char *text = json_dumps(name, JSON_ENCODE_ANY);
        out_printf("%s{\"name\": %s, \"arguments\": %s}", p->any && !p->ends_line ? "\n" : "", text ? text : "\"\"", v->arguments ? v->arguments : "{}");
        free(text), json_decref(name);
        p->any = 1, p->ends_line = 0;
    }
    struct weft_error e;
    p->lost = out_check(&e) < 0;
    return p->lost; /* nobody reads any more: no need to go on */
}

static int print_json(const struct run *run, const struct weft_answer *a, struct printer *p, struct weft_error *e) {
    const struct weft_result *r = &a->result;
    json_t *calls = json_array();
    if (a->tool_calls) {
        json_decref(calls);
        int code = json_parse(&calls, a->tool_calls, strlen(a->tool_calls), "tool calls", e);
        if (code) return code;
    }
    struct weft_engine_stats stats;
    weft_engine_stats(run->engine, &stats);
    json_t *o = json_pack("{s:s%,s:s%,s:o}", "text", a->text, strlen(a->text), "reasoning", a->reasoning, strlen(a->reasoning),
                          "tool_calls", calls);
    if (!o) return error_memory(e, "the answer");
    result_add(o, r);
    json_object_set_new(o, "timings", json_pack("{s:i,s:f,s:i,s:f,s:f}", "prompt_n", r->n_prompt, "prompt_ms", r->prompt_ms, "predicted_n",
                        r->n_tokens, "predicted_ms", r->predicted_ms, "load_ms", run->load_ms));
    json_object_set_new(o, "peak_bytes", json_integer((json_int_t)stats.resident_peak_bytes));
    if (p->logprobs) json_object_set(o, "logprobs", p->logprobs);
    char *text = json_dumps(o, 0);
    json_decref(o);
    if (!text) return error_memory(e, "the answer");
    out_text(text), out_text("\n");
    free(text);
    return 0;
}

/* ---- the prompt ---- */

struct prompt { struct buf text, messages, tools; int32_t *tokens; int n_tokens; };

static void prompt_drop(struct prompt *p) {
    buf_drop(&p->text), buf_drop(&p->messages), buf_drop(&p->tools);
    mem_free(p->tokens);
}

static int add_json(struct buf *out, json_t *value, struct weft_error *e) {
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (text) buf_add_text(out, text);
    free(text);
    return text && !out->failed ? 0 : error_memory(e, "the prompt");
}

/* A file of messages is the list, or an object that has it as "messages" and, perhaps, "tools". */
static int read_messages(struct prompt *p, const struct options *o, struct weft_error *e) {
    json_t *file;
    int code = json_read_file(&file, o->messages, INPUT_BYTES_MAX, e);
    if (code) return code;
    json_t *list = json_is_object(file) ? json_object_get(file, "messages") : file, *tools = json_object_get(file, "tools");
    if (!json_is_array(list)) code = error_set(e, WEFT_ERROR_INPUT, "%s: neither a list of messages nor an object with \"messages\"", o->messages);
    if (!code && o->system) {
        json_t *first = json_pack("{s:s,s:s}", "role", "system", "content", o->system);
        if (!first) code = error_set(e, WEFT_ERROR_INPUT, "--system: not UTF-8");
        else json_array_insert_new(list, 0, first);
    }
    if (!code) code = add_json(&p->messages, list, e);
    if (!code && json_is_array(tools) && !o->tools) code = add_json(&p->tools, tools, e);
    json_decref(file);
    return code;
}

static int make_messages(struct prompt *p, const struct options *o, struct weft_error *e) {
    json_t *list = json_array(), *user = json_stringn(p->text.data ? p->text.data : "", p->text.n);
    int code = user ? 0 : error_set(e, WEFT_ERROR_INPUT, "the prompt is not UTF-8");
    if (!code && o->system) {
        json_t *system = json_string(o->system);
        if (!system) code = error_set(e, WEFT_ERROR_INPUT, "--system: not UTF-8");
        else json_array_append_new(list, json_pack("{s:s,s:o}", "role", "system", "content", system));
    }
    if (!code) json_array_append_new(list, json_pack("{s:s,s:O}", "role", "user", "content", user));
    if (!code) code = add_json(&p->messages, list, e);
    json_decref(list), json_decref(user);
    return code;
}

static int read_prompt(struct prompt *p, const struct options *o, struct weft_error *e) {
    int given = (o->prompt != NULL) + (o->prompt_file != NULL) + (o->tokens != NULL) + (o->tokens_file != NULL) + (o->messages != NULL);
    if (given != 1)
        return error_set(e, WEFT_ERROR_INPUT, "give one of --prompt, --prompt-file, --messages, --tokens, --tokens-file");
    if (o->tokens) return args_read_ids(&p->tokens, &p->n_tokens, o->tokens, strlen(o->tokens), "--tokens", e);
    if (o->tokens_file) return ids_read(&p->tokens, &p->n_tokens, o->tokens_file, e);
    int code = 0;
    if (o->tools) {
        json_t *tools;
        code = json_read_file(&tools, o->tools, INPUT_BYTES_MAX, e);
        if (code) return code;
        if (!json_is_array(tools)) code = error_set(e, WEFT_ERROR_INPUT, "%s: not a list of tools", o->tools);
        if (!code) code = add_json(&p->tools, tools, e);
        json_decref(tools);
    }
    if (!code && o->messages) return read_messages(p, o, e);
    if (!code && o->prompt && strcmp(o->prompt, "-")) buf_add_text(&p->text, o->prompt);
    else if (!code) code = file_read(&p->text, o->prompt ? "-" : o->prompt_file, INPUT_BYTES_MAX, e);
    if (!code && p->text.failed) code = error_memory(e, "the prompt");
    if (!code && p->text.n == 0) code = error_set(e, WEFT_ERROR_INPUT, "the prompt is empty");
    return code || o->raw ? code : make_messages(p, o, e);
}

static int set_request(struct weft_request_options *q, const struct prompt *p, const struct options *o, const struct run *r) {
    if (p->tokens) q->tokens = p->tokens, q->n_tokens = p->n_tokens;
    else if (o->raw && !o->messages) q->text = p->text.data, q->n_bytes = p->text.n;
    else {
        q->chat.messages = p->messages.data, q->chat.tools = p->tools.data;
        q->chat.template_args = o->template_args, q->chat.continue_last = o->continue_last;
        q->chat.thinking = o->no_thinking ? -1 : o->thinking ? 1 : 0;
    }
    q->raw_output = o->raw;
    q->max_tokens = o->max_tokens, q->ignore_eos = o->ignore_eos, q->thinking_budget = o->thinking_budget;
    q->stop = o->stop.text, q->n_stop = o->stop.n;
    q->logprobs = o->logprobs, q->want_tokens = o->logprobs >= 0, q->want_progress = 1;
    q->adapters = r->uses, q->n_adapters = r->n_uses;
    q->session = o->session, q->session_save = o->session_save;
    return 0;
}

static int generate(struct run *r, const struct options *o, struct run_sampling *s, const struct prompt *p, struct weft_error *e) {
    struct printer printer = {.o = o, .logprobs = o->json && o->logprobs >= 0 ? json_array() : NULL};
    struct weft_request_options q;
    struct weft_answer a;
    weft_request_defaults(r->model, &q);
    set_request(&q, p, o, r);
    q.on_event = on_event, q.arg = &printer;
    int code = run_sampling_apply(s, &q.sampling, e);
    if (!code && (code = weft_generate(&a, r->engine, &q, e)) == 0) {
        progress_end();
        if (printer.dimmed) dim(&printer, 0);
        if (a.result.finish == WEFT_FINISH_ERROR && !printer.lost)
            code = error_set(e, a.result.error.code, "%s", a.result.error.message);
        else if (o->json) code = print_json(r, &a, &printer, e);
        else if (printer.any && !printer.ends_line) out_text("\n");
        weft_answer_drop(&a);
    }
    if (printer.lost) code = 0; /* main tells of it, once */
    json_decref(printer.logprobs);
    return code;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {.max_tokens = -1, .thinking_budget = -1, .logprobs = -1};
    struct run_options ro = {.parallel = 1};
    struct run_sampling s;
    run_sampling_init(&s);
    const struct arg list[] = {
        {"prompt", 'p', ARG_TEXT, &o.prompt, "TEXT", "what the user says; - for standard input", 0, 0},
        {"prompt-file", 'f', ARG_TEXT, &o.prompt_file, "F", "the same from a file", 0, 0},
        {"messages", 0, ARG_TEXT, &o.messages, "F.json", "a conversation in the OpenAI form", 0, 0},
        {"tokens", 0, ARG_TEXT, &o.tokens, "\"1,2,3\"", "token ids as they stand", 0, 0},
        {"tokens-file", 0, ARG_TEXT, &o.tokens_file, "F", "the same from a file", 0, 0},
        {"raw", 0, ARG_FLAG, &o.raw, "", "no chat template: the text is the prompt, and all output is text", 0, 0},
        {"system", 0, ARG_TEXT, &o.system, "TEXT", "a system message before the others", 0, 0},
        {"tools", 0, ARG_TEXT, &o.tools, "F.json", "a list of tools that the model may call", 0, 0},
        {"thinking", 0, ARG_FLAG, &o.thinking, "", "let the model think first", 0, 0},
        {"no-thinking", 0, ARG_FLAG, &o.no_thinking, "", "let it not; by default as the template has it", 0, 0},
        {"thinking-budget", 0, ARG_COUNT, &o.thinking_budget, "N", "tokens of thinking after which it is ended", 0, 1 << 30},
        {"template-args", 0, ARG_TEXT, &o.template_args, "JSON", "an object whose members the chat template sees", 0, 0},
        {"continue", 0, ARG_FLAG, &o.continue_last, "", "the last message is an answer to be continued", 0, 0},
        {"max-tokens", 'n', ARG_COUNT, &o.max_tokens, "N", "longest answer; 0 only reads the prompt; by default as context\nand memory allow", -1, 1 << 30},
        {"ignore-eos", 0, ARG_FLAG, &o.ignore_eos, "", "go on behind end tokens", 0, 0},
        {"stop", 0, ARG_TEXTS, &o.stop, "TEXT", "ends the answer where it appears; may be repeated", 0, 0},
        {"logprobs", 0, ARG_COUNT, &o.logprobs, "N", "log probability of each token and of the N likeliest", 0, 1 << 20},
        {"session", 0, ARG_TEXT, &o.session, "F", "go on from a saved session: the prompt follows what it holds", 0, 0},
        {"session-save", 0, ARG_TEXT, &o.session_save, "F", "save it after the last token; *.safetensors: an MLX prompt\ncache", 0, 0},
        {"json", 0, ARG_FLAG, &o.json, "", "one JSON object with text, reasoning, tool_calls, tokens,\nfinish_reason, timings", 0, 0},
    };
    struct arg model_args[RUN_MODEL_ARGS], engine_args[RUN_ENGINE_ARGS], sampling_args[RUN_SAMPLING_ARGS];
    struct args a = {
        .usage = "MODEL (--prompt TEXT|- | --messages F.json | --tokens \"1,2,3\")",
        .about = "Answers one prompt. On a terminal thinking is shown dimmed; elsewhere only the answer is printed.",
        .group = {{"Prompt and answer", list, sizeof list / sizeof *list}, run_sampling_args(&s, sampling_args),
                  run_model_args(&ro, model_args), run_engine_args(&ro, engine_args)},
        .n_groups = 4, .min_positional = 1, .max_positional = 1};
    int code = args_parse(&a, argc, argv, e);
    if (code) return code < 0 ? code : 0;
    /* One prompt has nothing to share: states for later prompts would only take memory, unless they are asked for. */
    if (!ro.cache_bytes && !ro.snapshot_every) ro.no_prefix_cache = 1;
    struct prompt p = {0};
    struct run r;
    code = read_prompt(&p, &o, e); /* before the model: a wrong file name shall not take its loading time */
    if (!code && (code = run_open(&r, a.positional[0], &ro, e)) == 0) {
        code = generate(&r, &o, &s, &p, e);
        run_close(&r);
    }
    progress_end();
    prompt_drop(&p);
    return code;
}

const struct command command_generate = {"generate", "answer a prompt", run};
