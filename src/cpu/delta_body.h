/* The body of delta_*.c, over the vectors of one ISA. DELTA_VECTORS: how many vectors of columns a pass takes at once; each
 * needs two accumulators. */
#include "cpu/delta.h"
#include "cpu/simd_math.h"

/* The query-key product of a row, in an order of its own. */
static inline float dot_qk(const float *q, const float *k, int n) {
    vf s0 = {0}, s1 = {0};
    int i = 0;
    for (; i + 2 * V <= n; i += 2 * V) {
        s0 = vf_madd(vf_load(q + i), vf_load(k + i), s0);
        s1 = vf_madd(vf_load(q + i + V), vf_load(k + i + V), s1);
    }
    for (; i < n; i += V) {
        int m = n - i < V ? n - i : V;
        s0 = vf_madd(vf_load_n(q + i, m), vf_load_n(k + i, m), s0);
    }
    return vf_sum(s0 + s1);
}

/* Rows lie too far apart for the hardware to foresee, and a store that waits for its line holds up all behind it. All at once they
 * would fill the list of misses, so: one line of each for every line of keys. */
enum { LINE = 16 };
static inline void fetch_next(const struct delta_step *s, int i) {
    if (!s->next_k) return;
    __builtin_prefetch(s->next_k + i);
    __builtin_prefetch(s->next_q + i);
    if (i >= s->n_columns) return;
    __builtin_prefetch(s->next_v + i);
    __builtin_prefetch(s->next_result + i, 1);
}

/* A slice that is read once comes from memory while the one before it is worked on: of the floats from `ahead` on the share of `line`, into
 * L2. What its own rows are that come NEAR keys later goes on to L1 (a twelfth of the time; of three waiting rows a seventh). */
enum { NEAR = 16 };
static inline void fetch_ahead(const float *ahead, int line) {
    if (ahead) __builtin_prefetch(ahead + (int64_t)line * LINE, 0, 2);
}

/* Columns [c, c + n_vectors * V) in one pass over the keys. n_before updates of decays of their own, or (-1) one of decay 1. streams: there
 * may be something to fetch ahead (by a condition, rows of a prompt would take a twentieth longer). */
static inline __attribute__((always_inline)) void pass(const struct delta_step *s, int c, const int n_vectors, const int n_before,
                                                       const int keep, const int streams, float qk) {
    const int n_list = n_before < 0 ? 1 : n_before;
    vf sk[DELTA_VECTORS], sq[DELTA_VECTORS], only[DELTA_VECTORS], decay = vf_set(s->decay), before[DELTA_MOST_BEFORE];
    const float *kb[DELTA_MOST_BEFORE], *ub[DELTA_MOST_BEFORE];
#pragma GCC unroll 8
    for (int j = 0; j < n_vectors; j++) {
        sk[j] = sq[j] = vf_set(0.0f);
        if (n_list == 1) only[j] = vf_load(s->before->u + c + j * V); /* in registers; of more than one, there are too many */
    }
#pragma GCC unroll 4
    for (int b = 0; b < n_list; b++) before[b] = vf_set(s->before[b].decay), kb[b] = s->before[b].k, ub[b] = s->before[b].u + c;
    /* Copies: a store to the state could change what s points to, for all the compiler knows. */
    const float *in = s->in + c, *key = s->k, *query = s->q, *ahead = streams ? s->ahead : NULL;
    float *out = keep ? s->out + c : NULL;
    const int64_t in_stride = s->in_stride, out_stride = s->out_stride;
    const int lines = keep ? 2 : 1, columns = s->n_columns; /* lines read for each that is asked for */
    for (int i = 0, n = s->key_dim, end; i < n;) {
        fetch_next(s, i);
        for (end = i + LINE < n ? i + LINE : n; i < end; i++, in += in_stride) {
            vf k = vf_set(key[i]), q = vf_set(query[i]), was[DELTA_MOST_BEFORE];
#pragma GCC unroll 4
            for (int b = 0; b < n_list; b++) was[b] = vf_set(kb[b][i]);
            for (int j = 0; j < n_vectors * V; j += lines * LINE) fetch_ahead(ahead, (i * columns + c + j) / lines / LINE);
            for (int j = 0; ahead && j < n_vectors * V; j += LINE) __builtin_prefetch(in + NEAR * in_stride + j);
#pragma GCC unroll 8
            for (int j = 0; j < n_vectors; j++) {
                vf x = vf_load(in + j * V);
#pragma GCC unroll 4
                for (int b = 0; b < n_list; b++) x = vf_madd(was[b], n_list == 1 ? only[j] : vf_load(ub[b] + j * V), n_before < 0 ? x : before[b] * x);
                x = decay * x;
                sk[j] = vf_madd(x, k, sk[j]);
                sq[j] = vf_madd(x, q, sq[j]);
                if (keep) vf_store(out + j * V, x);
            }
            if (keep) out += out_stride;
        }
    }
    vf beta = vf_set(s->beta), both = vf_set(qk);
#pragma GCC unroll 8
    for (int j = 0; j < n_vectors; j++) {
        vf u = beta * (vf_load(s->v + c + j * V) - sk[j]);
        vf_store(s->u + c + j * V, u);
        vf_store(s->result + c + j * V, vf_madd(both, u, sq[j]));
    }
}

