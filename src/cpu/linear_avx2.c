/* Affine products for AVX2: those of int8 inputs, and the same of bf16 inputs over codes widened to fp32, in the orders of
 * linear_avx512.c. */
#include "cpu/isa.h"
#include "cpu/linear_affine_avx2.h"

enum {
    FEW_ROWS = 4,
    WIDE_TILES = 4, /* of fp32 codes: 16 KiB for groups of 64 */
};

INLINE __m256 code_at(__m256i v, const int kk) { /* k = 4 s + kk of 8 columns */
    v = kk < 3 ? _mm256_and_si256(kk ? _mm256_srli_epi32(v, 8 * kk) : v, _mm256_set1_epi32(255)) : _mm256_srli_epi32(v, 24);
    return _mm256_cvtepi32_ps(v);
}

INLINE void few_bf16(const struct linear_call *c, const struct affine_shape *shape, int col, int row0, const int bits, const int R) {
    const int n_streams = c->apart ? STREAMS : 1;
    const uint8_t *in[STREAMS];
    const size_t ahead = (size_t)c->ahead.near;
    const uint16_t *x[FEW_ROWS];
    __m256 acc[STREAMS][FEW_ROWS][HALVES];
    for (int r = 0; r < R; r++) x[r] = call_bf16(c, row0 + r);
    for (int i = 0; i < n_streams; i++) {
        in[i] = affine_tile(c->w, shape, col + i * c->apart);
        for (int r = 0; r < R; r++) acc[i][r][0] = acc[i][r][1] = _mm256_setzero_ps();
    }
    for (int g = 0; g < shape->n_groups; g++) {
        float value[FEW_ROWS][4 * AFFINE_BLOCK], sum[FEW_ROWS] = {0};
        const int n = shape->group_blocks * AFFINE_BLOCK;
        for (int r = 0; r < R; r++)
            for (int k = 0; k < n; k++) value[r][k] = float_from_bf16(x[r][g * n + k]);
        for (int k = 0; k < n; k++)
            for (int r = 0; r < R; r++) sum[r] += value[r][k];
#pragma GCC unroll 1
        for (int i = 0; i < n_streams; i++) {
            __m256 t[FEW_ROWS][HALVES];
            for (int r = 0; r < R; r++) t[r][0] = t[r][1] = _mm256_setzero_ps();
            for (int k = 0; k < n; k += AFFINE_BLOCK, in[i] += shape->block_bytes) {
                for (int v = 0; v < bits; v++) prefetch(in[i] + v * 64, ahead);
#pragma GCC unroll 8
                for (int s = 0; s < 8; s++) {
                    __m256i v0 = unpack_step(in[i], bits, s, 0), v1 = unpack_step(in[i], bits, s, 1);
                    keep(&v0), keep(&v1);
#pragma GCC unroll 4
                    for (int kk = 0; kk < 4; kk++) {
                        __m256 low = code_at(v0, kk), high = code_at(v1, kk);
                        for (int r = 0; r < R; r++) {
                            __m256 b = _mm256_set1_ps(value[r][k + 4 * s + kk]);
                            t[r][0] = _mm256_fmadd_ps(low, b, t[r][0]), t[r][1] = _mm256_fmadd_ps(high, b, t[r][1]);
                        }
                    }
                }
            }
            prefetch(in[i], ahead);
            for (int h = 0; h < HALVES; h++) {
                __m256 scale = load_scales(in[i], shape->scale, h), bias = load_scales(in[i] + shape->scale_bytes, shape->scale, h);
                for (int r = 0; r < R; r++)
                    acc[i][r][h] = _mm256_fmadd_ps(bias, _mm256_set1_ps(sum[r]), _mm256_fmadd_ps(scale, t[r][h], acc[i][r][h]));
            }
            in[i] += 2 * shape->scale_bytes;
        }
    }
    for (int i = 0; i < n_streams; i++)
        for (int r = 0; r < R; r++) store_tile(c, call_y(c, row0 + r) + col + i * c->y_apart, col + i * c->apart, acc[i][r]);
}

INLINE void run_few_bf16(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    for (int col = col0; col < col1; col += AFFINE_TILE)
        for (int row = 0; row < c->n_rows; row += FEW_ROWS) {
            switch (c->n_rows - row) {
            case 1: few_bf16(c, &shape, col, row, bits, 1); break;
            case 2: few_bf16(c, &shape, col, row, bits, 2); break;
            case 3: few_bf16(c, &shape, col, row, bits, 3); break;
            default: few_bf16(c, &shape, col, row, bits, 4); break;
            }
        }
}

/* A group of 64 columns, its codes as fp32, then sums of all rows. */
struct wide_panel {
    __m256 values[WIDE_TILES][4 * AFFINE_BLOCK][HALVES], scale[WIDE_TILES][HALVES], bias[WIDE_TILES][HALVES];
    tile_acc acc[][WIDE_TILES]; /* [row] */
};

static size_t wide_panel_bytes(int n_rows, int n_in) {
    return (void)n_in, sizeof(struct wide_panel) + (size_t)n_rows * WIDE_TILES * sizeof(tile_acc);
}

