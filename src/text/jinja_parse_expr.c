/* Expressions, with the precedences of Jinja: if-else, or, and, not, comparisons, + -, ~, * / // %, **, signs, postfix. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_parse.h"

void parse_fail(struct parser *p, const char *format, ...) {
    char said[512];
    va_list args;
    va_start(args, format);
    vsnprintf(said, sizeof said, format, args);
    va_end(args);
    p->r->line = p->at->line;
    jinja_fail(p->r, FAULT_SYNTAX, "%s", said);
}

void parse_unexpected(struct parser *p, const char *wanted) {
    static const char *const names[] = {[TOKEN_DATA] = "text", [TOKEN_PRINT_BEGIN] = "begin of print statement",
        [TOKEN_PRINT_END] = "end of print statement", [TOKEN_BLOCK_BEGIN] = "begin of statement block",
        [TOKEN_BLOCK_END] = "end of statement block", [TOKEN_STRING] = "string", [TOKEN_INTEGER] = "integer",
        [TOKEN_FLOAT] = "float", [TOKEN_EOF] = "end of template"};
    const struct token *t = p->at;
    if (t->kind == TOKEN_EOF) parse_fail(p, "unexpected end of template, expected %s", wanted);
    if (t->kind == TOKEN_NAME || t->kind == TOKEN_OPERATOR)
        parse_fail(p, "expected %s, got '%.*s'", wanted, (int)(t->n < 80 ? t->n : 80), t->bytes);
    parse_fail(p, "expected %s, got '%s'", wanted, names[t->kind]);
}

struct node *parse_node(struct parser *p, enum node_kind kind) {
    struct node *n = jinja_room(p->r, 1, sizeof *n);
    jinja_step(p->r, 1);
    n->kind = kind, n->line = p->at->line;
    return n;
}

void parse_append(struct parser *p, struct nodes *list, struct node *n) {
    if (!(list->n & (list->n - 1))) { /* room grows at powers of two */
        struct node **at = jinja_room(p->r, list->n ? list->n * 2 : 1, sizeof *at);
        if (list->n) memcpy(at, list->at, list->n * sizeof *at);
        list->at = at;
    }
    list->at[list->n++] = n;
}

static int text_is(const struct token *t, const char *what) { return t->n == strlen(what) && !memcmp(t->bytes, what, t->n); }
int token_is(const struct token *t, const char *op) { return t->kind == TOKEN_OPERATOR && text_is(t, op); }
int token_is_name(const struct token *t, const char *name) { return t->kind == TOKEN_NAME && text_is(t, name); }
int parse_skip(struct parser *p, const char *op) { return token_is(p->at, op) ? p->at++, 1 : 0; }
int parse_skip_name(struct parser *p, const char *name) { return token_is_name(p->at, name) ? p->at++, 1 : 0; }

void parse_expect(struct parser *p, const char *op) {
    char wanted[16];
    snprintf(wanted, sizeof wanted, "token '%s'", op);
    if (!parse_skip(p, op)) parse_unexpected(p, wanted);
}

const struct name *parse_expect_name(struct parser *p) {
    if (p->at->kind != TOKEN_NAME) parse_unexpected(p, "token 'name'");
    const struct token *t = p->at++;
    return jinja_name(p->r, p->t, t->bytes, t->n);
}

void parse_soften(struct parser *p, size_t mark) {
    size_t kept = mark;
    for (size_t i = mark; i < p->n_unknown; i++)
        if (p->unknown[i].hard) p->unknown[kept++] = p->unknown[i];
    p->n_unknown = kept;
}

void parse_harden(struct parser *p, size_t mark) {
    for (size_t i = mark; i < p->n_unknown; i++) p->unknown[i].hard = 1;
}

