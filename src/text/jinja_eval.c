/* Expressions. */
#include <string.h>

#include "text/jinja_eval.h"

typedef struct value eval_fn(struct render *r, const struct node *n);

static struct value eval_const(struct render *r, const struct node *n) { return (void)r, n->value; }

static struct value eval_name(struct render *r, const struct node *n) {
    for (const struct scope *s = r->scope; s; s = s->parent)
        for (size_t i = s->n; i-- > 0;)
            if (s->at[i].name == n->name) return s->at[i].value;
    if (n->name->global) return value_function(n->name->global);
    if (n->name == r->template->self) return (struct value){.kind = VALUE_SELF};
    return value_undefined(r, NULL, NULL, n->name->text);
}

static struct value *eval_all(struct render *r, const struct nodes *list) {
    struct value *at = jinja_room(r, list->n, sizeof *at);
    for (size_t i = 0; i < list->n; i++) at[i] = eval_node(r, list->at[i]);
    return at;
}

static struct value eval_list(struct render *r, const struct node *n) { return value_list(r, eval_all(r, &n->list), n->list.n); }
static struct value eval_tuple(struct render *r, const struct node *n) {
    return value_tuple(r, eval_all(r, &n->list), n->list.n);
}

static struct value eval_dict(struct render *r, const struct node *n) {
    struct dict d = {0};
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        struct value key = eval_node(r, n->list.at[i]);
        dict_set(r, &d, key, eval_node(r, n->list.at[i + 1]));
    }
    return value_dict(r, &d);
}

static struct value eval_attr(struct render *r, const struct node *n) {
    struct value left = eval_node(r, n->left);
    r->line = n->line;
    return value_attr(r, left, n->value);
}

static struct value eval_item(struct render *r, const struct node *n) {
    struct value left = eval_node(r, n->left), key = eval_node(r, n->right);
    r->line = n->line;
    return value_item(r, left, key);
}

static struct value eval_slice(struct render *r, const struct node *n) {
    struct value part[3], left = eval_node(r, n->left);
    for (int i = 0; i < 3; i++) part[i] = n->list.at[i] ? eval_node(r, n->list.at[i]) : NONE;
    return value_slice(r, left, part[0], part[1], part[2]);
}

static void add_named(struct render *r, struct call *c, struct value key, struct value v) {
    for (size_t i = 0; i < c->n_named; i++)
        if (value_equal(r, c->named[i].key, key))
            jinja_fail(r, FAULT_TYPE, "got multiple values for keyword argument '%.*s'", (int)key.as.text->n, key.as.text->bytes);
    c->named[c->n_named++] = (struct pair){key, v, 0};
}

/* The arguments of a call, with room for more_named further ones. */
void eval_arguments(struct render *r, const struct arguments *a, struct call *c, size_t more_named) {
    struct list args = {0};
    size_t n_named = more_named;
    struct value *all = jinja_room(r, a->n, sizeof *all);
    for (size_t i = 0; i < a->n; i++) {
        all[i] = eval_node(r, a->at[i].value);
        if (a->at[i].star == 2) {
            if (all[i].kind != VALUE_DICT)
                jinja_fail(r, FAULT_TYPE, "argument after ** must be a mapping, not %s", value_type(all[i]));
            n_named += all[i].as.dict->n;
        } else n_named += a->at[i].name != NULL;
    }
    *c = (struct call){.named = n_named ? jinja_room(r, n_named, sizeof *c->named) : NULL};
    for (size_t i = 0; i < a->n; i++) {
        const struct argument *arg = &a->at[i];
        if (arg->star == 1) {
            struct list more = value_items(r, all[i]);
            for (size_t k = 0; k < more.n; k++) list_add(r, &args, more.at[k]);
        } else if (arg->star == 2) {
            const struct dict *d = all[i].as.dict;
            for (size_t k = 0; k < d->n; k++) {
                if (!value_is_text(d->at[k].key)) jinja_fail(r, FAULT_TYPE, "keywords must be strings");
                add_named(r, c, d->at[k].key, d->at[k].value);
            }
        } else if (arg->name) add_named(r, c, arg->name->text, all[i]);
        else list_add(r, &args, all[i]);
    }
    c->args = args.at, c->n_args = args.n;
}

static struct value joiner_call(struct render *r, struct cycler *j) {
    return j->at++ ? j->items.at[0] : value_text(r, "");
}

struct value value_call(struct render *r, struct value f, const struct call *c) {
    switch (f.kind) {
    case VALUE_FUNCTION: return function_call(r, f.as.function, MISSING, c);
    case VALUE_METHOD: return function_call(r, f.as.method->function, f.as.method->self, c);
    case VALUE_MACRO: return macro_call(r, f.as.macro, c);
    case VALUE_LOOP: return loop_call(r, f.as.loop, c);
    case VALUE_JOINER: return joiner_call(r, f.as.cycler);
    case VALUE_UNDEFINED: jinja_fail_undefined(r, f);
    default: jinja_fail(r, FAULT_TYPE, "'%s' object is not callable", value_type(f));
    }
}

