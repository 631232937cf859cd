/* Statements, loops and macros. */
#include <string.h>

#include "text/jinja_eval.h"

typedef enum flow exec_fn(struct render *r, const struct node *n);

struct scope *scope_new(struct render *r, struct scope *parent) {
    struct scope *s = jinja_room(r, 1, sizeof *s);
    s->parent = parent;
    return s;
}

void scope_set(struct render *r, struct scope *s, const struct name *name, struct value v) {
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].name == name) { s->at[i].value = v; return; }
    if (s->n == s->room) {
        size_t room = s->room ? s->room * 2 : 4;
        struct binding *at = jinja_room(r, room, sizeof *at);
        if (s->n) memcpy(at, s->at, s->n * sizeof *at);
        s->at = at, s->room = room;
    }
    s->at[s->n++] = (struct binding){name, v};
}

static void keep(struct scope *s) {
    for (; s && !s->kept; s = s->parent) s->kept = 1;
}

static struct value lookup(struct render *r, const struct name *name) {
    struct node n = {.kind = NODE_NAME, .name = name, .line = r->line};
    return eval_node(r, &n);
}

static void assign(struct render *r, struct scope *s, const struct node *target, struct value v) {
    if (target->kind == NODE_NAME) { scope_set(r, s, target->name, v); return; }
    if (target->kind == NODE_ATTR_OF) {
        struct value space = lookup(r, target->name);
        if (space.kind != VALUE_NAMESPACE) jinja_fail(r, FAULT_RUNTIME, "cannot assign attribute on non-namespace object");
        space_set(r, space.as.space, target->value, v);
        return;
    }
    if (!value_is_iterable(v)) jinja_fail(r, FAULT_TYPE, "cannot unpack non-iterable %s object", value_type(v));
    struct list items = value_items(r, v);
    size_t want = target->list.n;
    if (items.n > want) jinja_fail(r, FAULT_VALUE, "too many values to unpack (expected %zu)", want);
    if (items.n < want) jinja_fail(r, FAULT_VALUE, "not enough values to unpack (expected %zu, got %zu)", want, items.n);
    for (size_t i = 0; i < want; i++) assign(r, s, target->list.at[i], items.at[i]);
}

static enum flow exec_in(struct render *r, const struct nodes *body, struct scope *scope) {
    struct scope *outer = r->scope;
    r->scope = scope;
    enum flow flow = exec_nodes(r, body);
    r->scope = outer;
    return flow;
}

struct value exec_caught(struct render *r, const struct nodes *body, struct scope *scope) {
    struct out o = {0}, *outer = r->out;
    r->out = &o;
    exec_in(r, body, scope);
    r->out = outer;
    struct value v = out_take(r, &o);
    return r->autoescape ? value_markup(r, v) : v;
}

/* ---- loops ---- */

static int passes(struct render *r, const struct loop *l, struct value item) {
    if (!l->node->test) return 1;
    struct scope *outer = r->scope;
    r->scope = scope_new(r, l->scope);
    assign(r, r->scope, l->node->target, item);
    int yes = value_truth(r, eval_node(r, l->node->test));
    r->scope = outer;
    return yes;
}

/* Whether there is an item `at`. */
static int fetch(struct render *r, struct loop *l, size_t at) {
    struct value item;
    while (at >= l->items.n && !l->exhausted) {
        if (!walk_next(&l->source, &item)) l->exhausted = 1;
        else if (passes(r, l, item)) list_add(r, &l->items, item);
    }
    return at < l->items.n;
}

static enum flow run_loop(struct render *r, const struct node *n, struct value over, int64_t depth) {
    struct loop *l = jinja_room(r, 1, sizeof *l);
    *l = (struct loop){.depth = depth, .node = n, .scope = r->scope, .changed = MISSING};
    if ((over.kind == VALUE_LIST || over.kind == VALUE_TUPLE) && !n->test) l->items = *over.as.list, l->exhausted = 1;
    else walk_init(r, &l->source, over);
    struct scope *inner = NULL;
    int completed = 0;
    for (; fetch(r, l, l->at); l->at++) {
        jinja_step(r, 1);
        if (!inner || inner->kept) inner = scope_new(r, l->scope);
        inner->n = 0;
        assign(r, inner, n->target, l->items.at[l->at]);
        scope_set(r, inner, r->template->loop, (struct value){.kind = VALUE_LOOP, .as.loop = l});
        enum flow flow = exec_in(r, &n->body, inner);
        if (flow == FLOW_BREAK) break;
        completed |= flow == FLOW_ON;
    }
    if (completed || !n->other.n) return FLOW_ON;
    return exec_in(r, &n->other, scope_new(r, l->scope)); /* also when no turn came to its end, as in Jinja */
}

