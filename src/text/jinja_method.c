/* Methods of strings, objects, lists and numbers, those that change nothing. */
#include <math.h>
#include <string.h>

#include "text/jinja.h"

#define METHOD(name) static struct value name(struct render *r, struct value self, const struct value *a, const struct call *c)
#define UNUSED (void)r, (void)self, (void)a, (void)c

static const struct text *want_text(struct render *r, struct value v) {
    if (value_is_text(v)) return v.as.text;
    if (v.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, v);
    jinja_fail(r, FAULT_TYPE, "must be str, not %s", value_type(v));
}

static struct value piece(struct render *r, struct value of, const char *s, size_t n) {
    struct value out = value_text_n(r, s, n);
    return of.as.text->markup ? value_markup(r, out) : out;
}

static int64_t count_or(struct render *r, struct value v, int64_t otherwise) {
    return v.kind == VALUE_MISSING ? otherwise : value_index(r, v);
}

/* The part of a string between two character positions, as find, count and startswith take them. */
struct part { const char *s; size_t n; int64_t first; };

static struct part part_of(struct render *r, struct value self, struct value start, struct value stop) {
    const struct text *t = self.as.text;
    int64_t n = t->n_chars, a = 0, b = n;
    if (start.kind != VALUE_MISSING && start.kind != VALUE_NONE) a = value_index(r, start);
    if (stop.kind != VALUE_MISSING && stop.kind != VALUE_NONE) b = value_index(r, stop);
    if (a < 0) a = a + n < 0 ? 0 : a + n;
    if (b < 0) b = b + n < 0 ? 0 : b + n;
    if (b > n) b = n;
    jinja_step(r, (int64_t)t->n / 64);
    if (a > b) return (struct part){NULL, 0, a};
    size_t from = text_offset(t, a), to = text_offset(t, b);
    return (struct part){t->bytes + from, to - from, a};
}

/* The first or last place of `what`. */
static const char *seek(struct render *r, const char *s, size_t n, const struct text *what, int last) {
    if (!last) return text_find(s, n, what->bytes, what->n);
    if (what->n > n) return NULL;
    for (const char *p = s + n - what->n;; p--) {
        if (!what->n || *p == what->bytes[0]) {
            jinja_step(r, 1 + (int64_t)what->n / 256);
            if (!memcmp(p, what->bytes, what->n)) return p;
        }
        if (p == s) return NULL;
    }
}

static int64_t search(struct render *r, struct value self, const struct value *a, int last) {
    const struct text *what = want_text(r, a[0]);
    struct part p = part_of(r, self, a[1], a[2]);
    if (!p.s) return -1;
    const char *at = seek(r, p.s, p.n, what, last);
    return at ? p.first + text_count(p.s, (size_t)(at - p.s)) : -1;
}

METHOD(str_find) { UNUSED; return value_int(search(r, self, a, 0)); }
METHOD(str_rfind) { UNUSED; return value_int(search(r, self, a, 1)); }

static struct value found(struct render *r, int64_t at) {
    if (at < 0) jinja_fail(r, FAULT_VALUE, "substring not found");
    return value_int(at);
}
METHOD(str_index) { UNUSED; return found(r, search(r, self, a, 0)); }
METHOD(str_rindex) { UNUSED; return found(r, search(r, self, a, 1)); }

METHOD(str_count) {
    UNUSED;
    const struct text *what = want_text(r, a[0]);
    struct part p = part_of(r, self, a[1], a[2]);
    if (!p.s) return value_int(0);
    if (!what->n) return value_int(text_count(p.s, p.n) + 1);
    int64_t n = 0;
    for (const char *s = p.s, *end = s + p.n; (s = text_find(s, (size_t)(end - s), what->bytes, what->n)); s += what->n) n++;
    return value_int(n);
}

static int affix(struct render *r, struct part p, struct value what, int end) {
    const struct text *t = want_text(r, what);
    return p.s && t->n <= p.n && !memcmp(end ? p.s + p.n - t->n : p.s, t->bytes, t->n);
}

