/* Statements. */
#include <string.h>

#include "text/jinja_parse.h"

static struct nodes parse_body(struct parser *p, const char *const *ends);

/* Statements up to one of `ends`, which stays p->at. Behind the opening tag, whose end is read here. */
static struct nodes parse_until(struct parser *p, const char *const *ends) {
    parse_skip(p, ":");
    if (p->at->kind != TOKEN_BLOCK_END) parse_unexpected(p, "token 'end of statement block'");
    p->at++;
    return parse_body(p, ends);
}

static struct nodes parse_to_end(struct parser *p, const char *end) {
    const char *ends[] = {end, NULL};
    struct nodes body = parse_until(p, ends);
    p->at++;
    return body;
}

static struct node *parse_target(struct parser *p, int how, const char *stop) {
    const struct token *from = p->at;
    struct node *n = parse_tuple(p, TUPLE_SIMPLE | how, stop);
    const struct nodes *list = n->kind == NODE_TUPLE ? &n->list : NULL;
    for (size_t i = 0; i < (list ? list->n : 1); i++) {
        enum node_kind kind = list ? list->at[i]->kind : n->kind;
        if (kind == NODE_NAME || kind == NODE_ATTR_OF || kind == NODE_TUPLE) continue;
        p->at = from;
        parse_fail(p, "can't assign to this expression");
    }
    return n;
}

static struct node *parse_if(struct parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = parse_node(p, NODE_IF);
    size_t mark = p->n_unknown;
    do {
        struct node *branch = parse_node(p, NODE_IF_ELSE);
        branch->test = parse_tuple(p, TUPLE_NO_IF, NULL);
        branch->body = parse_until(p, ends);
        parse_append(p, &n->list, branch);
    } while (parse_skip_name(p, "elif"));
    if (parse_skip_name(p, "else")) n->other = parse_to_end(p, "endif");
    else p->at++;
    parse_soften(p, mark);
    return n;
}

static struct node *parse_for(struct parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = parse_node(p, NODE_FOR);
    n->target = parse_target(p, 0, "in");
    if (!parse_skip_name(p, "in")) parse_unexpected(p, "token 'in'");
    n->left = parse_tuple(p, TUPLE_NO_IF, "recursive");
    size_t mark = p->n_unknown;
    if (parse_skip_name(p, "if")) n->test = parse_expression(p);
    n->recursive = parse_skip_name(p, "recursive");
    p->loops++;
    n->body = parse_until(p, ends);
    p->loops--;
    if (parse_skip_name(p, "else")) n->other = parse_to_end(p, "endfor");
    else p->at++;
    parse_harden(p, mark);
    return n;
}

static struct node *parse_set(struct parser *p) {
    struct node *n = parse_node(p, NODE_SET);
    n->target = parse_target(p, TUPLE_NAMESPACE, NULL);
    if (parse_skip(p, "=")) {
        n->left = parse_tuple(p, 0, NULL);
        return n;
    }
    n->kind = NODE_SET_BLOCK;
    size_t mark = p->n_unknown;
    n->left = token_is(p->at, "|") ? parse_filters(p, NULL, 0) : NULL;
    n->body = parse_to_end(p, "endset");
    parse_harden(p, mark);
    return n;
}

/* "(a, b=1)" of a macro or a call block. */
static void parse_signature(struct parser *p, struct node *n) {
    parse_expect(p, "(");
    while (!token_is(p->at, ")")) {
        if (n->list.n) parse_expect(p, ",");
        struct node *name = parse_node(p, NODE_NAME);
        name->name = parse_expect_name(p);
        parse_append(p, &n->list, name);
        if (parse_skip(p, "=")) parse_append(p, &n->list2, parse_expression(p));
        else if (n->list2.n) parse_fail(p, "non-default argument follows default argument");
    }
    parse_expect(p, ")");
}

/* A body that becomes a function of its own. */
static void parse_function_body(struct parser *p, struct node *n, const char *end, size_t mark) {
    int uses = p->uses, loops = p->loops;
    p->uses = p->loops = 0;
    n->body = parse_to_end(p, end);
    n->uses = p->uses;
    p->uses |= uses, p->loops = loops;
    parse_harden(p, mark);
}

static struct node *parse_macro(struct parser *p) {
    struct node *n = parse_node(p, NODE_MACRO);
    size_t mark = p->n_unknown;
    n->name = parse_expect_name(p);
    parse_signature(p, n);
    parse_function_body(p, n, "endmacro", mark);
    return n;
}

