#include "cli/args.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

int args_read_size(const char *text, uint64_t *out) {
    if (!isdigit((unsigned char)text[0])) return 0;
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || memchr(text, 'x', (size_t)(end - text)) || memchr(text, 'X', (size_t)(end - text))) return 0;
    int shift = 0;
    switch (*end) {
    case 'k': case 'K': shift = 10; break;
    case 'm': case 'M': shift = 20; break;
    case 'g': case 'G': shift = 30; break;
    case 't': case 'T': shift = 40; break;
    }
    end += shift > 0;
    if (shift && end[0] == 'i') end++;
    if (shift && (end[0] == 'B' || end[0] == 'b')) end++;
    value = ldexp(value, shift);
    if (*end || value >= 0x1p62 || value != floor(value)) return 0;
    *out = (uint64_t)value;
    return 1;
}

/* How many single-letter changes lead from one name to the other, at most 99. */
static int distance(const char *a, const char *b) {
    int row[64], na = (int)strlen(a), nb = (int)strlen(b);
    if (nb > 62 || na > 62) return 99;
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int up = row[j], best = corner + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            corner = up;
            row[j] = best;
        }
    }
    return row[nb];
}

static const struct arg *next_arg(const struct args *a, int *g, int *i) {
    for (; *g < a->n_groups; ++*g, *i = 0)
        if (*i < a->group[*g].n_args) return &a->group[*g].args[(*i)++];
    return NULL;
}

static const struct arg *find(const struct args *a, const char *name, size_t n, char letter) {
    int g = 0, i = 0;
    for (const struct arg *o; (o = next_arg(a, &g, &i));)
        if (letter ? o->letter == letter : strlen(o->name) == n && !memcmp(o->name, name, n)) return o;
    return NULL;
}

static int unknown(const struct args *a, const char *given, struct weft_error *e) {
    char name[64];
    const char *start = given + strspn(given, "-");
    size_t n = strcspn(start, "=");
    if (n >= sizeof name) n = sizeof name - 1;
    memcpy(name, start, n), name[n] = 0;
    const struct arg *best = NULL;
    int best_distance = 4, g = 0, i = 0;
    for (const struct arg *o; (o = next_arg(a, &g, &i));) {
        int d = n >= 3 && !strncmp(o->name, name, n) ? 1 : distance(name, o->name);
        if (d < best_distance && d * 2 <= (int)strlen(o->name)) best = o, best_distance = d;
    }
    if (best) return error_set(e, WEFT_ERROR_INPUT, "unknown option %s; did you mean --%s?", given, best->name);
    return error_set(e, WEFT_ERROR_INPUT, "unknown option %s; --help lists the options", given);
}

static int read_choice(const struct arg *o, const char *text, struct weft_error *e) {
    int at = 0;
    for (const char *p = o->form; p; at++) {
        size_t n = strcspn(p, "|");
        if (strlen(text) == n && !memcmp(p, text, n)) {
            *(int *)o->value = at;
            return 0;
        }
        p = p[n] ? p + n + 1 : NULL;
    }
    return error_set(e, WEFT_ERROR_INPUT, "--%s is one of %s, not \"%s\"", o->name, o->form, text);
}

static int read_number(const struct arg *o, const char *text, struct weft_error *e) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v))
        return error_set(e, WEFT_ERROR_INPUT, "--%s wants a number, not \"%s\"", o->name, text);
    if (v < o->min || v > o->max)
        return error_set(e, WEFT_ERROR_INPUT, "--%s lies between %g and %g, not %s", o->name, o->min, o->max, text);
    *(double *)o->value = v;
    return 0;
}

static int read_count(const struct arg *o, const char *text, struct weft_error *e) {
    uint64_t v = 0;
    int minus = text[0] == '-' && o->min < 0;
    if (!args_read_size(text + minus, &v))
        return error_set(e, WEFT_ERROR_INPUT, "--%s wants a whole number, not \"%s\"", o->name, text);
    double x = minus ? -(double)v : (double)v, max = o->max > 0 ? o->max : INT_MAX;
    if (x < o->min || x > max)
        return error_set(e, WEFT_ERROR_INPUT, "--%s lies between %.0f and %.0f, not %s", o->name, o->min, max, text);
    *(int *)o->value = (int)x;
    return 0;
}

static int read_value(const struct arg *o, const char *text, struct weft_error *e) {
    uint64_t v;
    char *end;
    switch (o->kind) {
    case ARG_FLAG: *(int *)o->value = 1; return 0;
    case ARG_COUNT: return read_count(o, text, e);
    case ARG_NUMBER: return read_number(o, text, e);
    case ARG_CHOICE: return read_choice(o, text, e);
    case ARG_SIZE:
        if (!args_read_size(text, &v))
            return error_set(e, WEFT_ERROR_INPUT, "--%s wants a size such as 512M or 8G, not \"%s\"", o->name, text);
        *(size_t *)o->value = (size_t)v;
        return 0;
    case ARG_SEED:
        errno = 0;
        v = strtoull(text, &end, 10);
        if (!isdigit((unsigned char)text[0]) || *end || errno)
            return error_set(e, WEFT_ERROR_INPUT, "--%s wants a whole number below 2^64, not \"%s\"", o->name, text);
        *(uint64_t *)o->value = v;
        return 0;
    case ARG_TEXT: *(const char **)o->value = text; return 0;
    case ARG_TEXTS: {
        struct arg_texts *list = o->value;
        if (list->n == ARG_TEXTS_MAX)
            return error_set(e, WEFT_ERROR_INPUT, "--%s was given more than %d times", o->name, ARG_TEXTS_MAX);
        list->text[list->n++] = text;
        return 0;
    }
    }
    return 0;
}