static void note_unknown(struct parser *p, const char *what, struct value name) {
    if (p->n_unknown == p->room_unknown) {
        size_t room = p->room_unknown ? p->room_unknown * 2 : 8;
        struct unknown *u = jinja_room(p->r, room, sizeof *u);
        if (p->n_unknown) memcpy(u, p->unknown, p->n_unknown * sizeof *u);
        p->unknown = u, p->room_unknown = room;
    }
    p->unknown[p->n_unknown++] = (struct unknown){what, name.as.text->bytes, (int)name.as.text->n, p->at->line, 0};
}

/* ---- from the inside out ---- */

static struct node *parse_unary(struct parser *p, int with_filters);

static struct node *constant(struct parser *p, struct value v) {
    struct node *n = parse_node(p, NODE_CONST);
    n->value = v;
    return n;
}

static struct node *parse_string(struct parser *p) {
    struct out o = {0};
    struct node *n = constant(p, p->at->value);
    p->at++;
    if (p->at->kind != TOKEN_STRING) return n;
    out_add(p->r, &o, n->value.as.text->bytes, n->value.as.text->n);
    for (; p->at->kind == TOKEN_STRING; p->at++) out_add(p->r, &o, p->at->value.as.text->bytes, p->at->value.as.text->n);
    n->value = out_take(p->r, &o);
    return n;
}

static struct node *parse_list(struct parser *p) {
    struct node *n = parse_node(p, NODE_LIST);
    parse_expect(p, "[");
    while (!token_is(p->at, "]")) {
        if (n->list.n) parse_expect(p, ",");
        if (token_is(p->at, "]")) break;
        parse_append(p, &n->list, parse_expression(p));
    }
    parse_expect(p, "]");
    return n;
}

static struct node *parse_dict(struct parser *p) {
    struct node *n = parse_node(p, NODE_DICT);
    parse_expect(p, "{");
    while (!token_is(p->at, "}")) {
        if (n->list.n) parse_expect(p, ",");
        if (token_is(p->at, "}")) break;
        parse_append(p, &n->list, parse_expression(p));
        parse_expect(p, ":");
        parse_append(p, &n->list, parse_expression(p));
    }
    parse_expect(p, "}");
    return n;
}

static struct node *parse_name(struct parser *p, int with_namespace) {
    const struct token *t = p->at++;
    if (text_is(t, "true") || text_is(t, "True")) return constant(p, value_bool(1));
    if (text_is(t, "false") || text_is(t, "False")) return constant(p, value_bool(0));
    if (text_is(t, "none") || text_is(t, "None")) return constant(p, NONE);
    struct node *n = parse_node(p, NODE_NAME);
    n->name = jinja_name(p->r, p->t, t->bytes, t->n);
    if (with_namespace && parse_skip(p, ".")) {
        n->kind = NODE_ATTR_OF;
        n->value = parse_expect_name(p)->text;
        return n;
    }
    if (n->name == p->t->caller) p->uses |= USES_CALLER;
    if (n->name == p->t->kwargs) p->uses |= USES_KWARGS;
    if (n->name == p->t->varargs) p->uses |= USES_VARARGS;
    return n;
}

static struct node *parse_primary(struct parser *p, int with_namespace) {
    const struct token *t = p->at;
    if (t->kind == TOKEN_NAME) return parse_name(p, with_namespace);
    if (t->kind == TOKEN_STRING) return parse_string(p);
    if (t->kind == TOKEN_INTEGER || t->kind == TOKEN_FLOAT) return p->at++, constant(p, t->value);
    if (token_is(t, "(")) {
        p->at++;
        struct node *n = parse_tuple(p, TUPLE_IN_BRACKETS, NULL);
        parse_expect(p, ")");
        return n;
    }
    if (token_is(t, "[")) return parse_list(p);
    if (token_is(t, "{")) return parse_dict(p);
    parse_unexpected(p, "an expression");
}

