#include "engine/score.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/inside.h"

struct run {
    struct weft_engine *x;
    const struct score_input *in;
    struct weft_sequence *s;
    score_fn *fn; void *arg;
    int32_t *positions;        /* [3][max_rows] scratch */
    float *hidden;             /* [max_rows][hidden] copy of a step's */
    float *logits;             /* [max_logits][vocab], for pieces */
    int max_rows, max_logits, n_mtp;
};

static void drop(struct run *r) {
    weft_sequence_free(r->s);
    mem_free(r->positions), mem_free(r->hidden), mem_free(r->logits);
}

static int check(const struct score_input *in, struct weft_error *e) {
    if (in->n_tokens < 1) return error_set(e, WEFT_ERROR_INPUT, "the text has no tokens");
    for (int i = 0; i < in->n_chunks; i++)
        if (in->chunks[i] < 1) return error_set(e, WEFT_ERROR_INPUT, "chunk %d has %d rows", i + 1, in->chunks[i]);
    if (in->positions && in->n_axes != 1 && in->n_axes != 3)
        return error_set(e, WEFT_ERROR_INPUT, "positions have %d axes, 1 or 3 are possible", in->n_axes);
    return 0;
}

static int begin(struct run *r, struct weft_engine *x, const struct score_input *in, struct weft_error *e) {
    *r = (struct run){.x = x, .in = in, .max_rows = x->limits.max_rows, .max_logits = x->limits.max_logits};
    int code = check(in, e);
    if (!code) code = weft_sequence_new(&r->s, x, in->n_tokens, e);
    if (!code && in->n_adapters) code = weft_sequence_adapters(r->s, in->adapters, in->n_adapters, e);
    if (code) return code;
    r->positions = mem_new(3 * (size_t)r->max_rows, sizeof *r->positions);
    r->hidden = mem_new((size_t)r->max_rows * (size_t)x->hidden, sizeof *r->hidden);
    r->logits = mem_new((size_t)r->max_logits * (size_t)x->vocab, sizeof *r->logits);
    return r->positions && r->hidden && r->logits ? 0 : error_memory(e, "logits");
}

/* Positions of rows [row0, row0 + n) as a group wants them. */
static const int32_t *positions_of(struct run *r, int row0, int n) {
    const struct score_input *in = r->in;
    if (!in->positions) return NULL;
    for (int a = 0; a < in->n_axes; a++)
        memcpy(r->positions + a * n, in->positions + (size_t)a * (size_t)in->n_tokens + row0, (size_t)n * sizeof *r->positions);
    return r->positions;
}

static int send(struct run *r, int row0, int n, const float *logits, struct weft_error *e) {
    return r->fn(r->arg, &(struct score_rows){.row0 = row0, .n_rows = n, .logits = logits}, e);
}

/* Logits of hidden rows in pieces of what a step may give. */
static int send_pieces(struct run *r, int row0, int n, struct weft_error *e) {
    int code = 0;
    for (int i = 0, piece; i < n && !code; i += piece) {
        piece = n - i < r->max_logits ? n - i : r->max_logits;
        code = weft_head(r->x, r->hidden + (size_t)i * (size_t)r->x->hidden, piece, r->logits, e);
        if (!code) code = send(r, row0 + i, piece, r->logits, e);
    }
    return code;
}

static int chunk_rows(const struct run *r, int number, int row0, struct weft_error *e) {
    const struct score_input *in = r->in;
    int left = in->n_tokens - row0, rows = r->max_rows;
    if (in->n_chunks) rows = in->chunks[number < in->n_chunks ? number : in->n_chunks - 1];
    if (rows > left) rows = left;
    if (rows > r->max_rows) return error_set(e, WEFT_ERROR_INPUT, "a chunk has %d rows, a step takes %d", rows, r->max_rows);
    return rows;
}

/* One chunk through the model; its hidden rows are then in r->hidden. Logits come with it where they are few enough, or where
 * adapters may change the head; *n is lowered to what was run. */
