/* The checkpoint's own head: it reads the main model's hidden row t with token t + 1 and guesses token t + 2.
 *
 * Its rows are attention rows of their own in the sequence. A draft runs the newest rows that were not run yet, as far as they
 * are held (keys and values only), then guesses; a chain goes on from the head's own output, and what the chain added is cut off again when the
 * draft is done. Older rows are missing: nearly all that the head knows is in the hidden row, and rows that no draft may ever use
 * would cost a prompt, or an answer that does not draft, the time of one more layer.
 *
 * Invariants
 * 1. held[0..n_held) are the hidden rows of main rows [first, first + n_held), the newest of the sequence, not yet run here.
 * 2. A row is run when the token that follows it is known and is a token (embedding rows leave a gap). */
#include <string.h>

#include "base/mem.h"
#include "engine/draft.h"

enum { HELD_ROWS = 12 };

struct held { int first, n; float *rows; /* [HELD_ROWS][hidden] */ };

struct mtp {
    struct group *groups;            /* [max_groups] */
    struct weft_request **owners;    /* [max_groups] */
    struct batch batch;
    int32_t *positions;              /* [3 * max_rows] */
    int n_positions;
    int32_t *tokens;                 /* [max_groups] of a chain's step */
    float *chain;                    /* [max_groups][hidden] */
    int *true_rows;                  /* [max_groups] true rows of each drafting sequence */
};

static void mtp_close(struct weft_engine *x) {
    struct mtp *m = x->drafter_data;
    if (!m) return;
    mem_free(m->groups), mem_free(m->owners), mem_free(m->positions);
    mem_free(m->tokens), mem_free(m->chain), mem_free(m->true_rows);
    mem_free(m);
    x->drafter_data = NULL;
}

static int mtp_open(struct weft_engine *x, struct weft_error *e) {
    if (!model_has_mtp(x->model)) return error_set(e, WEFT_ERROR_INPUT, "%s has no MTP head to draft with", x->handle->folder);
    struct mtp *m = x->drafter_data = mem_new(1, sizeof *m);
    if (!m) return error_memory(e, "the drafter");
    size_t rows = (size_t)x->limits.max_rows, groups = (size_t)x->limits.max_groups, hidden = (size_t)x->hidden;
    m->groups = mem_new(groups, sizeof *m->groups);
    m->owners = mem_new(groups, sizeof *m->owners);
    m->positions = mem_new(3 * rows, sizeof *m->positions);
    m->tokens = mem_new(groups, sizeof *m->tokens);
    m->chain = mem_new(groups * hidden, sizeof *m->chain);
    m->true_rows = mem_new(groups, sizeof *m->true_rows);
    if (m->groups && m->owners && m->positions && m->tokens && m->chain && m->true_rows) return 0;
    mtp_close(x);
    return error_memory(e, "the drafter");
}

static int mtp_warm(struct weft_engine *x, struct weft_error *e) {
    struct mtp *m = x->drafter_data;
    m->tokens[0] = 0;
    m->batch = (struct batch){.groups = m->groups, .n_groups = 1, .mtp = 1};
    m->groups[0] = (struct group){.n_rows = 1, .tokens = m->tokens, .hidden_in = m->chain, .n_logits = 1, .want_hidden = 1};
    int code = sequence_new(&m->groups[0].seq, x->cache, e);
    if (!code) code = cache_begin(x->cache, &m->batch, e);
    if (code) return sequence_free(m->groups[0].seq), code;
    code = model_forward(x->model, x->cache, &m->batch, e);
    cache_abort(x->cache, &m->batch);
    sequence_free(m->groups[0].seq);
    return code;
}