/* One of the things between "[" and "]" of a subscript: an expression, or a slice, which has no left side yet. */
static struct node *parse_subscript(struct parser *p) {
    struct node *first = NULL, *part[3] = {NULL, NULL, NULL};
    if (!token_is(p->at, ":")) {
        first = parse_expression(p);
        if (!token_is(p->at, ":")) return first;
    }
    struct node *n = parse_node(p, NODE_SLICE);
    part[0] = first;
    for (int i = 1; i < 3 && parse_skip(p, ":"); i++)
        if (!token_is(p->at, ":") && !token_is(p->at, "]") && !token_is(p->at, ",")) part[i] = parse_expression(p);
    for (int i = 0; i < 3; i++) parse_append(p, &n->list, part[i]);
    return n;
}

static struct node *parse_item(struct parser *p, struct node *left) {
    struct node *n = parse_node(p, NODE_ITEM), *key = NULL, *keys = NULL;
    int bare = 0;
    parse_expect(p, "[");
    while (!token_is(p->at, "]")) {
        if (key) parse_expect(p, ",");
        struct node *next = parse_subscript(p);
        bare |= next->kind == NODE_SLICE && !next->left;
        if (key && !keys) keys = parse_node(p, NODE_TUPLE), parse_append(p, &keys->list, key);
        if (keys) parse_append(p, &keys->list, next);
        key = next;
    }
    parse_expect(p, "]");
    if (!key || (keys && bare)) parse_fail(p, "expected subscript expression");
    n->left = left;
    if (bare) { /* the slice node itself becomes left[a:b:c] */
        key->left = left;
        return key;
    }
    n->right = keys ? keys : key;
    return n;
}

static struct node *parse_attr(struct parser *p, struct node *left) {
    p->at++;
    const struct token *t = p->at;
    struct node *n = parse_node(p, t->kind == TOKEN_INTEGER ? NODE_ITEM : NODE_ATTR);
    n->left = left;
    if (t->kind == TOKEN_INTEGER) n->right = constant(p, t->value), p->at++;
    else if (t->kind == TOKEN_NAME) n->value = parse_expect_name(p)->text;
    else parse_unexpected(p, "name or number");
    return n;
}

static void add_argument(struct parser *p, struct arguments *a, struct argument what) {
    if (!(a->n & (a->n - 1))) {
        struct argument *at = jinja_room(p->r, a->n ? a->n * 2 : 1, sizeof *at);
        if (a->n) memcpy(at, a->at, a->n * sizeof *at);
        a->at = at;
    }
    a->at[a->n++] = what;
}

static void parse_arguments(struct parser *p, struct arguments *a) {
    int named = 0, stars = 0;
    parse_expect(p, "(");
    while (!token_is(p->at, ")")) {
        if (a->n) parse_expect(p, ",");
        if (token_is(p->at, ")")) break;
        struct argument arg = {NULL, NULL, 0};
        if (parse_skip(p, "*")) {
            if (stars) parse_fail(p, "invalid syntax for function call expression");
            arg.star = 1, stars |= 1;
        } else if (parse_skip(p, "**")) {
            if (stars & 2) parse_fail(p, "invalid syntax for function call expression");
            arg.star = 2, stars |= 2;
        } else if (p->at->kind == TOKEN_NAME && token_is(p->at + 1, "=")) {
            if (stars & 2) parse_fail(p, "invalid syntax for function call expression");
            arg.name = parse_expect_name(p), named = 1;
            p->at++;
        } else if (named || stars) parse_fail(p, "invalid syntax for function call expression");
        arg.value = parse_expression(p);
        add_argument(p, a, arg);
    }
    parse_expect(p, ")");
}

static struct node *parse_call(struct parser *p, struct node *left) {
    struct node *n = parse_node(p, NODE_CALL);
    n->left = left;
    parse_arguments(p, &n->arguments);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n) {
    for (;;) {
        if (token_is(p->at, ".")) n = parse_attr(p, n);
        else if (token_is(p->at, "[")) n = parse_item(p, n);
        else if (token_is(p->at, "(")) n = parse_call(p, n);
        else return n;
    }
}