static struct value has_affix(struct render *r, struct value self, const struct value *a, int end) {
    struct part p = part_of(r, self, a[1], a[2]);
    if (a[0].kind != VALUE_TUPLE) {
        if (!value_is_text(a[0]) && a[0].kind != VALUE_UNDEFINED)
            jinja_fail(r, FAULT_TYPE, "%s first arg must be str or a tuple of str, not %s", end ? "endswith" : "startswith",
                     value_type(a[0]));
        return value_bool(affix(r, p, a[0], end));
    }
    for (size_t i = 0; i < a[0].as.list->n; i++)
        if (affix(r, p, a[0].as.list->at[i], end)) return value_bool(1);
    return value_bool(0);
}
METHOD(str_startswith) { UNUSED; return has_affix(r, self, a, 0); }
METHOD(str_endswith) { UNUSED; return has_affix(r, self, a, 1); }

METHOD(str_removeprefix) {
    UNUSED;
    const struct text *t = self.as.text, *x = want_text(r, a[0]);
    int has = t->n >= x->n && !memcmp(t->bytes, x->bytes, x->n);
    return has ? piece(r, self, t->bytes + x->n, t->n - x->n) : self;
}
METHOD(str_removesuffix) {
    UNUSED;
    const struct text *t = self.as.text, *x = want_text(r, a[0]);
    int has = x->n && t->n >= x->n && !memcmp(t->bytes + t->n - x->n, x->bytes, x->n);
    return has ? piece(r, self, t->bytes, t->n - x->n) : self;
}

METHOD(str_strip) { UNUSED; return text_strip(r, self, a[0], 3); }
METHOD(str_lstrip) { UNUSED; return text_strip(r, self, a[0], 1); }
METHOD(str_rstrip) { UNUSED; return text_strip(r, self, a[0], 2); }
METHOD(str_upper) { UNUSED; return text_case(r, self, CASE_UPPER); }
METHOD(str_lower) { UNUSED; return text_case(r, self, CASE_LOWER); }
METHOD(str_title) { UNUSED; return text_case(r, self, CASE_TITLE); }
METHOD(str_capitalize) { UNUSED; return text_case(r, self, CASE_CAPITAL); }
METHOD(str_swapcase) { UNUSED; return text_case(r, self, CASE_SWAP); }
METHOD(str_casefold) { UNUSED; return text_case(r, self, CASE_FOLD); }

METHOD(str_replace) {
    UNUSED;
    const struct text *t = self.as.text, *old = want_text(r, a[0]), *new = want_text(r, a[1]);
    int64_t left = count_or(r, a[2], -1);
    struct out o = {0};
    const char *s = t->bytes, *end = s + t->n;
    jinja_step(r, (int64_t)t->n / 64);
    while (left && old->n) {
        const char *at = text_find(s, (size_t)(end - s), old->bytes, old->n);
        if (!at) break;
        out_add(r, &o, s, (size_t)(at - s));
        out_add(r, &o, new->bytes, new->n);
        s = at + old->n, left--;
        jinja_step(r, 1);
    }
    for (size_t used; !old->n && left; left--) { /* before every character and at the end */
        jinja_step(r, 1);
        out_add(r, &o, new->bytes, new->n);
        if (s == end) break;
        text_char(s, (size_t)(end - s), &used);
        out_add(r, &o, s, used);
        s += used;
    }
    out_add(r, &o, s, (size_t)(end - s));
    struct value out = out_take(r, &o);
    return self.as.text->markup ? value_markup(r, out) : out;
}

static struct value split_space(struct render *r, struct value self, int64_t left) {
    const char *s = self.as.text->bytes, *end = s + self.as.text->n;
    struct list out = {0};
    size_t used;
    for (;;) {
        while (s < end && char_is_space(text_char(s, (size_t)(end - s), &used))) s += used;
        if (s == end) break;
        const char *from = s;
        if (left-- == 0) {
            struct value rest = text_strip(r, piece(r, self, from, (size_t)(end - from)), NONE, 2);
            list_add(r, &out, rest);
            break;
        }
        while (s < end && !char_is_space(text_char(s, (size_t)(end - s), &used))) s += used;
        list_add(r, &out, piece(r, self, from, (size_t)(s - from)));
    }
    return value_list(r, out.at, out.n);
}

