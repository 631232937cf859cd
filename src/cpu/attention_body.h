/* The body of attention_*.c, over the vectors of one ISA, its attention_pairs_*.h and attention_codes_*.h. */
#include <math.h>

#include "quant/convert.h"

static int is_codes(const struct kv_format *f) { return f->kind == KV_AFFINE || f->kind == KV_TURBO; }
static int group_of(const struct kv_format *f, struct kv_shape s) { return f->kind == KV_TURBO ? 32 : s.group; }

static void attention_prepare(struct attention_work *w, const struct kv_format *k, struct kv_shape shape) {
    int d = w->dim;
    if (k->kind == KV_BF16)
        for (int q = 0; q < w->n_q; q++) pairs_operand(w->q + (int64_t)q * d, d, w->q_pairs + (int64_t)q * (d / 2) * PAIR_BYTES);
    if (!is_codes(k)) return;
    int group = w->q_group = group_of(k, shape), n = d / group;
    for (int q = 0; q < w->n_q; q++)
        for (int g = 0; g < n; g++) {
            int64_t word = ((int64_t)q * d + g * group) / 4 * CODES_WORDS, at = (int64_t)q * n + g;
            const float *x = w->q + (int64_t)q * d + g * group;
            w->q_sum[at] = codes_operand(x, group, w->q_high + word, w->q_low + word, w->q_scale + at);
        }
}

/* Blocks of 4 bits that the products take as they are stored. */
static int reads_nibbles(const struct attention_block *b, int is_v) {
    return HAS_NIBBLES && b->shape.bits == 4 && !(is_v && b->format->kind == KV_TURBO);
}

/* Codes of a block as one byte each (in place when they are stored so), [quads][lanes][4]. */
static const uint8_t *expand_codes(struct attention_work *w, const struct attention_block *b, int is_v, int n_rows) {
    struct kv_planes p = kv_planes_of(b->shape);
    if (b->shape.bits == 8 || reads_nibbles(b, is_v)) return b->data;
    int d = b->shape.dim, lanes = is_v ? d : KV_ROWS, quads = is_v ? (n_rows + 3) / 4 : d / 4;
    for (int i = 0; i < p.n; i++) {
        int per = 8 / p.bits[i];
        int32_t mask = ((1 << p.bits[i]) - 1) * 0x01010101;
        for (int t = 0; t < quads; t++) {
            const uint8_t *in = b->data + p.offset[i] + (int64_t)(t / per) * lanes * 4;
            uint8_t *out = w->codes + (int64_t)t * lanes * 4;
            int down = t % per * p.bits[i], up = p.shift[i];
            for (int j = 0; j < lanes * 4; j += V * 4) {
                vi x = ((vi_load(in + j) >> down) & mask) << up;
                if (t % per == 0) mm_fetch(in + j, b->ahead);
                vi_store(out + j, i ? x | vi_load(out + j) : x);
            }
        }
    }
    return w->codes;
}

/* Scales and biases [groups][64] such that element = code * scale + bias. */
static void expand_scales(struct attention_work *w, const struct attention_block *b) {
    int groups = b->shape.dim / group_of(b->format, b->shape);
    const uint16_t *scale = (const uint16_t *)(b->data + kv_planes_of(b->shape).bytes), *other = scale + groups * KV_ROWS;
    vf raised = vf_set(b->shape.bits == 8 ? 127.0f : 0.0f); /* signed keys are stored from 0 */
    for (int i = 0; i < groups * KV_ROWS; i += V) {
        vf s = b->format->kind == KV_AFFINE ? vf_from_bf16(scale + i) : vf_load_f16(scale + i);
        vf t = b->format->kind == KV_AFFINE ? vf_from_bf16(other + i) : (vf_load_f16(other + i) - raised) * s;
        vf_store(w->scale + i, s);
        vf_store(w->bias + i, t);
    }
}

/* Group by group: score += dot * scale + bias * sum of q. */
static void code_scores(struct attention_work *w, const struct attention_block *k, int q0, float *scores) {
    int group = w->q_group, n = w->dim / group, n_q = w->n_q - q0, quads = w->dim / 4, per = reads_nibbles(k, 0) ? 2 : 1;
    const uint8_t *codes = expand_codes(w, k, 0, KV_ROWS);
    expand_scales(w, k);
    for (int g = 0; g < n; g++) {
        int64_t word = ((int64_t)q0 * quads + g * group / 4) * CODES_WORDS;
        struct mm m = {.n_q = n_q, .lanes = KV_ROWS, .steps = group / 4, .a = w->q_high + word, .a_low = w->q_low + word,
                       .a_stride = quads, .b = codes + (int64_t)g * group * KV_ROWS / per, .b_stride = KV_ROWS, .c = w->dots,
                       .c_stride = KV_ROWS, .ahead = codes == k->data ? k->ahead : 0};
        if (per == 2) mm_nibbles(&m);
        else mm_codes(&m);
        for (int q = 0; q < n_q; q++) {
            vf unit = vf_set(w->q_scale[(q0 + q) * n + g]), sum = vf_set(w->q_sum[(q0 + q) * n + g]);
            for (int i = 0; i < KV_ROWS; i += V) {
                float *s = scores + (int64_t)q * KV_ROWS + i;
                vf x = g ? vf_load(s) : vf_set(0.0f);
                x = vf_madd(vf_load(w->dots + (int64_t)q * KV_ROWS + i) * unit, vf_load(w->scale + g * KV_ROWS + i), x);
                vf_store(s, vf_madd(vf_load(w->bias + g * KV_ROWS + i), sum, x));
            }
        }
    }
}

