#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/run.h"

enum { STOPS_MAX = 16, LINE_BYTES_MAX = 1 << 30 };

/* One line on its way. */
struct job {
    struct batch_run *run;
    json_t *id;              /* NULL: the line has none */
    int line;
    struct buf text, reasoning;
    json_t *calls;
};

struct batch_run {
    struct run *r;
    const struct run_sampling *sampling; /* of the command line, for lines that do not say */
    const char *out_path;
    FILE *out;
    json_t *seen;            /* set of what the output holds and what this run has begun: id, or "line N" */
    int n_lines, line, running, parallel, answered, failed, skipped, max_tokens;
    int64_t tokens;
    int write_error;         /* errno */
};

static void job_free(struct job *j) {
    json_decref(j->id), json_decref(j->calls);
    buf_drop(&j->text), buf_drop(&j->reasoning);
    mem_free(j);
}

static void write_object(struct batch_run *b, json_t *o) {
    char *text = o ? json_dumps(o, 0) : NULL;
    errno = 0;
    if (b->out && !b->write_error && (!text || fprintf(b->out, "%s\n", text) < 0 || fflush(b->out) != 0)) b->write_error = errno ? errno : ENOMEM;
    free(text), json_decref(o);
}

/* {"id": ...} or, without one, {"id": null, "line": N} */
static json_t *object_for(json_t *id, int line) {
    json_t *o = json_object();
    json_object_set(o, "id", id ? id : json_null());
    if (!id) json_object_set_new(o, "line", json_integer(line));
    return o;
}

static void write_error(struct batch_run *b, json_t *id, int line, const char *sentence) {
    json_t *o = object_for(id, line);
    json_object_set_new(o, "error", json_string(sentence));
    write_object(b, o);
    b->failed++;
}

static void write_answer(struct job *j, const struct weft_result *r) {
    json_t *o = object_for(j->id, j->line);
    json_object_set_new(o, "text", json_stringn(j->text.data ? j->text.data : "", j->text.n));
    if (j->reasoning.n) json_object_set_new(o, "reasoning", json_stringn(j->reasoning.data, j->reasoning.n));
    if (j->calls) json_object_set(o, "tool_calls", j->calls);
    result_add(o, r);
    write_object(j->run, o);
    j->run->answered++, j->run->tokens += r->n_tokens;
}

static int on_event(void *arg, const struct weft_event *v) {
    struct job *j = arg;
    struct batch_run *b = j->run;
    if (v->kind == WEFT_EVENT_TEXT) buf_add(&j->text, v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_REASONING) buf_add(&j->reasoning, v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_TOOL_CALL) {
        json_t *arguments = json_loads(v->arguments ? v->arguments : "{}", JSON_DECODE_ANY, NULL);
        if (!j->calls) j->calls = json_array();
        json_array_append_new(j->calls, json_pack("{s:s,s:o}", "name", v->name ? v->name : "", "arguments", arguments ? arguments : json_null()));
    }
    if (v->kind != WEFT_EVENT_DONE) return b->write_error != 0;
    if (v->result->finish == WEFT_FINISH_ERROR) write_error(b, j->id, j->line, v->result->error.message);
    else if (j->text.failed || j->reasoning.failed) write_error(b, j->id, j->line, "no memory for the answer");
    else write_answer(j, v->result);
    b->running--;
    job_free(j);
    return 0;
}

/* ---- a line to a request ---- */

/* What a line may hold beside "id". */
struct line {
    json_t *o;
    char *messages, *tools;
    int32_t *tokens;
    const char *stops[STOPS_MAX];
    struct weft_adapter_use uses[RUN_ADAPTERS];
};

static void line_drop(struct line *l) {
    free(l->messages), free(l->tools), mem_free(l->tokens);
    json_decref(l->o);
}

static int read_tokens(struct line *l, struct weft_request_options *q, struct weft_error *e) {
    json_t *list = json_object_get(l->o, "tokens");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > INT_MAX) return error_set(e, WEFT_ERROR_INPUT, "\"tokens\" is not a list of ids");
    if (!(l->tokens = mem_new(n, sizeof *l->tokens))) return error_memory(e, "tokens");
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_array_get(list, i);
        json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id > INT32_MAX)
            return error_set(e, WEFT_ERROR_INPUT, "\"tokens\"[%zu] is not a token id", i);
        l->tokens[i] = (int32_t)id;
    }
    q->tokens = l->tokens, q->n_tokens = (int)n;
    return 0;
}