static int run_chunk(struct run *r, int row0, int *n, int want_logits, struct weft_error *e) {
    const struct score_input *in = r->in;
    int direct = want_logits && (*n <= r->max_logits || in->n_adapters);
    if (direct && *n > r->max_logits) *n = r->max_logits;
    struct weft_group g = {.sequence = r->s, .n_rows = *n, .tokens = in->tokens + row0, .embeddings = in->embeddings,
                           .n_embeddings = in->n_embeddings, .positions = positions_of(r, row0, *n), .n_axes = in->n_axes,
                           .n_logits = direct ? *n : 0, .want_hidden = 1, .want_taps = in->n_taps > 0};
    int code = weft_step(r->x, &g, 1, &(struct weft_step_options){.taps = in->taps, .n_taps = in->n_taps}, e);
    if (code) return code;
    memcpy(r->hidden, g.hidden, (size_t)*n * (size_t)r->x->hidden * sizeof *r->hidden);
    if (!r->fn || !want_logits) return 0;
    struct score_rows rows = {.row0 = row0, .n_rows = *n, .hidden = r->hidden, .taps = g.taps};
    if ((code = r->fn(r->arg, &rows, e))) return code;
    return direct ? send(r, row0, *n, g.logits, e) : send_pieces(r, row0, *n, e);
}

int score_run(struct weft_engine *x, const struct score_input *in, score_fn *fn, void *arg, struct weft_error *e) {
    struct run r;
    int code = begin(&r, x, in, e);
    r.fn = fn, r.arg = arg;
    for (int row = 0, number = 0; !code && row < in->n_tokens; number++) {
        int n = chunk_rows(&r, number, row, e);
        if (n < 0) code = n;
        else code = run_chunk(&r, row, &n, 1, e);
        row += n;
    }
    drop(&r);
    return code;
}

/* ---- the MTP head ---- */

/* Rows [row0, row0 + n) of the head with the main rows' hidden rows `hidden`. */
static int run_mtp(struct run *r, int row0, int n, const float *hidden, const int32_t *tokens, struct weft_group *g,
                   struct weft_error *e) {
    const struct score_input *in = r->in;
    int axes = in->positions ? in->n_axes : 1;
    for (int a = 0; a < axes; a++)
        for (int i = 0; i < n; i++)
            r->positions[a * n + i] = !in->positions             ? row0 + i
                                      : row0 + i < in->n_tokens ? in->positions[(size_t)a * (size_t)in->n_tokens + row0 + i]
                                                                : in->positions[(size_t)(a + 1) * (size_t)in->n_tokens - 1] + row0 + i +
                                                                      1 - in->n_tokens;
    *g = (struct weft_group){.sequence = r->s, .n_rows = n, .tokens = tokens, .positions = r->positions, .n_axes = axes, .n_logits = n,
                             .want_hidden = 1, .hidden_in = hidden};
    return weft_step(r->x, g, 1, &(struct weft_step_options){.mtp = 1}, e);
}

static int mtp_chunk(struct run *r, int row0, int n, struct weft_error *e) {
    int code = 0;
    for (int i = 0, piece; i < n && !code; i += piece) {
        struct weft_group g;
        piece = n - i < r->max_logits ? n - i : r->max_logits;
        code = run_mtp(r, row0 + i, piece, r->hidden + (size_t)i * (size_t)r->x->hidden, r->in->tokens + row0 + i + 1, &g, e);
        if (!code) code = send(r, row0 + i, piece, g.logits, e);
    }
    return code;
}

int score_mtp(struct weft_engine *x, const struct score_input *in, score_fn *fn, void *arg, struct weft_error *e) {
    struct run r;
    if (!model_has_mtp(x->model)) return error_set(e, WEFT_ERROR_INPUT, "%s has no MTP head", x->handle->folder);
    int code = begin(&r, x, in, e);
    r.fn = fn, r.arg = arg;
    for (int row = 0, number = 0; !code && row < in->n_tokens; number++) {
        int n = chunk_rows(&r, number, row, e);
        if (n < 0) code = n;
        else code = run_chunk(&r, row, &n, 0, e);
        if (!code) code = mtp_chunk(&r, row, row + n < in->n_tokens ? n : n - 1, e); /* the last row has no token behind it */
        row += n;
    }
    drop(&r);
    return code;
}

/* ---- sums ---- */

