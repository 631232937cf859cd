#include "cache/tree.h"

static int is_end(const struct snapshot_rule *r, int32_t token) {
    for (int i = 0; i < r->n_ends; i++)
        if (r->ends[i] == token) return 1;
    return 0;
}

/* Row `row` has been reached: is it one? A message ends behind its end-of-turn token and the newline that follows it, if any. */
static int wanted(const struct snapshot_rule *r, const int32_t *tokens, int n_tokens, int row) {
    if (r->every > 0 && row % r->every == 0) return 1;
    if (row > n_tokens) return 0;
    if (row == n_tokens) return 1;
    if (is_end(r, tokens[row - 1])) return tokens[row] != r->newline;
    return row >= 2 && tokens[row - 1] == r->newline && is_end(r, tokens[row - 2]);
}

int snapshot_rows(const struct snapshot_rule *r, const int32_t *tokens, int n_tokens, int row0, int n_rows, int *out, int max) {
    int n = 0;
    for (int i = n_rows; i >= 1 && n < max; i--)
        if (wanted(r, tokens, n_tokens, row0 + i)) out[n++] = i;
    for (int i = 0; i < n / 2; i++) {
        int swap = out[i];
        out[i] = out[n - 1 - i], out[n - 1 - i] = swap;
    }
    return n;
}
