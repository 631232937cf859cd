/* Prompt look-up: what followed the last few tokens the last time they occurred. */
#include "engine/draft.h"

enum { LONGEST = 8, SHORTEST = 2 }; /* tokens that must agree, at most and at least */

/* Length of the common ending of known[0..a) and known[0..b), at most LONGEST. */
static int common_end(const int32_t *known, int a, int b) {
    int n = 0;
    while (n < LONGEST && n < a && known[a - 1 - n] == known[b - 1 - n]) n++;
    return n;
}

static int look_up(struct weft_request *r) {
    const int32_t *known = r->known;
    int n = r->n_known, best = 0, best_at = 0, wanted = r->n_drafts, found = 0;
    int32_t last = known[n - 1];
    for (int at = n - 1; at > 0 && best < LONGEST; at--) { /* known[at - 1] is where the earlier occurrence ends */
        if (known[at - 1] != last) continue;
        int length = common_end(known, at, n);
        if (length > best) best = length, best_at = at;
    }
    if (best < SHORTEST) return 0;
    while (found < wanted && best_at + found < n && known[best_at + found] >= 0)
        r->drafts[found] = known[best_at + found], found++;
    return found;
}

static int draft(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    (void)x, (void)e;
    for (int i = 0; i < n; i++) r[i]->n_drafts = look_up(r[i]);
    return 0;
}

const struct drafter draft_ngram = {.name = "ngram", .draft = draft};