INLINE void fill_wide(struct wide_panel *p, const struct affine_shape *shape, int i, const uint8_t *at, const int bits) {
    for (int k = 0; k < shape->group_blocks * AFFINE_BLOCK; k += AFFINE_BLOCK, at += shape->block_bytes) {
        for (int v = 0; v < bits; v++) prefetch(at + v * 64, shape->group_bytes);
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) {
                __m256i v = unpack_step(at, bits, s, h);
#pragma GCC unroll 4
                for (int kk = 0; kk < 4; kk++) p->values[i][k + 4 * s + kk][h] = code_at(v, kk);
            }
    }
    for (int h = 0; h < HALVES; h++)
        p->scale[i][h] = load_scales(at, shape->scale, h), p->bias[i][h] = load_scales(at + shape->scale_bytes, shape->scale, h);
}

/* R rows from row0 on against the n values from k0 on of each tile. */
INLINE void panel_bf16(const struct linear_call *c, struct wide_panel *p, int tiles, int k0, int n, int row0, const int R) {
    float x[SET_ROWS][4 * AFFINE_BLOCK], sum[SET_ROWS] = {0};
    for (int r = 0; r < R; r++) {
        const uint16_t *from = call_bf16(c, row0 + r) + k0;
        for (int k = 0; k < n; k++) x[r][k] = float_from_bf16(from[k]);
    }
    for (int k = 0; k < n; k++)
        for (int r = 0; r < R; r++) sum[r] += x[r][k];
    for (int i = 0; i < tiles; i++) {
        tile_acc(*acc)[WIDE_TILES] = p->acc + row0;
#define CLEAR(r) __m256 t##r##0 = _mm256_setzero_ps(), t##r##1 = t##r##0;
#define PRODUCT(r)                                                                                  \
    if (R > r) {                                                                                    \
        __m256 b = _mm256_set1_ps(x[r][k]);                                                         \
        t##r##0 = _mm256_fmadd_ps(a0, b, t##r##0), t##r##1 = _mm256_fmadd_ps(a1, b, t##r##1);       \
    }
#define ADD(r)                                                                                      \
    if (R > r) {                                                                                    \
        __m256 b = _mm256_set1_ps(sum[r]);                                                          \
        acc[r][i][0] = _mm256_fmadd_ps(p->bias[i][0], b, _mm256_fmadd_ps(p->scale[i][0], t##r##0, acc[r][i][0])); \
        acc[r][i][1] = _mm256_fmadd_ps(p->bias[i][1], b, _mm256_fmadd_ps(p->scale[i][1], t##r##1, acc[r][i][1])); \
    }
        TILE_ROWS(CLEAR)
#pragma GCC unroll 1
        for (int k = 0; k < n; k++) {
            __m256 a0 = p->values[i][k][0], a1 = p->values[i][k][1];
            TILE_ROWS(PRODUCT)
        }
        TILE_ROWS(ADD)
#undef CLEAR
#undef PRODUCT
#undef ADD
    }
}

static __attribute__((noinline)) void panel_rows_bf16(const struct linear_call *c, struct wide_panel *p, int tiles, int k0, int n) {
    for (int row = 0, m; row < c->n_rows; row += m) {
        m = rows_of_set(c->n_rows - row);
#define CALL(R) panel_bf16(c, p, tiles, k0, n, row, R)
        TILE_CASES(m, CALL)
#undef CALL
    }
}

INLINE void run_panel_bf16(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    struct wide_panel *p = c->scratch;
    int n = shape.group_blocks * AFFINE_BLOCK;
    for (int col = col0; col < col1; col += WIDE_TILES * AFFINE_TILE) {
        int left = (col1 - col + AFFINE_TILE - 1) / AFFINE_TILE, tiles = left < WIDE_TILES ? left : WIDE_TILES;
        memset(p->acc, 0, (size_t)c->n_rows * sizeof *p->acc);
        for (int g = 0; g < shape.n_groups; g++) {
            for (int i = 0; i < tiles; i++)
                fill_wide(p, &shape, i, affine_tile(c->w, &shape, col + i * AFFINE_TILE) + (size_t)g * shape.group_bytes, bits);
            panel_rows_bf16(c, p, tiles, g * n, n);
        }
        for (int r = 0; r < c->n_rows; r++)
            for (int i = 0; i < tiles; i++) store_tile(c, call_y(c, r) + col + i * AFFINE_TILE, col + i * AFFINE_TILE, p->acc[r][i]);
    }
}

#define KERNELS(BITS)                                                                                                            \
    FUNCTIONS_Q8(BITS)                                                                                                           \
    static void few_bf16_##BITS(const struct linear_call *c, int a, int b) { run_few_bf16(c, a, b, BITS); }                      \
    static void panel_bf16_##BITS(const struct linear_call *c, int a, int b) { run_panel_bf16(c, a, b, BITS); }                  \
    const struct linear_kernel cpu_affine##BITS##_avx2[4] = {                                                                    \
        KERNELS_Q8(BITS),                                                                                                        \
        KERNEL(BITS, FORM_BF16, bf16, few, 1, FEW_ROWS, FEW_ROWS, NULL),                                                         \
        KERNEL(BITS, FORM_BF16, bf16, panel, 5, INT_MAX, 0, wide_panel_bytes),                                                   \
    };
AFFINE_BITS(KERNELS)
