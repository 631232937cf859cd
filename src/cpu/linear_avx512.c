/* Affine products for AVX-512 with VNNI. Lanes over 16 columns.
 *
 * Order with int8 inputs, per row and column: for each group, t = 0, then for each of its blocks of 32 k t = fma(exact dot, scale of
 * the block, t); acc = fma(s, t, acc); acc = fma(b, sum of the blocks' q8_sum, acc). With bf16 inputs: t = fma(code, x, t) over
 * the group's k in order, the sum of x likewise, then the same.
 *
 * "stream" kernels unpack in registers and read four tiles at once: four streams are read faster than one. "panel" kernels
 * unpack PANEL_BLOCKS x 64 columns once into L1 and use them for every row of the call. */
#include <immintrin.h>
#include <limits.h>

#include "cpu/isa.h"
#include "cpu/linear_affine.h"
#include "cpu/linear_call.h"
#include "cpu/linear_tile_avx512.h"

enum {
    STREAMS = 4,        /* tiles side by side */
    AHEAD_BYTES = 1536, /* prefetch distance of a stream */
    PANEL_BLOCKS = 8,   /* 8 blocks x 64 columns: 16 KiB of codes */
    DOT_ROWS = 3,       /* 3 rows x 4 tiles: 12 dots and their 12 scaled sums in registers */
    FMA_ROWS = 6,       /* 6 rows x 4 tiles of fp32 sums */
};

/* 16 scales or biases as fp32. */
INLINE __m512 load_scales(const uint8_t *p, enum dtype t) {
    if (t == DTYPE_F32) return _mm512_loadu_ps(p);
    __m256i h = _mm256_loadu_si256((const void *)p);
    if (t == DTYPE_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void prefetch(const void *p, size_t ahead) { _mm_prefetch((const char *)((uintptr_t)p + ahead), _MM_HINT_T0); }

/* The eight vectors of a block; `ahead` bytes behind are asked for. */
INLINE void unpack(const uint8_t *in, const int bits, size_t ahead, __m512i v[8]) {
    const __m512i m4 = _mm512_set1_epi8(15), m2 = _mm512_set1_epi8(3);
    for (int i = 0; i < bits; i++) prefetch(in + i * 64, ahead);
    if (bits == 8) {
        for (int s = 0; s < 8; s++) v[s] = _mm512_loadu_si512(in + s * 64);
        return;
    }
    if (bits >= 4) {
        for (int i = 0; i < 4; i++) {
            __m512i p = _mm512_loadu_si512(in + i * 64);
            v[2 * i] = _mm512_and_si512(p, m4), v[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(p, 4), m4);
        }
        in += 256;
    } else {
        for (int i = 0; i < 2; i++) {
            __m512i p = _mm512_loadu_si512(in + i * 64);
            for (int j = 0; j < 4; j++) v[4 * i + j] = _mm512_and_si512(j ? _mm512_srli_epi16(p, (unsigned)(2 * j)) : p, m2);
        }
        in += 128;
    }
    if (bits == 6) {
        for (int s = 0; s < 8; s++) { /* two bits of plane s / 4 to bits 4 and 5 */
            __m512i p = _mm512_loadu_si512(in + s / 4 * 64);
            int to = 4 - s % 4 * 2;
            p = to > 0 ? _mm512_slli_epi16(p, (unsigned)to) : to < 0 ? _mm512_srli_epi16(p, (unsigned)-to) : p;
            v[s] = _mm512_ternarylogic_epi32(v[s], p, _mm512_set1_epi8(0x30), 0xf8); /* v | (p & mask) */
        }
    }
    if (bits == 5 || bits == 3) {
        const int bit = bits - 1;
        __m512i p = _mm512_loadu_si512(in);
        for (int s = 0; s < 8; s++) {
            __m512i q = bit > s ? _mm512_slli_epi16(p, (unsigned)(bit - s)) : bit < s ? _mm512_srli_epi16(p, (unsigned)(s - bit)) : p;
            v[s] = _mm512_ternarylogic_epi32(v[s], q, _mm512_set1_epi8((char)(1 << bit)), 0xf8);
        }
    }
}

INLINE __m512i four_inputs(const int8_t *x) { return _mm512_set1_epi32((int32_t)load_u32(x)); }

INLINE void store_tile(const struct linear_call *c, int row, int col, __m512 v) {
    int n = c->w->n_out - col;
    __mmask16 m = n >= AFFINE_TILE ? 0xffff : (__mmask16)((1u << n) - 1);
    float *y = call_y(c, row) + col;
    if (c->accumulate) v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), v);
    _mm512_mask_storeu_ps(y, m, v);
}