static enum flow exec_for(struct render *r, const struct node *n) { return run_loop(r, n, eval_node(r, n->left), 1); }

struct value loop_call(struct render *r, struct loop *l, const struct call *c) {
    if (!l->node->recursive) jinja_fail(r, FAULT_TYPE, "The loop must have the 'recursive' marker to be called recursively.");
    if (c->n_args != 1 || c->n_named) jinja_fail(r, FAULT_TYPE, "loop() takes one argument");
    struct scope *outer = r->scope;
    struct out o = {0}, *outer_out = r->out;
    r->scope = l->scope, r->out = &o;
    jinja_enter(r);
    run_loop(r, l->node, c->args[0], l->depth + 1);
    jinja_leave(r);
    r->scope = outer, r->out = outer_out;
    struct value v = out_take(r, &o);
    return r->autoescape ? value_markup(r, v) : v;
}

static struct value loop_cycle(struct render *r, struct value self, const struct value *a, const struct call *c) {
    (void)a;
    if (!c->n_args) jinja_fail(r, FAULT_TYPE, "no items for cycling given");
    return c->args[self.as.loop->at % c->n_args];
}

static struct value loop_changed(struct render *r, struct value self, const struct value *a, const struct call *c) {
    (void)a;
    struct value now = value_tuple(r, c->args, c->n_args);
    struct loop *l = self.as.loop;
    if (l->changed.kind != VALUE_MISSING && value_equal(r, l->changed, now)) return value_bool(0);
    l->changed = now;
    return value_bool(1);
}

struct value loop_attr(struct render *r, struct loop *l, struct value name) {
    static const char *const names[] = {"index",    "index0",   "revindex", "revindex0", "first", "last",   "length",
                                        "previtem", "nextitem", "depth",    "depth0",    "cycle", "changed"};
    static const struct function cycle = {"cycle", NULL, loop_cycle}, changed = {"changed", NULL, loop_changed};
    int which = 0, n_names = sizeof names / sizeof *names;
    while (which < n_names &&
           (strlen(names[which]) != name.as.text->n || memcmp(names[which], name.as.text->bytes, name.as.text->n)))
        which++;
    int64_t at = (int64_t)l->at;
    if (which == 2 || which == 3 || which == 6)
        while (fetch(r, l, l->items.n)) {}
    int64_t n = (int64_t)l->items.n;
    switch (which) {
    case 0: return value_int(at + 1);
    case 1: return value_int(at);
    case 2: return value_int(n - at);
    case 3: return value_int(n - at - 1);
    case 4: return value_bool(at == 0);
    case 5: return value_bool(!fetch(r, l, l->at + 1));
    case 6: return value_int(n);
    case 7: return at ? l->items.at[at - 1] : value_undefined(r, "there is no previous item", NULL, MISSING);
    case 8: return fetch(r, l, l->at + 1) ? l->items.at[at + 1] : value_undefined(r, "there is no next item", NULL, MISSING);
    case 9: return value_int(l->depth);
    case 10: return value_int(l->depth - 1);
    case 11: case 12: {
        struct method *m = jinja_room(r, 1, sizeof *m);
        *m = (struct method){{.kind = VALUE_LOOP, .as.loop = l}, which == 11 ? &cycle : &changed};
        return (struct value){.kind = VALUE_METHOD, .as.method = m};
    }
    default: return MISSING;
    }
}

/* ---- macros ---- */

static struct value macro_of(struct render *r, const struct node *n) {
    struct macro *m = jinja_room(r, 1, sizeof *m);
    keep(r->scope);
    *m = (struct macro){n, r->scope};
    return (struct value){.kind = VALUE_MACRO, .as.macro = m};
}

/* Takes `name` out of the named arguments that are left. */
static struct value take_named(struct render *r, struct pair *named, size_t *n, const struct name *name) {
    for (size_t i = 0; i < *n; i++) {
        if (!value_equal(r, named[i].key, name->text)) continue;
        struct value v = named[i].value;
        memmove(named + i, named + i + 1, (*n - i - 1) * sizeof *named);
        --*n;
        return v;
    }
    return MISSING;
}

static int has_parameter(const struct node *n, const struct name *name) {
    for (size_t i = 0; i < n->list.n; i++)
        if (n->list.at[i]->name == name) return 1;
    return 0;
}

static int catches(const struct render *r, const struct node *n, int use) {
    const struct name *name = use == USES_KWARGS ? r->template->kwargs : r->template->varargs;
    return (n->uses & use) && !has_parameter(n, name);
}

