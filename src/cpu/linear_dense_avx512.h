/* Dense products for AVX-512, in place, lanes over k: shared by the files with and without bf16 dot products.
 *
 * Order, per row and column: one vector of 16 sums. fp32 and fp16 weights: element k goes to sum k mod 16, by FMA, ascending.
 * bf16 by FMA: of every 32 elements first the even ones, then the odd ones. bf16 dots: as the instruction has it, 32 at a time.
 * The 16 sums are added as a tree of distances 8, 4, 2, 1. A tail is filled up with zeros.
 *
 * "stream" kernels read the file's rows, four at once, for four rows of inputs; what is in cache after the first four serves
 * the others. "panel" kernels, for types that must be widened, do so for 64 columns x STEPS vectors at a time and use them for
 * PANEL_ROWS rows; sums wait in memory between panels. */
#ifndef CPU_LINEAR_DENSE_AVX512_H
#define CPU_LINEAR_DENSE_AVX512_H
#include <limits.h>

#include "cpu/linear_call.h"
#include "cpu/linear_tile_avx512.h"

enum dense_kind { DENSE_F32, DENSE_F16, DENSE_BF16, DENSE_DOT, DENSE_ANY };
enum {
    COLUMNS = 64,
    STREAM_ROWS = 4, FEW_ROWS = 8,
    COLUMN_TILE = 4, ROW_TILE = 6, /* 24 sums in registers; ten loads for 24 products */
    STEPS = 64,        /* vectors along k of a panel */
    PITCH = STEPS + 1, /* rows whole 4 KiB apart would share too few places of L1 */
    PANEL_ROWS = 48,
};

/* Elements of a row that one load covers, and vectors that it gives. */
INLINE int step_k(const int kind) { return kind == DENSE_BF16 || kind == DENSE_DOT ? 32 : 16; }
INLINE int step_vectors(const int kind) { return kind == DENSE_BF16 ? 2 : 1; }
INLINE int weight_size(const int kind) { return kind == DENSE_F32 || kind == DENSE_ANY ? 4 : 2; }

INLINE void widen(__m512i h, __m512 v[2]) { /* even, odd elements */
    v[0] = _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
    v[1] = _mm512_castsi512_ps(_mm512_and_si512(h, _mm512_set1_epi32((int)0xffff0000)));
}

/* n elements (all of a step, or what is left) of a weight row at p. */
INLINE void load_weight(const int kind, const uint8_t *p, int n, __m512 v[2]) {
    int whole = n >= step_k(kind);
    if (kind == DENSE_F32 || kind == DENSE_ANY) {
        v[0] = whole ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
    } else if (kind == DENSE_F16) {
        v[0] = _mm512_cvtph_ps(whole ? _mm256_loadu_si256((const void *)p) : _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p));
    } else {
        __m512i h = whole ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
        if (kind == DENSE_DOT) v[0] = _mm512_castsi512_ps(h);
        else widen(h, v);
    }
}

/* The inputs that go with it, from element k on; bf16 rows have zeros behind them. */
INLINE void load_input(const int kind, const void *x, int k, int n, __m512 v[2]) {
    if (kind == DENSE_DOT) v[0] = _mm512_loadu_ps((const uint16_t *)x + k);
    else if (kind == DENSE_BF16) widen(_mm512_loadu_si512((const uint16_t *)x + k), v);
    else v[0] = n >= 16 ? _mm512_loadu_ps((const float *)x + k) : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), (const float *)x + k);
}

INLINE void multiply_add(const int kind, __m512 *acc, __m512 w, __m512 x) {
#if defined(__AVX512BF16__)
    if (kind == DENSE_DOT) {
        dot_bf16(acc, w, x);
        return;
    }
#endif
    (void)kind, fma_into(acc, w, x);
}

/* Lane j of the result: the tree of v[j]. */
INLINE __m512 reduce(const __m512 *v) {
    __m512 u[8], s[4], r[2];
    for (int j = 0; j < 8; j++) /* halves: column j below, j + 8 above */
        u[j] = _mm512_add_ps(_mm512_shuffle_f32x4(v[j], v[j + 8], 0x44), _mm512_shuffle_f32x4(v[j], v[j + 8], 0xee));
    for (int j = 0; j < 4; j++) /* quarters: columns j, j + 8, j + 4, j + 12 */
        s[j] = _mm512_add_ps(_mm512_shuffle_f32x4(u[j], u[j + 4], 0x88), _mm512_shuffle_f32x4(u[j], u[j + 4], 0xdd));
    for (int j = 0; j < 2; j++)
        r[j] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(s[j]), _mm512_castps_pd(s[j + 2]))),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(s[j]), _mm512_castps_pd(s[j + 2]))));
    __m512 q = _mm512_add_ps(_mm512_shuffle_ps(r[0], r[1], 0x88), _mm512_shuffle_ps(r[0], r[1], 0xdd));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), q);
}