static struct value reversed(struct render *r, struct list l) {
    struct value *at = jinja_room(r, l.n, sizeof *at);
    for (size_t i = 0; i < l.n; i++) at[i] = l.at[l.n - 1 - i];
    return value_list(r, at, l.n);
}

static struct value rsplit_space(struct render *r, struct value self, int64_t left) {
    const char *s = self.as.text->bytes;
    struct list out = {0};
    struct value rest = text_strip(r, self, NONE, 2);
    while (rest.as.text->n) {
        if (left-- == 0) {
            list_add(r, &out, text_strip(r, rest, NONE, 2)); /* leading space stays */
            break;
        }
        size_t at = rest.as.text->n, used;
        while (at > 0) {
            size_t prior = at;
            do prior--;
            while (prior > 0 && (s[prior] & 0xc0) == 0x80);
            if (char_is_space(text_char(s + prior, at - prior, &used))) break;
            at = prior;
        }
        list_add(r, &out, piece(r, self, s + at, rest.as.text->n - at));
        rest = text_strip(r, value_text_n(r, s, at), NONE, 2);
    }
    return reversed(r, out);
}

static struct value split(struct render *r, struct value self, const struct value *a, int from_right) {
    int64_t left = count_or(r, a[1], -1);
    if (left < 0) left = INT64_MAX;
    jinja_step(r, (int64_t)self.as.text->n / 64);
    if (a[0].kind == VALUE_MISSING || a[0].kind == VALUE_NONE) return (from_right ? rsplit_space : split_space)(r, self, left);
    const struct text *by = want_text(r, a[0]);
    if (!by->n) jinja_fail(r, FAULT_VALUE, "empty separator");
    const char *s = self.as.text->bytes, *end = s + self.as.text->n, *at;
    struct list out = {0};
    while (!from_right && left-- > 0 && (at = text_find(s, (size_t)(end - s), by->bytes, by->n))) {
        list_add(r, &out, piece(r, self, s, (size_t)(at - s)));
        s = at + by->n;
    }
    while (from_right && left-- > 0 && (at = seek(r, s, (size_t)(end - s), by, 1))) {
        list_add(r, &out, piece(r, self, at + by->n, (size_t)(end - at) - by->n));
        end = at;
    }
    list_add(r, &out, piece(r, self, s, (size_t)(end - s)));
    return from_right ? reversed(r, out) : value_list(r, out.at, out.n);
}
METHOD(str_split) { UNUSED; return split(r, self, a, 0); }
METHOD(str_rsplit) { UNUSED; return split(r, self, a, 1); }

static struct value partition(struct render *r, struct value self, struct value by, int last) {
    const struct text *t = self.as.text, *w = want_text(r, by);
    if (!w->n) jinja_fail(r, FAULT_VALUE, "empty separator");
    jinja_step(r, (int64_t)t->n / 64);
    const char *at = seek(r, t->bytes, t->n, w, last);
    struct value *out = jinja_room(r, 3, sizeof *out), none = piece(r, self, "", 0);
    out[0] = out[1] = out[2] = none;
    if (!at) out[last ? 2 : 0] = self;
    else {
        out[0] = piece(r, self, t->bytes, (size_t)(at - t->bytes)), out[1] = by;
        out[2] = piece(r, self, at + w->n, t->n - (size_t)(at - t->bytes) - w->n);
    }
    return value_tuple(r, out, 3);
}
METHOD(str_partition) { UNUSED; return partition(r, self, a[0], 0); }
METHOD(str_rpartition) { UNUSED; return partition(r, self, a[0], 1); }

METHOD(str_splitlines) { UNUSED; return text_lines(r, self, a[0].kind != VALUE_MISSING && value_truth(r, a[0])); }

