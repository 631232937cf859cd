#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void buf_init(struct buf *b) { *b = (struct buf){0}; }

static int reserve(struct buf *b, size_t more) {
    if (b->failed) return 0;
    if (more >= SIZE_MAX / 4 - b->n) return b->failed = 1, 0;
    if (b->n + more + 1 <= b->room) return 1;
    size_t room = b->room ? b->room * 2 : 64;
    while (room < b->n + more + 1) room *= 2;
    char *data = mem_resize(b->data, room);
    if (!data) return b->failed = 1, 0;
    b->data = data, b->room = room;
    return 1;
}

void buf_add(struct buf *b, const void *bytes, size_t n) {
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->n, bytes, n);
    b->data[b->n += n] = 0;
}

void buf_add_text(struct buf *b, const char *text) { buf_add(b, text, strlen(text)); }
void buf_add_char(struct buf *b, char c) { buf_add(b, &c, 1); }

void buf_printf(struct buf *b, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->n, (size_t)n + 1, format, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void buf_clear(struct buf *b) {
    b->n = 0, b->failed = 0;
    if (b->data) b->data[0] = 0;
}

char *buf_take(struct buf *b, size_t *n) {
    reserve(b, 0);
    if (b->failed) return buf_drop(b), NULL;
    char *data = b->data;
    data[b->n] = 0;
    if (n) *n = b->n;
    buf_init(b);
    return data;
}

void buf_drop(struct buf *b) {
    mem_free(b->data);
    buf_init(b);
}
