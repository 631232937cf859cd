#define _GNU_SOURCE /* timegm */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "text/template.h"

enum { INPUT_BYTES_MAX = 1 << 30, TEMPLATE_BYTES_MAX = 8 << 20 };

struct options {
    const char *template, *dialogue, *now, *messages, *tools, *system, *prompt;
    int no_thinking, thinking, no_generation_prompt, continue_final, exact;
};

/* "2026-11-29T12:00:00", with a space for the T, without seconds, or a date alone; fractions of a second may follow. */
static int read_time(struct tm *out, int *micros, const char *text, struct weft_error *e) {
    int year, month, day, hour = 0, minute = 0, second = 0, used = 0, more = 0;
    *micros = 0;
    if (sscanf(text, "%4d-%2d-%2d%n", &year, &month, &day, &used) != 3) used = 0;
    const char *s = text + used;
    if (used && (*s == 'T' || *s == ' ')) {
        if (sscanf(s + 1, "%2d:%2d%n", &hour, &minute, &more) != 2) used = 0;
        s += 1 + more, more = 0;
        if (used && *s == ':' && sscanf(s + 1, "%2d%n", &second, &more) == 1) s += 1 + more;
        if (used && *s == '.')
            for (int unit = 100000; *++s >= '0' && *s <= '9'; unit /= 10) *micros += (*s - '0') * unit;
    }
    *out = (struct tm){
        .tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day, .tm_hour = hour, .tm_min = minute, .tm_sec = second};
    struct tm same = *out;
    if (!used || *s || timegm(&same) == -1 || same.tm_mon != month - 1 || same.tm_mday != day || same.tm_hour != hour ||
        same.tm_min != minute || same.tm_sec != second)
        return error_set(e, WEFT_ERROR_INPUT, "--now wants a time such as 2026-11-29T12:00:00, not \"%s\"", text);
    *out = same;
    return 0;
}

static int open_template(struct template **t, const struct options *o, const char *model, struct weft_error *e) {
    if (o->template) {
        struct buf text;
        buf_init(&text);
        int code = file_read(&text, o->template, TEMPLATE_BYTES_MAX, e);
        if (!code) code = template_new(t, text.data ? text.data : "", text.n, o->template, e);
        buf_drop(&text);
        return code;
    }
    char *folder;
    int code = model_find(&folder, model, e);
    if (code) return code;
    code = template_open(t, folder, e);
    mem_free(folder);
    return code;
}

static int add_message(json_t *list, const char *role, const char *text, int first, struct weft_error *e) {
    json_t *m = json_pack("{s:s, s:s}", "role", role, "content", text);
    if (!m) return error_set(e, WEFT_ERROR_INPUT, "the %s text is not UTF-8", role);
    return (first ? json_array_insert_new(list, 0, m) : json_array_append_new(list, m)) ? error_memory(e, "the messages") : 0;
}

/* The messages of a file, --system before them and --prompt behind. */
static int read_messages(json_t **messages, const struct options *o, struct weft_error *e) {
    int code = 0;
    *messages = NULL;
    if (o->messages) code = json_read_file(messages, o->messages, INPUT_BYTES_MAX, e);
    else if (!(*messages = json_array())) code = error_memory(e, "the messages");
    if (!code && json_is_object(*messages)) { /* a whole request */
        json_t *inner = json_incref(json_object_get(*messages, "messages"));
        json_decref(*messages);
        *messages = inner;
    }
    if (!code && !json_is_array(*messages)) code = error_set(e, WEFT_ERROR_INPUT, "%s: not a list of messages", o->messages);
    if (!code && o->system) code = add_message(*messages, "system", o->system, 1, e);
    if (!code && o->prompt) code = add_message(*messages, "user", o->prompt, 0, e);
    return code;
}

static int render(const struct template *t, struct template_input *in, struct weft_error *e) {
    struct buf out;
    char *raised;
    buf_init(&out);
    int code = template_render(t, in, &out, &raised, e);
    if (!code) out_bytes(out.data ? out.data : "", out.n);
    else if (raised && strcmp(raised, e->message)) fprintf(stderr, "%s\n", raised); /* whole, with its lines */
    mem_free(raised);
    buf_drop(&out);
    return code;
}

