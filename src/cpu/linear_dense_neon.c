/* Dense products for NEON, in place, lanes over k.
 *
 * Order, per row and column: eight sums by FMA in two registers. Element k goes to sum k mod 8, ascending, for every type of weight;
 * the 8 sums are added as a tree of distances 4, 2, 1. A tail is filled up with zeros. Four columns are read at once, one of each stream,
 * for up to two rows of inputs; what is in cache after the first two serves the others. */
#include <arm_neon.h>
#include <limits.h>

#include "cpu/isa.h"
#include "cpu/linear_call.h"

#define INLINE static inline __attribute__((always_inline))

enum dense_kind { DENSE_F32, DENSE_F16, DENSE_BF16, DENSE_ANY };
enum { COLUMN_TILE = 4, STEP = 8 };

struct eight { float32x4_t low, high; };

/* Eight bf16 values. */
INLINE struct eight widen(uint16x8_t h) {
    return (struct eight){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}
INLINE struct eight load_floats(const uint8_t *p) {
    return (struct eight){vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))};
}

/* n elements (eight, or what is left) of a weight row at p. */
INLINE struct eight load_weight(const int kind, const uint8_t *p, int n) {
    const size_t size = kind == DENSE_F32 || kind == DENSE_ANY ? 4 : 2;
    uint8_t tail[32] = {0};
    if (n < STEP) memcpy(tail, p, (size_t)n * size), p = tail;
    if (size == 4) return load_floats(p);
    uint8x16_t h = vld1q_u8(p);
    if (kind == DENSE_BF16) return widen(vreinterpretq_u16_u8(h));
    return (struct eight){vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u8(h))), vcvt_high_f32_f16(vreinterpretq_f16_u8(h))};
}

/* The inputs that go with it, from element k on; bf16 rows have zeros behind them. */
INLINE struct eight load_input(const int kind, const struct linear_call *c, int row, int k, int n) {
    if (kind == DENSE_BF16) return widen(vld1q_u16(call_bf16(c, row) + k));
    const float *from = call_f32(c, row) + k;
    float tail[STEP] = {0};
    if (n < STEP) memcpy(tail, from, (size_t)n * sizeof *tail), from = tail;
    return load_floats((const uint8_t *)from);
}

INLINE float tree(struct eight v) {
    float32x4_t a = vaddq_f32(v.low, v.high);
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

/* Column col of C streams, at w, w + stride ..., for R rows. */
INLINE void stream_tile(const int kind, const struct linear_call *c, const uint8_t *w, size_t stride, int col, int row0, const int C,
                        const int R) {
    const int n_in = c->w->n_in;
    const size_t size = kind == DENSE_F32 || kind == DENSE_ANY ? 4 : 2;
    struct eight sum[2][COLUMN_TILE] = {{{vdupq_n_f32(0), vdupq_n_f32(0)}}};
    for (int k = 0; k < n_in; k += STEP) {
        struct eight x[2];
        for (int r = 0; r < R; r++) x[r] = load_input(kind, c, row0 + r, k, n_in - k);
        for (int i = 0; i < C; i++) {
            struct eight a = load_weight(kind, w + (size_t)i * stride + (size_t)k * size, n_in - k);
            for (int r = 0; r < R; r++) {
                sum[r][i].low = vfmaq_f32(sum[r][i].low, a.low, x[r].low);
                sum[r][i].high = vfmaq_f32(sum[r][i].high, a.high, x[r].high);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int i = 0; i < C; i++) {
            float result = tree(sum[r][i]);
            call_store(c, row0 + r, col + i * (int)c->y_apart, 1, &result);
        }
}

INLINE void stream_rows(const int kind, const struct linear_call *c, const uint8_t *w, size_t stride, int col, const int C) {
    int row = 0;
    for (; row + 2 <= c->n_rows; row += 2) stream_tile(kind, c, w, stride, col, row, C, 2);
    if (row < c->n_rows) stream_tile(kind, c, w, stride, col, row, C, 1);
}

INLINE void run_stream(const int kind, const struct linear_call *c, int col0, int col1) {
    const struct weight *w = c->w->source;
    for (int col = col0; col < col1; col++) {
        const uint8_t *from = w->data + (size_t)col * w->row_bytes;
        if (kind == DENSE_ANY) weight_decode(w, col, c->scratch), from = c->scratch;
        if (c->apart) stream_rows(kind, c, from, (size_t)c->apart * w->row_bytes, col, STREAMS);
        else stream_rows(kind, c, from, 0, col, 1);
    }
}

static size_t one_column(int n_rows, int n_in) { return (void)n_rows, (size_t)n_in * sizeof(float); }

#define DENSE_KERNEL(name_, repr_, kind, form_, arithmetic_, scratch)                                                          \
    static void stream_##name_(const struct linear_call *c, int a, int b) { run_stream(kind, c, a, b); }                       \
    const struct linear_kernel cpu_##name_##_neon = {                                                                          \
        .name = #name_ " stream", .repr = repr_, .arithmetic = arithmetic_, .form = form_, .min_rows = 1, .max_rows = INT_MAX, \
        .tile = 1, .stream_rows = kind == DENSE_ANY ? 0 : INT_MAX, .scratch_bytes = scratch, .run = stream_##name_};
DENSE_KERNEL(f32, "f32", DENSE_F32, FORM_F32, "neon fp32", NULL)
DENSE_KERNEL(f16, "f16", DENSE_F16, FORM_F32, "neon fp32", NULL)
DENSE_KERNEL(bf16, "bf16", DENSE_BF16, FORM_BF16, "neon bf16 by fp32", NULL)
DENSE_KERNEL(any, NULL, DENSE_ANY, FORM_F32, "neon fp32", one_column)