/* The arguments that no parameter took. */
static void bind_rest(struct render *r, const struct node *n, struct scope *s, const struct call *c, struct pair *named,
                      size_t n_named) {
    const struct jinja *t = r->template;
    const char *name = n->name->text.as.text->bytes;
    if ((n->uses & USES_CALLER) && !has_parameter(n, t->caller)) {
        struct value caller = take_named(r, named, &n_named, t->caller);
        if (caller.kind == VALUE_MISSING || caller.kind == VALUE_NONE)
            caller = value_undefined(r, "No caller defined", NULL, MISSING);
        scope_set(r, s, t->caller, caller);
    }
    if (catches(r, n, USES_KWARGS)) {
        struct dict d = {0};
        for (size_t i = 0; i < n_named; i++) dict_set(r, &d, named[i].key, named[i].value);
        scope_set(r, s, t->kwargs, value_dict(r, &d));
    } else if (n_named) {
        if (value_equal(r, named[0].key, t->caller->text))
            jinja_fail(r, FAULT_TYPE,
                       "macro '%s' was invoked with two values for the special caller argument. This is most likely a bug.",
                       name);
        jinja_fail(r, FAULT_TYPE, "macro '%s' takes no keyword argument '%.*s'", name, (int)named[0].key.as.text->n,
                   named[0].key.as.text->bytes);
    }
    size_t n_left = c->n_args > n->list.n ? c->n_args - n->list.n : 0;
    if (catches(r, n, USES_VARARGS)) scope_set(r, s, t->varargs, value_tuple(r, n_left ? c->args + n->list.n : NULL, n_left));
    else if (n_left) jinja_fail(r, FAULT_TYPE, "macro '%s' takes not more than %zu argument(s)", name, n->list.n);
}

struct value macro_call(struct render *r, const struct macro *m, const struct call *c) {
    const struct node *n = m->node;
    struct scope *s = scope_new(r, m->scope), *outer = r->scope;
    size_t n_named = c->n_named, n_parameters = n->list.n;
    struct pair *named = jinja_room(r, n_named, sizeof *named);
    struct value *given = jinja_room(r, n_parameters, sizeof *given);
    if (n_named) memcpy(named, c->named, n_named * sizeof *named);
    for (size_t i = 0; i < n_parameters; i++)
        given[i] = i < c->n_args ? c->args[i] : take_named(r, named, &n_named, n->list.at[i]->name);
    bind_rest(r, n, s, c, named, n_named);
    jinja_enter(r);
    r->scope = s;
    for (size_t i = 0; i < n_parameters; i++) {
        size_t first = n_parameters - n->list2.n;
        if (given[i].kind == VALUE_MISSING)
            given[i] = i >= first ? eval_node(r, n->list2.at[i - first])
                                  : value_undefined(r, "a parameter of the macro was not provided", NULL, MISSING);
        scope_set(r, s, n->list.at[i]->name, given[i]);
    }
    r->scope = outer;
    struct value out = exec_caught(r, &n->body, s);
    jinja_leave(r);
    return out;
}

static int text_is(struct value name, const char *what) {
    return name.as.text->n == strlen(what) && !memcmp(name.as.text->bytes, what, name.as.text->n);
}

struct value macro_attr(struct render *r, const struct macro *m, struct value name) {
    const struct node *n = m->node;
    if (text_is(name, "name")) return n->kind == NODE_CALL_BLOCK ? NONE : n->name->text;
    if (text_is(name, "catch_kwargs")) return value_bool(catches(r, n, USES_KWARGS));
    if (text_is(name, "catch_varargs")) return value_bool(catches(r, n, USES_VARARGS));
    if (text_is(name, "caller")) return value_bool((n->uses & USES_CALLER) && !has_parameter(n, r->template->caller));
    if (!text_is(name, "arguments")) return MISSING;
    struct value *at = jinja_room(r, n->list.n, sizeof *at);
    for (size_t i = 0; i < n->list.n; i++) at[i] = n->list.at[i]->name->text;
    return value_tuple(r, at, n->list.n);
}

struct value self_attr(struct render *r, struct value name) {
    const struct jinja *t = r->template;
    for (size_t i = 0; i < t->n_blocks; i++) {
        if (!value_equal(r, t->blocks[i]->name->text, name)) continue;
        struct macro *m = jinja_room(r, 1, sizeof *m);
        *m = (struct macro){t->blocks[i], r->root};
        return (struct value){.kind = VALUE_MACRO, .as.macro = m};
    }
    return MISSING;
}

/* ---- statements ---- */

static enum flow exec_data(struct render *r, const struct node *n) {
    return out_add(r, r->out, n->value.as.text->bytes, n->value.as.text->n), FLOW_ON;
}

