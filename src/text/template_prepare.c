#include "text/template_prepare.h"

#include <string.h>

const char template_mark[] = "*WEFT*CONTINUES*FROM*HERE* ";

static const char *const reasoning[] = {"reasoning_content", "thinking", "reasoning"};
enum { N_REASONING = 3 };

static struct value get(struct render *r, struct value object, const char *key) {
    if (object.kind != VALUE_DICT) return MISSING;
    struct value *v = dict_get_text(r, object.as.dict, key);
    return v ? *v : MISSING;
}

static void set(struct render *r, struct dict *d, const char *key, struct value v) { dict_set(r, d, value_text(r, key), v); }

/* A dict that can be changed; the first change copies, so that the original stays. */
static struct dict copy(struct render *r, struct value object) {
    struct dict d = {0};
    for (size_t i = 0; i < object.as.dict->n; i++) dict_set(r, &d, object.as.dict->at[i].key, object.as.dict->at[i].value);
    return d;
}

static struct value from_json(struct render *r, const json_t *j) {
    struct value out = NONE;
    jinja_enter(r);
    if (json_is_string(j)) out = value_text_n(r, json_string_value(j), json_string_length(j));
    else if (json_is_integer(j)) out = value_int(json_integer_value(j));
    else if (json_is_real(j)) out = value_float(json_real_value(j));
    else if (json_is_boolean(j)) out = value_bool(json_is_true(j));
    else if (json_is_array(j)) {
        struct list l = {0};
        for (size_t i = 0; i < json_array_size(j); i++) list_add(r, &l, from_json(r, json_array_get(j, i)));
        out = value_list(r, l.at, l.n);
    } else if (json_is_object(j)) {
        struct dict d = {0};
        for (void *i = json_object_iter((json_t *)(uintptr_t)j); i; i = json_object_iter_next((json_t *)(uintptr_t)j, i))
            set(r, &d, json_object_iter_key(i), from_json(r, json_object_iter_value(i)));
        out = value_dict(r, &d);
    }
    jinja_leave(r);
    return out;
}

/* Without null keys; what the assistant thought under the names that templates look for. */
static struct value message_for_template(struct render *r, struct value m) {
    struct value thought = MISSING;
    struct dict d = {0};
    if (m.kind != VALUE_DICT) jinja_fail(r, FAULT_TYPE, "a message is not an object");
    for (int i = 0; i < N_REASONING && thought.kind == VALUE_MISSING; i++) {
        struct value v = get(r, m, reasoning[i]);
        if (v.kind != VALUE_NONE) thought = v;
    }
    if (thought.kind != VALUE_MISSING) set(r, &d, "thinking", thought);
    for (size_t i = 0; i < m.as.dict->n; i++)
        if (m.as.dict->at[i].value.kind != VALUE_NONE) dict_set(r, &d, m.as.dict->at[i].key, m.as.dict->at[i].value);
    if (thought.kind != VALUE_MISSING) set(r, &d, "reasoning_content", thought);
    return value_dict(r, &d);
}

/* ---- repairs ---- */

static struct value decoded(struct render *r, struct value text) {
    const char *s = text.as.text->bytes, *end = s + text.as.text->n;
    while (s < end && char_is_space((unsigned char)*s)) s++;
    if (s == end || *s != '{') return text;
    struct value v;
    return json_try_value(r, text.as.text->bytes, text.as.text->n, &v) ? v : text;
}

static struct value encoded(struct render *r, struct value v) {
    struct json_style style = {.item = value_text(r, ", "), .key = value_text(r, ": ")};
    struct out o = {0};
    value_json(r, &o, v, &style, 0);
    return out_take(r, &o);
}

