/* A growing byte string. After a failed append `failed` is set, everything later does nothing, so that a writer checks once. */
#ifndef BASE_BUF_H
#define BASE_BUF_H
#include <stddef.h>

struct buf { char *data; size_t n, room; int failed; }; /* data has a zero byte at n whenever data is not NULL */
void buf_init(struct buf *b);
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_add_text(struct buf *b, const char *text);
void buf_add_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_clear(struct buf *b);            /* empty, memory kept */
char *buf_take(struct buf *b, size_t *n); /* the bytes, to be freed with mem_free; NULL if an append failed */
void buf_drop(struct buf *b);
#endif
