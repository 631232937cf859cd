#include "text/output.h"

#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/toolcall.h"

enum state { STATE_TEXT, STATE_REASONING, STATE_TOOL };

struct output {
    struct output_options options;
    char **stops;
    enum state state;
    struct buf held; /* not decided yet */
    struct buf call; /* inside a tool call */
    int stopped, n_calls;
};

/* Where a marker leads from each state; -1: it is text there. A mark that closes what is not open is dropped. */
static const struct marker { const char *text; int is_tool; signed char from_text, from_reasoning, from_tool; } markers[] = {
    {"<think>", 0, STATE_REASONING, STATE_REASONING, -1},
    {"</think>", 0, STATE_TEXT, STATE_TEXT, -1},
    {"<tool_call>", 1, STATE_TOOL, -1, -1},
    {"</tool_call>", 1, STATE_TEXT, -1, STATE_TEXT},
};
enum { N_MARKERS = sizeof markers / sizeof *markers };

static const char *last_of(const char *s, size_t n, const char *what) {
    size_t m = strlen(what);
    for (size_t at = n >= m ? n - m + 1 : 0; at-- > 0;)
        if (s[at] == what[0] && !memcmp(s + at, what, m)) return s + at;
    return NULL;
}

static int take_stops(struct output *o, const struct output_options *options, struct weft_error *e) {
    if (!(o->stops = mem_new(options->n_stops, sizeof *o->stops))) return error_memory(e, "stop strings");
    for (size_t i = 0; i < options->n_stops; i++) {
        if (!options->stops[i][0]) return error_set(e, WEFT_ERROR_INPUT, "a stop string is empty");
        if (!(o->stops[i] = mem_copy_text(options->stops[i], strlen(options->stops[i])))) return error_memory(e, "stop strings");
    }
    return 0;
}

int output_new(struct output **out, const struct output_options *options, struct weft_error *e) {
    struct output *o = *out = mem_new(1, sizeof *o);
    if (!o) return error_memory(e, "the output");
    o->options = *options;
    if (!toolcall_family_is_known(options->tool_family)) o->options.tool_family = NULL; /* better text than lost calls */
    buf_init(&o->held), buf_init(&o->call);
    if (options->prompt && !options->plain) {
        const char *open = last_of(options->prompt, options->n_prompt, "<think>");
        const char *close = last_of(options->prompt, options->n_prompt, "</think>");
        if (open && (!close || open > close)) o->state = STATE_REASONING;
    }
    o->options.prompt = NULL; /* read, and not ours to keep */
    int code = take_stops(o, options, e);
    if (code) output_free(o), *out = NULL;
    return code;
}

void output_free(struct output *o) {
    if (!o) return;
    for (size_t i = 0; o->stops && i < o->options.n_stops; i++) mem_free(o->stops[i]);
    mem_free(o->stops);
    buf_drop(&o->held), buf_drop(&o->call);
    mem_free(o);
}

int output_is_thinking(const struct output *o) { return o->state == STATE_REASONING; }
int output_n_calls(const struct output *o) { return o->n_calls; }

static int emit(struct output *o, enum output_kind kind, const char *bytes, size_t n, struct weft_error *e) {
    if (!n || !o->options.on_event(o->options.arg, kind, bytes, n)) return 0;
    return error_set(e, WEFT_ERROR_CANCELLED, "the caller wants no more text");
}

/* Text that is decided: out, or into the tool call. */
static int pass_on(struct output *o, char *bytes, size_t n, struct weft_error *e) {
    if (o->state == STATE_TOOL) {
        buf_add(&o->call, bytes, n);
        return o->call.failed ? error_memory(e, "a tool call") : 0;
    }
    char behind = bytes[n]; /* inside `held`, which ends with a zero byte of its own */
    bytes[n] = 0;
    int code = emit(o, o->state == STATE_REASONING ? OUTPUT_REASONING : OUTPUT_TEXT, bytes, n, e);
    bytes[n] = behind;
    return code;
}

static int emit_calls(struct output *o, const json_t *calls, struct weft_error *e) {
    int code = 0;
    for (size_t i = 0; !code && i < json_array_size(calls); i++) {
        char *text = json_dumps(json_array_get(calls, i), 0);
        if (!text) return error_memory(e, "a tool call");
        code = emit(o, OUTPUT_TOOL_CALL, text, strlen(text), e);
        mem_free(text);
        o->n_calls += !code;
    }
    return code;
}

