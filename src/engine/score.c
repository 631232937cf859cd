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
    if (!code && in->session) code = engine_resume_sequence(&r->s, x, in, e);
    else if (!code) code = weft_sequence_new(&r->s, x, in->n_tokens, e);
    if (!code && !in->session && in->n_adapters) code = weft_sequence_adapters(r->s, in->adapters, in->n_adapters, e);
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
        if (!code && row == in->n_tokens) sequence_set_hidden(r.s->seq, r.hidden + (size_t)(n - 1) * (size_t)x->hidden);
    }
    if (!code && in->session_save) code = weft_sequence_save(r.s, in->session_save, e);
    drop(&r);
    return code;
}

/* ---- the MTP head ---- */

/* Rows [row0, row0 + n) of the head as a group, with the main rows' (or the head's own) hidden rows; `positions` [3 * n] is
 * scratch. */
static struct weft_group mtp_group(const struct score_input *in, struct weft_sequence *s, int row0, int n, const float *hidden,
                                   const int32_t *tokens, int32_t *positions) {
    int axes = in->positions ? in->n_axes : 1;
    for (int a = 0; a < axes; a++)
        for (int i = 0; i < n; i++) {
            int row = row0 + i, beyond = row - in->n_tokens + 1;
            const int32_t *axis = in->positions + (size_t)a * (size_t)in->n_tokens;
            positions[a * n + i] = !in->positions ? row : beyond <= 0 ? axis[row] : axis[in->n_tokens - 1] + beyond;
        }
    return (struct weft_group){
        .sequence = s, .n_rows = n, .tokens = tokens, .positions = positions, .n_axes = axes, .hidden_in = hidden};
}

static const struct weft_step_options mtp_step = {.mtp = 1};