/* C tiles from column col on, R rows from row0 on. */
INLINE void stream_q8(const struct linear_call *c, const struct affine_shape *shape, int col, int row0, const int bits, const int C,
                      const int R) {
    const uint8_t *in[STREAMS];
    const int8_t *x[4];
    const float *x_scale[4], *x_sum[4];
    __m512 acc[STREAMS][4], t[STREAMS][4], sum[4];
    for (int r = 0; r < R; r++) x[r] = call_q8(c, row0 + r), x_scale[r] = call_q8_scale(c, row0 + r), x_sum[r] = call_q8_sum(c, row0 + r);
    for (int i = 0; i < C; i++) {
        in[i] = affine_tile(c->w, shape, col + i * AFFINE_TILE);
        for (int r = 0; r < R; r++) acc[i][r] = _mm512_setzero_ps();
    }
    for (int g = 0, block = 0; g < shape->n_groups; g++) {
        size_t left = (size_t)(shape->n_groups - g) * shape->group_bytes; /* at the end, ask for the tile this stream reads next */
        size_t ahead = left > AHEAD_BYTES ? AHEAD_BYTES : AHEAD_BYTES + (size_t)(C - 1) * shape->tile_bytes;
        for (int i = 0; i < C; i++)
            for (int r = 0; r < R; r++) t[i][r] = _mm512_setzero_ps();
        for (int r = 0; r < R; r++) sum[r] = _mm512_setzero_ps();
        for (int b = 0; b < shape->group_blocks; b++, block++) {
            __m512i xb[8];
            if (R == 1)
                for (int s = 0; s < 8; s++) xb[s] = four_inputs(x[0] + block * AFFINE_BLOCK + 4 * s);
            for (int i = 0; i < C; i++) {
                __m512i v[8];
                unpack(in[i], bits, ahead, v);
                in[i] += shape->block_bytes;
                for (int r = 0; r < R; r++) {
                    __m512i dot = _mm512_setzero_si512();
                    for (int s = 0; s < 8; s++)
                        dot_bytes(&dot, v[s], R == 1 ? xb[s] : four_inputs(x[r] + block * AFFINE_BLOCK + 4 * s));
                    t[i][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_set1_ps(x_scale[r][block]), t[i][r]);
                }
            }
            for (int r = 0; r < R; r++) sum[r] = _mm512_add_ps(sum[r], _mm512_set1_ps(x_sum[r][block]));
        }
        for (int i = 0; i < C; i++) {
            __m512 scale = load_scales(in[i], shape->scale), bias = load_scales(in[i] + shape->scale_bytes, shape->scale);
            prefetch(in[i], ahead);
            in[i] += 2 * shape->scale_bytes;
            for (int r = 0; r < R; r++) {
                acc[i][r] = _mm512_fmadd_ps(scale, t[i][r], acc[i][r]);
                acc[i][r] = _mm512_fmadd_ps(bias, sum[r], acc[i][r]);
            }
        }
    }
    for (int i = 0; i < C; i++)
        for (int r = 0; r < R; r++) store_tile(c, row0 + r, col + i * AFFINE_TILE, acc[i][r]);
}

INLINE void stream_rows_q8(const struct linear_call *c, const struct affine_shape *shape, int col, const int bits, const int C) {
    for (int row = 0; row < c->n_rows; row += 4) {
        switch (c->n_rows - row) {
        case 1: stream_q8(c, shape, col, row, bits, C, 1); break;
        case 2: stream_q8(c, shape, col, row, bits, C, 2); break;
        case 3: stream_q8(c, shape, col, row, bits, C, 3); break;
        default: stream_q8(c, shape, col, row, bits, C, 4); break;
        }
    }
}

INLINE void run_stream_q8(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    int col = col0;
    for (; col1 - col > (STREAMS - 1) * AFFINE_TILE; col += STREAMS * AFFINE_TILE) stream_rows_q8(c, &shape, col, bits, STREAMS);
    for (; col < col1; col += AFFINE_TILE) stream_rows_q8(c, &shape, col, bits, 1);
}

/* Unpacked codes and scales of PANEL_BLOCKS blocks of 64 columns, then sums of all rows. */
struct panel {
    __m512i codes[PANEL_BLOCKS][8][STREAMS];
    __m512 scale[PANEL_BLOCKS][STREAMS], bias[PANEL_BLOCKS][STREAMS]; /* [group of the panel] */
    struct panel_row { __m512 acc[STREAMS]; float x_sum[16]; } row[]; /* x_sum: of each group of the panel */
};