static enum flow exec_print(struct render *r, const struct node *n) {
    for (size_t i = 0; i < n->list.n; i++) {
        struct value v = eval_node(r, n->list.at[i]);
        r->line = n->line;
        value_show(r, r->out, r->autoescape ? text_escape(r, v) : v);
    }
    return FLOW_ON;
}

static enum flow exec_if(struct render *r, const struct node *n) {
    for (size_t i = 0; i < n->list.n; i++)
        if (value_truth(r, eval_node(r, n->list.at[i]->test))) return exec_nodes(r, &n->list.at[i]->body);
    return exec_nodes(r, &n->other);
}

static enum flow exec_set(struct render *r, const struct node *n) {
    struct value v = eval_node(r, n->left);
    r->line = n->line;
    return assign(r, r->scope, n->target, v), FLOW_ON;
}

/* The text of a block, passed through the filters at its head. */
static struct value filtered(struct render *r, const struct node *n, struct value text) {
    struct value outer = r->block;
    r->block = text;
    struct value v = n->left ? eval_node(r, n->left) : text;
    r->block = outer;
    return v;
}

static enum flow exec_set_block(struct render *r, const struct node *n) {
    struct value v = filtered(r, n, exec_caught(r, &n->body, scope_new(r, r->scope)));
    return assign(r, r->scope, n->target, v), FLOW_ON;
}

static enum flow exec_filter_block(struct render *r, const struct node *n) {
    struct value v = filtered(r, n, exec_caught(r, &n->body, scope_new(r, r->scope)));
    return value_show(r, r->out, r->autoescape ? text_escape(r, v) : v), FLOW_ON;
}

static enum flow exec_macro(struct render *r, const struct node *n) {
    struct value m = macro_of(r, n);
    return scope_set(r, r->scope, n->name, m), FLOW_ON;
}

static enum flow exec_call_block(struct render *r, const struct node *n) {
    struct value caller = macro_of(r, n), f = eval_node(r, n->left->left);
    struct call c;
    eval_arguments(r, &n->left->arguments, &c, 1);
    c.named[c.n_named++] = (struct pair){r->template->caller->text, caller, 0};
    r->line = n->line;
    struct value v = value_call(r, f, &c);
    return value_show(r, r->out, r->autoescape ? text_escape(r, v) : v), FLOW_ON;
}

static enum flow exec_with(struct render *r, const struct node *n) {
    struct scope *s = scope_new(r, r->scope);
    for (size_t i = 0; i < n->list.n; i++) assign(r, s, n->list.at[i], eval_node(r, n->list2.at[i]));
    return exec_in(r, &n->body, s);
}

static enum flow exec_block(struct render *r, const struct node *n) {
    return exec_in(r, &n->body, scope_new(r, n->recursive ? r->scope : r->root));
}

static enum flow exec_autoescape(struct render *r, const struct node *n) {
    int outer = r->autoescape;
    r->autoescape = value_truth(r, eval_node(r, n->left));
    enum flow flow = exec_in(r, &n->body, scope_new(r, r->scope));
    r->autoescape = outer;
    return flow;
}

static enum flow exec_scope(struct render *r, const struct node *n) { return exec_in(r, &n->body, scope_new(r, r->scope)); }
static enum flow exec_break(struct render *r, const struct node *n) {
    return (void)r, n->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
}

static enum flow exec_no_loader(struct render *r, const struct node *n) {
    r->line = n->line;
    jinja_fail(r, FAULT_TYPE, "no loader for this environment specified");
}

enum flow exec_nodes(struct render *r, const struct nodes *body) {
    static exec_fn *const execs[] = {[NODE_DATA] = exec_data,
                                     [NODE_PRINT] = exec_print,
                                     [NODE_IF] = exec_if,
                                     [NODE_FOR] = exec_for,
                                     [NODE_SET] = exec_set,
                                     [NODE_SET_BLOCK] = exec_set_block,
                                     [NODE_MACRO] = exec_macro,
                                     [NODE_CALL_BLOCK] = exec_call_block,
                                     [NODE_FILTER_BLOCK] = exec_filter_block,
                                     [NODE_WITH] = exec_with,
                                     [NODE_BLOCK] = exec_block,
                                     [NODE_AUTOESCAPE] = exec_autoescape,
                                     [NODE_SCOPE] = exec_scope,
                                     [NODE_BREAK] = exec_break,
                                     [NODE_CONTINUE] = exec_break,
                                     [NODE_NO_LOADER] = exec_no_loader};
    enum flow flow = FLOW_ON;
    jinja_enter(r);
    for (size_t i = 0; i < body->n && flow == FLOW_ON; i++) {
        jinja_step(r, 1);
        r->line = body->at[i]->line;
        flow = execs[body->at[i]->kind](r, body->at[i]);
    }
    jinja_leave(r);
    return flow;
}
