/* Dense products for AVX-512, in place, lanes over k: shared by the files with and without bf16 dot products.
 *
 * Order, per row and column: one vector of 16 sums. fp32 and fp16 weights: element k goes to sum k mod 16, by FMA, ascending.
 * bf16 by FMA: of every 32 elements first the even ones, then the odd ones. bf16 dots: as the instruction has it, 32 at a time.
 * The 16 sums are added as a tree of distances 8, 4, 2, 1. A tail is filled up with zeros.
 *
 * "stream" kernels read the file's rows, four at once, for four rows of inputs; what is in cache after the first four serves
 * the others. "panel" kernels, for types that must be widened, do so once for a block of rows, which stays in L2, and then for
 * COLUMNS x STEPS vectors at a time, which stay in L1 while all rows pass by; sums wait in memory between panels. */
#ifndef CPU_LINEAR_DENSE_AVX512_H
#define CPU_LINEAR_DENSE_AVX512_H
#include <limits.h>

#include "cpu/linear_call.h"
#include "cpu/linear_tile_avx512.h"

enum dense_kind { DENSE_F32, DENSE_F16, DENSE_BF16, DENSE_DOT, DENSE_ANY };
enum {
    STREAM_ROWS = 4, FEW_ROWS = 8,
    COLUMN_TILE = 4, ROW_TILE = 6, /* 24 sums in registers; ten loads for 24 products */
    COLUMNS = 8, STEPS = 32, /* of a panel: 16 KiB, beside which inputs of two sets, 12 KiB each, fit in L1 of 48 */
    AHEAD_LINES = ROW_TILE * COLUMN_TILE / COLUMNS, /* of the next set, asked for with each step */
    PANEL_ROWS = 96, ROWS_BYTES = 1 << 20,
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

/* Lane j of the result: the tree of v[j]. Each sum of two: what is in place of both, by a blend, and the rest, by a shuffle, which one port
 * alone does. */
INLINE __m512 reduce(const __m512 *v) {
    const __m512i quarters = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    const __m512i single = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
    __m512 u[8], s[4], r[2];
    for (int j = 0; j < 8; j++) /* halves: column j below, j + 8 above */
        u[j] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, v[j], v[j + 8]), _mm512_shuffle_f32x4(v[j], v[j + 8], 0x4e));
    for (int j = 0; j < 4; j++) /* quarters: columns j, j + 4, j + 8, j + 12 */
        s[j] = _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, u[j], u[j + 4]), _mm512_permutex2var_ps(u[j], quarters, u[j + 4]));
    for (int j = 0; j < 2; j++)
        r[j] = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, s[j], s[j + 2]),
                             _mm512_castpd_ps(_mm512_shuffle_pd(_mm512_castps_pd(s[j]), _mm512_castps_pd(s[j + 2]), 0x55)));
    return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, r[0], r[1]), _mm512_permutex2var_ps(r[0], single, r[1]));
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
            ask(at + (size_t)i * stride, c->ahead);
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

/* Few rows: 16 columns of each of four streams. */
INLINE void far_columns(const int kind, const struct linear_call *c, const uint8_t *w, int col) {
    const size_t row_bytes = c->w->source->row_bytes;
    __m512 acc[FEW_ROWS][STREAMS][16];
    for (int i = 0; i < 16; i++)
        stream_rows(kind, c, w + (size_t)i * row_bytes, (size_t)c->apart * row_bytes, 0, c->n_rows, STREAMS, &acc[0][0][i], STREAMS * 16, 16);
    for (int r = 0; r < c->n_rows; r++)
        for (int j = 0; j < STREAMS; j++) store_columns(c, r, col + j * (int)c->y_apart, 16, reduce(acc[r][j]));
}