static void print_option(const struct arg *o) {
    char left[96];
    int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                      : snprintf(left, sizeof left, "  --%s", o->name);
    if (o->kind != ARG_FLAG) snprintf(left + n, sizeof left - (size_t)n, " %s", o->form);
    out_printf(strlen(left) > 29 ? "%s\n%31s" : "%-31s", left, "");
    for (const char *p = o->help; *p; p++) {
        out_bytes(p, 1);
        if (*p == '\n') out_printf("%31s", "");
    }
    out_text("\n");
}

static void print_help(const struct args *a, const char *command) {
    out_printf("usage: weft %s %s\n\n%s\n", command, a->usage, a->about);
    for (int g = 0; g < a->n_groups; g++) {
        out_printf("\n%s\n", a->group[g].title);
        for (int i = 0; i < a->group[g].n_args; i++) print_option(&a->group[g].args[i]);
    }
}

static int take_option(const struct args *a, int *i, int argc, char **argv, struct weft_error *e) {
    const char *given = argv[*i], *value = NULL;
    const struct arg *o;
    if (given[1] == '-') {
        size_t n = strcspn(given + 2, "=");
        o = find(a, given + 2, n, 0);
        if (given[2 + n]) value = given + 3 + n;
    } else {
        o = find(a, NULL, 0, given[1]);
        if (given[1] && given[2]) value = given + 2;
    }
    if (!o) return unknown(a, given, e);
    if (o->kind == ARG_FLAG) {
        if (value) return error_set(e, WEFT_ERROR_INPUT, "--%s takes no value", o->name);
    } else if (!value) {
        if (*i + 1 >= argc) return error_set(e, WEFT_ERROR_INPUT, "--%s wants a value: %s", o->name, o->form);
        value = argv[++*i];
    }
    return read_value(o, value, e);
}

int args_parse(struct args *a, int argc, char **argv, struct weft_error *e) {
    int only_positional = 0;
    a->n_positional = 0;
    for (int i = 1; i < argc; i++) {
        if (!only_positional && !strcmp(argv[i], "--")) {
            only_positional = 1;
        } else if (!only_positional && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            print_help(a, argv[0]);
            return ARGS_HELP;
        } else if (!only_positional && argv[i][0] == '-' && argv[i][1]) {
            int r = take_option(a, &i, argc, argv, e);
            if (r < 0) return r;
        } else {
            if (a->n_positional == a->max_positional)
                return error_set(e, WEFT_ERROR_INPUT, "unexpected argument \"%s\"; usage: weft %s %s", argv[i], argv[0], a->usage);
            a->positional[a->n_positional++] = argv[i];
        }
    }
    if (a->n_positional < a->min_positional)
        return error_set(e, WEFT_ERROR_INPUT, "too few arguments; usage: weft %s %s", argv[0], a->usage);
    return 0;
}

int args_read_ids(int32_t **out, int *n, const char *text, size_t n_bytes, const char *name, struct weft_error *e) {
    size_t room = 1, at = 0;
    for (size_t i = 0; i < n_bytes; i++) room += text[i] == ',' || isspace((unsigned char)text[i]);
    if (room > INT_MAX) return error_set(e, WEFT_ERROR_INPUT, "%s: too many numbers", name);
    int32_t *ids = mem_new(room, sizeof *ids);
    if (!ids) return error_memory(e, "token ids");
    int count = 0, wants_number = 0;
    while (at < n_bytes) {
        if (isspace((unsigned char)text[at])) { at++; continue; }
        if (text[at] == ',') {
            if (wants_number || !count) break;
            wants_number = 1, at++;
            continue;
        }
        int minus = text[at] == '-';
        size_t first = at += (size_t)minus;
        int64_t v = 0;
        while (at < n_bytes && isdigit((unsigned char)text[at]) && v <= INT32_MAX) v = v * 10 + (text[at++] - '0');
        if (at == first || v > INT32_MAX || (at < n_bytes && text[at] != ',' && !isspace((unsigned char)text[at]))) break;
        ids[count++] = (int32_t)(minus ? -v : v), wants_number = 0;
    }
    if (at < n_bytes) {
        mem_free(ids);
        return error_set(e, WEFT_ERROR_INPUT, "%s: not a list of whole numbers separated by commas (at byte %zu)", name, at);
    }
    *out = ids, *n = count;
    return 0;
}