static size_t panel_bytes(int n_rows, int n_in) { return (void)n_in, sizeof(struct panel) + (size_t)n_rows * sizeof(struct panel_row); }

INLINE void fill_panel(struct panel *p, const struct affine_shape *shape, const uint8_t **in, int n_tiles, int n_groups, const int bits) {
    size_t ahead = (size_t)n_groups * shape->group_bytes; /* the same place of the next panel */
    for (int i = 0; i < n_tiles; i++) {
        const uint8_t *at = in[i];
        for (int g = 0, block = 0; g < n_groups; g++) {
            for (int b = 0; b < shape->group_blocks; b++, block++, at += shape->block_bytes) {
                __m512i v[8];
                unpack(at, bits, ahead, v);
                for (int s = 0; s < 8; s++) p->codes[block][s][i] = v[s];
            }
            p->scale[g][i] = load_scales(at, shape->scale), p->bias[g][i] = load_scales(at + shape->scale_bytes, shape->scale);
            at += 2 * shape->scale_bytes;
        }
        in[i] = at;
    }
}

/* R rows from row0 on against the panel, whose first block is block0. */
INLINE void panel_q8(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row0, const int R) {
    const int8_t *x[DOT_ROWS];
    const float *x_scale[DOT_ROWS];
    struct panel_row *row = p->row + row0;
    for (int r = 0; r < R; r++) {
        x[r] = call_q8(c, row0 + r) + block0 * AFFINE_BLOCK, x_scale[r] = call_q8_scale(c, row0 + r) + block0;
        const float *sum = call_q8_sum(c, row0 + r) + block0;
        for (int g = 0; g < n_groups; g++) {
            row[r].x_sum[g] = 0;
            for (int b = 0; b < group_blocks; b++) row[r].x_sum[g] += *sum++;
        }
    }
#define DOT(r, i) dot_bytes(&d##r##i, v##i, four);
#define ROW(r)                                                               \
    if (R > r) {                                                             \
        __m512i four = four_inputs(x[r] + block * AFFINE_BLOCK + 4 * s);     \
        TILE_VECTORS(DOT, r)                                                 \
    }
#define DECLARE_SUM(r, i) __m512 t##r##i = _mm512_setzero_ps();
#define DECLARE_DOT(r, i) __m512i d##r##i = _mm512_setzero_si512();
#define SCALE(r, i) \
    if (R > r) t##r##i = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d##r##i), _mm512_set1_ps(x_scale[r][block]), t##r##i);
#define ADD(r, i)                                                            \
    if (R > r) {                                                             \
        __m512 acc = _mm512_fmadd_ps(p->scale[g][i], t##r##i, row[r].acc[i]);                   \
        row[r].acc[i] = _mm512_fmadd_ps(p->bias[g][i], _mm512_set1_ps(row[r].x_sum[g]), acc);   \
    }
#define ALL(M) TILE_VECTORS(M, 0) TILE_VECTORS(M, 1) TILE_VECTORS(M, 2)
    for (int g = 0, block = 0; g < n_groups; g++) {
        ALL(DECLARE_SUM)
        for (int end = block + group_blocks; block < end; block++) {
            const __m512i(*codes)[STREAMS] = p->codes[block];
            ALL(DECLARE_DOT)
#pragma GCC unroll 4
            for (int s = 0; s < 8; s++) {
                __m512i v0 = codes[s][0], v1 = codes[s][1], v2 = codes[s][2], v3 = codes[s][3];
                keep(&v0), keep(&v1), keep(&v2), keep(&v3);
                ROW(0) ROW(1) ROW(2)
            }
            ALL(SCALE)
        }
        ALL(ADD)
    }
#undef DOT
#undef ROW
#undef DECLARE_SUM
#undef DECLARE_DOT
#undef SCALE
#undef ADD
#undef ALL
}

INLINE void panel_all_rows_q8(const struct linear_call *c, struct panel *p, const int group_blocks, int n_groups, int block0) {
    int row = 0;
    for (; row + DOT_ROWS <= c->n_rows; row += DOT_ROWS) panel_q8(c, p, group_blocks, n_groups, block0, row, DOT_ROWS);
    if (c->n_rows - row == 2) panel_q8(c, p, group_blocks, n_groups, block0, row, 2);
    if (c->n_rows - row == 1) panel_q8(c, p, group_blocks, n_groups, block0, row, 1);
}

static __attribute__((noinline)) void panel_rows_q8(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0) {
    if (group_blocks == 1) panel_all_rows_q8(c, p, 1, n_groups, block0);
    else if (group_blocks == 2) panel_all_rows_q8(c, p, 2, n_groups, block0);
    else panel_all_rows_q8(c, p, 4, n_groups, block0);
}

/* The loop over panels of one set of columns, for any input form. */
typedef void panel_rows(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0);

INLINE void run_panel(const struct linear_call *c, int col0, int col1, const int bits, panel_rows *rows) {
    struct affine_shape shape = affine_shape(c->w->source);
    struct panel *p = c->scratch;
    for (int col = col0; col < col1; col += STREAMS * AFFINE_TILE) {
        int tiles = (col1 - col + AFFINE_TILE - 1) / AFFINE_TILE;
        if (tiles > STREAMS) tiles = STREAMS;
        const uint8_t *in[STREAMS];
        for (int i = 0; i < tiles; i++) in[i] = affine_tile(c->w, &shape, col + i * AFFINE_TILE);
        for (int r = 0; r < c->n_rows; r++)
            for (int i = 0; i < STREAMS; i++) p->row[r].acc[i] = _mm512_setzero_ps();
        int most = PANEL_BLOCKS / shape.group_blocks;
        for (int g = 0; g < shape.n_groups; g += most) {
            int n = shape.n_groups - g < most ? shape.n_groups - g : most;
            fill_panel(p, &shape, in, tiles, n, bits);
            rows(c, p, shape.group_blocks, n, g * shape.group_blocks);
        }
        for (int r = 0; r < c->n_rows; r++)
            for (int i = 0; i < tiles; i++) store_tile(c, r, col + i * AFFINE_TILE, p->row[r].acc[i]);
    }
}

/* bf16 inputs: the same over codes widened to fp32. */
INLINE __m512 code_at(const __m512i *v, int kk) { /* k = 4 s + kk of the 16 columns */
    __m512i q = kk < 3 ? _mm512_and_si512(kk ? _mm512_srli_epi32(*v, (unsigned)(8 * kk)) : *v, _mm512_set1_epi32(255)) : _mm512_srli_epi32(*v, 24);
    return _mm512_cvtepi32_ps(q);
}

INLINE void stream_bf16(const struct linear_call *c, const struct affine_shape *shape, int col, int row, const int bits, const int C) {
    const uint8_t *in[STREAMS];
    const uint16_t *x = call_bf16(c, row);
    __m512 acc[STREAMS];
    for (int i = 0; i < C; i++) in[i] = affine_tile(c->w, shape, col + i * AFFINE_TILE), acc[i] = _mm512_setzero_ps();
    for (int g = 0, block = 0; g < shape->n_groups; g++) {
        size_t left = (size_t)(shape->n_groups - g) * shape->group_bytes;
        size_t ahead = left > AHEAD_BYTES ? AHEAD_BYTES : AHEAD_BYTES + (size_t)(C - 1) * shape->tile_bytes;
        __m512 t[STREAMS];
        float sum = 0;
        for (int i = 0; i < C; i++) t[i] = _mm512_setzero_ps();
        for (int b = 0; b < shape->group_blocks; b++, block++) {
            __m512i v[STREAMS][8];
            for (int i = 0; i < C; i++) unpack(in[i], bits, ahead, v[i]), in[i] += shape->block_bytes;
            for (int k = 0; k < AFFINE_BLOCK; k++) {
                float value = float_from_bf16(x[block * AFFINE_BLOCK + k]);
                sum += value;
                for (int i = 0; i < C; i++) t[i] = _mm512_fmadd_ps(code_at(&v[i][k / 4], k & 3), _mm512_set1_ps(value), t[i]);
            }
        }
        for (int i = 0; i < C; i++) {
            acc[i] = _mm512_fmadd_ps(load_scales(in[i], shape->scale), t[i], acc[i]);
            acc[i] = _mm512_fmadd_ps(load_scales(in[i] + shape->scale_bytes, shape->scale), _mm512_set1_ps(sum), acc[i]);
            in[i] += 2 * shape->scale_bytes;
        }
    }
    for (int i = 0; i < C; i++) store_tile(c, row, col + i * AFFINE_TILE, acc[i]);
}

INLINE void run_stream_bf16(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    int col = col0;
    for (; col1 - col > (STREAMS - 1) * AFFINE_TILE; col += STREAMS * AFFINE_TILE)
        for (int row = 0; row < c->n_rows; row++) stream_bf16(c, &shape, col, row, bits, STREAMS);
    for (; col < col1; col += AFFINE_TILE)
        for (int row = 0; row < c->n_rows; row++) stream_bf16(c, &shape, col, row, bits, 1);
}

INLINE void panel_bf16(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0, int row0, const int R) {
    const uint16_t *x[FMA_ROWS];
    struct panel_row *row = p->row + row0;
    for (int r = 0; r < R; r++) x[r] = call_bf16(c, row0 + r) + block0 * AFFINE_BLOCK;
    for (int g = 0, block = 0; g < n_groups; g++) {
        __m512 t[FMA_ROWS][STREAMS];
        float sum[FMA_ROWS] = {0};
        for (int r = 0; r < R; r++)
            for (int i = 0; i < STREAMS; i++) t[r][i] = _mm512_setzero_ps();
        for (int b = 0; b < group_blocks; b++, block++) {
#pragma GCC unroll 1
            for (int s = 0; s < 8; s++) {
                for (int kk = 0; kk < 4; kk++) {
                    __m512 q[STREAMS];
                    for (int i = 0; i < STREAMS; i++) q[i] = code_at(&p->codes[block][s][i], kk);
                    for (int r = 0; r < R; r++) {
                        float value = float_from_bf16(x[r][block * AFFINE_BLOCK + 4 * s + kk]);
                        sum[r] += value;
                        for (int i = 0; i < STREAMS; i++) t[r][i] = _mm512_fmadd_ps(q[i], _mm512_set1_ps(value), t[r][i]);
                    }
                }
            }
        }
        for (int r = 0; r < R; r++)
            for (int i = 0; i < STREAMS; i++)
                row[r].acc[i] = _mm512_fmadd_ps(p->bias[g][i], _mm512_set1_ps(sum[r]), _mm512_fmadd_ps(p->scale[g][i], t[r][i], row[r].acc[i]));
    }
}

static __attribute__((noinline)) void panel_rows_bf16(const struct linear_call *c, struct panel *p, int group_blocks, int n_groups, int block0) {
    for (int row = 0; row < c->n_rows; row += FMA_ROWS) {
        switch (c->n_rows - row) {
        case 1: panel_bf16(c, p, group_blocks, n_groups, block0, row, 1); break;
        case 2: panel_bf16(c, p, group_blocks, n_groups, block0, row, 2); break;
        case 3: panel_bf16(c, p, group_blocks, n_groups, block0, row, 3); break;
        case 4: panel_bf16(c, p, group_blocks, n_groups, block0, row, 4); break;
        case 5: panel_bf16(c, p, group_blocks, n_groups, block0, row, 5); break;
        default: panel_bf16(c, p, group_blocks, n_groups, block0, row, 6); break;
        }
    }
}

#define KERNEL(BITS, FORM, form_, kind, low, high, scratch)                                                                \
    {.name = "affine" #BITS " " #form_ " " #kind, .repr = "affine", .bits = BITS, .layout = &cpu_layout_affine,            \
     .arithmetic = "fma codes by " #form_, .form = FORM, .min_rows = low, .max_rows = high, .tile = AFFINE_TILE,        \
     .scratch_bytes = scratch, .run = kind##_##form_##_##BITS}
#define KERNELS(BITS)                                                                                                      \
    static void stream_q8_##BITS(const struct linear_call *c, int a, int b) { run_stream_q8(c, a, b, BITS); }              \
    static void panel_q8_##BITS(const struct linear_call *c, int a, int b) { run_panel(c, a, b, BITS, panel_rows_q8); }    \
    static void stream_bf16_##BITS(const struct linear_call *c, int a, int b) { run_stream_bf16(c, a, b, BITS); }          \
    static void panel_bf16_##BITS(const struct linear_call *c, int a, int b) { run_panel(c, a, b, BITS, panel_rows_bf16); } \
    const struct linear_kernel cpu_affine##BITS##_avx512[4] = {                                                            \
        KERNEL(BITS, FORM_Q8, q8, stream, 1, 4, NULL), KERNEL(BITS, FORM_Q8, q8, panel, 5, INT_MAX, panel_bytes),          \
        KERNEL(BITS, FORM_BF16, bf16, stream, 1, 4, NULL), KERNEL(BITS, FORM_BF16, bf16, panel, 5, INT_MAX, panel_bytes),  \
    };
KERNELS(2)
KERNELS(3)
KERNELS(4)
KERNELS(5)
KERNELS(6)
KERNELS(8)
