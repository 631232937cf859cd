#define _POSIX_C_SOURCE 200809L
#include <editline/readline.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/run.h"

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number) { (void)signal_number, interrupted = 1; }
/* Ctrl-C ends the reading of a line. While an answer is written it must not end a write, which would be an error of the terminal. */
static void catch_interrupts(int flags) {
    struct sigaction stop = {.sa_handler = on_interrupt, .sa_flags = flags};
    sigaction(SIGINT, &stop, NULL);
}

struct options { const char *system, *tools, *session_save; int thinking, no_thinking, thinking_budget, max_tokens; };

struct chat {
    struct run *r;
    const struct options *o;
    struct run_sampling *sampling;
    json_t *messages;
    char *tools;
    struct buf said, thought; /* of the answer under way */
    int thinking, on_terminal, dimmed, at_line_start, any;
};

/* ---- the answer ---- */

static void dim(struct chat *c, int on) {
    if (c->dimmed == on || !c->on_terminal) return;
    c->dimmed = on;
    out_text(on ? "\033[2m" : "\033[0m");
    if (!on && !c->at_line_start) out_text("\n\n");
}

/* The empty lines that templates put before an answer are left out. */
static void show_text(struct chat *c, const char *text, size_t n) {
    for (; n && *text == '\n' && !c->any; n--) text++;
    dim(c, 0);
    if (!n) return;
    out_bytes(text, n);
    c->any = 1, c->at_line_start = text[n - 1] == '\n';
}

static int on_event(void *arg, const struct weft_event *v) {
    struct chat *c = arg;
    struct weft_error e;
    if (v->kind == WEFT_EVENT_PROGRESS) progress_show(NULL, "reading", v->total ? (double)v->done / v->total : -1);
    else progress_end();
    if (v->kind == WEFT_EVENT_REASONING) buf_add(&c->thought, v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_TEXT) buf_add(&c->said, v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_REASONING && c->on_terminal) dim(c, 1), out_bytes(v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_TEXT) show_text(c, v->text, v->n_bytes);
    if (v->kind == WEFT_EVENT_TOOL_CALL) {
        dim(c, 0), out_printf("[%s %s]", v->name ? v->name : "", v->arguments ? v->arguments : "");
        c->at_line_start = 0;
    }
    if (v->kind == WEFT_EVENT_REASONING && v->n_bytes && c->on_terminal) c->at_line_start = v->text[v->n_bytes - 1] == '\n';
    return out_check(&e) < 0 || interrupted;
}

static void take_question_back(struct chat *c) { json_array_remove(c->messages, json_array_size(c->messages) - 1); }

/* What was said, also when it was stopped half-way; where nothing was, the question is taken back. */
static void remember(struct chat *c, const char *tool_calls) {
    if (!c->said.n && !c->thought.n && !tool_calls) {
        take_question_back(c);
        return;
    }
    json_t *m = json_pack("{s:s,s:s}", "role", "assistant", "content", c->said.n ? c->said.data : "");
    if (m && c->thought.n) json_object_set_new(m, "reasoning_content", json_string(c->thought.data));
    json_t *calls = tool_calls ? json_loads(tool_calls, 0, NULL) : NULL, *list = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call)
        json_array_append_new(list, json_pack("{s:s,s:O}", "type", "function", "function", call));
    if (m && json_array_size(list)) json_object_set(m, "tool_calls", list);
    json_array_append_new(c->messages, m);
    json_decref(calls), json_decref(list);
}

static int answer(struct chat *c, struct weft_error *e) {
    struct weft_request_options q;
    struct weft_answer a;
    char *messages = json_dumps(c->messages, 0);
    weft_request_defaults(c->r->model, &q);
    q.chat = (struct weft_chat){.messages = messages, .tools = c->tools, .thinking = c->thinking};
    q.max_tokens = c->o->max_tokens, q.thinking_budget = c->o->thinking_budget, q.want_progress = 1;
    q.adapters = c->r->uses, q.n_adapters = c->r->n_uses;
    q.session_save = c->o->session_save;
    q.on_event = on_event, q.arg = c;
    c->at_line_start = 1, c->any = 0, interrupted = 0;
    buf_clear(&c->said), buf_clear(&c->thought);
    int code = messages ? run_sampling_apply(c->sampling, &q.sampling, e) : error_memory(e, "the conversation");
    catch_interrupts(SA_RESTART);
    if (!code) code = weft_generate(&a, c->r->engine, &q, e);
    catch_interrupts(0);
    free(messages);
    progress_end();
    int stopped = code == WEFT_ERROR_CANCELLED && interrupted;
    dim(c, 0);
    if (code && !stopped) return code;
    if (!c->at_line_start) out_text("\n");
    if (c->said.failed || c->thought.failed) code = error_memory(e, "the answer");
    else remember(c, stopped ? NULL : a.tool_calls), code = 0;
    if (!stopped) weft_answer_drop(&a);
    interrupted = 0;
    return code;
}

/* ---- the conversation ---- */

static void forget(struct chat *c) {
    json_decref(c->messages);
    c->messages = json_array();
    if (c->o->system) json_array_append_new(c->messages, json_pack("{s:s,s:s}", "role", "system", "content", c->o->system));
}

/* 1: that was a command; 2: the end. */
static int take_command(struct chat *c, const char *line) {
    if (line[0] != '/') return 0;
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit")) return 2;
    if (!strcmp(line, "/new")) { forget(c); return 1; }
    if (!strcmp(line, "/think")) { c->thinking = 1; return 1; }
    if (!strcmp(line, "/nothink")) { c->thinking = -1; return 1; }
    if (strcmp(line, "/help")) return 0;
    out_text("/new begins a new conversation, /think and /nothink switch thinking, /quit ends.\n"
             "A line that ends in \\ goes on in the next. Ctrl-C stops an answer, Ctrl-D ends.\n");
    return 1;
}

