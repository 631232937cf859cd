/* Affine products for Armv8.2 with dot products. Lanes over columns, a tile of 16 columns in four registers; the orders are those of
 * linear_avx512.c, so that the bits are too.
 *
 * The dot product multiplies signed bytes: codes of up to 7 bits are that already; those of 8 bits go as code - 128, and 128 times the
 * sum of the inputs is added. */
#include <arm_neon.h>
#include <limits.h>

#include "cpu/isa.h"
#include "cpu/linear_affine.h"
#include "cpu/linear_call.h"

#define INLINE static inline __attribute__((always_inline))

enum { QUARTERS = 4, PANEL_BLOCKS = 8, ROWS = 4 };

/* Unpacked codes of PANEL_BLOCKS blocks of one tile, and the sums of all rows. */
struct panel {
    int8x16_t codes[PANEL_BLOCKS][8][QUARTERS];
    float32x4_t scale[PANEL_BLOCKS][QUARTERS], bias[PANEL_BLOCKS][QUARTERS]; /* [group of the panel] */
    float32x4_t acc[][QUARTERS];
};

static size_t panel_bytes(int n_rows, int n_in) { return (void)n_in, sizeof(struct panel) + (size_t)n_rows * QUARTERS * sizeof(float32x4_t); }

INLINE float32x4_t load_scales(const uint8_t *p, enum dtype t) {
    if (t == DTYPE_F32) return vreinterpretq_f32_u8(vld1q_u8(p));
    uint8x8_t h = vld1_u8(p);
    if (t == DTYPE_F16) return vcvt_f32_f16(vreinterpret_f16_u8(h));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(h), 16));
}

/* Positive counts shift to the left. */
INLINE uint8x16_t shift(uint8x16_t v, int left) { return vshlq_u8(v, vdupq_n_s8((int8_t)left)); }

INLINE void unpack(const uint8_t *in, const int bits, int8x16_t v[8][QUARTERS]) {
    const int main_bits = bits == 8 ? 8 : bits >= 4 ? 4 : 2, per = 8 / main_bits, more = bits - main_bits, per_more = more ? 8 / more : 1;
    for (int s = 0; s < 8; s++)
        for (int q = 0; q < QUARTERS; q++) {
            uint8x16_t code = shift(vld1q_u8(in + s / per * 64 + q * 16), -(s % per) * main_bits);
            if (bits == 8) code = veorq_u8(code, vdupq_n_u8(128));
            else code = vandq_u8(code, vdupq_n_u8((uint8_t)((1 << main_bits) - 1)));
            if (more) {
                uint8x16_t p = shift(vld1q_u8(in + main_bits * 64 + s / per_more * 64 + q * 16), main_bits - s % per_more * more);
                code = vorrq_u8(code, vandq_u8(p, vdupq_n_u8((uint8_t)(((1 << more) - 1) << main_bits))));
            }
            v[s][q] = vreinterpretq_s8_u8(code);
        }
}

/* DOT_MIDDLE, as bits, and the dots of one block with R rows; x[r] points to its 32 inputs. */
INLINE void dots(const int8x16_t (*v)[QUARTERS], const int8_t *const *x, const int bits, const int R, int32x4_t dot[ROWS][QUARTERS]) {
    int8x16_t in[ROWS][2];
    for (int r = 0; r < R; r++) {
        in[r][0] = vld1q_s8(x[r]), in[r][1] = vld1q_s8(x[r] + 16);
        int32x4_t start = vreinterpretq_s32_f32(vdupq_n_f32(DOT_MIDDLE));
        if (bits == 8) {
            int8x16_t one = vdupq_n_s8(1);
            start = vaddq_s32(start, vdupq_n_s32(128 * vaddvq_s32(vdotq_s32(vdotq_s32(vdupq_n_s32(0), in[r][0], one), in[r][1], one))));
        }
        for (int q = 0; q < QUARTERS; q++) dot[r][q] = start;
    }
#define STEP(s)                                                                                        \
    for (int q = 0; q < QUARTERS; q++) {                                                               \
        int8x16_t code = v[s][q];                                                                      \
        for (int r = 0; r < R; r++) dot[r][q] = vdotq_laneq_s32(dot[r][q], code, in[r][(s) / 4], (s) % 4); \
    }
    STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
#undef STEP
}

INLINE void end_group(struct panel *p, int g, int row, const float32x4_t *t, float sum) {
    for (int q = 0; q < QUARTERS; q++) {
        float32x4_t acc = vfmaq_f32(p->acc[row][q], p->scale[g][q], t[q]);
        p->acc[row][q] = vfmaq_f32(acc, p->bias[g][q], vdupq_n_f32(sum));
    }
}

INLINE void rows_q8(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row0, const int bits, const int R) {
    for (int g = 0, block = 0; g < n_groups; g++) {
        float32x4_t t[ROWS][QUARTERS];
        float sum[ROWS] = {0};
        for (int r = 0; r < R; r++)
            for (int q = 0; q < QUARTERS; q++) t[r][q] = vdupq_n_f32(dot_shift(call_q8_scale(c, row0 + r) + block0 + block, group_blocks));
        for (int b = 0; b < group_blocks; b++, block++) {
            int32x4_t dot[ROWS][QUARTERS];
            const int8_t *x[ROWS];
            for (int r = 0; r < R; r++) x[r] = call_q8(c, row0 + r) + (block0 + block) * AFFINE_BLOCK;
            dots(p->codes[block], x, bits, R, dot);
            for (int r = 0; r < R; r++) {
                float32x4_t scale = vdupq_n_f32(call_q8_scale(c, row0 + r)[block0 + block]);
                sum[r] += call_q8_sum(c, row0 + r)[block0 + block];
                for (int q = 0; q < QUARTERS; q++) t[r][q] = vfmaq_f32(t[r][q], vreinterpretq_f32_s32(dot[r][q]), scale);
            }
        }
        for (int r = 0; r < R; r++) end_group(p, g, row0 + r, t[r], sum[r]);
    }
}

