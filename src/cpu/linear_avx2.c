/* Affine products for AVX2. Lanes over columns, a tile of 16 columns in two registers; the orders are those of linear_avx512.c,
 * so that the bits are too.
 *
 * Dots of int8 inputs: vpmaddubsw gives sums of two products in 16 bits, added up there over as many steps as fit (4-bit codes: all
 * eight; 5: four; 6: two), then widened. 8-bit codes would saturate and go as two halves of 4 bits. */
#include <immintrin.h>
#include <limits.h>

#include "cpu/isa.h"
#include "cpu/linear_affine.h"
#include "cpu/linear_call.h"

#define INLINE static inline __attribute__((always_inline))

enum { HALVES = 2, PANEL_BLOCKS = 8, ROWS = 4, AHEAD_BYTES = 256 };

/* Unpacked codes of PANEL_BLOCKS blocks of one tile, and the sums of all rows. */
struct panel {
    __m256i codes[PANEL_BLOCKS][8][HALVES];
    __m256 scale[PANEL_BLOCKS][HALVES], bias[PANEL_BLOCKS][HALVES]; /* [group of the panel] */
    __m256 acc[][HALVES];
};

static size_t panel_bytes(int n_rows, int n_in) { return (void)n_in, sizeof(struct panel) + (size_t)n_rows * HALVES * sizeof(__m256); }

INLINE __m256 load_scales(const uint8_t *p, enum dtype t) {
    if (t == DTYPE_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i h = _mm_loadu_si128((const void *)p);
    if (t == DTYPE_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const void *)p); }

INLINE __m256i shift(__m256i v, const int left) {
    return left > 0 ? _mm256_slli_epi16(v, left) : left < 0 ? _mm256_srli_epi16(v, -left) : v;
}

INLINE void unpack(const uint8_t *in, const int bits, __m256i v[8][HALVES]) {
    for (int i = 0; i < bits; i++) _mm_prefetch((const char *)((uintptr_t)in + (size_t)i * 64 + AHEAD_BYTES), _MM_HINT_T0);
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++, in += 32) {
        const int main_bits = bits == 8 ? 8 : bits >= 4 ? 4 : 2, per = 8 / main_bits;
        __m256i mask = _mm256_set1_epi8((char)((1 << main_bits) - 1));
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++)
            v[s][h] = _mm256_and_si256(shift(load(in + s / per * 64), -(s % per) * main_bits), mask);
        if (bits == main_bits) continue;
        const int more = bits - main_bits, per_more = 8 / more;
        __m256i mask_more = _mm256_set1_epi8((char)(((1 << more) - 1) << main_bits));
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++) {
            __m256i p = load(in + main_bits * 64 + s / per_more * 64);
            v[s][h] = _mm256_or_si256(v[s][h], _mm256_and_si256(shift(p, main_bits - s % per_more * more), mask_more));
        }
    }
}

INLINE __m256i four_inputs(const int8_t *x) { return _mm256_set1_epi32((int32_t)load_u32(x)); }
INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/* `start` and the dots of one block with R rows. `steps`: how many sums of two products fit 16 bits. */
INLINE void dots(const __m256i (*v)[HALVES], const int8_t *const *x, int at, const int steps, const int low_half, const int R, __m256i start,
                 __m256i dot[ROWS][HALVES]) {
    const __m256i m4 = _mm256_set1_epi8(15);
    for (int r = 0; r < R; r++) dot[r][0] = dot[r][1] = start;
#pragma GCC unroll 8
    for (int s0 = 0; s0 < 8; s0 += steps) {
        __m256i sum[ROWS][HALVES];
        for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int s = s0; s < s0 + steps; s++) {
            __m256i a = v[s][0], b = v[s][1];
            if (low_half == 1) a = _mm256_and_si256(a, m4), b = _mm256_and_si256(b, m4);
            if (low_half == 0) a = _mm256_and_si256(_mm256_srli_epi16(a, 4), m4), b = _mm256_and_si256(_mm256_srli_epi16(b, 4), m4);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m256i four = four_inputs(x[r] + at + 4 * s);
                sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(a, four));
                sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(b, four));
            }
        }
        for (int r = 0; r < R; r++)
            for (int h = 0; h < HALVES; h++) dot[r][h] = _mm256_add_epi32(dot[r][h], widen(sum[r][h]));
    }
}

INLINE void rows_q8(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row0, const int bits, const int R) {
    const __m256i middle = _mm256_castps_si256(_mm256_set1_ps(DOT_MIDDLE));
    const int8_t *x[ROWS];
    for (int r = 0; r < R; r++) x[r] = call_q8(c, row0 + r) + block0 * AFFINE_BLOCK;
    for (int g = 0, block = 0; g < n_groups; g++) {
        __m256 t[ROWS][HALVES];
        float sum[ROWS] = {0};
        for (int r = 0; r < R; r++) t[r][0] = t[r][1] = _mm256_set1_ps(dot_shift(call_q8_scale(c, row0 + r) + block0 + block, group_blocks));
        for (int b = 0; b < group_blocks; b++, block++) {
            __m256i dot[ROWS][HALVES];
            int at = block * AFFINE_BLOCK;
            if (bits == 8) {
                __m256i high[ROWS][HALVES];
                dots(p->codes[block], x, at, 8, 1, R, middle, dot), dots(p->codes[block], x, at, 8, 0, R, _mm256_setzero_si256(), high);
                for (int r = 0; r < R; r++)
                    for (int h = 0; h < HALVES; h++) dot[r][h] = _mm256_add_epi32(dot[r][h], _mm256_slli_epi32(high[r][h], 4));
            } else {
                dots(p->codes[block], x, at, bits <= 4 ? 8 : bits == 5 ? 4 : 2, -1, R, middle, dot);
            }
            for (int r = 0; r < R; r++) {
                __m256 scale = _mm256_set1_ps(call_q8_scale(c, row0 + r)[block0 + block]);
                sum[r] += call_q8_sum(c, row0 + r)[block0 + block];
                for (int h = 0; h < HALVES; h++) t[r][h] = _mm256_fmadd_ps(_mm256_castsi256_ps(dot[r][h]), scale, t[r][h]);
            }
        }
        for (int r = 0; r < R; r++)
            for (int h = 0; h < HALVES; h++) {
                __m256 acc = _mm256_fmadd_ps(p->scale[g][h], t[r][h], p->acc[row0 + r][h]);
                p->acc[row0 + r][h] = _mm256_fmadd_ps(p->bias[g][h], _mm256_set1_ps(sum[r]), acc);
            }
    }
}