double score_logsumexp(const float *logits, int n) {
    float max = logits[0];
    for (int i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    double sum[8] = {0};
    for (int i = 0; i < n; i++) sum[i & 7] += exp((double)logits[i] - (double)max);
    return (double)max + log(((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
}

struct nll { const struct score_input *in; int vocab; double *out; };

static int take_nll(void *arg, const struct score_rows *rows, struct weft_error *e) {
    struct nll *n = arg;
    if (!rows->logits) return 0;
    for (int i = 0; i < rows->n_rows; i++) {
        int row = rows->row0 + i;
        if (row + 1 >= n->in->n_tokens) break;
        int32_t next = n->in->tokens[row + 1];
        const float *logits = rows->logits + (size_t)i * (size_t)n->vocab;
        n->out[row] = next < 0 ? 0 : score_logsumexp(logits, n->vocab) - (double)logits[next];
        if (!isfinite(n->out[row])) return error_set(e, WEFT_ERROR_NUMERIC, "the logits of row %d are not finite", row);
    }
    return 0;
}

int score_nll(struct weft_engine *x, const struct score_input *in, double *out, struct weft_error *e) {
    return score_run(x, in, take_nll, &(struct nll){in, x->vocab, out}, e);
}

/* ---- agreement of drafts ---- */

struct agreement { int vocab, hidden; int32_t *best; float *rows; };

static int take_rows(void *arg, const struct score_rows *rows, struct weft_error *e) {
    struct agreement *a = arg;
    if (rows->hidden)
        memcpy(a->rows + (size_t)rows->row0 * (size_t)a->hidden, rows->hidden,
               (size_t)rows->n_rows * (size_t)a->hidden * sizeof *a->rows);
    for (int i = 0; rows->logits && i < rows->n_rows; i++) {
        a->best[rows->row0 + i] = sampler_argmax(rows->logits + (size_t)i * (size_t)a->vocab, a->vocab);
        if (a->best[rows->row0 + i] < 0) return error_set(e, WEFT_ERROR_NUMERIC, "the logits of row %d are not finite", rows->row0 + i);
    }
    return 0;
}

/* Row t teacher-forced and the chain behind it, which is then taken back. */
static int run_chain(struct run *r, const struct agreement *a, int t, int depth, struct score_agreement *out, float *hidden,
                     struct weft_error *e) {
    const struct score_input *in = r->in;
    int32_t token = in->tokens[t + 1];
    const float *from = a->rows + (size_t)t * (size_t)a->hidden;
    int kept = 1, code = 0, true_rows = 0;
    for (int d = 1; d <= depth && t + 1 + d < in->n_tokens; d++) {
        struct weft_group g;
        if ((code = run_mtp(r, t + d - 1, 1, from, &token, &g, e))) return code;
        if (d == 1) true_rows = sequence_mtp_rows(r->s->seq);
        int32_t draft = sampler_argmax(g.logits, a->vocab);
        if (draft < 0) return error_set(e, WEFT_ERROR_NUMERIC, "the MTP head's logits of row %d are not finite", t);
        memcpy(hidden, g.hidden, (size_t)a->hidden * sizeof *hidden);
        int agrees = draft == a->best[t + d];
        if (t >= in->first_row) {
            out->rows[d - 1]++, out->agree[d - 1] += agrees;
            out->kept_rows[d - 1] += kept, out->kept_agree[d - 1] += kept && agrees;
        }
        kept = kept && draft == in->tokens[t + 1 + d];
        token = draft, from = hidden;
    }
    if (true_rows) sequence_cut_mtp(r->s->seq, true_rows);
    return 0;
}

int score_mtp_agreement(struct weft_engine *x, const struct score_input *in, int depth, struct score_agreement *out,
                        struct weft_error *e) {
    if (depth < 1 || depth > WEFT_DRAFT_MAX) return error_set(e, WEFT_ERROR_INPUT, "%d drafts, 1 to %d are possible", depth, WEFT_DRAFT_MAX);
    if (!model_has_mtp(x->model)) return error_set(e, WEFT_ERROR_INPUT, "%s has no MTP head", x->handle->folder);
    size_t n = in->n_tokens > 0 ? (size_t)in->n_tokens : 1;
    struct agreement a = {x->vocab, x->hidden, mem_new(n, sizeof *a.best), mem_new(n * (size_t)x->hidden, sizeof *a.rows)};
    float *hidden = mem_new((size_t)x->hidden, sizeof *hidden);
    struct run r = {0};
    int code = a.best && a.rows && hidden ? score_run(x, in, take_rows, &a, e) : error_memory(e, "the text's rows");
    if (!code) code = begin(&r, x, in, e);
    for (int t = 0; !code && t + 2 < in->n_tokens; t++) code = run_chain(&r, &a, t, depth, out, hidden, e);
    drop(&r);
    mem_free(a.best), mem_free(a.rows), mem_free(hidden);
    return code;
}
