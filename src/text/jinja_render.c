/* Compiling and rendering, from outside. */
#define _GNU_SOURCE /* uselocale */
#include <locale.h>
#include <string.h>

#include "text/jinja_eval.h"

/* Numbers and dates are Python's, whatever locale the program has chosen. 0 when there is none to go back to. */
static locale_t take_locale(void) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return plain ? uselocale(plain) : (locale_t)0;
}

static void restore_locale(locale_t old) {
    if (old) freelocale(uselocale(old));
}

static enum jinja_fault compile(struct jinja *t, const char *source, size_t n) {
    jmp_buf here;
    t->made.leave = &here;
    if (!setjmp(here)) jinja_parse(&t->made, t, source, n);
    t->made.leave = NULL;
    return t->made.fault;
}

struct jinja *jinja_new(const char *source, size_t n, enum jinja_fault *fault, struct weft_error *e) {
    static const struct jinja_limits limits = {.steps = 4000000, .bytes = 64 << 20, .depth = 400};
    struct jinja *t = mem_new(1, sizeof *t);
    *fault = FAULT_MEMORY;
    if (!t) return error_memory(e, "the chat template"), NULL;
    jinja_run_init(&t->made, &limits);
    locale_t locale = take_locale();
    *fault = compile(t, source, n);
    restore_locale(locale);
    if (!*fault) return t;
    if (*fault == FAULT_MEMORY) error_memory(e, "the chat template");
    else error_set(e, WEFT_ERROR_INPUT, "line %d of the template: %s", t->made.line, t->made.message);
    jinja_free(t);
    return NULL;
}

void jinja_free(struct jinja *t) {
    if (!t) return;
    jinja_run_drop(&t->made);
    mem_free(t);
}

int jinja_mentions(const struct jinja *t, const char *name) { return jinja_find_name(t, name, strlen(name)) != NULL; }

static void render(const struct jinja *t, struct render *r, jinja_prepare *prepare, void *arg, struct value *out) {
    struct dict context = {0};
    struct out o = {0};
    r->template = t;
    prepare(r, arg, &context);
    t = r->template; /* it may have taken another one */
    r->scope = r->root = scope_new(r, NULL);
    r->root->kept = 1;
    for (size_t i = 0; i < context.n; i++) {
        const struct text *key = context.at[i].key.as.text;
        const struct name *name = jinja_find_name(t, key->bytes, key->n);
        if (name) scope_set(r, r->root, name, context.at[i].value);
    }
    r->out = &o;
    exec_nodes(r, &t->body);
    *out = out_take(r, &o);
}

static enum jinja_fault guard(const struct jinja *t, struct render *r, jinja_prepare *prepare, void *arg, struct value *out) {
    jmp_buf here;
    r->leave = &here;
    if (!setjmp(here)) render(t, r, prepare, arg, out);
    r->leave = NULL;
    return r->fault;
}

enum jinja_fault jinja_render(const struct jinja *t, struct render *r, jinja_prepare *prepare, void *arg, struct value *out) {
    locale_t locale = take_locale();
    enum jinja_fault fault = guard(t, r, prepare, arg, out);
    restore_locale(locale);
    return fault;
}
