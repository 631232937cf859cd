/* Values as text: str(), repr(), HTML escaping, JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"

static void show_string(struct render *r, struct out *o, const struct text *t) {
    char quote = memchr(t->bytes, '\'', t->n) && !memchr(t->bytes, '"', t->n) ? '"' : '\'';
    size_t used;
    out_add_char(r, o, (uint32_t)quote);
    for (size_t i = 0; i < t->n; i += used) {
        uint32_t c = text_char(t->bytes + i, t->n - i, &used);
        char code[16];
        if (c == (uint32_t)quote || c == '\\') snprintf(code, sizeof code, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(code, sizeof code, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (char_is_printable(c)) { out_add(r, o, t->bytes + i, used); continue; }
        else snprintf(code, sizeof code, c < 256 ? "\\x%02x" : c < 65536 ? "\\u%04x" : "\\U%08x", c);
        out_add_text(r, o, code);
    }
    out_add_char(r, o, (uint32_t)quote);
}

static void show_bytes(struct render *r, struct out *o, const struct text *t) {
    char quote = memchr(t->bytes, '\'', t->n) && !memchr(t->bytes, '"', t->n) ? '"' : '\'';
    out_add_char(r, o, 'b');
    out_add_char(r, o, (uint32_t)quote);
    for (size_t i = 0; i < t->n; i++) {
        unsigned char c = (unsigned char)t->bytes[i];
        char code[8];
        if (c == (unsigned char)quote || c == '\\') snprintf(code, sizeof code, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(code, sizeof code, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c >= 32 && c < 127) snprintf(code, sizeof code, "%c", c);
        else snprintf(code, sizeof code, "\\x%02x", c);
        out_add_text(r, o, code);
    }
    out_add_char(r, o, (uint32_t)quote);
}

static void show_list(struct render *r, struct out *o, const struct list *l, const char *brackets, int tuple) {
    out_add(r, o, brackets, 1);
    for (size_t i = 0; i < l->n; i++) {
        if (i) out_add(r, o, ", ", 2);
        value_repr(r, o, l->at[i]);
    }
    if (tuple && l->n == 1) out_add_char(r, o, ',');
    out_add(r, o, brackets + 1, 1);
}

static void show_dict(struct render *r, struct out *o, const struct dict *d) {
    out_add_char(r, o, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i) out_add(r, o, ", ", 2);
        value_repr(r, o, d->at[i].key);
        out_add(r, o, ": ", 2);
        value_repr(r, o, d->at[i].value);
    }
    out_add_char(r, o, '}');
}

static void show_range(struct render *r, struct out *o, const struct range *g) {
    char text[96];
    snprintf(text, sizeof text, g->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)", (long long)g->start,
             (long long)g->stop, (long long)g->step);
    out_add_text(r, o, text);
}

static void show_loop(struct render *r, struct out *o, struct value v) {
    char text[96];
    int64_t index = value_attr(r, v, value_text(r, "index")).as.i, length = value_attr(r, v, value_text(r, "length")).as.i;
    snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)index, (long long)length);
    out_add_text(r, o, text);
}

static void show_number(struct render *r, struct out *o, struct value v) {
    char text[NUMBER_ROOM];
    if (v.kind == VALUE_FLOAT) number_show(v.as.f, text);
    else snprintf(text, sizeof text, "%lld", (long long)v.as.i);
    out_add_text(r, o, text);
}

void value_repr(struct render *r, struct out *o, struct value v) {
    jinja_enter(r);
    jinja_step(r, 1);
    switch (v.kind) {
    case VALUE_UNDEFINED: out_add_text(r, o, "Undefined"); break;
    case VALUE_NONE: out_add_text(r, o, "None"); break;
    case VALUE_BOOL: out_add_text(r, o, v.as.i ? "True" : "False"); break;
    case VALUE_INT: case VALUE_FLOAT: show_number(r, o, v); break;
    case VALUE_BIG: out_add(r, o, v.as.text->bytes, v.as.text->n); break;
    case VALUE_STRING:
        if (v.as.text->markup) out_add_text(r, o, "Markup(");
        show_string(r, o, v.as.text);
        if (v.as.text->markup) out_add_char(r, o, ')');
        break;
    case VALUE_BYTES: show_bytes(r, o, v.as.text); break;
    case VALUE_LIST: show_list(r, o, v.as.list, "[]", 0); break;
    case VALUE_TUPLE: show_list(r, o, v.as.list, "()", 1); break;
    case VALUE_DICT: show_dict(r, o, v.as.dict); break;
    case VALUE_RANGE: show_range(r, o, v.as.range); break;
    case VALUE_VIEW:
        out_add_text(r, o, v.as.view->name);
        out_add_char(r, o, '(');
        show_list(r, o, v.as.view->items, "[]", 0);
        out_add_char(r, o, ')');
        break;
    case VALUE_NAMESPACE:
        out_add_text(r, o, "<Namespace ");
        show_dict(r, o, &v.as.space->names);
        out_add_char(r, o, '>');
        break;
    case VALUE_LOOP: show_loop(r, o, v); break;
    case VALUE_MACRO:
        out_add_text(r, o, "<Macro ");
        value_repr(r, o, value_attr(r, v, value_text(r, "name")));
        out_add_char(r, o, '>');
        break;
    default: jinja_fail(r, FAULT_SUPPORT, "a %s cannot be printed", value_type(v));
    }
    jinja_leave(r);
}

void value_show(struct render *r, struct out *o, struct value v) {
    if (value_is_text(v)) out_add(r, o, v.as.text->bytes, v.as.text->n);
    else if (v.kind != VALUE_UNDEFINED) value_repr(r, o, v);
}

struct value value_to_text(struct render *r, struct value v) {
    if (value_is_text(v)) return v;
    struct out o = {0};
    value_show(r, &o, v);
    return out_take(r, &o);
}

struct value text_escape(struct render *r, struct value v) {
    v = value_to_text(r, v);
    const struct text *t = v.as.text;
    if (t->markup) return v;
    struct out o = {0};
    for (size_t i = 0; i < t->n; i++) {
        char c = t->bytes[i];
        const char *code = c == '&'    ? "&amp;"
                           : c == '<'  ? "&lt;"
                           : c == '>'  ? "&gt;"
                           : c == '\'' ? "&#39;"
                           : c == '"'  ? "&#34;"
                                       : NULL;
        if (code) out_add_text(r, &o, code);
        else out_add(r, &o, &c, 1);
    }
    return value_markup(r, out_take(r, &o));
}

/* ---- JSON, as Python's json.dumps ---- */