/* The same for n <= V columns, whatever else is asked for. */
static void pass_any(const struct delta_step *s, int c, int n, float qk) {
    vf sk = {0}, sq = {0}, decay = vf_set(s->decay);
    for (int i = 0; i < s->key_dim; i++) {
        vf x = vf_load_n(s->in + i * s->in_stride + c, n);
        for (const struct delta_update *b = s->before; b < s->before + s->n_before; b++)
            x = vf_madd(vf_set(b->k[i]), vf_load_n(b->u + c, n), vf_set(b->decay) * x);
        x = decay * x;
        sk = vf_madd(x, vf_set(s->k[i]), sk);
        sq = vf_madd(x, vf_set(s->q[i]), sq);
        if (s->out) vf_store_n(s->out + i * s->out_stride + c, x, n);
    }
    vf u = vf_set(s->beta) * (vf_load_n(s->v + c, n) - sk);
    vf_store_n(s->u + c, u, n);
    vf_store_n(s->result + c, vf_madd(vf_set(qk), u, sq), n);
}

/* Rows of a prompt, all but a first one behind pending rows or with something to fetch ahead: slices of any width, in whole vectors. */
static inline __attribute__((always_inline)) int columns_of_prompt(const struct delta_step *s, const int n_before, float qk) {
    int c = 0;
    for (; c + DELTA_VECTORS * V <= s->n_columns; c += DELTA_VECTORS * V) pass(s, c, DELTA_VECTORS, n_before, 1, 0, qk);
    for (; DELTA_VECTORS > 4 && c + 4 * V <= s->n_columns; c += 4 * V) pass(s, c, 4, n_before, 1, 0, qk);
    for (; c + 2 * V <= s->n_columns; c += 2 * V) pass(s, c, 2, n_before, 1, 0, qk);
    for (; c + V <= s->n_columns; c += V) pass(s, c, 1, n_before, 1, 0, qk);
    return c;
}

/* A row alone: whole heads. */
static inline __attribute__((always_inline)) int columns_of_row(const struct delta_step *s, const int n_before, const int keep, float qk) {
    int c = 0;
    for (; c + DELTA_VECTORS * V <= s->n_columns; c += DELTA_VECTORS * V) pass(s, c, DELTA_VECTORS, n_before, keep, 1, qk);
    return c;
}

static void delta_step(const struct delta_step *s) {
    _Static_assert(DELTA_MOST_BEFORE == 4, "a case for each");
    float qk = dot_qk(s->q, s->k, s->key_dim);
    int c = 0;
    const int prompt = s->out && !s->ahead;
    if (prompt && s->n_before == 0) c = columns_of_prompt(s, 0, qk);
    else if (prompt && s->n_before == 1 && s->before->decay == 1.0f) c = columns_of_prompt(s, -1, qk);
    else
        switch (s->n_before) {
#define CASE(n) case n: c = s->out ? columns_of_row(s, n, 1, qk) : columns_of_row(s, n, 0, qk); break;
            CASE(0) CASE(1) CASE(2) CASE(3) CASE(4)
#undef CASE
        }
    for (; c < s->n_columns; c += V) pass_any(s, c, s->n_columns - c < V ? s->n_columns - c : V, qk);
}

static void delta_fold(const struct delta_fold *f) {
    vf d = vf_set(f->decay);
    const float *in = f->in;
    float *out = f->out;
    for (int i = 0; i < f->key_dim; i++, in += f->in_stride, out += f->out_stride) {
        vf k = vf_set(f->k[i]);
        int c = 0;
        for (; c + V <= f->n_columns; c += V) {
            if ((i * f->n_columns + c) % (2 * LINE) == 0) fetch_ahead(f->ahead, (i * f->n_columns + c) / 2 / LINE);
            vf_store(out + c, vf_madd(k, vf_load(f->u + c), d * vf_load(in + c)));
        }
        if (c < f->n_columns) {
            int n = f->n_columns - c;
            vf_store_n(out + c, vf_madd(k, vf_load_n(f->u + c, n), d * vf_load_n(in + c, n)), n);
        }
    }
}

#define DELTA_TABLE(name, best_slice) const struct cpu_delta name = {.slice = best_slice, .step = delta_step, .fold = delta_fold}