INLINE float32x4_t code_at(int8x16_t v, const int kk, const int bits) {
    uint8x16_t u = bits == 8 ? veorq_u8(vreinterpretq_u8_s8(v), vdupq_n_u8(128)) : vreinterpretq_u8_s8(v);
    return vcvtq_f32_u32(vandq_u32(vshlq_u32(vreinterpretq_u32_u8(u), vdupq_n_s32(-8 * kk)), vdupq_n_u32(255)));
}

INLINE void rows_bf16(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row0, const int bits, const int R) {
    for (int g = 0, block = 0; g < n_groups; g++) {
        float32x4_t t[ROWS][QUARTERS];
        float sum[ROWS] = {0};
        for (int r = 0; r < R; r++)
            for (int q = 0; q < QUARTERS; q++) t[r][q] = vdupq_n_f32(0);
        for (int b = 0; b < group_blocks; b++, block++)
            for (int k = 0; k < AFFINE_BLOCK; k++) {
                float32x4_t code[QUARTERS];
                for (int q = 0; q < QUARTERS; q++) code[q] = code_at(p->codes[block][k / 4][q], k & 3, bits);
                for (int r = 0; r < R; r++) {
                    float value = float_from_bf16(call_bf16(c, row0 + r)[(block0 + block) * AFFINE_BLOCK + k]);
                    sum[r] += value;
                    for (int q = 0; q < QUARTERS; q++) t[r][q] = vfmaq_n_f32(t[r][q], code[q], value);
                }
            }
        for (int r = 0; r < R; r++) end_group(p, g, row0 + r, t[r], sum[r]);
    }
}

INLINE void some_rows(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row, const int bits,
                      const int form, const int R) {
    if (form == FORM_Q8) rows_q8(c, p, group_blocks, n_groups, block0, row, bits, R);
    else rows_bf16(c, p, group_blocks, n_groups, block0, row, bits, R);
}

INLINE void run_panel(const struct linear_call *c, int col0, int col1, const int bits, const int form) {
    struct affine_shape shape = affine_shape(c->w->source);
    struct panel *p = c->scratch;
    for (int col = col0; col < col1; col += AFFINE_TILE) {
        const uint8_t *in = affine_tile(c->w, &shape, col);
        for (int r = 0; r < c->n_rows; r++)
            for (int q = 0; q < QUARTERS; q++) p->acc[r][q] = vdupq_n_f32(0);
        for (int g0 = 0, most = PANEL_BLOCKS / shape.group_blocks; g0 < shape.n_groups; g0 += most) {
            int n = shape.n_groups - g0 < most ? shape.n_groups - g0 : most, row = 0, block0 = g0 * shape.group_blocks;
            for (int g = 0, block = 0; g < n; g++) {
                for (int b = 0; b < shape.group_blocks; b++, block++, in += shape.block_bytes) unpack(in, bits, p->codes[block]);
                for (int q = 0; q < QUARTERS; q++) {
                    size_t quarter = (size_t)q * shape.scale_bytes / 4;
                    p->scale[g][q] = load_scales(in + quarter, shape.scale);
                    p->bias[g][q] = load_scales(in + shape.scale_bytes + quarter, shape.scale);
                }
                in += 2 * shape.scale_bytes;
            }
            for (; row + ROWS <= c->n_rows; row += ROWS) some_rows(c, p, shape.group_blocks, n, block0, row, bits, form, ROWS);
            for (; row < c->n_rows; row++) some_rows(c, p, shape.group_blocks, n, block0, row, bits, form, 1);
        }
        int n = c->w->n_out - col < AFFINE_TILE ? c->w->n_out - col : AFFINE_TILE;
        for (int r = 0; r < c->n_rows; r++) call_store(c, r, col, n, (const float *)(const void *)p->acc[r]);
    }
}

#define KERNEL(BITS, FORM, form_)                                                                                              \
    {.name = "affine" #BITS " " #form_, .repr = "affine", .bits = BITS, .layout = &cpu_layout_affine,                          \
     .arithmetic = "fma codes by " #form_, .form = FORM, .min_rows = 1, .max_rows = INT_MAX, .tile = AFFINE_TILE,              \
     .scratch_bytes = panel_bytes, .run = form_##_##BITS}
#define KERNELS(BITS)                                                                                                          \
    static void q8_##BITS(const struct linear_call *c, int a, int b) { run_panel(c, a, b, BITS, FORM_Q8); }                    \
    static void bf16_##BITS(const struct linear_call *c, int a, int b) { run_panel(c, a, b, BITS, FORM_BF16); }                \
    const struct linear_kernel cpu_affine##BITS##_neon[2] = {KERNEL(BITS, FORM_Q8, q8), KERNEL(BITS, FORM_BF16, bf16)};
AFFINE_BITS(KERNELS)