static struct value repair_call(struct render *r, struct value call, int repairs) {
    struct value function = get(r, call, "function"), holder = function.kind == VALUE_DICT ? function : call;
    struct value arguments = get(r, holder, "arguments"), fresh = arguments;
    if ((repairs & REPAIR_DECODE) && value_is_text(arguments)) fresh = decoded(r, arguments);
    if ((repairs & REPAIR_ENCODE) && arguments.kind == VALUE_DICT) fresh = encoded(r, arguments);
    if (fresh.kind == arguments.kind) return call;
    struct dict d = copy(r, holder);
    set(r, &d, "arguments", fresh);
    if (function.kind != VALUE_DICT) return value_dict(r, &d);
    struct dict outer = copy(r, call);
    set(r, &outer, "function", value_dict(r, &d));
    return value_dict(r, &outer);
}

static struct value repair_message(struct render *r, struct value m, int repairs) {
    struct dict d = copy(r, m);
    struct value calls = get(r, m, "tool_calls");
    if (calls.kind == VALUE_LIST) {
        struct list l = {0};
        for (size_t i = 0; i < calls.as.list->n; i++) {
            struct value call = calls.as.list->at[i];
            list_add(r, &l, call.kind == VALUE_DICT ? repair_call(r, call, repairs) : call);
        }
        set(r, &d, "tool_calls", value_list(r, l.at, l.n));
    }
    if ((repairs & REPAIR_CONTENT) && get(r, m, "content").kind == VALUE_MISSING) set(r, &d, "content", value_text(r, ""));
    return value_dict(r, &d);
}

static int is_system(struct render *r, struct value m) {
    struct value role = get(r, m, "role");
    return value_equal(r, role, value_text(r, "system")) || value_equal(r, role, value_text(r, "developer"));
}

/* The text of a message's content: itself, or its text parts. */
static void add_text(struct render *r, struct out *o, struct value content) {
    if (value_is_text(content)) out_add(r, o, content.as.text->bytes, content.as.text->n);
    for (size_t i = 0; content.kind == VALUE_LIST && i < content.as.list->n; i++) {
        struct value part = content.as.list->at[i], text = value_is_text(part) ? part : get(r, part, "text");
        if (value_is_text(text)) out_add(r, o, text.as.text->bytes, text.as.text->n);
    }
}

static struct list join_system(struct render *r, struct list messages) {
    struct list out = {0};
    struct out text = {0};
    for (size_t i = 0; i < messages.n; i++) {
        if (!is_system(r, messages.at[i])) continue;
        if (text.n) out_add(r, &text, "\n\n", 2);
        add_text(r, &text, get(r, messages.at[i], "content"));
    }
    if (text.n) {
        struct dict d = {0};
        set(r, &d, "role", value_text(r, "system"));
        set(r, &d, "content", out_take(r, &text));
        list_add(r, &out, value_dict(r, &d));
    }
    for (size_t i = 0; i < messages.n; i++)
        if (!is_system(r, messages.at[i])) list_add(r, &out, messages.at[i]);
    return out;
}

/* ---- the message to be continued ---- */

static struct value marked(struct render *r, struct value text) {
    if (!value_is_text(text)) jinja_fail(r, FAULT_TYPE, "continue_final_message: the last message's text is not text");
    return value_concat(r, text, value_text(r, template_mark));
}

static struct value mark_parts(struct render *r, struct value parts, struct template_work *w) {
    struct list l = {0};
    size_t last = parts.as.list->n;
    for (size_t i = 0; i < parts.as.list->n; i++) {
        list_add(r, &l, parts.as.list->at[i]);
        if (get(r, l.at[i], "text").kind != VALUE_MISSING) last = i;
    }
    if (last == l.n) jinja_fail(r, FAULT_VALUE, "continue_final_message: the last message has no text part");
    struct dict d = copy(r, l.at[last]);
    w->text = get(r, l.at[last], "text");
    set(r, &d, "text", marked(r, w->text));
    l.at[last] = value_dict(r, &d);
    return value_list(r, l.at, l.n);
}