METHOD(str_join) {
    UNUSED;
    struct list l = value_items(r, a[0]);
    struct out o = {0};
    for (size_t i = 0; i < l.n; i++) {
        if (!value_is_text(l.at[i]))
            jinja_fail(r, FAULT_TYPE, "sequence item %zu: expected str instance, %s found", i, value_type(l.at[i]));
        if (i) out_add(r, &o, self.as.text->bytes, self.as.text->n);
        out_add(r, &o, l.at[i].as.text->bytes, l.at[i].as.text->n);
        jinja_step(r, 1);
    }
    return out_take(r, &o);
}

static struct value justify(struct render *r, struct value self, struct value width, struct value fill, char how) {
    uint32_t with = ' ';
    size_t used;
    if (fill.kind != VALUE_MISSING) {
        if (!value_is_text(fill) || fill.as.text->n_chars != 1)
            jinja_fail(r, FAULT_TYPE, "The fill character must be exactly one character long");
        with = text_char(fill.as.text->bytes, fill.as.text->n, &used);
    }
    int64_t want = value_index(r, width), n = self.as.text->n_chars, more = want > n ? want - n : 0;
    int64_t left = how == 'r' ? more : how == 'c' ? more / 2 + (more & want & 1) : 0;
    struct out o = {0};
    out_fill(r, &o, with, left);
    out_add(r, &o, self.as.text->bytes, self.as.text->n);
    out_fill(r, &o, with, more - left);
    struct value out = out_take(r, &o);
    return self.as.text->markup ? value_markup(r, out) : out;
}
METHOD(str_center) { UNUSED; return justify(r, self, a[0], a[1], 'c'); }
METHOD(str_ljust) { UNUSED; return justify(r, self, a[0], a[1], 'l'); }
METHOD(str_rjust) { UNUSED; return justify(r, self, a[0], a[1], 'r'); }

METHOD(str_zfill) {
    UNUSED;
    const struct text *t = self.as.text;
    size_t sign = t->n && (t->bytes[0] == '-' || t->bytes[0] == '+');
    struct out o = {0};
    out_add(r, &o, t->bytes, sign);
    out_fill(r, &o, '0', value_index(r, a[0]) - t->n_chars);
    out_add(r, &o, t->bytes + sign, t->n - sign);
    return out_take(r, &o);
}

METHOD(str_expandtabs) {
    UNUSED;
    int64_t every = count_or(r, a[0], 8), column = 0;
    const struct text *t = self.as.text;
    struct out o = {0};
    for (size_t i = 0; i < t->n; i++) {
        char b = t->bytes[i];
        if (b == '\t') {
            int64_t more = every > 0 ? every - column % every : 0;
            out_fill(r, &o, ' ', more);
            column += more;
            continue;
        }
        if (b == '\n' || b == '\r') column = 0;
        else column += (b & 0xc0) != 0x80;
        out_add(r, &o, &b, 1);
    }
    return out_take(r, &o);
}

METHOD(str_encode) {
    UNUSED;
    if (a[0].kind != VALUE_MISSING) {
        struct value name = text_case(r, (want_text(r, a[0]), a[0]), CASE_LOWER);
        const struct text *t = name.as.text;
        if (!(t->n == 5 && !memcmp(t->bytes, "utf-8", 5)) && !(t->n == 4 && !memcmp(t->bytes, "utf8", 4)))
            jinja_fail(r, FAULT_SUPPORT, "only utf-8 is supported by encode");
    }
    if (!text_is_valid(self.as.text->bytes, self.as.text->n)) jinja_fail(r, FAULT_VALUE, "surrogates not allowed");
    self.kind = VALUE_BYTES;
    return self;
}

METHOD(bytes_decode) {
    UNUSED;
    struct value out = value_text_n(r, self.as.text->bytes, self.as.text->n);
    return out;
}

METHOD(str_format) { UNUSED; return format_braces(r, self, c, NULL); }
METHOD(str_format_map) {
    UNUSED;
    if (a[0].kind != VALUE_DICT) jinja_fail(r, FAULT_TYPE, "format_map wants a mapping");
    return format_braces(r, self, NULL, &a[0]);
}

