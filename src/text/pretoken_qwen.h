/* The Qwen split patterns by hand. They differ in what words are made of: letters and marks, or letters alone. */
#ifndef TEXT_PRETOKEN_QWEN_H
#define TEXT_PRETOKEN_QWEN_H
#include <stddef.h>
#include <stdint.h>

/* Where the piece that begins at `at` < n ends. `word` is the CHAR_* mask of what words are made of. */
size_t pretoken_qwen_next(const uint8_t *table, unsigned word, const uint8_t *p, size_t n, size_t at);
#endif