static void attention_scores(struct attention_work *w, const struct attention_block *k, int q0, float *scores) {
    int d = w->dim;
    struct mm m = {.n_q = w->n_q - q0, .lanes = KV_ROWS, .b = k->data, .b_stride = KV_ROWS, .c = scores, .c_stride = KV_ROWS,
                   .ahead = k->ahead};
    if (k->format->kind == KV_BF16) {
        m.steps = m.a_stride = d / 2, m.a = w->q_pairs + (int64_t)q0 * (d / 2) * PAIR_BYTES, m.wide = w->wide;
        mm_pairs(&m);
    } else if (k->format->kind == KV_F32) {
        m.steps = m.a_stride = d, m.a = w->q + (int64_t)q0 * d;
        mm_f32(&m);
    } else {
        code_scores(w, k, q0, scores);
    }
}

static inline vi lane_numbers(int first) {
    vi v;
    for (int i = 0; i < V; i++) v[i] = first + i;
    return v;
}

INLINE void softmax_row(float *scores, int n_rows, float *highest, float *sum) {
    vf most = vf_set(-INFINITY), s[KV_ROWS / V], total = {0};
#pragma GCC unroll 16
    for (int i = 0; i < KV_ROWS / V; i++) {
        s[i] = vf_load(scores + i * V);
        if (n_rows < KV_ROWS) s[i] = vf_pick(lane_numbers(i * V) < n_rows, s[i], vf_set(-INFINITY));
        most = vf_max(most, s[i]);
    }
    vf top = vf_set(*highest = vf_highest(most));
#pragma GCC unroll 16
    for (int i = 0; i < KV_ROWS / V; i++) {
        vf p = vf_exp(s[i] - top);
        if (n_rows < KV_ROWS) p = vf_pick(lane_numbers(i * V) < n_rows, p, vf_set(0.0f));
        vf_store(scores + i * V, p);
        total += p;
    }
    *sum = vf_sum(total);
}

static void attention_softmax(float *scores, int n_rows, float *highest, float *sum) {
    if (n_rows < KV_ROWS) softmax_row(scores, n_rows, highest, sum);
    else softmax_row(scores, KV_ROWS, highest, sum); /* without masks */
}

/* bf16 rows lie in pairs. A pair of which one row is outside [r0, r1) is taken from a copy in which that row is 0. */
static void pair_values(struct attention_work *w, const struct attention_block *v, int q0, int r0, int r1, const float *p,
                        float *o) {
    int d = w->dim, n_q = w->n_q - q0;
    for (int q = 0; q < n_q; q++)
        pairs_operand(p + (int64_t)q * KV_ROWS, KV_ROWS, w->p_pairs + (int64_t)q * (KV_ROWS / 2) * PAIR_BYTES);
    struct mm m = {.n_q = n_q, .lanes = d, .a_stride = KV_ROWS / 2, .b_stride = d, .c = o, .c_stride = d, .ahead = v->ahead,
                   .wide = w->wide};
    for (int pair = r0 / 2; pair < (r1 + 1) / 2; pair += m.steps) {
        const uint8_t *at = v->data + (int64_t)pair * d * 4;
        m.steps = 1;
        if (2 * pair < r0 || 2 * pair + 2 > r1) {
            uint16_t *copy = (uint16_t *)w->rows;
            memcpy(copy, at, (size_t)d * 4);
            for (int i = 0; i < d; i++) copy[2 * i + (2 * pair < r0 ? 0 : 1)] = 0;
            m.b = copy;
        } else {
            m.b = at, m.steps = r1 / 2 - pair;
        }
        m.a = w->p_pairs + (int64_t)pair * PAIR_BYTES;
        mm_pairs(&m);
        m.accumulate = 1;
    }
}