static struct node *parse_call_block(struct parser *p) {
    struct node *n = parse_node(p, NODE_CALL_BLOCK);
    size_t mark = p->n_unknown;
    n->name = p->t->caller;
    if (token_is(p->at, "(")) parse_signature(p, n);
    n->left = parse_expression(p);
    if (n->left->kind != NODE_CALL) parse_fail(p, "expected call");
    parse_function_body(p, n, "endcall", mark);
    return n;
}

static struct node *parse_filter_block(struct parser *p) {
    struct node *n = parse_node(p, NODE_FILTER_BLOCK);
    size_t mark = p->n_unknown;
    n->left = parse_filters(p, NULL, 1);
    n->body = parse_to_end(p, "endfilter");
    parse_harden(p, mark);
    return n;
}

static struct node *parse_with(struct parser *p) {
    struct node *n = parse_node(p, NODE_WITH);
    size_t mark = p->n_unknown;
    while (p->at->kind != TOKEN_BLOCK_END) {
        if (n->list.n) parse_expect(p, ",");
        struct node *target = parse_node(p, NODE_NAME);
        if (token_is(p->at, "(")) target = parse_target(p, 0, NULL);
        else target->name = parse_expect_name(p);
        parse_append(p, &n->list, target);
        parse_expect(p, "=");
        parse_append(p, &n->list2, parse_expression(p));
    }
    n->body = parse_to_end(p, "endwith");
    parse_harden(p, mark);
    return n;
}

static struct node *parse_block(struct parser *p) {
    struct node *n = parse_node(p, NODE_BLOCK);
    struct jinja *t = p->t;
    size_t mark = p->n_unknown;
    n->name = parse_expect_name(p);
    for (size_t i = 0; i < t->n_blocks; i++)
        if (t->blocks[i]->name == n->name) parse_fail(p, "block '%s' defined twice", n->name->text.as.text->bytes);
    n->recursive = parse_skip_name(p, "scoped");
    parse_skip_name(p, "required");
    parse_function_body(p, n, "endblock", mark);
    if (p->at->kind == TOKEN_NAME && parse_expect_name(p) != n->name) parse_fail(p, "the block ends under another name");
    struct node **blocks = jinja_room(p->r, t->n_blocks + 1, sizeof *blocks);
    if (t->n_blocks) memcpy(blocks, t->blocks, t->n_blocks * sizeof *blocks);
    t->blocks = blocks, t->blocks[t->n_blocks++] = n;
    return n;
}

static struct node *parse_autoescape(struct parser *p) {
    struct node *n = parse_node(p, NODE_AUTOESCAPE);
    size_t mark = p->n_unknown;
    n->left = parse_expression(p);
    n->body = parse_to_end(p, "endautoescape");
    parse_harden(p, mark);
    return n;
}

static struct node *parse_generation(struct parser *p) {
    struct node *n = parse_node(p, NODE_SCOPE);
    parse_function_body(p, n, "endgeneration", p->n_unknown);
    return n;
}

static struct node *parse_print(struct parser *p) {
    struct node *n = parse_node(p, NODE_PRINT);
    while (p->at->kind != TOKEN_BLOCK_END) {
        if (n->list.n) parse_expect(p, ",");
        parse_append(p, &n->list, parse_expression(p));
    }
    return n;
}

static struct node *parse_break(struct parser *p) {
    struct node *n = parse_node(p, token_is_name(p->at - 1, "break") ? NODE_BREAK : NODE_CONTINUE);
    if (!p->loops) parse_fail(p, "'%s' outside loop", n->kind == NODE_BREAK ? "break" : "continue");
    return n;
}

/* There are no other templates to be had: that is an error where the statement is reached. */
static struct node *parse_foreign(struct parser *p) {
    struct node *n = parse_node(p, NODE_NO_LOADER);
    parse_expression(p);
    while (p->at->kind == TOKEN_NAME || token_is(p->at, ",")) p->at++;
    return n;
}