static struct value mark_message(struct render *r, struct value m, struct value field, struct template_work *w) {
    struct value content = value_text(r, "content");
    if (!value_is_text(field)) field = content;
    struct value *found = dict_get(r, m.as.dict, field), text = found ? *found : NONE;
    if (text.kind == VALUE_NONE)
        jinja_fail(r, FAULT_VALUE, "continue_final_message: the last message has no %.*s", (int)field.as.text->n,
                   field.as.text->bytes);
    struct dict d = copy(r, m);
    w->continued = 1, w->text = text;
    if (text.kind == VALUE_LIST) {
        dict_set(r, &d, field, mark_parts(r, text, w));
        return value_dict(r, &d);
    }
    dict_set(r, &d, field, marked(r, text));
    int thought = 0; /* what was thought goes by three names */
    for (int i = 0; i < N_REASONING; i++) thought |= value_equal(r, field, value_text(r, reasoning[i]));
    for (int i = 0; i < N_REASONING && thought; i++) {
        struct value same = get(r, m, reasoning[i]);
        if (same.kind != VALUE_MISSING && value_equal(r, same, text)) set(r, &d, reasoning[i], marked(r, same));
    }
    return value_dict(r, &d);
}

/* ---- */

static struct value prepare_messages(struct render *r, struct value given, struct value field, struct template_work *w) {
    struct list l = {0};
    struct list messages = given.kind == VALUE_MISSING || given.kind == VALUE_NONE ? l : value_items(r, given);
    if (!messages.n) jinja_fail(r, FAULT_VALUE, "there is no message");
    for (size_t i = 0; i < messages.n; i++) {
        struct value m = message_for_template(r, messages.at[i]);
        list_add(r, &l, w->repairs ? repair_message(r, m, w->repairs) : m);
    }
    if (w->repairs & REPAIR_SYSTEM) l = join_system(r, l);
    if (value_truth(r, field) && l.n) l.at[l.n - 1] = mark_message(r, l.at[l.n - 1], field, w);
    return value_list(r, l.at, l.n);
}

static void add_all(struct render *r, struct dict *to, struct value from) {
    for (size_t i = 0; from.kind == VALUE_DICT && i < from.as.dict->n; i++)
        dict_set(r, to, from.as.dict->at[i].key, from.as.dict->at[i].value);
}

void template_prepare(struct render *r, void *arg, struct dict *context) {
    struct template_work *w = arg;
    const struct template_input *in = w->in;
    struct value all = MISSING, messages, tools, kwargs;
    if (in->dialogue) {
        all = json_to_value(r, in->dialogue, in->n_dialogue, in->dialogue_name ? in->dialogue_name : "the dialogue");
        if (all.kind != VALUE_DICT) jinja_fail(r, FAULT_VALUE, "the dialogue is not an object");
        messages = get(r, all, "messages"), tools = get(r, all, "tools"), kwargs = get(r, all, "kwargs");
        if (messages.kind == VALUE_MISSING) jinja_fail(r, FAULT_VALUE, "the dialogue has no \"messages\"");
    } else {
        messages = from_json(r, in->messages);
        tools = in->tools ? from_json(r, in->tools) : NONE;
        kwargs = in->kwargs ? from_json(r, in->kwargs) : NONE;
    }
    if (w->with_tools && tools.kind == VALUE_LIST && tools.as.list->n) r->template = w->with_tools;
    struct dict names = {0};
    if (w->special) add_all(r, &names, from_json(r, w->special));
    add_all(r, &names, kwargs);
    if (in->add_generation_prompt >= 0) set(r, &names, "add_generation_prompt", value_bool(in->add_generation_prompt));
    if (in->thinking >= 0) set(r, &names, "enable_thinking", value_bool(in->thinking));
    if (in->continue_final) set(r, &names, "continue_final_message", value_bool(1));
    struct value *field = dict_get_text(r, &names, "continue_final_message");

    set(r, context, "messages", prepare_messages(r, messages, field ? *field : value_bool(0), w));
    set(r, context, "tools", tools.kind == VALUE_MISSING ? NONE : tools);
    set(r, context, "documents", NONE);
    set(r, context, "add_generation_prompt", value_bool(0));
    for (size_t i = 0; i < names.n; i++)
        if (!value_equal(r, names.at[i].key, value_text(r, "continue_final_message")))
            dict_set(r, context, names.at[i].key, names.at[i].value);
}