/* "name" or "name.more", as filters and tests may be called. */
static struct value dotted_name(struct parser *p) {
    struct value name = parse_expect_name(p)->text;
    while (parse_skip(p, ".")) {
        struct out o = {0};
        struct value more = parse_expect_name(p)->text;
        out_add(p->r, &o, name.as.text->bytes, name.as.text->n);
        out_add_char(p->r, &o, '.');
        out_add(p->r, &o, more.as.text->bytes, more.as.text->n);
        name = out_take(p->r, &o);
    }
    return name;
}

struct node *parse_filters(struct parser *p, struct node *left, int inside_tag) {
    while (inside_tag || token_is(p->at, "|")) {
        if (!inside_tag) p->at++;
        struct node *n = parse_node(p, NODE_FILTER);
        n->value = dotted_name(p), n->left = left;
        n->function = filter_find(n->value.as.text->bytes, n->value.as.text->n);
        if (!n->function) note_unknown(p, "filter", n->value);
        if (token_is(p->at, "(")) parse_arguments(p, &n->arguments);
        left = n, inside_tag = 0;
    }
    return left;
}

static struct node *parse_test(struct parser *p, struct node *left) {
    p->at++;
    struct node *n = parse_node(p, NODE_TEST), *out = n;
    if (parse_skip_name(p, "not")) out = parse_node(p, NODE_NOT), out->left = n;
    n->value = dotted_name(p), n->left = left;
    n->function = test_find(n->value.as.text->bytes, n->value.as.text->n);
    if (!n->function) note_unknown(p, "test", n->value);
    const struct token *t = p->at;
    if (token_is(t, "(")) parse_arguments(p, &n->arguments);
    else if (t->kind == TOKEN_STRING || t->kind == TOKEN_INTEGER || t->kind == TOKEN_FLOAT || token_is(t, "[") ||
             token_is(t, "{") ||
             (t->kind == TOKEN_NAME && !token_is_name(t, "else") && !token_is_name(t, "or") && !token_is_name(t, "and"))) {
        if (token_is_name(t, "is")) parse_fail(p, "You cannot chain multiple tests with is");
        struct argument arg = {NULL, parse_primary(p, 0), 0};
        arg.value = parse_postfix(p, arg.value);
        add_argument(p, &n->arguments, arg);
    }
    return out;
}

static struct node *parse_behind(struct parser *p, struct node *n) {
    for (;;) {
        if (token_is(p->at, "|")) n = parse_filters(p, n, 0);
        else if (token_is_name(p->at, "is")) n = parse_test(p, n);
        else if (token_is(p->at, "(")) n = parse_call(p, n);
        else return n;
    }
}

static struct node *parse_unary(struct parser *p, int with_filters) {
    struct node *n;
    jinja_enter(p->r);
    if (token_is(p->at, "-") || token_is(p->at, "+")) {
        n = parse_node(p, token_is(p->at, "-") ? NODE_NEGATE : NODE_PLUS);
        p->at++;
        n->left = parse_unary(p, 0);
    } else n = parse_primary(p, 0);
    n = parse_postfix(p, n);
    if (with_filters) n = parse_behind(p, n);
    jinja_leave(p->r);
    return n;
}

static struct node *binary(struct parser *p, int op, struct node *left, struct node *right) {
    struct node *n = parse_node(p, NODE_BINARY);
    n->op = op, n->left = left, n->right = right;
    return n;
}

static struct node *parse_power(struct parser *p) {
    struct node *left = parse_unary(p, 1);
    while (parse_skip(p, "**")) left = binary(p, 'p', left, parse_unary(p, 1));
    return left;
}

static struct node *parse_product(struct parser *p) {
    struct node *left = parse_power(p);
    for (;;) {
        int op = token_is(p->at, "*")    ? '*'
                 : token_is(p->at, "/")  ? '/'
                 : token_is(p->at, "//") ? 'f'
                 : token_is(p->at, "%")  ? '%'
                                         : 0;
        if (!op) return left;
        p->at++;
        left = binary(p, op, left, parse_power(p));
    }
}