static struct node *parse_statement(struct parser *p) {
    static const struct { const char *tag; struct node *(*parse)(struct parser *); } tags[] = {
        {"if", parse_if}, {"for", parse_for}, {"set", parse_set}, {"macro", parse_macro}, {"call", parse_call_block},
        {"filter", parse_filter_block}, {"with", parse_with}, {"block", parse_block}, {"autoescape", parse_autoescape},
        {"generation", parse_generation}, {"print", parse_print}, {"break", parse_break}, {"continue", parse_break},
        {"include", parse_foreign}, {"import", parse_foreign}, {"from", parse_foreign}, {"extends", parse_foreign}};
    if (p->at->kind != TOKEN_NAME) parse_fail(p, "tag name expected");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (parse_skip_name(p, tags[i].tag)) return tags[i].parse(p);
    parse_fail(p, "Encountered unknown tag '%.*s'.", (int)(p->at->n < 80 ? p->at->n : 80), p->at->bytes);
}

static int at_end(const struct parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (token_is_name(p->at, *ends)) return 1;
    return 0;
}

static struct nodes parse_body(struct parser *p, const char *const *ends) {
    struct nodes body = {0};
    jinja_enter(p->r);
    for (;;) {
        struct node *n;
        if (p->at->kind == TOKEN_EOF) {
            if (ends) parse_fail(p, "Unexpected end of template: '%s' is missing.", ends[0]);
            break;
        }
        if (p->at->kind == TOKEN_DATA) {
            n = parse_node(p, NODE_DATA);
            n->value = p->at++->value;
        } else if (p->at->kind == TOKEN_PRINT_BEGIN) {
            p->at++;
            n = parse_node(p, NODE_PRINT);
            parse_append(p, &n->list, parse_tuple(p, 0, NULL));
            if (p->at->kind != TOKEN_PRINT_END) parse_unexpected(p, "token 'end of print statement'");
            p->at++;
        } else {
            p->at++; /* the lexer gives nothing else outside tags than the begin of a block */
            if (at_end(p, ends)) break;
            n = parse_statement(p);
            if (p->at->kind != TOKEN_BLOCK_END) parse_unexpected(p, "token 'end of statement block'");
            p->at++;
        }
        parse_append(p, &body, n);
    }
    jinja_leave(p->r);
    return body;
}

/* ---- names ---- */

static size_t slot_of(const struct jinja *t, const char *bytes, size_t n) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * 1099511628211u;
    size_t i = (h ^ h >> 31) & (t->n_slots - 1);
    while (t->names[i] && (t->names[i]->text.as.text->n != n || memcmp(t->names[i]->text.as.text->bytes, bytes, n)))
        i = (i + 1) & (t->n_slots - 1);
    return i;
}

const struct name *jinja_find_name(const struct jinja *t, const char *bytes, size_t n) {
    return t->n_slots ? t->names[slot_of(t, bytes, n)] : NULL;
}

const struct name *jinja_name(struct render *r, struct jinja *t, const char *bytes, size_t n) {
    if (2 * (t->n_names + 1) > t->n_slots) {
        struct name **old = t->names;
        size_t n_old = t->n_slots;
        t->n_slots = n_old ? n_old * 2 : 128;
        t->names = jinja_room(r, t->n_slots, sizeof *t->names);
        for (size_t i = 0; i < n_old; i++)
            if (old[i]) t->names[slot_of(t, old[i]->text.as.text->bytes, old[i]->text.as.text->n)] = old[i];
    }
    size_t at = slot_of(t, bytes, n);
    if (!t->names[at]) {
        struct name *name = jinja_room(r, 1, sizeof *name);
        char *copy = jinja_room(r, n + 1, 1); /* ends with a zero byte, for messages */
        memcpy(copy, bytes, n);
        name->text = value_text_n(r, copy, n);
        name->global = global_find(bytes, n);
        t->names[at] = name, t->n_names++;
    }
    return t->names[at];
}

void jinja_parse(struct render *r, struct jinja *t, const char *source, size_t n) {
    struct parser p = {.r = r, .t = t};
    t->loop = jinja_name(r, t, "loop", 4), t->caller = jinja_name(r, t, "caller", 6), t->self = jinja_name(r, t, "self", 4);
    t->kwargs = jinja_name(r, t, "kwargs", 6), t->varargs = jinja_name(r, t, "varargs", 7);
    p.at = jinja_lex(r, source, n);
    t->body = parse_body(&p, NULL);
    if (!p.n_unknown) return;
    r->line = p.unknown[0].line;
    jinja_fail(r, FAULT_SYNTAX, "No %s named '%.*s'.", p.unknown[0].what, p.unknown[0].n, p.unknown[0].name);
}