/* The call in hand is complete. One that cannot be read is dropped with a line in the log. */
static int finish_call(struct output *o, struct weft_error *e) {
    struct weft_error why = {0};
    json_t *calls = json_array();
    int code = calls ? 0 : error_memory(e, "a tool call");
    if (!code) {
        int n =
            toolcall_parse(calls, o->options.tool_family, o->call.data ? o->call.data : "", o->call.n, o->options.tools, &why);
        if (n == WEFT_ERROR_MEMORY) code = error_memory(e, "a tool call");
        else if (n <= 0) log_write(LOG_WARNING, "a tool call was dropped: %s", why.message);
        else code = emit_calls(o, calls, e);
    }
    json_decref(calls);
    buf_clear(&o->call);
    return code;
}

/* What is found at a place of the held text. */
enum found { FOUND_NOTHING, FOUND_PART, FOUND_STOP, FOUND_MARKER };
struct match { enum found found; size_t n; int to; };

static void try(struct match *m, const char *s, size_t n, const char *what, enum found as, int to) {
    size_t want = strlen(what);
    if (memcmp(s, what, n < want ? n : want)) return;
    if (want > n) {
        if (m->found == FOUND_NOTHING) m->found = FOUND_PART;
    } else if (m->found <= FOUND_PART || want < m->n) *m = (struct match){as, want, to};
}

static struct match match_at(const struct output *o, const char *s, size_t n) {
    struct match m = {FOUND_NOTHING, 0, 0};
    for (size_t i = 0; i < o->options.n_stops; i++)
        if (o->stops[i][0] == s[0]) try(&m, s, n, o->stops[i], FOUND_STOP, 0);
    if (s[0] != '<' || o->options.plain) return m;
    for (int i = 0; i < N_MARKERS; i++) {
        const struct marker *k = &markers[i];
        int to = o->state == STATE_TEXT ? k->from_text : o->state == STATE_TOOL ? k->from_tool : k->from_reasoning;
        if (to < 0 || (k->is_tool && !o->options.tool_family)) continue;
        try(&m, s, n, k->text, FOUND_MARKER, to);
    }
    return m;
}

static int enter(struct output *o, int state, struct weft_error *e) {
    int code = o->state == STATE_TOOL ? finish_call(o, e) : 0;
    o->state = (enum state)state;
    return code;
}

/* Passes on all of the held text that is decided; at the very end everything is. */
static int scan(struct output *o, int at_end, struct weft_error *e) {
    char *s = o->held.data;
    size_t from = 0, at = 0, end = o->held.n;
    int code = 0;
    while (at < end && !code) {
        struct match m = match_at(o, s + at, end - at);
        if (m.found == FOUND_NOTHING || (m.found == FOUND_PART && at_end)) { at++; continue; }
        code = pass_on(o, s + from, at - from, e);
        from = at;
        if (m.found == FOUND_PART) break;
        from = at += m.n;
        if (m.found == FOUND_MARKER && !code) code = enter(o, m.to, e);
        if (m.found == FOUND_STOP) { o->stopped = 1, from = end; break; }
    }
    if (!code && at == end) code = pass_on(o, s + from, end - from, e), from = end;
    if (end) memmove(s, s + from, end - from);
    o->held.n = end - from;
    return code;
}

int output_feed(struct output *o, const char *bytes, size_t n, struct weft_error *e) {
    if (o->stopped) return OUTPUT_STOPPED;
    buf_add(&o->held, bytes, n);
    if (o->held.failed) return error_memory(e, "the output");
    int code = scan(o, 0, e);
    return code ? code : o->stopped ? OUTPUT_STOPPED : 0;
}

int output_end(struct output *o, int cut, struct weft_error *e) {
    int code = 0;
    if (cut && !o->stopped && o->held.n) code = scan(o, 1, e);
    buf_clear(&o->held);
    if (code || o->state != STATE_TOOL) return code;
    if (!cut || o->stopped) return enter(o, STATE_TEXT, e);
    /* Cut off in the middle: what there is of the call is all that the caller will get to see. */
    o->state = STATE_TEXT;
    code = emit(o, OUTPUT_TEXT, "<tool_call>", 11, e);
    if (!code && o->call.n) code = emit(o, OUTPUT_TEXT, o->call.data, o->call.n, e);
    buf_clear(&o->call);
    return code;
}