INLINE __m256 code_at(__m256i v, const int kk) {
    v = kk < 3 ? _mm256_and_si256(kk ? _mm256_srli_epi32(v, 8 * kk) : v, _mm256_set1_epi32(255)) : _mm256_srli_epi32(v, 24);
    return _mm256_cvtepi32_ps(v);
}

INLINE void rows_bf16(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row0, const int R) {
    const uint16_t *x[ROWS];
    for (int r = 0; r < R; r++) x[r] = call_bf16(c, row0 + r) + block0 * AFFINE_BLOCK;
    for (int g = 0, block = 0; g < n_groups; g++) {
        __m256 t[ROWS][HALVES];
        float sum[ROWS] = {0};
        for (int r = 0; r < R; r++) t[r][0] = t[r][1] = _mm256_setzero_ps();
        for (int b = 0; b < group_blocks; b++, block++) {
            for (int s = 0; s < 8; s++) {
#pragma GCC unroll 4
                for (int kk = 0; kk < 4; kk++) {
                    __m256 low = code_at(p->codes[block][s][0], kk), high = code_at(p->codes[block][s][1], kk);
                    for (int r = 0; r < R; r++) {
                        float value = float_from_bf16(x[r][block * AFFINE_BLOCK + 4 * s + kk]);
                        sum[r] += value;
                        t[r][0] = _mm256_fmadd_ps(low, _mm256_set1_ps(value), t[r][0]);
                        t[r][1] = _mm256_fmadd_ps(high, _mm256_set1_ps(value), t[r][1]);
                    }
                }
            }
        }
        for (int r = 0; r < R; r++)
            for (int h = 0; h < HALVES; h++) {
                __m256 acc = _mm256_fmadd_ps(p->scale[g][h], t[r][h], p->acc[row0 + r][h]);
                p->acc[row0 + r][h] = _mm256_fmadd_ps(p->bias[g][h], _mm256_set1_ps(sum[r]), acc);
            }
    }
}

INLINE void some_rows(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row, const int bits,
                      const int form, const int R) {
    if (form == FORM_Q8) rows_q8(c, p, group_blocks, n_groups, block0, row, bits, R);
    else rows_bf16(c, p, group_blocks, n_groups, block0, row, R);
}

INLINE void run_panel(const struct linear_call *c, int col0, int col1, const int bits, const int form) {
    struct affine_shape shape = affine_shape(c->w->source);
    struct panel *p = c->scratch;
    for (int col = col0; col < col1; col += AFFINE_TILE) {
        const uint8_t *in = affine_tile(c->w, &shape, col);
        for (int r = 0; r < c->n_rows; r++) p->acc[r][0] = p->acc[r][1] = _mm256_setzero_ps();
        for (int g0 = 0, most = PANEL_BLOCKS / shape.group_blocks; g0 < shape.n_groups; g0 += most) {
            int n = shape.n_groups - g0 < most ? shape.n_groups - g0 : most, row = 0, block0 = g0 * shape.group_blocks;
            for (int g = 0, block = 0; g < n; g++) {
                for (int b = 0; b < shape.group_blocks; b++, block++, in += shape.block_bytes) unpack(in, bits, p->codes[block]);
                for (int h = 0; h < HALVES; h++) {
                    size_t half = (size_t)h * shape.scale_bytes / 2;
                    p->scale[g][h] = load_scales(in + half, shape.scale), p->bias[g][h] = load_scales(in + shape.scale_bytes + half, shape.scale);
                }
                in += 2 * shape.scale_bytes;
            }
            for (; row + ROWS <= c->n_rows; row += ROWS) some_rows(c, p, shape.group_blocks, n, block0, row, bits, form, ROWS);
            switch (c->n_rows - row) {
            case 1: some_rows(c, p, shape.group_blocks, n, block0, row, bits, form, 1); break;
            case 2: some_rows(c, p, shape.group_blocks, n, block0, row, bits, form, 2); break;
            case 3: some_rows(c, p, shape.group_blocks, n, block0, row, bits, form, 3); break;
            }
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
    const struct linear_kernel cpu_affine##BITS##_avx2[2] = {KERNEL(BITS, FORM_Q8, q8), KERNEL(BITS, FORM_BF16, bf16)};
KERNELS(2)
KERNELS(3)
KERNELS(4)
KERNELS(5)
KERNELS(6)
KERNELS(8)