static struct value all(struct value self, int (*is)(uint32_t)) {
    return value_bool(text_all(self.as.text->bytes, self.as.text->n, is));
}
static int is_ascii(uint32_t c) { return c < 128; }
METHOD(str_isdigit) { UNUSED; return all(self, char_is_digit); }
METHOD(str_isdecimal) { UNUSED; return all(self, char_is_decimal); }
METHOD(str_isnumeric) { UNUSED; return all(self, char_is_numeric); }
METHOD(str_isalpha) { UNUSED; return all(self, char_is_alpha); }
METHOD(str_isalnum) { UNUSED; return all(self, char_is_alnum); }
METHOD(str_isspace) { UNUSED; return all(self, char_is_space); }
METHOD(str_isascii) { UNUSED; return value_bool(!self.as.text->n || text_all(self.as.text->bytes, self.as.text->n, is_ascii)); }
METHOD(str_isprintable) {
    UNUSED;
    return value_bool(!self.as.text->n || text_all(self.as.text->bytes, self.as.text->n, char_is_printable));
}
METHOD(str_isidentifier) {
    UNUSED;
    const struct text *t = self.as.text;
    return value_bool(text_all(t->bytes, t->n, char_is_word) && !(t->bytes[0] >= '0' && t->bytes[0] <= '9'));
}
METHOD(str_isupper) { UNUSED; return value_bool(text_is_cased(self.as.text->bytes, self.as.text->n, 1)); }
METHOD(str_islower) { UNUSED; return value_bool(text_is_cased(self.as.text->bytes, self.as.text->n, 0)); }
METHOD(str_istitle) {
    UNUSED;
    struct value as_title = text_case(r, self, CASE_TITLE), lower = text_case(r, self, CASE_LOWER),
                 upper = text_case(r, self, CASE_UPPER);
    return value_bool(value_equal(r, as_title, self) && !value_equal(r, lower, upper));
}

/* ---- objects ---- */

static struct value view_of(struct render *r, struct value self, const char *name, int which) {
    const struct dict *d = self.as.dict;
    struct view *v = jinja_room(r, 1, sizeof *v);
    struct list *l = jinja_room(r, 1, sizeof *l);
    l->at = jinja_room(r, d->n, sizeof *l->at), l->n = d->n;
    jinja_step(r, (int64_t)d->n);
    for (size_t i = 0; i < d->n; i++)
        l->at[i] = which == 'k' ? d->at[i].key : which == 'v' ? d->at[i].value : value_pair(r, d->at[i].key, d->at[i].value);
    *v = (struct view){name, l};
    return (struct value){.kind = VALUE_VIEW, .as.view = v};
}
METHOD(dict_items) { UNUSED; return view_of(r, self, "dict_items", 'i'); }
METHOD(dict_keys) { UNUSED; return view_of(r, self, "dict_keys", 'k'); }
METHOD(dict_values) { UNUSED; return view_of(r, self, "dict_values", 'v'); }
METHOD(dict_get_method) {
    UNUSED;
    struct value *v = dict_get(r, self.as.dict, a[0]);
    return v ? *v : a[1].kind == VALUE_MISSING ? NONE : a[1];
}
METHOD(copy) { UNUSED; return self; } /* nothing is ever changed, so that a copy is the thing itself */

METHOD(dict_fromkeys) {
    UNUSED;
    struct dict d = {0};
    struct list keys = value_items(r, a[0]);
    for (size_t i = 0; i < keys.n; i++) dict_set(r, &d, keys.at[i], a[1].kind == VALUE_MISSING ? NONE : a[1]);
    return value_dict(r, &d);
}

METHOD(list_index) {
    UNUSED;
    struct list l = value_items(r, self);
    int64_t n = (int64_t)l.n, from = count_or(r, a[1], 0), to = count_or(r, a[2], n);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    for (int64_t i = from; i < n && i < to; i++)
        if (value_equal(r, l.at[i], a[0])) return value_int(i);
    jinja_fail(r, FAULT_VALUE, "the value is not in the list");
}
METHOD(list_count) {
    UNUSED;
    struct list l = value_items(r, self);
    int64_t n = 0;
    for (size_t i = 0; i < l.n; i++) n += value_equal(r, l.at[i], a[0]);
    return value_int(n);
}