static int read_stops(struct line *l, struct weft_request_options *q, struct weft_error *e) {
    json_t *stop = json_object_get(l->o, "stop");
    if (!stop || json_is_null(stop)) return 0;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (n > STOPS_MAX) return error_set(e, WEFT_ERROR_INPUT, "\"stop\" has more than %d texts", STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        l->stops[i] = json_string_value(json_is_array(stop) ? json_array_get(stop, i) : stop);
        if (!l->stops[i]) return error_set(e, WEFT_ERROR_INPUT, "\"stop\" is neither a text nor a list of texts");
    }
    q->stop = l->stops, q->n_stop = (int)n;
    return 0;
}

/* "DIR[=weight]+...", a list of such, or null for none; absent: what --lora says. */
static int read_lora(struct batch_run *b, struct line *l, struct weft_request_options *q, struct weft_error *e) {
    json_t *lora = json_object_get(l->o, "lora");
    q->adapters = b->r->uses, q->n_adapters = b->r->n_uses;
    if (!lora) return 0;
    int n = 0;
    size_t n_texts = json_is_array(lora) ? json_array_size(lora) : !json_is_null(lora);
    for (size_t i = 0; i < n_texts; i++) {
        const char *text = json_string_value(json_is_array(lora) ? json_array_get(lora, i) : lora);
        struct weft_adapter_use some[RUN_ADAPTERS];
        int n_some = 0, code = text ? run_adapters(b->r, text, some, &n_some, e)
                                    : error_set(e, WEFT_ERROR_INPUT, "\"lora\" is neither a text nor a list of texts");
        if (!code && n + n_some > RUN_ADAPTERS) code = error_set(e, WEFT_ERROR_INPUT, "\"lora\": at most %d adapters", RUN_ADAPTERS);
        if (code) return code;
        for (int k = 0; k < n_some; k++) l->uses[n++] = some[k];
    }
    q->adapters = l->uses, q->n_adapters = n;
    return 0;
}

static int check_fields(json_t *o, struct weft_error *e) {
    static const char *const known[] = {"id", "messages", "tokens", "prompt", "tools", "max_tokens", "temperature", "top_p", "top_k",
                                        "min_p", "seed", "lora", "stop", "ignore_eos", "thinking", NULL};
    const char *key;
    json_t *value;
    json_object_foreach(o, key, value) {
        int i = 0;
        while (known[i] && strcmp(known[i], key)) i++;
        if (!known[i]) return error_set(e, WEFT_ERROR_INPUT, "unknown field \"%s\"", key);
    }
    return 0;
}

static int read_numbers(struct line *l, struct weft_request_options *q, struct weft_error *e) {
    double temperature = q->sampling.temperature, top_p = q->sampling.top_p, min_p = q->sampling.min_p;
    int64_t top_k = q->sampling.top_k, max_tokens = q->max_tokens, seed = (int64_t)q->sampling.seed;
    int thinking = 0;
    int code = json_get_number(l->o, "temperature", 0, 0, 100, &temperature, "line", e);
    if (!code) code = json_get_number(l->o, "top_p", 0, 0, 1, &top_p, "line", e);
    if (!code) code = json_get_number(l->o, "min_p", 0, 0, 1, &min_p, "line", e);
    if (!code) code = json_get_int(l->o, "top_k", 0, 0, INT_MAX, &top_k, "line", e);
    if (!code) code = json_get_int(l->o, "max_tokens", 0, -1, INT_MAX, &max_tokens, "line", e);
    if (!code) code = json_get_int(l->o, "seed", 0, INT64_MIN, INT64_MAX, &seed, "line", e);
    if (!code) code = json_get_bool(l->o, "ignore_eos", 0, &q->ignore_eos, "line", e);
    json_t *t = json_object_get(l->o, "thinking");
    if (!code && t && !json_is_null(t)) {
        code = json_get_bool(l->o, "thinking", 0, &thinking, "line", e);
        q->chat.thinking = thinking ? 1 : -1;
    }
    q->sampling.temperature = (float)temperature, q->sampling.top_p = (float)top_p, q->sampling.min_p = (float)min_p;
    q->sampling.top_k = (int)top_k, q->max_tokens = (int)max_tokens, q->sampling.seed = (uint64_t)seed;
    return code;
}