INLINE void store_columns(const struct linear_call *c, int row, int col, int n, __m512 v) {
    __mmask16 m = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    float *y = call_y(c, row) + col;
    if (c->accumulate) v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), v);
    _mm512_mask_storeu_ps(y, m, v);
}

INLINE const void *input_row(const int kind, const struct linear_call *c, int row) {
    return kind == DENSE_BF16 || kind == DENSE_DOT ? (const void *)call_bf16(c, row) : (const void *)call_f32(c, row);
}

/* C columns at w, w + stride ..., R rows; the sums of row r and column i to acc[r * row_step + i * step]. */
INLINE void stream_tile(const int kind, const struct linear_call *c, const uint8_t *w, size_t stride, int row0, const int C, const int R,
                        __m512 *acc, int row_step, int step) {
    const int n_in = c->w->n_in;
    const void *x[STREAM_ROWS];
    __m512 sum[STREAM_ROWS][COLUMN_TILE];
    for (int r = 0; r < R; r++) {
        x[r] = input_row(kind, c, row0 + r);
        for (int i = 0; i < C; i++) sum[r][i] = _mm512_setzero_ps();
    }
    for (int k = 0; k < n_in; k += step_k(kind)) {
        const uint8_t *at = w + (size_t)k * (size_t)weight_size(kind);
        __m512 a[COLUMN_TILE][2];
        for (int i = 0; i < C; i++) {
            _mm_prefetch((const char *)((uintptr_t)at + (size_t)i * stride + (size_t)c->ahead), _MM_HINT_T0);
            load_weight(kind, at + (size_t)i * stride, n_in - k, a[i]);
        }
        for (int r = 0; r < R; r++) {
            __m512 b[2];
            load_input(kind, x[r], k, n_in - k, b);
            for (int v = 0; v < step_vectors(kind); v++)
                for (int i = 0; i < C; i++) multiply_add(kind, &sum[r][i], a[i][v], b[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int i = 0; i < C; i++) acc[r * row_step + i * step] = sum[r][i];
}

/* All rows of the call, up to four at a time. */
INLINE void stream_rows(const int kind, const struct linear_call *c, const uint8_t *w, size_t stride, int row0, int n_rows, const int C,
                        __m512 *acc, int row_step, int step) {
    for (int row = row0, left = n_rows, n; left > 0; row += n, left -= n, acc += n * row_step) {
        n = left <= STREAM_ROWS ? left : left < 2 * STREAM_ROWS ? (left + 1) / 2 : STREAM_ROWS;
        switch (n) {
        case 1: stream_tile(kind, c, w, stride, row, C, 1, acc, row_step, step); break;
        case 2: stream_tile(kind, c, w, stride, row, C, 2, acc, row_step, step); break;
        case 3: stream_tile(kind, c, w, stride, row, C, 3, acc, row_step, step); break;
        default: stream_tile(kind, c, w, stride, row, C, 4, acc, row_step, step); break;
        }
    }
}

/* n <= 16 neighbouring columns, the first at w, for all rows: the columns stay in cache from one set of rows to the next. */
INLINE void near_columns(const int kind, const struct linear_call *c, const uint8_t *w, size_t stride, int col, int n) {
    for (int row = 0; row < c->n_rows; row += FEW_ROWS) {
        int n_rows = c->n_rows - row < FEW_ROWS ? c->n_rows - row : FEW_ROWS;
        __m512 acc[FEW_ROWS][16];
        for (int r = 0; r < n_rows; r++)
            for (int i = 0; i < 16; i++) acc[r][i] = _mm512_setzero_ps();
        for (int i = 0; i < n;) {
            int tile = n - i >= COLUMN_TILE ? COLUMN_TILE : 1;
            if (tile > 1) stream_rows(kind, c, w + (size_t)i * stride, stride, row, n_rows, COLUMN_TILE, &acc[0][i], 16, 1);
            else stream_rows(kind, c, w + (size_t)i * stride, stride, row, n_rows, 1, &acc[0][i], 16, 1);
            i += tile;
        }
        for (int r = 0; r < n_rows; r++) store_columns(c, row + r, col, n, reduce(acc[r]));
    }
}

/* Few rows: four streams of `apart` columns each, as long as the range allows, since the processor's own prefetching follows
 * long streams only. 16 columns of each. */
INLINE void far_columns(const int kind, const struct linear_call *c, const uint8_t *w, int apart, int col) {
    const size_t row_bytes = c->w->source->row_bytes;
    __m512 acc[FEW_ROWS][COLUMN_TILE][16];
    for (int i = 0; i < 16; i++)
        stream_rows(kind, c, w + (size_t)i * row_bytes, (size_t)apart * row_bytes, 0, c->n_rows, COLUMN_TILE, &acc[0][0][i], COLUMN_TILE * 16, 16);
    for (int r = 0; r < c->n_rows; r++)
        for (int j = 0; j < COLUMN_TILE; j++) store_columns(c, r, col + j * apart, 16, reduce(acc[r][j]));
}

INLINE void run_stream(const int kind, const struct linear_call *c, int col0, int col1) {
    const struct weight *w = c->w->source;
    int col = col0;
    if (kind != DENSE_ANY && c->n_rows <= FEW_ROWS) {
        int apart = (col1 - col0) / (16 * COLUMN_TILE) * 16;
        for (; col < col0 + apart; col += 16) far_columns(kind, c, w->data + (size_t)col * w->row_bytes, apart, col);
        col = col0 + COLUMN_TILE * apart;
    }
    for (; col < col1; col += 16) {
        int n = col1 - col < 16 ? col1 - col : 16;
        const uint8_t *from = w->data + (size_t)col * w->row_bytes;
        size_t stride = w->row_bytes;
        if (kind == DENSE_ANY) {
            from = c->scratch, stride = (size_t)c->w->n_in * sizeof(float);
            for (int i = 0; i < n; i++) weight_decode(w, col + i, (float *)c->scratch + (size_t)i * (size_t)c->w->n_in);
        }
        near_columns(kind, c, from, stride, col, n);
    }
}

struct dense_panel {
    __m512 w[COLUMNS][PITCH], x[PANEL_ROWS][PITCH];
    __m512 acc[PANEL_ROWS][COLUMNS];
};

/* Steps [0, n_steps) of one row from element k on into out. */
INLINE void fill_weight(const int kind, const uint8_t *row, int n_in, int k, int n_steps, __m512 *out) {
    for (int s = 0; s < n_steps; s += step_vectors(kind), k += step_k(kind)) {
        __m512 v[2];
        load_weight(kind, row + (size_t)k * (size_t)weight_size(kind), n_in - k, v);
        for (int i = 0; i < step_vectors(kind); i++) out[s + i] = v[i];
    }
}

INLINE void fill_input(const int kind, const void *row, int n_in, int k, int n_steps, __m512 *out) {
    for (int s = 0; s < n_steps; s += step_vectors(kind), k += step_k(kind)) {
        __m512 v[2];
        load_input(kind, row, k, n_in - k, v);
        for (int i = 0; i < step_vectors(kind); i++) out[s + i] = v[i];
    }
}

/* R rows and four columns, n_steps vectors along k. */
INLINE void panel_tile(const int kind, struct dense_panel *p, int row, int col, int n_steps, const int R) {
    const __m512 *w0 = p->w[col], *w1 = p->w[col + 1], *w2 = p->w[col + 2], *w3 = p->w[col + 3];
    const __m512 *x0 = p->x[row], *x1 = x0 + PITCH, *x2 = x1 + PITCH, *x3 = x2 + PITCH, *x4 = x3 + PITCH, *x5 = x4 + PITCH;
    __m512 *p0 = &p->acc[row][col], *p1 = p0 + COLUMNS, *p2 = p1 + COLUMNS, *p3 = p2 + COLUMNS, *p4 = p3 + COLUMNS, *p5 = p4 + COLUMNS;
    TILE_ROWS(TILE_DECLARE)
    TILE_ROWS(TILE_LOAD)
#define PRODUCT(r, i) multiply_add(kind, &s##r##i, a##i, b);
#define ROW(r) if (R > r) { __m512 b = x##r[s]; TILE_VECTORS(PRODUCT, r) }
#pragma GCC unroll 1
    for (int s = 0; s < n_steps; s++) {
        __m512 a0 = w0[s], a1 = w1[s], a2 = w2[s], a3 = w3[s];
        keep_floats(&a0), keep_floats(&a1), keep_floats(&a2), keep_floats(&a3);
        TILE_ROWS(ROW)
    }
#undef PRODUCT
#undef ROW
    TILE_ROWS(TILE_STORE)
}

INLINE void panel_tile_row(const int kind, struct dense_panel *p, int row, int n_columns, int n_steps, const int R) {
    for (int i = 0; i < n_columns; i += COLUMN_TILE) panel_tile(kind, p, row, i, n_steps, R);
}

/* All columns for up to ROW_TILE rows. */
INLINE void panel_tiles(const int kind, struct dense_panel *p, int row, int n_rows, int n_columns, int n_steps) {
    switch (n_rows) {
    case 1: panel_tile_row(kind, p, row, n_columns, n_steps, 1); break;
    case 2: panel_tile_row(kind, p, row, n_columns, n_steps, 2); break;
    case 3: panel_tile_row(kind, p, row, n_columns, n_steps, 3); break;
    case 4: panel_tile_row(kind, p, row, n_columns, n_steps, 4); break;
    case 5: panel_tile_row(kind, p, row, n_columns, n_steps, 5); break;
    default: panel_tile_row(kind, p, row, n_columns, n_steps, 6); break;
    }
}

/* Rows [row0, row0 + n_rows) of n columns, n_rows <= PANEL_ROWS. Columns beyond the last are computed from a stale panel
 * and not stored. */
INLINE void panel_block(const int kind, const struct linear_call *c, struct dense_panel *p, int col, int n, int row0, int n_rows) {
    const struct weight *w = c->w->source;
    int n_in = c->w->n_in, panel_k = STEPS / step_vectors(kind) * step_k(kind);
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < COLUMNS; i++) p->acc[r][i] = _mm512_setzero_ps();
    for (int k = 0; k < n_in; k += panel_k) {
        int steps = (n_in - k + step_k(kind) - 1) / step_k(kind) * step_vectors(kind);
        if (steps > STEPS) steps = STEPS;
        for (int i = 0; i < n; i++) {
            fill_weight(kind, w->data + (size_t)(col + i) * w->row_bytes, n_in, k, steps, p->w[i]);
        }
        for (int r = 0; r < n_rows; r++) fill_input(kind, input_row(kind, c, row0 + r), n_in, k, steps, p->x[r]);
        for (int r = 0; r < n_rows; r += ROW_TILE) panel_tiles(kind, p, r, n_rows - r, n, steps);
    }
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < n; i += 16) store_columns(c, row0 + r, col + i, n - i, reduce(&p->acc[r][i]));
}

INLINE void run_panel(const int kind, const struct linear_call *c, int col0, int col1) {
    struct dense_panel *p = c->scratch;
    for (int col = col0; col < col1; col += COLUMNS) {
        int n = col1 - col < COLUMNS ? col1 - col : COLUMNS;
        for (int row = 0; row < c->n_rows; row += PANEL_ROWS)
            panel_block(kind, c, p, col, n, row, c->n_rows - row < PANEL_ROWS ? c->n_rows - row : PANEL_ROWS);
    }
}

static inline size_t dense_panel_bytes(int n_rows, int n_in) { return (void)n_rows, (void)n_in, sizeof(struct dense_panel); }

#define DENSE_STREAM(name_, repr_, form_, arithmetic_, most_rows, scratch)                                                 \
    {.name = #name_ " stream", .repr = repr_, .arithmetic = arithmetic_, .form = form_, .min_rows = 1, .max_rows = most_rows,    \
     .tile = 1, .scratch_bytes = scratch, .run = stream_##name_}
#define DENSE_PANEL(name_, repr_, form_, arithmetic_)                                                                      \
    {.name = #name_ " panel", .repr = repr_, .arithmetic = arithmetic_, .form = form_, .min_rows = 9, .max_rows = INT_MAX,       \
     .tile = 1, .scratch_bytes = dense_panel_bytes, .run = panel_##name_}
#define DENSE_RUN(name_, how, kind) \
    static void how##_##name_(const struct linear_call *c, int a, int b) { run_##how(kind, c, a, b); }
#endif