METHOD(int_bit_length) {
    UNUSED;
    uint64_t u = self.as.i < 0 ? 0 - (uint64_t)self.as.i : (uint64_t)self.as.i;
    int n = 0;
    for (; u; u >>= 1) n++;
    return value_int(n);
}
METHOD(int_self) { UNUSED; return value_int(self.as.i); }
METHOD(float_is_integer) { UNUSED; return value_bool(isfinite(self.as.f) && self.as.f == floor(self.as.f)); }

METHOD(cycler_next) {
    UNUSED;
    struct cycler *y = self.as.cycler;
    struct value out = y->items.at[y->at];
    y->at = (y->at + 1) % y->items.n;
    return out;
}
METHOD(cycler_reset) { UNUSED; return self.as.cycler->at = 0, NONE; }

static const struct function text_methods[] = {{"capitalize", "", str_capitalize},
                                               {"casefold", "", str_casefold},
                                               {"center", "/width fill?", str_center},
                                               {"count", "/sub start? end?", str_count},
                                               {"encode", "encoding? errors?", str_encode},
                                               {"endswith", "/suffix start? end?", str_endswith},
                                               {"expandtabs", "tabsize?", str_expandtabs},
                                               {"find", "/sub start? end?", str_find},
                                               {"format", NULL, str_format},
                                               {"format_map", "/mapping", str_format_map},
                                               {"index", "/sub start? end?", str_index},
                                               {"isalnum", "", str_isalnum},
                                               {"isalpha", "", str_isalpha},
                                               {"isascii", "", str_isascii},
                                               {"isdecimal", "", str_isdecimal},
                                               {"isdigit", "", str_isdigit},
                                               {"isidentifier", "", str_isidentifier},
                                               {"islower", "", str_islower},
                                               {"isnumeric", "", str_isnumeric},
                                               {"isprintable", "", str_isprintable},
                                               {"isspace", "", str_isspace},
                                               {"istitle", "", str_istitle},
                                               {"isupper", "", str_isupper},
                                               {"join", "/iterable", str_join},
                                               {"ljust", "/width fill?", str_ljust},
                                               {"lower", "", str_lower},
                                               {"lstrip", "/chars?", str_lstrip},
                                               {"partition", "/sep", str_partition},
                                               {"removeprefix", "/prefix", str_removeprefix},
                                               {"removesuffix", "/suffix", str_removesuffix},
                                               {"replace", "/old new count?", str_replace},
                                               {"rfind", "/sub start? end?", str_rfind},
                                               {"rindex", "/sub start? end?", str_rindex},
                                               {"rjust", "/width fill?", str_rjust},
                                               {"rpartition", "/sep", str_rpartition},
                                               {"rsplit", "sep? maxsplit?", str_rsplit},
                                               {"rstrip", "/chars?", str_rstrip},
                                               {"split", "sep? maxsplit?", str_split},
                                               {"splitlines", "keepends?", str_splitlines},
                                               {"startswith", "/prefix start? end?", str_startswith},
                                               {"strip", "/chars?", str_strip},
                                               {"swapcase", "", str_swapcase},
                                               {"title", "", str_title},
                                               {"upper", "", str_upper},
                                               {"zfill", "/width", str_zfill},
                                               {NULL, NULL, NULL}};
static const struct function dict_methods[] = {{"copy", "", copy}, {"fromkeys", "/iterable value?", dict_fromkeys},
    {"get", "/key default?", dict_get_method}, {"items", "", dict_items}, {"keys", "", dict_keys}, {"values", "", dict_values},
    {NULL, NULL, NULL}};
static const struct function list_methods[] = {{"copy", "", copy}, {"count", "/value", list_count},
    {"index", "/value start? stop?", list_index}, {NULL, NULL, NULL}};