INLINE void run_stream(const int kind, const struct linear_call *c, int col0, int col1) {
    const struct weight *w = c->w->source;
    int col = col0;
    for (; c->apart && col < col1; col += 16) far_columns(kind, c, w->data + (size_t)col * w->row_bytes, col);
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

/* Rows are taken in blocks whose inputs, widened, are no more than ROWS_BYTES, and in sets of ROW_TILE of those. */
struct dense_panel {
    __m512 w[COLUMNS][STEPS];
    __m512 acc[PANEL_ROWS][COLUMNS]; /* two rows are reduced at once */
    __m512 x[][ROW_TILE][STEPS]; /* [chunk of STEPS along k * sets + set] */
};

_Static_assert(2 * COLUMNS == 16 && PANEL_ROWS % 2 == 0 && ROW_TILE % 2 == 0, "reduce takes two rows of a set");

static inline int panel_chunks(int n_in) { return (n_in + 16 * STEPS - 1) / (16 * STEPS); }
static inline int panel_rows(int n_in) {
    int rows = ROWS_BYTES / (panel_chunks(n_in) * STEPS * (int)sizeof(__m512)) / ROW_TILE * ROW_TILE;
    return rows < ROW_TILE ? ROW_TILE : rows < PANEL_ROWS ? rows : PANEL_ROWS;
}

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

/* R rows and four columns, n_steps vectors along k; meanwhile lines from `ahead` on are asked for. */
INLINE void panel_tile(const __m512 (*w)[STEPS], const __m512 (*x)[STEPS], int first, int n_steps, const uint8_t *ahead,
                       __m512 (*acc)[COLUMNS], const int R) {
    __m512 *p0 = acc[0], *p1 = acc[1], *p2 = acc[2], *p3 = acc[3], *p4 = acc[4], *p5 = acc[5];
    TILE_ROWS(TILE_DECLARE)
    if (first) {
        TILE_ROWS(TILE_CLEAR)
    } else {
        TILE_ROWS(TILE_LOAD)
    }
#define PRODUCT(r, i) fma_into(&s##r##i, a##i, b);
#define ROW(r) if (R > r) { __m512 b = x[r][s]; TILE_VECTORS(PRODUCT, r) }
#pragma GCC unroll 1
    for (int s = 0; s < n_steps; s++) {
        __m512 a0 = w[0][s], a1 = w[1][s], a2 = w[2][s], a3 = w[3][s];
        keep_floats(&a0), keep_floats(&a1), keep_floats(&a2), keep_floats(&a3);
#pragma GCC unroll 4
        for (int i = 0; i < AHEAD_LINES; i++) _mm_prefetch((const char *)ahead + 64 * (AHEAD_LINES * s + i), _MM_HINT_T0);
        TILE_ROWS(ROW)
    }
#undef PRODUCT
#undef ROW
    TILE_ROWS(TILE_STORE)
}

/* All columns for a set of R rows. */
INLINE void panel_set(struct dense_panel *p, const __m512 (*x)[STEPS], int row, int first, int n_steps, const int R) {
    for (int i = 0; i < COLUMNS; i += COLUMN_TILE)
        panel_tile(&p->w[i], x, first, n_steps, (const uint8_t *)(x + ROW_TILE) + (size_t)(i / COLUMN_TILE) * AHEAD_LINES * 64 * STEPS,
                   (__m512(*)[COLUMNS])&p->acc[row][i], R);
}

/* The first n of the columns from col on are stored after the last chunk. */
static __attribute__((noinline)) void panel_sets(const struct linear_call *c, struct dense_panel *p, int col, int n, int row0, int n_rows,
                                                 int chunk, int n_steps) {
    int n_sets = (n_rows + ROW_TILE - 1) / ROW_TILE;
    for (int set = 0; set < n_sets; set++) {
        const __m512(*x)[STEPS] = p->x[chunk * n_sets + set];
        int row = set * ROW_TILE;
#define CALL(R) panel_set(p, x, row, chunk == 0, n_steps, R)
        TILE_CASES(n_rows - row, CALL)
#undef CALL
        if (chunk + 1 < panel_chunks(c->w->n_in)) continue;
        for (int r = row; r < n_rows && r < row + ROW_TILE; r += 2) {
            __m512 both = reduce(p->acc[r]);
            store_columns(c, row0 + r, col, n, both);
            if (r + 1 < n_rows) store_columns(c, row0 + r + 1, col, n, _mm512_shuffle_f32x4(both, both, 0x4e));
        }
    }
}

INLINE int chunk_steps(const int kind, int n_in, int chunk) {
    int left = (n_in - chunk * 16 * STEPS + step_k(kind) - 1) / step_k(kind) * step_vectors(kind);
    return left < STEPS ? left : STEPS;
}

/* Rows [row0, row0 + n_rows). Columns beyond the last are computed from a stale panel and not stored. */
INLINE void panel_block(const int kind, const struct linear_call *c, struct dense_panel *p, int col0, int col1, int row0, int n_rows) {
    const struct weight *w = c->w->source;
    const int n_in = c->w->n_in, n_chunks = panel_chunks(n_in), n_sets = (n_rows + ROW_TILE - 1) / ROW_TILE;
    for (int r = 0; r < n_rows; r++)
        for (int chunk = 0; chunk < n_chunks; chunk++)
            fill_input(kind, input_row(kind, c, row0 + r), n_in, chunk * 16 * STEPS, chunk_steps(kind, n_in, chunk),
                       p->x[chunk * n_sets + r / ROW_TILE][r % ROW_TILE]);
    for (int col = col0; col < col1; col += COLUMNS) {
        int n = col1 - col < COLUMNS ? col1 - col : COLUMNS;
        for (int chunk = 0; chunk < n_chunks; chunk++) {
            int steps = chunk_steps(kind, n_in, chunk);
            for (int i = 0; i < n; i++)
                fill_weight(kind, w->data + (size_t)(col + i) * w->row_bytes, n_in, chunk * 16 * STEPS, steps, p->w[i]);
            panel_sets(c, p, col, n, row0, n_rows, chunk, steps);
        }
    }
}

INLINE void run_panel(const int kind, const struct linear_call *c, int col0, int col1) {
    for (int row = 0, n, most = panel_rows(c->w->n_in); row < c->n_rows; row += n) {
        n = c->n_rows - row < most ? c->n_rows - row : most;
        panel_block(kind, c, c->scratch, col0, col1, row, n);
    }
}

/* Fewer columns than n_in may need more, but no more than ROWS_BYTES. */
static inline size_t dense_panel_bytes(int n_rows, int n_in) {
    size_t set_bytes = (size_t)panel_chunks(n_in) * sizeof(__m512[ROW_TILE][STEPS]);
    return (void)n_rows, sizeof(struct dense_panel) + (set_bytes > ROWS_BYTES ? set_bytes : ROWS_BYTES);
}

#define DENSE_STREAM(name_, repr_, form_, arithmetic_, most_rows, few, scratch)                                            \
    {.name = #name_ " stream", .repr = repr_, .arithmetic = arithmetic_, .form = form_, .min_rows = 1, .max_rows = most_rows,    \
     .tile = 1, .stream_rows = few, .scratch_bytes = scratch, .run = stream_##name_}
#define DENSE_PANEL(name_, repr_, form_, arithmetic_)                                                                      \
    {.name = #name_ " panel", .repr = repr_, .arithmetic = arithmetic_, .form = form_, .min_rows = 9, .max_rows = INT_MAX,       \
     .tile = 1, .scratch_bytes = dense_panel_bytes, .run = panel_##name_}
#define DENSE_RUN(name_, how, kind) \
    static void how##_##name_(const struct linear_call *c, int a, int b) { run_##how(kind, c, a, b); }
#endif