static int render_dialogue(const struct template *t, struct template_input *in, const struct options *o, struct weft_error *e) {
    struct buf text;
    buf_init(&text);
    int code = file_read(&text, o->dialogue, INPUT_BYTES_MAX, e);
    in->dialogue = text.data ? text.data : "", in->n_dialogue = text.n, in->dialogue_name = o->dialogue, in->exact = 1;
    if (!code) code = render(t, in, e);
    buf_drop(&text);
    return code;
}

static int render_messages(const struct template *t, struct template_input *in, const struct options *o, struct weft_error *e) {
    json_t *messages, *tools = NULL;
    int code = read_messages(&messages, o, e);
    if (!code && o->tools) code = json_read_file(&tools, o->tools, INPUT_BYTES_MAX, e);
    in->messages = messages, in->tools = tools, in->exact = o->exact;
    in->add_generation_prompt = !o->no_generation_prompt && !o->continue_final, in->continue_final = o->continue_final;
    in->thinking = o->no_thinking ? 0 : o->thinking ? 1 : -1;
    if (!code) code = render(t, in, e);
    json_decref(messages), json_decref(tools);
    return code;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {0};
    const struct arg list[] = {
        {"messages", 0, ARG_TEXT, &o.messages, "FILE", "a list of messages, or an object that has \"messages\"", 0, 0},
        {"system", 0, ARG_TEXT, &o.system, "TEXT", "a system message before them", 0, 0},
        {"prompt", 0, ARG_TEXT, &o.prompt, "TEXT", "a user message behind them", 0, 0},
        {"tools", 0, ARG_TEXT, &o.tools, "FILE", "a list of functions", 0, 0},
        {"no-thinking", 0, ARG_FLAG, &o.no_thinking, NULL, "enable_thinking false", 0, 0},
        {"thinking", 0, ARG_FLAG, &o.thinking, NULL, "enable_thinking true; without either the template decides", 0, 0},
        {"no-generation-prompt", 0, ARG_FLAG, &o.no_generation_prompt, NULL, "do not open the assistant's turn", 0, 0},
        {"continue", 0, ARG_FLAG, &o.continue_final, NULL, "leave the last message open", 0, 0},
        {"exact", 0, ARG_FLAG, &o.exact, NULL, "hand the messages on as they are, without repairs", 0, 0},
        {"template", 0, ARG_TEXT, &o.template, "FILE", "this template instead of a model's", 0, 0},
        {"dialogue", 0, ARG_TEXT, &o.dialogue, "FILE",
         "{\"messages\", \"tools\", \"kwargs\"}, handed on exactly;\nthe kwargs are the template's variables", 0, 0},
        {"now", 0, ARG_TEXT, &o.now, "TIME", "what strftime_now takes for now: 2026-11-29T12:00:00", 0, 0},
    };
    struct args a = {
        .usage = "(MODEL | --template FILE) (--dialogue FILE | [--messages FILE] [--system TEXT] [--prompt TEXT])",
        .about = "Prints the prompt that a chat template makes of messages, and nothing else.",
        .group = {{"options", list, sizeof list / sizeof *list}}, .n_groups = 1, .min_positional = 0, .max_positional = 1};
    int r = args_parse(&a, argc, argv, e);
    if (r) return r < 0 ? r : 0;
    if (!o.template == !a.n_positional) return error_set(e, WEFT_ERROR_INPUT, "give either a model or --template");
    if (o.dialogue && (o.messages || o.system || o.prompt || o.tools))
        return error_set(e, WEFT_ERROR_INPUT, "--dialogue holds the messages and tools: give nothing beside it");
    struct template_input in = TEMPLATE_INPUT;
    struct template *t = NULL;
    struct tm now;
    if (o.now && (r = read_time(&now, &in.now_us, o.now, e))) return r;
    if (o.now) in.now = &now;
    r = open_template(&t, &o, a.n_positional ? a.positional[0] : NULL, e);
    if (!r) r = (o.dialogue ? render_dialogue : render_messages)(t, &in, &o, e);
    template_close(t);
    return r;
}

const struct command command_render = {"render", "print the prompt that a chat template makes of messages", run};