/* Group by group: the weights take the rows' scales, then o = sum of weight * code + sum of p * bias. */
static void code_values(struct attention_work *w, const struct attention_block *v, int q0, int r0, int r1, const float *p,
                        float *o) {
    int d = w->dim, group = v->shape.group, n_q = w->n_q - q0;
    const uint8_t *codes = expand_codes(w, v, 1, r1);
    expand_scales(w, v);
    for (int g = 0; g < d / group; g++) {
        for (int q = 0; q < n_q; q++) {
            float *weights = w->weights + (int64_t)q * KV_ROWS;
            vf bias = {0};
            for (int i = 0; i < KV_ROWS; i += V) {
                vi live = (lane_numbers(i) >= r0) & (lane_numbers(i) < r1);
                vf x = vf_load(p + (int64_t)q * KV_ROWS + i), zero = vf_set(0.0f);
                vf_store(weights + i, vf_pick(live, x * vf_load(w->scale + g * KV_ROWS + i), zero));
                bias = vf_madd(x, vf_pick(live, vf_load(w->bias + g * KV_ROWS + i), zero), bias);
            }
            w->p_sum[q] = vf_sum(bias);
            codes_operand(weights, KV_ROWS, w->p_high + (int64_t)q * 16 * CODES_WORDS, w->p_low + (int64_t)q * 16 * CODES_WORDS,
                          w->p_scale + q);
        }
        struct mm m = {.n_q = n_q, .lanes = group, .steps = (r1 + 3) / 4, .a = w->p_high, .a_low = w->p_low, .a_stride = 16,
                       .b = codes + (int64_t)g * group * 4, .b_stride = d, .c = o + g * group, .c_stride = d,
                       .ahead = codes == v->data ? v->ahead : 0};
        if (reads_nibbles(v, 1)) mm_nibbles(&m);
        else mm_codes(&m);
        for (int q = 0; q < n_q; q++)
            for (int i = 0; i < group; i += V) {
                float *at = o + (int64_t)q * d + g * group + i;
                vf_store(at, vf_madd(vf_load(at), vf_set(w->p_scale[q]), vf_set(w->p_sum[q])));
            }
    }
}

/* TurboQuant's rows below n_rows as floats, still rotated; whole quads of rows. */
static void turbo_rows(struct attention_work *w, const struct attention_block *v, int n_rows) {
    float centers[256] = {0};
    int d = w->dim, n = 1 << v->shape.bits;
    const uint8_t *codes = expand_codes(w, v, 1, n_rows);
    const uint16_t *scale = (const uint16_t *)(v->data + kv_planes_of(v->shape).bytes);
    kv_turbo_centers(v->shape.bits, centers);
    for (int i = 0; i < d / 32 * KV_ROWS; i += V) vf_store(w->scale + i, vf_load_f16(scale + i));
    for (int r = 0; r < n_rows; r += 4)
        for (int i = 0; i < d; i += V) {
            vi x = vi_load(codes + ((int64_t)(r / 4) * d + i) * 4);
            for (int j = 0; j < 4; j++) {
                vf unit = vf_set(w->scale[i / 32 * KV_ROWS + r + j]);
                vf_store(w->rows + (int64_t)(r + j) * d + i, vf_lookup(centers, n, (x >> (8 * j)) & (n - 1)) * unit);
            }
        }
}

static void attention_values(struct attention_work *w, const struct attention_block *v, int q0, int r0, int r1, const float *p,
                             float *o) {
    int d = w->dim;
    if (v->format->kind == KV_BF16) {
        pair_values(w, v, q0, r0, r1, p, o);
    } else if (v->format->kind == KV_AFFINE) {
        code_values(w, v, q0, r0, r1, p, o);
    } else {
        const float *rows = v->format->kind == KV_F32 ? (const float *)v->data : w->rows;
        if (v->format->kind == KV_TURBO) turbo_rows(w, v, r1);
        mm_f32(&(struct mm){.n_q = w->n_q - q0, .lanes = d, .steps = r1 - r0, .a = p + r0, .a_stride = KV_ROWS,
                            .b = rows + (int64_t)r0 * d, .b_stride = d, .c = o, .c_stride = d,
                            .ahead = rows == w->rows ? 0 : v->ahead});
    }
}

static void attention_merge(float *highest, float *sum, float *o, float next_highest, float next_sum, const float *next_o,
                            int dim) {
    float top = *highest > next_highest ? *highest : next_highest;
    vf both = vf_exp((vf){*highest - top, next_highest - top});
    float a = both[0], b = both[1];
    *highest = top;
    *sum = *sum * a + next_sum * b;
    for (int i = 0; i < dim; i += V) vf_store(o + i, vf_madd(vf_load(next_o + i), vf_set(b), vf_load(o + i) * vf_set(a)));
}

#define ATTENTION_TABLE(name)                                                                                                \
    const struct cpu_attention name = {                                                                                      \
        .prepare = attention_prepare, .scores = attention_scores, .softmax = attention_softmax, .values = attention_values,  \
        .merge = attention_merge,                                                                                            \
    }