static int read_request(struct batch_run *b, struct line *l, struct weft_request_options *q, struct weft_error *e) {
    json_t *messages = json_object_get(l->o, "messages"), *tools = json_object_get(l->o, "tools"), *made = NULL;
    const char *prompt = json_string_value(json_object_get(l->o, "prompt"));
    int code = check_fields(l->o, e), has_tokens = json_object_get(l->o, "tokens") != NULL;
    weft_request_defaults(b->r->model, q);
    q->max_tokens = b->max_tokens;
    struct run_sampling sampling = *b->sampling;
    if (!code) code = run_sampling_apply(&sampling, &q->sampling, e);
    q->sampling.bias = b->sampling->bias; /* the same values, in memory that stays */
    if (!code && (messages != NULL) + has_tokens + (prompt != NULL) != 1)
        code = error_set(e, WEFT_ERROR_INPUT, "one of \"messages\", \"tokens\" and \"prompt\" is wanted");
    if (!code && messages && !json_is_array(messages)) code = error_set(e, WEFT_ERROR_INPUT, "\"messages\" is not a list");
    if (!code && tools && !json_is_array(tools)) code = error_set(e, WEFT_ERROR_INPUT, "\"tools\" is not a list");
    if (!code && has_tokens) code = read_tokens(l, q, e);
    if (!code && !has_tokens) {
        if (prompt) messages = made = json_pack("[{s:s,s:s}]", "role", "user", "content", prompt);
        q->chat.messages = l->messages = messages ? json_dumps(messages, 0) : NULL;
        q->chat.tools = l->tools = tools ? json_dumps(tools, 0) : NULL;
        if (!l->messages || (tools && !l->tools)) code = error_memory(e, "messages");
    }
    json_decref(made);
    if (!code) code = read_numbers(l, q, e);
    if (!code) code = read_stops(l, q, e);
    if (!code) code = read_lora(b, l, q, e);
    return code;
}

static int seen_key(char *key, size_t n, json_t *id, int line) {
    char *text = id ? json_dumps(id, JSON_ENCODE_ANY) : NULL;
    int length = text ? snprintf(key, n, "%s", text) : snprintf(key, n, "line %d", line);
    free(text);
    return length >= 0 && (size_t)length < n;
}

/* Parses one line and submits it; what is wrong with it goes into the output. */
static void begin_line(struct batch_run *b, const char *text, size_t n) {
    struct line l = {0};
    struct weft_error e = {0};
    struct weft_request_options q;
    char key[1024] = "";
    int code = json_parse(&l.o, text, n, "line", &e);
    if (!code && !json_is_object(l.o)) code = error_set(&e, WEFT_ERROR_INPUT, "the line is not a JSON object");
    json_t *id = json_object_get(l.o, "id");
    if (json_is_null(id)) id = NULL;
    if (!seen_key(key, sizeof key, id, b->line)) code = error_set(&e, WEFT_ERROR_INPUT, "the id is too long"), id = NULL;
    if (json_object_get(b->seen, key)) {
        json_t *at = json_object_get(b->seen, key);
        if (json_integer_value(at) == 0) { b->skipped++; line_drop(&l); return; } /* an earlier run answered it */
        code = error_set(&e, WEFT_ERROR_INPUT, "the id is that of line %d too", (int)json_integer_value(at)), id = NULL;
    }
    json_object_set_new(b->seen, key, json_integer(b->line));
    if (!code) code = read_request(b, &l, &q, &e);
    struct job *j = code ? NULL : mem_new(1, sizeof *j);
    if (!code && !j) code = error_memory(&e, "a request");
    if (!code) {
        *j = (struct job){.run = b, .id = json_incref(id), .line = b->line};
        q.on_event = on_event, q.arg = j;
        b->running++;
        code = weft_submit(NULL, b->r->engine, &q, &e);
        if (code) b->running--, job_free(j);
    }
    if (code) write_error(b, id, b->line, e.message);
    line_drop(&l);
}

/* ---- files ---- */

/* Notes what an earlier run has written, and takes away a last line that it did not finish. */
static int open_output(struct batch_run *b, struct weft_error *e) {
    struct buf old;
    buf_init(&old);
    int code = 0;
    size_t whole = 0;
    struct stat s;
    if (stat(b->out_path, &s) == 0 && S_ISREG(s.st_mode)) code = file_read(&old, b->out_path, (size_t)1 << 40, e);
    for (size_t at = 0, n; at < old.n && !code; at += n) {
        const char *stop = memchr(old.data + at, '\n', old.n - at);
        if (!stop) break;
        n = (size_t)(stop - old.data) - at + 1, whole = at + n;
        json_t *o = json_loadb(old.data + at, n, 0, NULL), *id = json_object_get(o, "id");
        char key[1024];
        if (json_is_null(id)) id = NULL;
        if (o && seen_key(key, sizeof key, id, (int)json_integer_value(json_object_get(o, "line"))))
            json_object_set_new(b->seen, key, json_integer(0));
        json_decref(o);
    }
    if (!code && whole < old.n && truncate(b->out_path, (off_t)whole) != 0) code = -1;
    if (!code && !(b->out = fopen(b->out_path, "ab"))) code = -1;
    if (code == -1) code = error_set(e, WEFT_ERROR_INPUT, "%s: %s", b->out_path, strerror(errno));
    buf_drop(&old);
    return code;
}