static struct value eval_call(struct render *r, const struct node *n) {
    struct value f = eval_node(r, n->left);
    struct call c;
    eval_arguments(r, &n->arguments, &c, 0);
    r->line = n->line;
    return value_call(r, f, &c);
}

static struct value eval_applied(struct render *r, const struct node *n) {
    struct value left = n->left ? eval_node(r, n->left) : r->block;
    struct call c;
    eval_arguments(r, &n->arguments, &c, 0);
    r->line = n->line;
    if (!n->function)
        jinja_fail(r, FAULT_RUNTIME, "No %s named '%.*s'.", n->kind == NODE_TEST ? "test" : "filter", (int)n->value.as.text->n,
                 n->value.as.text->bytes);
    return function_call(r, n->function, left, &c);
}

static struct value eval_not(struct render *r, const struct node *n) {
    return value_bool(!value_truth(r, eval_node(r, n->left)));
}

static struct value eval_and(struct render *r, const struct node *n) {
    struct value left = eval_node(r, n->left);
    return value_truth(r, left) ? eval_node(r, n->right) : left;
}

static struct value eval_or(struct render *r, const struct node *n) {
    struct value left = eval_node(r, n->left);
    return value_truth(r, left) ? left : eval_node(r, n->right);
}

static struct value eval_negate(struct render *r, const struct node *n) {
    struct value v = eval_node(r, n->left);
    return value_negate(r, v, n->kind == NODE_NEGATE);
}

static struct value eval_binary(struct render *r, const struct node *n) {
    struct value left = eval_node(r, n->left), right = eval_node(r, n->right);
    r->line = n->line;
    return value_binary(r, n->op, left, right);
}

static struct value eval_concat(struct render *r, const struct node *n) {
    struct value *at = eval_all(r, &n->list), out;
    int markup = 0;
    for (size_t i = 0; r->autoescape && i < n->list.n; i++) markup |= value_is_text(at[i]) && at[i].as.text->markup;
    out = markup ? text_escape(r, at[0]) : value_to_text(r, at[0]);
    for (size_t i = 1; i < n->list.n; i++) out = value_concat(r, out, markup ? text_escape(r, at[i]) : value_to_text(r, at[i]));
    if (markup || !out.as.text->markup) return out;
    struct text *plain = jinja_room(r, 1, sizeof *plain);
    *plain = *out.as.text;
    plain->markup = 0;
    out.as.text = plain;
    return out;
}

static struct value eval_compare(struct render *r, const struct node *n) {
    struct value left = eval_node(r, n->left);
    for (size_t i = 0; i < n->list.n; i++) {
        struct value right = eval_node(r, n->list.at[i]);
        const char *op = n->ops[i];
        r->line = n->line;
        int holds = op[0] == '=' ? value_equal(r, left, right) : op[0] == '!' ? !value_equal(r, left, right)
                  : op[0] == 'i' ? value_contains(r, right, left) : op[0] == 'n' ? !value_contains(r, right, left)
                  : value_less(r, left, right, op);
        if (!holds) return value_bool(0);
        left = right;
    }
    return value_bool(1);
}

static struct value eval_if_else(struct render *r, const struct node *n) {
    if (value_truth(r, eval_node(r, n->test))) return eval_node(r, n->left);
    if (n->right) return eval_node(r, n->right);
    return value_undefined(r, "the inline if-expression evaluated to false and no else section was defined", NULL, MISSING);
}

struct value eval_node(struct render *r, const struct node *n) {
    static eval_fn *const evals[] = {[NODE_CONST] = eval_const, [NODE_NAME] = eval_name, [NODE_LIST] = eval_list,
        [NODE_TUPLE] = eval_tuple, [NODE_DICT] = eval_dict, [NODE_ATTR] = eval_attr, [NODE_ITEM] = eval_item,
        [NODE_SLICE] = eval_slice, [NODE_CALL] = eval_call, [NODE_FILTER] = eval_applied, [NODE_TEST] = eval_applied,
        [NODE_NOT] = eval_not, [NODE_AND] = eval_and, [NODE_OR] = eval_or, [NODE_NEGATE] = eval_negate, [NODE_PLUS] = eval_negate,
        [NODE_BINARY] = eval_binary, [NODE_CONCAT] = eval_concat, [NODE_COMPARE] = eval_compare, [NODE_IF_ELSE] = eval_if_else};
    jinja_step(r, 1);
    jinja_enter(r);
    r->line = n->line;
    struct value v = evals[n->kind](r, n);
    jinja_leave(r);
    return v;
}