static void json_string(struct render *r, struct out *o, const struct text *t, int ascii) {
    size_t used, plain = 0;
    out_add_char(r, o, '"');
    for (size_t i = 0; i < t->n; i += used) {
        uint32_t c = text_char(t->bytes + i, t->n - i, &used);
        if (c >= 32 && c != '"' && c != '\\' && (!ascii || c < 127)) continue;
        static const char shorts[] = "btn?fr";
        char code[16];
        if (c == '"' || c == '\\') snprintf(code, sizeof code, "\\%c", (char)c);
        else if (c >= 8 && c <= 13 && c != 11) snprintf(code, sizeof code, "\\%c", shorts[c - 8]);
        else if (c < 65536) snprintf(code, sizeof code, "\\u%04x", c);
        else snprintf(code, sizeof code, "\\u%04x\\u%04x", 0xd800 + ((c - 65536) >> 10), 0xdc00 + ((c - 65536) & 1023));
        out_add(r, o, t->bytes + plain, i - plain);
        out_add_text(r, o, code);
        plain = i + used;
    }
    out_add(r, o, t->bytes + plain, t->n - plain);
    out_add_char(r, o, '"');
}

static void json_scalar(struct render *r, struct out *o, struct value v, const struct json_style *style) {
    if (value_is_text(v)) json_string(r, o, v.as.text, style->ascii);
    else if (v.kind == VALUE_NONE) out_add_text(r, o, "null");
    else if (v.kind == VALUE_BOOL) out_add_text(r, o, v.as.i ? "true" : "false");
    else if (v.kind == VALUE_FLOAT && isnan(v.as.f)) out_add_text(r, o, "NaN");
    else if (v.kind == VALUE_FLOAT && isinf(v.as.f)) out_add_text(r, o, v.as.f < 0 ? "-Infinity" : "Infinity");
    else if (value_is_number(v)) value_repr(r, o, v);
    else jinja_fail(r, FAULT_TYPE, "Object of type %s is not JSON serializable", value_type(v));
}

static void json_line(struct render *r, struct out *o, const struct json_style *style, int level) {
    if (!style->indented) return;
    out_add_char(r, o, '\n');
    for (int i = 0; i < level; i++) value_show(r, o, style->indent);
}

static void json_key(struct render *r, struct out *o, struct value key, const struct json_style *style) {
    if (value_is_text(key)) { json_string(r, o, key.as.text, style->ascii); return; }
    if (key.kind != VALUE_NONE && !value_is_number(key))
        jinja_fail(r, FAULT_TYPE, "keys must be str, int, float, bool or None, not %s", value_type(key));
    out_add_char(r, o, '"');
    json_scalar(r, o, key, style);
    out_add_char(r, o, '"');
}

static void json_dict(struct render *r, struct out *o, const struct dict *d, const struct json_style *style, int level) {
    struct value *at = jinja_room(r, d->n, sizeof *at), *keys = jinja_room(r, d->n, sizeof *keys);
    for (size_t i = 0; i < d->n; i++) at[i] = value_int((int64_t)i), keys[i] = d->at[i].key;
    if (style->sort) list_sort(r, at, keys, d->n, 0);
    out_add_char(r, o, '{');
    for (size_t i = 0; i < d->n; i++) {
        const struct pair *p = &d->at[at[i].as.i];
        if (i) value_show(r, o, style->item);
        json_line(r, o, style, level + 1);
        json_key(r, o, p->key, style);
        value_show(r, o, style->key);
        value_json(r, o, p->value, style, level + 1);
    }
    if (d->n) json_line(r, o, style, level);
    out_add_char(r, o, '}');
}

void value_json(struct render *r, struct out *o, struct value v, const struct json_style *style, int level) {
    jinja_step(r, 1);
    if (v.kind != VALUE_DICT && v.kind != VALUE_LIST && v.kind != VALUE_TUPLE) { json_scalar(r, o, v, style); return; }
    jinja_enter(r);
    if (v.kind == VALUE_DICT) {
        json_dict(r, o, v.as.dict, style, level);
    } else {
        out_add_char(r, o, '[');
        for (size_t i = 0; i < v.as.list->n; i++) {
            if (i) value_show(r, o, style->item);
            json_line(r, o, style, level + 1);
            value_json(r, o, v.as.list->at[i], style, level + 1);
        }
        if (v.as.list->n) json_line(r, o, style, level);
        out_add_char(r, o, ']');
    }
    jinja_leave(r);
}
