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

/* A slice that is read once comes from memory while the one before it is worked on: of the floats from `ahead` on the share of `line`. */
static inline void fetch_ahead(const float *ahead, int line) {
    if (ahead) __builtin_prefetch(ahead + (int64_t)line * LINE, 0, 2);
}

/* Columns [c, c + n_vectors * V) in one pass over the keys; `first`: no update is still to be added. */
static inline __attribute__((always_inline)) void pass(const struct delta_step *s, int c, int n_vectors, int first, float qk) {
    vf sk[DELTA_VECTORS], sq[DELTA_VECTORS], ub[DELTA_VECTORS], decay = vf_set(s->decay);
#pragma GCC unroll 8
    for (int j = 0; j < n_vectors; j++) {
        sk[j] = sq[j] = vf_set(0.0f);
        ub[j] = first ? vf_set(0.0f) : vf_load(s->u_before + c + j * V);
    }
    /* Copies: a store to the state could change what s points to, for all the compiler knows. */
    const float *in = s->in + c, *key = s->k, *query = s->q, *key_before = first ? s->k : s->k_before;
    float *out = s->out + c;
    const int64_t in_stride = s->in_stride, out_stride = s->out_stride;
    for (int i = 0, n = s->key_dim, end; i < n;) {
        fetch_next(s, i);
        for (end = i + LINE < n ? i + LINE : n; i < end; i++, in += in_stride, out += out_stride) {
            vf k = vf_set(key[i]), q = vf_set(query[i]), kb = first ? k : vf_set(key_before[i]);
            for (int j = 0; j < n_vectors * V; j += 2 * LINE) fetch_ahead(s->ahead, (i * s->n_columns + c + j) / 2 / LINE);
#pragma GCC unroll 8
            for (int j = 0; j < n_vectors; j++) {
                vf x = vf_load(in + j * V);
                if (!first) x = vf_madd(kb, ub[j], x);
                x = decay * x;
                sk[j] = vf_madd(x, k, sk[j]);
                sq[j] = vf_madd(x, q, sq[j]);
                vf_store(out + j * V, x);
            }
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

/* The same for one last vector of n < V columns. */
static void pass_tail(const struct delta_step *s, int c, int n, float qk) {
    vf sk = {0}, sq = {0}, ub = s->u_before ? vf_load_n(s->u_before + c, n) : vf_set(0.0f), decay = vf_set(s->decay);
    for (int i = 0; i < s->key_dim; i++) {
        vf x = vf_load_n(s->in + i * s->in_stride + c, n);
        if (s->u_before) x = vf_madd(vf_set(s->k_before[i]), ub, x);
        x = decay * x;
        sk = vf_madd(x, vf_set(s->k[i]), sk);
        sq = vf_madd(x, vf_set(s->q[i]), sq);
        vf_store_n(s->out + i * s->out_stride + c, x, n);
    }
    vf u = vf_set(s->beta) * (vf_load_n(s->v + c, n) - sk);
    vf_store_n(s->u + c, u, n);
    vf_store_n(s->result + c, vf_madd(vf_set(qk), u, sq), n);
}

static void delta_step(const struct delta_step *s) {
    float qk = dot_qk(s->q, s->k, s->key_dim);
    int c = 0, first = !s->u_before;
    for (; c + DELTA_VECTORS * V <= s->n_columns; c += DELTA_VECTORS * V) {
        if (first) pass(s, c, DELTA_VECTORS, 1, qk);
        else pass(s, c, DELTA_VECTORS, 0, qk);
    }
    for (; DELTA_VECTORS > 4 && c + 4 * V <= s->n_columns; c += 4 * V) {
        if (first) pass(s, c, 4, 1, qk);
        else pass(s, c, 4, 0, qk);
    }
    for (; c + 2 * V <= s->n_columns; c += 2 * V) {
        if (first) pass(s, c, 2, 1, qk);
        else pass(s, c, 2, 0, qk);
    }
    for (; c + V <= s->n_columns; c += V) {
        if (first) pass(s, c, 1, 1, qk);
        else pass(s, c, 1, 0, qk);
    }
    if (c < s->n_columns) pass_tail(s, c, s->n_columns - c, qk);
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