static const struct function bytes_methods[] = {{"decode", "encoding? errors?", bytes_decode}, {NULL, NULL, NULL}};
static const struct function int_methods[] = {
    {"bit_length", "", int_bit_length}, {"conjugate", "", int_self}, {NULL, NULL, NULL}};
static const struct function float_methods[] = {
    {"is_integer", "", float_is_integer}, {"conjugate", "", copy}, {NULL, NULL, NULL}};
static const struct function cycler_methods[] = {{"next", "", cycler_next}, {"reset", "", cycler_reset}, {NULL, NULL, NULL}};

const struct function *method_find(struct value v, const char *name, size_t n) {
    static const struct function *const tables[] = {[VALUE_STRING] = text_methods,
                                                    [VALUE_DICT] = dict_methods,
                                                    [VALUE_LIST] = list_methods,
                                                    [VALUE_TUPLE] = list_methods + 1,
                                                    [VALUE_RANGE] = list_methods + 1,
                                                    [VALUE_BYTES] = bytes_methods,
                                                    [VALUE_INT] = int_methods,
                                                    [VALUE_BOOL] = int_methods,
                                                    [VALUE_FLOAT] = float_methods,
                                                    [VALUE_CYCLER] = cycler_methods,
                                                    [VALUE_SELF] = NULL};
    const struct function *f = tables[v.kind];
    if (v.kind == VALUE_FUNCTION && !strcmp(v.as.function->name, "dict")) f = dict_methods + 1;
    for (; f && f->name; f++)
        if (strlen(f->name) == n && !memcmp(f->name, name, n)) return f;
    return NULL;
}

/* ---- calling ---- */

/* The parameter called `name` in spec: its place, or -1. */
static int place_of(const char *spec, struct value name) {
    int at = 0;
    for (const char *s = spec; *s; at++) {
        size_t n = strcspn(s, " ?");
        if (name.as.text->n == n && !memcmp(name.as.text->bytes, s, n)) return at;
        s += n;
        s += strspn(s, " ?");
    }
    return -1;
}

void call_bind(struct render *r, const struct function *f, const struct call *c, struct value *a) {
    const char *spec = f->spec;
    int names = *spec != '/';
    size_t n = 0;
    spec += !names;
    for (const char *s = spec; *s; n++) {
        s += strcspn(s, " ");
        s += strspn(s, " ");
    }
    for (size_t i = 0; i < MAX_PARAMETERS; i++) a[i] = MISSING;
    if (c->n_args > n) jinja_fail(r, FAULT_TYPE, "%s() takes at most %zu arguments (%zu given)", f->name, n, c->n_args);
    for (size_t i = 0; i < c->n_args; i++) a[i] = c->args[i];
    for (size_t i = 0; i < c->n_named; i++) {
        const struct text *key = c->named[i].key.as.text;
        int at = names ? place_of(spec, c->named[i].key) : -1;
        if (at < 0) jinja_fail(r, FAULT_TYPE, "%s() got an unexpected keyword argument '%.*s'", f->name, (int)key->n, key->bytes);
        if (a[at].kind != VALUE_MISSING)
            jinja_fail(r, FAULT_TYPE, "%s() got multiple values for argument '%.*s'", f->name, (int)key->n, key->bytes);
        a[at] = c->named[i].value;
    }
    size_t at = 0;
    for (const char *s = spec; *s; at++) {
        size_t m = strcspn(s, " ");
        if (a[at].kind == VALUE_MISSING && s[m - 1] != '?')
            jinja_fail(r, FAULT_TYPE, "%s() missing 1 required positional argument: '%.*s'", f->name, (int)m, s);
        s += m;
        s += strspn(s, " ");
    }
}

struct value function_call(struct render *r, const struct function *f, struct value self, const struct call *c) {
    struct value a[MAX_PARAMETERS];
    if (!f->spec) return f->fn(r, self, NULL, c);
    call_bind(r, f, c, a);
    return f->fn(r, self, a, c);
}