static struct node *parse_concat(struct parser *p) {
    struct node *left = parse_product(p);
    if (!token_is(p->at, "~")) return left;
    struct node *n = parse_node(p, NODE_CONCAT);
    parse_append(p, &n->list, left);
    while (parse_skip(p, "~")) parse_append(p, &n->list, parse_product(p));
    return n;
}

static struct node *parse_sum(struct parser *p) {
    struct node *left = parse_concat(p);
    for (;;) {
        int op = token_is(p->at, "+") ? '+' : token_is(p->at, "-") ? '-' : 0;
        if (!op) return left;
        p->at++;
        left = binary(p, op, left, parse_concat(p));
    }
}

/* The comparison at p->at, which is skipped, or NULL. */
static const char *take_comparison(struct parser *p) {
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (parse_skip(p, ops[i])) return ops[i];
    if (parse_skip_name(p, "in")) return "in";
    if (!token_is_name(p->at, "not") || !token_is_name(p->at + 1, "in")) return NULL;
    p->at += 2;
    return "not in";
}

static struct node *parse_compare(struct parser *p) {
    struct node *left = parse_sum(p), *n = NULL;
    const char *op, **ops = NULL;
    while ((op = take_comparison(p))) {
        if (!n) n = parse_node(p, NODE_COMPARE), n->left = left;
        parse_append(p, &n->list, parse_sum(p));
        const char **more = jinja_room(p->r, n->list.n, sizeof *more);
        if (ops) memcpy(more, ops, (n->list.n - 1) * sizeof *more);
        ops = more, ops[n->list.n - 1] = op, n->ops = ops;
    }
    return n ? n : left;
}

static struct node *parse_not(struct parser *p) {
    if (!token_is_name(p->at, "not")) return parse_compare(p);
    struct node *n = parse_node(p, NODE_NOT);
    p->at++;
    jinja_enter(p->r);
    n->left = parse_not(p);
    jinja_leave(p->r);
    return n;
}

static struct node *parse_and(struct parser *p) {
    struct node *left = parse_not(p);
    while (parse_skip_name(p, "and")) {
        struct node *n = parse_node(p, NODE_AND);
        n->left = left, n->right = parse_not(p), left = n;
    }
    return left;
}

static struct node *parse_or(struct parser *p) {
    struct node *left = parse_and(p);
    while (parse_skip_name(p, "or")) {
        struct node *n = parse_node(p, NODE_OR);
        n->left = left, n->right = parse_and(p), left = n;
    }
    return left;
}

struct node *parse_expression(struct parser *p) {
    jinja_enter(p->r);
    size_t mark = p->n_unknown;
    struct node *left = parse_or(p);
    while (parse_skip_name(p, "if")) {
        struct node *n = parse_node(p, NODE_IF_ELSE);
        n->left = left, n->test = parse_or(p);
        if (parse_skip_name(p, "else")) n->right = parse_expression(p);
        parse_soften(p, mark);
        left = n;
    }
    jinja_leave(p->r);
    return left;
}

static int ends_tuple(struct parser *p, const char *stop) {
    return p->at->kind == TOKEN_PRINT_END || p->at->kind == TOKEN_BLOCK_END || token_is(p->at, ")") ||
           (stop && token_is_name(p->at, stop));
}

static struct node *parse_part(struct parser *p, int how) {
    if (how & TUPLE_SIMPLE) return parse_primary(p, how & TUPLE_NAMESPACE);
    return how & TUPLE_NO_IF ? parse_or(p) : parse_expression(p);
}

struct node *parse_tuple(struct parser *p, int how, const char *stop) {
    struct node *n = parse_node(p, NODE_TUPLE);
    jinja_enter(p->r);
    int comma = 0;
    while (!ends_tuple(p, stop)) {
        parse_append(p, &n->list, parse_part(p, how));
        if (!parse_skip(p, ",")) break;
        comma = 1;
    }
    jinja_leave(p->r);
    if (comma) return n;
    if (n->list.n) return n->list.at[0];
    if (!(how & TUPLE_IN_BRACKETS)) parse_unexpected(p, "an expression");
    return n;
}