static char *read_plain(void) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n = getline(&line, &room, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n && line[n - 1] == '\n') line[n - 1] = 0;
    return line;
}

/* Ctrl-D typed while an answer was written reaches the editor as a zero byte, which editline takes for the key that quotes the
 * next one (terminals without such a key have a zero in its place): the next Ctrl-D would then be text. Bound at every line,
 * for editline binds the terminal's keys anew as a line begins. */
static int ignore_zero_bytes(void) { return rl_parse_and_bind("bind ^@ ed-ignore"); }

/* One message: lines joined where they end in a backslash. 0 at the end of the input. */
static int read_message(const struct chat *c, struct buf *out) {
    buf_clear(out);
    for (int more = 0;; more = 1) {
        char *line = c->on_terminal ? readline(more ? ". " : "> ") : read_plain();
        if (!line) return more;
        if (interrupted && !*line) { /* Ctrl-C at the prompt: the line is thrown away */
            interrupted = 0, free(line), buf_clear(out);
            more = 0;
            continue;
        }
        size_t n = strlen(line);
        int goes_on = n && line[n - 1] == '\\';
        buf_add(out, line, n - (size_t)goes_on);
        if (goes_on) buf_add_char(out, '\n');
        if (c->on_terminal && n) add_history(line);
        free(line);
        if (!goes_on) return !out->failed;
    }
}

static int converse(struct chat *c, struct weft_error *e) {
    struct buf text;
    buf_init(&text);
    int code = 0, command = 0;
    forget(c);
    while (!code && command != 2 && read_message(c, &text)) {
        const char *line = text.data ? text.data : "";
        if (!*line || (command = take_command(c, line)) != 0) continue;
        json_t *m = json_pack("{s:s,s:s}", "role", "user", "content", line);
        if (!m) {
            fputs("weft: the line is not UTF-8\n", stderr);
            continue;
        }
        json_array_append_new(c->messages, m);
        code = answer(c, e);
        struct weft_error lost;
        if (out_check(&lost) < 0) break; /* main tells of it */
        if (code && c->on_terminal) { /* the question is taken back, the conversation goes on */
            fprintf(stderr, "weft: %s\n", e->message);
            take_question_back(c);
            code = 0;
        }
    }
    if (c->on_terminal && command != 2) out_text("\n");
    buf_drop(&text);
    return code;
}

static int read_tools(struct chat *c, struct weft_error *e) {
    json_t *tools;
    int code = json_read_file(&tools, c->o->tools, (size_t)1 << 28, e);
    if (code) return code;
    if (!json_is_array(tools)) code = error_set(e, WEFT_ERROR_INPUT, "%s: not a list of tools", c->o->tools);
    else if (!(c->tools = json_dumps(tools, 0))) code = error_memory(e, c->o->tools);
    json_decref(tools);
    return code;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {.max_tokens = -1, .thinking_budget = -1};
    struct run_options ro = {.parallel = 1};
    struct run_sampling s;
    run_sampling_init(&s);
    const struct arg list[] = {
        {"system", 0, ARG_TEXT, &o.system, "TEXT", "a system message before the conversation", 0, 0},
        {"tools", 0, ARG_TEXT, &o.tools, "F.json", "a list of tools that the model may call; calls are shown", 0, 0},
        {"thinking", 0, ARG_FLAG, &o.thinking, "", "let the model think first", 0, 0},
        {"no-thinking", 0, ARG_FLAG, &o.no_thinking, "", "let it not; by default as the template has it", 0, 0},
        {"thinking-budget", 0, ARG_COUNT, &o.thinking_budget, "N", "tokens of thinking after which it is ended", 0, 1 << 30},
        {"max-tokens", 'n', ARG_COUNT, &o.max_tokens, "N", "longest answer; by default as context and memory allow", -1, 1 << 30},
        {"session-save", 0, ARG_TEXT, &o.session_save, "F", "save the session after every answer", 0, 0},
    };
    struct arg model_args[RUN_MODEL_ARGS], engine_args[RUN_ENGINE_ARGS], sampling_args[RUN_SAMPLING_ARGS];
    struct args a = {
        .usage = "MODEL [options]",
        .about = "A conversation, line by line, with editing and history. Ctrl-C stops an answer, Ctrl-D or /quit ends; /help tells\n"
                 "more. Thinking is shown dimmed. When input is no terminal, every line is a message.",
        .group = {{"Conversation", list, sizeof list / sizeof *list}, run_sampling_args(&s, sampling_args),
                  run_model_args(&ro, model_args), run_engine_args(&ro, engine_args)},
        .n_groups = 4, .min_positional = 1, .max_positional = 1};
    int code = args_parse(&a, argc, argv, e);
    if (code) return code < 0 ? code : 0;
    struct run r;
    struct chat c = {.r = &r, .o = &o, .sampling = &s, .thinking = o.no_thinking ? -1 : o.thinking,
                     .on_terminal = isatty(0) && isatty(1)};
    buf_init(&c.said), buf_init(&c.thought);
    if (o.tools) code = read_tools(&c, e);
    if (!code) code = run_open(&r, a.positional[0], &ro, e);
    if (!code) {
        catch_interrupts(0);
        if (c.on_terminal) rl_pre_input_hook = (rl_hook_func_t *)ignore_zero_bytes;
        if (c.on_terminal) out_printf("%s; /help tells what else there is\n", r.info.folder);
        code = converse(&c, e);
        run_close(&r);
    }
    buf_drop(&c.said), buf_drop(&c.thought);
    free(c.tools), json_decref(c.messages);
    return code;
}

const struct command command_chat = {"chat", "a conversation on the terminal", run};