static int mtp_start(struct weft_request *r, void **data, struct weft_error *e) {
    struct held *h = arena_new(&r->arena, 1, sizeof *h);
    if (h) h->rows = arena_new(&r->arena, (size_t)HELD_ROWS * (size_t)r->engine->hidden, sizeof *h->rows);
    if (!h || !h->rows) return error_memory(e, "the drafter");
    const float *hidden = sequence_hidden(r->seq);
    if (hidden) { /* a prompt that came from the cache whole */
        memcpy(h->rows, hidden, (size_t)r->engine->hidden * sizeof *hidden);
        h->first = sequence_rows(r->seq) - 1, h->n = 1;
    }
    *data = h;
    return 0;
}

static void mtp_saw(struct weft_request *r, int first_row, int n_rows, const float *hidden) {
    struct held *h = draft_data(r);
    size_t width = (size_t)r->engine->hidden;
    if (!hidden || !n_rows) return;
    int n = n_rows < HELD_ROWS ? n_rows : HELD_ROWS, gone = h->n + n - HELD_ROWS;
    if (h->first + h->n != first_row) h->n = 0;
    else if (gone > 0)
        memmove(h->rows, h->rows + (size_t)gone * width, (size_t)(h->n - gone) * width * sizeof *h->rows), h->n -= gone;
    memcpy(h->rows + (size_t)h->n * width, hidden + (size_t)(n_rows - n) * width, (size_t)n * width * sizeof *h->rows);
    h->n += n, h->first = first_row + n_rows - h->n;
}

static double mtp_behind(const struct weft_request *r) {
    enum { ROWS_A_GUESS = 16 }; /* keys and values of so many rows take as long as a guess */
    const struct held *h = draft_data(r);
    return h->n > 1 ? (double)(h->n - 1) / ROWS_A_GUESS : 0; /* the newest is the first guess's own */
}

/* ---- steps of the head ---- */

static void begin_batch(struct mtp *m) {
    m->batch = (struct batch){.groups = m->groups, .mtp = 1};
    m->n_positions = 0;
}

/* Rows first..first + n - 1 with the hidden rows `hidden` and the tokens that follow them. Positions are given: rows may be
 * missing before them. */
static struct group *add_group(struct weft_engine *x, struct weft_request *r, int first, int n, const int32_t *tokens,
                               const float *hidden) {
    struct mtp *m = x->drafter_data;
    const int32_t *known = sequence_positions(r->seq);
    int rows = sequence_rows(r->seq);
    int32_t *at = m->positions + m->n_positions;
    for (int i = 0; i < n; i++)
        for (int a = 0; a < 3; a++)
            at[a * n + i] = first + i < rows ? known[3 * (first + i) + a] : sequence_next_position(r->seq) + first + i - rows;
    m->n_positions += 3 * n;
    m->owners[m->batch.n_groups] = r;
    struct group *g = &m->groups[m->batch.n_groups++];
    *g = (struct group){.seq = r->seq, .n_rows = n, .tokens = tokens, .positions = at, .n_axes = 3, .adapters = r->adapters.set,
                        .hidden_in = hidden};
    return g;
}

static int run_and_keep(struct weft_engine *x, struct weft_error *e) {
    struct mtp *m = x->drafter_data;
    if (!m->batch.n_groups) return 0;
    int code = engine_forward(x, &m->batch, e);
    if (!code) cache_commit(x->cache, &m->batch, NULL);
    return code;
}

/* First row whose following token and all later ones are tokens. */
static int first_text_row(const struct weft_request *r, int first, int end) {
    for (int t = end; t-- > first;)
        if (r->known[t + 1] < 0) return t + 1;
    return first;
}

/* ---- drafting ---- */

static void want_guess(struct group *g) { g->n_logits = 1, g->want_hidden = 1; }

/* The head's guess from its logits: what would be drawn if they were the main model's, so that a drawn token is guessed as well
 * as the likeliest one. */
static int guess(struct weft_engine *x, struct weft_request *r, int depth, const float *logits, struct weft_error *e) {
    int n = r->n_known;
    memcpy(r->known + n, r->drafts, (size_t)depth * sizeof *r->drafts);
    struct sampler_input in = {.logits = logits,
                               .o = &r->o.sampling,
                               .context = r->known,
                               .n_context = n + depth,
                               .position = (uint64_t)(n + depth),
                               .keep = x->keep_tokens,
                               .n_keep = x->n_keep_tokens,
                               .n_top = -1};
    struct sampler_output drawn;
    int code = sampler_pick(x->sampler, &in, &drawn, e);
    if (!code) r->drafts[depth] = drawn.token;
    return code;
}