static int work(struct batch_run *b, const struct buf *in, struct weft_error *e) {
    size_t at = 0;
    int more = 1;
    while (!b->write_error && (at < in->n || b->running)) {
        while (at < in->n && b->running < b->parallel && !b->write_error) {
            const char *start = in->data + at, *stop = memchr(start, '\n', in->n - at);
            size_t n = stop ? (size_t)(stop - start) : in->n - at;
            at += n + 1, b->line++;
            if (strspn(start, " \t\r") < n) begin_line(b, start, n);
        }
        more = weft_engine_step(b->r->engine, e);
        if (more < 0) return more;
        char what[128];
        snprintf(what, sizeof what, "%d answered, %d failed, %d running, line %d of %d:", b->answered, b->failed, b->running, b->line,
                 b->n_lines);
        progress_show(NULL, what, (double)(b->line - b->running) / (b->n_lines ? b->n_lines : 1));
    }
    progress_end();
    return b->write_error ? error_set(e, WEFT_ERROR_INPUT, "%s: %s", b->out_path, strerror(b->write_error)) : 0;
}

static int run_batch(struct batch_run *b, const char *in_path, struct weft_error *e) {
    struct buf in;
    buf_init(&in);
    double start = clock_ms();
    if (!(b->seen = json_object())) return error_memory(e, "ids");
    int code = file_read(&in, in_path, LINE_BYTES_MAX, e);
    for (size_t i = 0; i < in.n && !code; i++) b->n_lines += in.data[i] == '\n' || i + 1 == in.n;
    if (!code) code = open_output(b, e);
    if (!code) code = work(b, &in, e);
    if (b->out && fclose(b->out) != 0 && !code) code = error_set(e, WEFT_ERROR_INPUT, "%s: %s", b->out_path, strerror(errno));
    b->out = NULL; /* what is still running is cancelled when the engine closes: nothing is written of it */
    double seconds = (clock_ms() - start) / 1000;
    if (!code)
        fprintf(stderr, "%d answered, %d failed, %d were there; %" PRId64 " tokens in %.1f s\n", b->answered, b->failed, b->skipped,
                b->tokens, seconds);
    buf_drop(&in), json_decref(b->seen);
    return code;
}

static int run(int argc, char **argv, struct weft_error *e) {
    const char *in = NULL, *out = NULL;
    struct run_options ro = {.parallel = 4};
    struct run_sampling s;
    run_sampling_init(&s);
    int max_tokens = -1;
    const struct arg list[] = {
        {"in", 'i', ARG_TEXT, &in, "F.jsonl", "one request a line; - for standard input", 0, 0},
        {"out", 'o', ARG_TEXT, &out, "F.jsonl", "one answer a line, in the order of completion; lines are added, and\nrequests that the file holds already are skipped", 0, 0},
        {"parallel", 0, ARG_COUNT, &ro.parallel, "N", "requests that run at once (4)", 1, 1024},
        {"max-tokens", 'n', ARG_COUNT, &max_tokens, "N", "longest answer, for lines that do not say", -1, 1 << 30},
    };
    struct arg model_args[RUN_MODEL_ARGS], engine_args[RUN_ENGINE_ARGS], sampling_args[RUN_SAMPLING_ARGS];
    struct args a = {
        .usage = "MODEL --in F.jsonl --out F.jsonl [--parallel N]",
        .about = "Answers many requests in one process, N at once in packed steps. A line is a JSON object with \"id\", \"messages\" or\n"
                 "\"tokens\" (or \"prompt\"), and if need be \"max_tokens\", \"temperature\", \"top_p\", \"top_k\", \"min_p\", \"seed\", \"lora\",\n"
                 "\"stop\", \"ignore_eos\", \"tools\", \"thinking\". A bad line is answered by an object with \"error\".",
        .group = {{"Options", list, sizeof list / sizeof *list}, run_sampling_args(&s, sampling_args),
                  run_model_args(&ro, model_args), run_engine_args(&ro, engine_args)},
        .n_groups = 4, .min_positional = 1, .max_positional = 1};
    int code = args_parse(&a, argc, argv, e);
    if (code) return code < 0 ? code : 0;
    if (!in || !out) return error_set(e, WEFT_ERROR_INPUT, "--in and --out are wanted");
    struct run r;
    code = run_open(&r, a.positional[0], &ro, e);
    if (code) return code;
    struct batch_run b = {.r = &r, .sampling = &s, .out_path = out, .parallel = ro.parallel, .max_tokens = max_tokens};
    struct weft_sampling checked; /* biases are read once, here, and a mistake in them ends the run before it begins */
    weft_sampling_defaults(r.model, &checked);
    code = run_sampling_apply(&s, &checked, e);
    if (!code) code = run_batch(&b, in, e);
    run_close(&r);
    return code;
}

const struct command command_batch = {"batch", "answer many requests in one process", run};