static int mtp_chunk(struct run *r, int row0, int n, struct weft_error *e) {
    int code = 0;
    for (int i = 0, piece; i < n && !code; i += piece) {
        struct weft_group g;
        piece = n - i < r->max_logits ? n - i : r->max_logits;
        g = mtp_group(r->in, r->s, row0 + i, piece, r->hidden + (size_t)i * (size_t)r->x->hidden, r->in->tokens + row0 + i + 1,
                      r->positions);
        g.n_logits = piece;
        code = weft_step(r->x, &g, 1, &mtp_step, e);
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

/* A stretch of the text whose rows are taken one after the other, each with the chain of drafts behind it. Several lanes share
 * every step. */
struct lane {
    struct weft_sequence *s;
    int t, end;
    int32_t token, position[3];
    const float *from; float *hidden;     /* hidden row that the next draft comes from; the chain's own */
    int kept, true_rows;
};

enum { MOST_LANES = 16, SHORTEST_LANE = 32 };

struct agreement {
    struct weft_engine *x;
    const struct score_input *in;
    int depth;
    int32_t *best; float *rows;           /* [n_tokens] the main model's choice; [n_tokens][hidden] its hidden rows */
    struct lane lanes[MOST_LANES]; int n_lanes;
    float *hidden; int32_t *positions;    /* [n_lanes][hidden], [3 * max_rows] */
    struct score_agreement *out;
};

static int take_rows(void *arg, const struct score_rows *rows, struct weft_error *e) {
    struct agreement *a = arg;
    size_t hidden = (size_t)a->x->hidden, vocab = (size_t)a->x->vocab;
    if (rows->hidden)
        memcpy(a->rows + (size_t)rows->row0 * hidden, rows->hidden, (size_t)rows->n_rows * hidden * sizeof *a->rows);
    for (int i = 0; rows->logits && i < rows->n_rows; i++) {
        a->best[rows->row0 + i] = sampler_argmax(rows->logits + (size_t)i * vocab, a->x->vocab);
        if (a->best[rows->row0 + i] < 0)
            return error_set(e, WEFT_ERROR_NUMERIC, "the logits of row %d are not finite", rows->row0 + i);
    }
    return 0;
}

/* As many lanes as memory allows; one must be possible. */
static int open_lanes(struct agreement *a, struct weft_error *e) {
    int n = a->in->n_tokens, want = n / SHORTEST_LANE;
    if (want > MOST_LANES) want = MOST_LANES;
    if (want > a->x->limits.max_groups) want = a->x->limits.max_groups;
    if (want > a->x->limits.max_logits) want = a->x->limits.max_logits;
    do {
        struct lane *l = &a->lanes[a->n_lanes];
        int code = weft_sequence_new(&l->s, a->x, n, a->n_lanes ? NULL : e);
        if (code && a->n_lanes == 0) return code;
        if (code) break;
        a->n_lanes++;
        if (a->in->n_adapters && (code = weft_sequence_adapters(l->s, a->in->adapters, a->in->n_adapters, e))) return code;
    } while (a->n_lanes < want);
    a->hidden = mem_new((size_t)a->n_lanes * (size_t)a->x->hidden, sizeof *a->hidden);
    a->positions = mem_new(3 * (size_t)a->x->limits.max_rows, sizeof *a->positions);
    return a->hidden && a->positions ? 0 : error_memory(e, "the drafts");
}

/* Teacher-forced rows before a lane's first. */
static int lead_in(struct agreement *a, struct lane *l, struct weft_error *e) {
    int code = 0, max = a->x->limits.max_rows;
    for (int row = 0, n; row < l->t && !code; row += n) {
        n = l->t - row < max ? l->t - row : max;
        struct weft_group g =
            mtp_group(a->in, l->s, row, n, a->rows + (size_t)row * (size_t)a->x->hidden, a->in->tokens + row + 1, a->positions);
        code = weft_step(a->x, &g, 1, &mtp_step, e);
    }
    return code;
}

/* Draft d of every lane that has one: a row of each in one step. Returns how many there were, or an error. */
static int draft_lanes(struct agreement *a, int d, struct weft_error *e) {
    struct weft_group groups[MOST_LANES];
    struct lane *who[MOST_LANES];
    int n = 0, n_tokens = a->in->n_tokens;
    for (int i = 0; i < a->n_lanes; i++) {
        struct lane *l = &a->lanes[i];
        if (l->t >= l->end || l->t + 1 + d >= n_tokens) continue;
        groups[n] = mtp_group(a->in, l->s, l->t + d - 1, 1, l->from, &l->token, l->position);
        groups[n].n_logits = groups[n].want_hidden = 1;
        who[n++] = l;
    }
    int code = n ? weft_step(a->x, groups, n, &mtp_step, e) : 0;
    if (code) return code;
    for (int i = 0; i < n; i++) {
        struct lane *l = who[i];
        int32_t draft = sampler_argmax(groups[i].logits, a->x->vocab);
        if (draft < 0) return error_set(e, WEFT_ERROR_NUMERIC, "the MTP head's logits of row %d are not finite", l->t);
        if (d == 1) l->true_rows = weft_sequence_mtp_rows(l->s);
        int agrees = draft == a->best[l->t + d];
        if (l->t >= a->in->first_row) {
            a->out->rows[d - 1]++, a->out->agree[d - 1] += agrees;
            a->out->kept_rows[d - 1] += l->kept, a->out->kept_agree[d - 1] += l->kept && agrees;
        }
        l->kept = l->kept && draft == a->in->tokens[l->t + 1 + d];
        memcpy(l->hidden, groups[i].hidden, (size_t)a->x->hidden * sizeof *l->hidden);
        l->token = draft, l->from = l->hidden;
    }
    return n;
}

static int run_lanes(struct agreement *a, struct weft_error *e) {
    int n_rows = a->in->n_tokens - 2, code = 0; /* rows whose first draft stands for a token of the text */
    for (int i = 0; i < a->n_lanes && !code; i++) {
        struct lane *l = &a->lanes[i];
        l->t = (int)((int64_t)n_rows * i / a->n_lanes), l->end = (int)((int64_t)n_rows * (i + 1) / a->n_lanes);
        l->hidden = a->hidden + (size_t)i * (size_t)a->x->hidden;
        code = lead_in(a, l, e);
    }
    for (int drafted = 1; !code && drafted > 0;) {
        for (int i = 0; i < a->n_lanes; i++) {
            struct lane *l = &a->lanes[i];
            if (l->t >= l->end) continue;
            l->token = a->in->tokens[l->t + 1], l->from = a->rows + (size_t)l->t * (size_t)a->x->hidden, l->kept = 1;
        }
        drafted = 0;
        for (int d = 1; d <= a->depth && !code; d++) {
            int n = draft_lanes(a, d, e);
            if (n < 0) code = n;
            else drafted += n;
        }
        for (int i = 0; i < a->n_lanes && !code; i++)
            if (a->lanes[i].t < a->lanes[i].end) sequence_cut_mtp(a->lanes[i].s->seq, a->lanes[i].true_rows), a->lanes[i].t++;
    }
    return code;
}

int score_mtp_agreement(struct weft_engine *x, const struct score_input *in, int depth, struct score_agreement *out,
                        struct weft_error *e) {
    if (depth < 1 || depth > WEFT_DRAFT_MAX)
        return error_set(e, WEFT_ERROR_INPUT, "%d drafts, 1 to %d are possible", depth, WEFT_DRAFT_MAX);
    if (!model_has_mtp(x->model)) return error_set(e, WEFT_ERROR_INPUT, "%s has no MTP head", x->handle->folder);
    size_t n = in->n_tokens > 0 ? (size_t)in->n_tokens : 1;
    struct agreement a = {.x = x, .in = in, .depth = depth, .out = out};
    a.best = mem_new(n, sizeof *a.best), a.rows = mem_new(n * (size_t)x->hidden, sizeof *a.rows);
    int code = a.best && a.rows ? score_run(x, in, take_rows, &a, e) : error_memory(e, "the text's rows");
    if (!code) code = open_lanes(&a, e);
    if (!code) code = run_lanes(&a, e);
    for (int i = 0; i < a.n_lanes; i++) weft_sequence_free(a.lanes[i].s);
    mem_free(a.best), mem_free(a.rows), mem_free(a.hidden), mem_free(a.positions);
    return code;
}