/* Takes the guesses of a step and packs the next one for those that want another. */
static void take_guesses(struct weft_engine *x, int depth) {
    struct mtp *m = x->drafter_data;
    int n_groups = m->batch.n_groups, last_row = -1;
    const float *logits = m->batch.logits, *hidden = m->batch.hidden;
    begin_batch(m);
    for (int g = 0; g < n_groups; g++) {
        struct weft_request *r = m->owners[g];
        struct weft_error ignored;
        last_row += m->groups[g].n_rows;
        if (guess(x, r, depth, logits + (size_t)g * (size_t)x->vocab, &ignored)) { /* a damaged head costs time, no more */
            r->n_drafts = depth;
            continue;
        }
        if (r->n_drafts <= depth + 1) continue;
        int n = m->batch.n_groups; /* n <= g: what is written over was read */
        float *row = m->chain + (size_t)n * (size_t)x->hidden;
        memcpy(row, hidden + (size_t)last_row * (size_t)x->hidden, (size_t)x->hidden * sizeof *row);
        m->tokens[n] = r->drafts[depth];
        want_guess(add_group(x, r, r->n_known - 1 + depth, 1, &m->tokens[n], row));
    }
}

/* Held rows before the newest, of which only keys and values are of use. */
static int catch_up(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    begin_batch(x->drafter_data);
    for (int i = 0; i < n; i++) {
        struct held *h = draft_data(r[i]);
        int end = h->first + h->n - 1, first = first_text_row(r[i], h->first, end);
        if (h->n > 1 && first < end)
            add_group(x, r[i], first, end - first, r[i]->known + first + 1,
                      h->rows + (size_t)(first - h->first) * (size_t)x->hidden);
    }
    return run_and_keep(x, e);
}

/* Drafts for requests whose held rows fit one step. */
static int draft_slice(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    struct mtp *m = x->drafter_data;
    int caught_up = catch_up(x, r, n, e);
    if (caught_up) return caught_up;
    begin_batch(m);
    for (int i = 0; i < n; i++) {
        struct held *h = draft_data(r[i]);
        int row = h->first + h->n - 1;
        if (h->n == 0 || row != r[i]->n_known - 2 || r[i]->known[row + 1] < 0) {
            r[i]->n_drafts = h->n = 0;
            continue;
        }
        want_guess(add_group(x, r[i], row, 1, r[i]->known + row + 1, h->rows + (size_t)(h->n - 1) * (size_t)x->hidden));
        h->n = 0;
    }
    for (int depth = 0; m->batch.n_groups; depth++) {
        int code = run_and_keep(x, e);
        if (code) return code;
        for (int i = 0; depth == 0 && i < n; i++) m->true_rows[i] = sequence_mtp_rows(r[i]->seq);
        take_guesses(x, depth);
    }
    for (int i = 0; i < n; i++)
        if (r[i]->n_drafts > 1) sequence_cut_mtp(r[i]->seq, m->true_rows[i]);
    return 0;
}

static int mtp_draft(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    for (int begin = 0, end; begin < n; begin = end) {
        int rows = 0;
        for (end = begin; end < n; end++) {
            struct held *h = draft_data(r[end]);
            if (end > begin && rows + h->n > x->limits.max_rows) break;
            rows += h->n;
        }
        int code = draft_slice(x, r + begin, end - begin, e);
        if (code) return code;
    }
    return 0;
}

const struct drafter draft_mtp = {.name = "mtp", .wants_hidden = HELD_ROWS, .open = mtp_open, .close = mtp_close,
                                  .warm = mtp_warm, .start = mtp_start, .saw = mtp_saw, .behind = mtp_behind, .draft = mtp_draft};
