/* What a render spends and how it stops; text under construction. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"

void jinja_run_init(struct render *r, const struct jinja_limits *limits) {
    memset(r, 0, sizeof *r);
    arena_init(&r->arena);
    r->left = *limits;
}

void jinja_run_drop(struct render *r) { arena_drop(&r->arena); }

void jinja_fail(struct render *r, enum jinja_fault fault, const char *format, ...) {
    va_list args;
    r->fault = fault;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *message = n >= 0 ? arena_new(&r->arena, (size_t)n + 1, 1) : NULL;
    if (message) {
        va_start(args, format);
        vsnprintf(message, (size_t)n + 1, format, args);
        va_end(args);
    }
    static char none[] = "no memory";
    r->message = message ? message : none;
    CHECK(r->leave != NULL);
    longjmp(*r->leave, 1);
}

void jinja_fail_memory(struct render *r) { jinja_fail(r, FAULT_LIMIT, "the template wants more memory than a prompt may take"); }

void *jinja_room(struct render *r, size_t count, size_t size) {
    if (size && count > r->left.bytes / size) jinja_fail_memory(r);
    size_t bytes = count * size + 16;
    if (bytes > r->left.bytes) jinja_fail_memory(r);
    r->left.bytes -= bytes;
    void *p = arena_new(&r->arena, count, size);
    if (!p) jinja_fail(r, FAULT_MEMORY, "no memory for the prompt");
    return p;
}

void jinja_step(struct render *r, int64_t cost) {
    r->left.steps -= cost;
    if (r->left.steps < 0) jinja_fail(r, FAULT_LIMIT, "the template does not come to an end");
}

void jinja_enter(struct render *r) {
    if (--r->left.depth <= 0) {
        r->left.depth = 0;
        jinja_fail(r, FAULT_LIMIT, "the template is nested too deeply");
    }
}

static void out_reserve(struct render *r, struct out *o, size_t more) {
    if (more <= o->room - o->n) return;
    if (more > r->left.bytes) jinja_fail_memory(r);
    size_t room = o->room ? o->room * 2 : 64;
    while (room - o->n < more) room *= 2;
    char *bytes = jinja_room(r, room, 1);
    if (o->n) memcpy(bytes, o->bytes, o->n);
    o->bytes = bytes, o->room = room;
}

void out_add(struct render *r, struct out *o, const char *bytes, size_t n) {
    out_reserve(r, o, n);
    if (n > 64) jinja_step(r, (int64_t)n / 64);
    if (n) memcpy(o->bytes + o->n, bytes, n);
    o->n += n;
}

void out_add_text(struct render *r, struct out *o, const char *text) { out_add(r, o, text, strlen(text)); }

void out_add_char(struct render *r, struct out *o, uint32_t c) {
    out_reserve(r, o, 4);
    o->n += text_put(o->bytes + o->n, c);
}

void out_fill(struct render *r, struct out *o, uint32_t c, int64_t count) {
    if (count <= 0) return;
    char one[4];
    size_t n = text_put(one, c);
    if ((uint64_t)count > r->left.bytes / n) jinja_fail_memory(r);
    out_reserve(r, o, (size_t)count * n);
    jinja_step(r, count / 16);
    if (n == 1) {
        memset(o->bytes + o->n, one[0], (size_t)count);
        o->n += (size_t)count;
        return;
    }
    for (int64_t i = 0; i < count; i++) memcpy(o->bytes + o->n, one, n), o->n += n;
}

struct value out_take(struct render *r, struct out *o) { return value_text_n(r, o->bytes, o->n); }
