/* Dense products for AVX2, in place, lanes over k.
 *
 * Order, per row and column: one vector of 8 sums by FMA. fp32 and fp16 weights: element k goes to sum k mod 8, ascending; bf16: of
 * every 16 elements first the even ones, then the odd ones. The 8 sums are added as a tree of distances 4, 2, 1. A tail is filled
 * up with zeros.
 *
 * "stream" kernels read the file's rows, four at once and far apart. "panel" kernels widen 64 columns x STEPS vectors and use them for
 * PANEL_ROWS rows; sums wait in memory between panels. */
#include <immintrin.h>
#include <limits.h>

#include "cpu/isa.h"
#include "cpu/linear_call.h"

#define INLINE static inline __attribute__((always_inline))

enum dense_kind { DENSE_F32, DENSE_F16, DENSE_BF16, DENSE_ANY };
enum { COLUMNS = 64, COLUMN_TILE = 4, ROW_TILE = 3, STEPS = 64, PANEL_ROWS = 48, AHEAD_BYTES = 256 };

INLINE int step_k(const int kind) { return kind == DENSE_BF16 ? 16 : 8; }
INLINE int step_vectors(const int kind) { return kind == DENSE_BF16 ? 2 : 1; }
INLINE int weight_size(const int kind) { return kind == DENSE_F32 || kind == DENSE_ANY ? 4 : 2; }

INLINE void widen(__m256i h, __m256 v[2]) { /* even, odd elements */
    v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
    v[1] = _mm256_castsi256_ps(_mm256_and_si256(h, _mm256_set1_epi32((int)0xffff0000)));
}

/* n elements (all of a step, or what is left) of a weight row at p. */
INLINE void load_weight(const int kind, const uint8_t *p, int n, __m256 v[2]) {
    uint8_t tail[32] = {0};
    if (n < step_k(kind)) memcpy(tail, p, (size_t)(n * weight_size(kind))), p = tail;
    if (kind == DENSE_F32 || kind == DENSE_ANY) v[0] = _mm256_loadu_ps((const float *)(const void *)p);
    else if (kind == DENSE_F16) v[0] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
    else widen(_mm256_loadu_si256((const void *)p), v);
}

/* The inputs that go with it, from element k on; bf16 rows have zeros behind them. */
INLINE void load_input(const int kind, const void *x, int k, int n, __m256 v[2]) {
    if (kind == DENSE_BF16) {
        widen(_mm256_loadu_si256((const void *)((const uint16_t *)x + k)), v);
        return;
    }
    const float *from = (const float *)x + k;
    float tail[8] = {0};
    if (n < 8) memcpy(tail, from, (size_t)n * sizeof *tail), from = tail;
    v[0] = _mm256_loadu_ps(from);
}

INLINE float tree(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

INLINE const void *input_row(const int kind, const struct linear_call *c, int row) {
    return kind == DENSE_BF16 ? (const void *)call_bf16(c, row) : (const void *)call_f32(c, row);
}

/* Column col of C streams, at w, w + stride ..., for R rows. */
INLINE void stream_tile(const int kind, const struct linear_call *c, const uint8_t *w, size_t stride, int col, int row0, const int C,
                        const int R) {
    const int n_in = c->w->n_in;
    const void *x[4];
    __m256 sum[4][COLUMN_TILE];
    for (int r = 0; r < R; r++) {
        x[r] = input_row(kind, c, row0 + r);
        for (int i = 0; i < C; i++) sum[r][i] = _mm256_setzero_ps();
    }
    for (int k = 0; k < n_in; k += step_k(kind)) {
        size_t at = (size_t)k * (size_t)weight_size(kind);
        __m256 a[COLUMN_TILE][2];
        for (int i = 0; i < C; i++) {
            _mm_prefetch((const char *)((uintptr_t)w + (size_t)i * stride + at + AHEAD_BYTES), _MM_HINT_T0);
            load_weight(kind, w + (size_t)i * stride + at, n_in - k, a[i]);
        }
        for (int r = 0; r < R; r++) {
            __m256 b[2];
            load_input(kind, x[r], k, n_in - k, b);
            for (int v = 0; v < step_vectors(kind); v++)
                for (int i = 0; i < C; i++) sum[r][i] = _mm256_fmadd_ps(a[i][v], b[v], sum[r][i]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int i = 0; i < C; i++) {
            float result = tree(sum[r][i]);
            call_store(c, row0 + r, col + i * (int)c->y_apart, 1, &result);
        }
}

INLINE void stream_rows(const int kind, const struct linear_call *c, const uint8_t *w, size_t stride, int col, const int C) {
    for (int row = 0; row < c->n_rows; row += 4) {
        switch (c->n_rows - row) {
        case 1: stream_tile(kind, c, w, stride, col, row, C, 1); break;
        case 2: stream_tile(kind, c, w, stride, col, row, C, 2); break;
        case 3: stream_tile(kind, c, w, stride, col, row, C, 3); break;
        default: stream_tile(kind, c, w, stride, col, row, C, 4); break;
        }
    }
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

struct dense_panel {
    __m256 w[COLUMNS][STEPS], x[PANEL_ROWS + ROW_TILE][STEPS];
    __m256 acc[PANEL_ROWS + ROW_TILE][COLUMNS];
    float decoded[]; /* DENSE_ANY: COLUMNS rows of n_in */
};

INLINE void panel_tile(struct dense_panel *p, int row, int col, int n_steps) {
    const __m256 *w0 = p->w[col], *w1 = p->w[col + 1], *w2 = p->w[col + 2], *w3 = p->w[col + 3];
    const __m256 *x0 = p->x[row], *x1 = p->x[row + 1], *x2 = p->x[row + 2];
#define ALL(M) M(0, 0) M(0, 1) M(0, 2) M(0, 3) M(1, 0) M(1, 1) M(1, 2) M(1, 3) M(2, 0) M(2, 1) M(2, 2) M(2, 3)
#define LOAD(r, i) __m256 s##r##i = p->acc[row + r][col + i];
#define STORE(r, i) p->acc[row + r][col + i] = s##r##i;
#define COLUMN(i)                                                                                                     \
    {                                                                                                                 \
        __m256 w = w##i[s];                                                                                           \
        s0##i = _mm256_fmadd_ps(w, a, s0##i), s1##i = _mm256_fmadd_ps(w, b, s1##i), s2##i = _mm256_fmadd_ps(w, d, s2##i); \
    }
    ALL(LOAD)
    for (int s = 0; s < n_steps; s++) {
        __m256 a = x0[s], b = x1[s], d = x2[s];
        COLUMN(0) COLUMN(1) COLUMN(2) COLUMN(3)
    }
    ALL(STORE)
#undef ALL
#undef LOAD
#undef STORE
#undef COLUMN
}

/* Rows [row0, row0 + n_rows) of n columns. Rows and columns beyond the last are computed from stale panels and not stored. */
INLINE void panel_block(const int kind, const struct linear_call *c, struct dense_panel *p, int col, int n, int row0, int n_rows) {
    const struct weight *w = c->w->source;
    int n_in = c->w->n_in, panel_k = STEPS / step_vectors(kind) * step_k(kind);
    for (int r = 0; r < n_rows + ROW_TILE - 1; r++)
        for (int i = 0; i < COLUMNS; i++) p->acc[r][i] = _mm256_setzero_ps();
    for (int k0 = 0; k0 < n_in; k0 += panel_k) {
        int end = k0 + panel_k < n_in ? k0 + panel_k : n_in, steps = 0;
        for (int i = 0; i < n; i++) {
            const uint8_t *from = kind == DENSE_ANY ? (const uint8_t *)(p->decoded + (size_t)i * (size_t)n_in) : w->data + (size_t)(col + i) * w->row_bytes;
            steps = 0;
            for (int k = k0; k < end; k += step_k(kind)) {
                __m256 v[2];
                load_weight(kind, from + (size_t)k * (size_t)weight_size(kind), n_in - k, v);
                for (int j = 0; j < step_vectors(kind); j++) p->w[i][steps++] = v[j];
            }
        }
        for (int r = 0; r < n_rows; r++) {
            steps = 0;
            for (int k = k0; k < end; k += step_k(kind)) {
                __m256 v[2];
                load_input(kind, input_row(kind, c, row0 + r), k, n_in - k, v);
                for (int j = 0; j < step_vectors(kind); j++) p->x[r][steps++] = v[j];
            }
        }
        for (int r = 0; r < n_rows; r += ROW_TILE)
            for (int i = 0; i < n; i += COLUMN_TILE) panel_tile(p, r, i, steps);
    }
    for (int r = 0; r < n_rows; r++) {
        float result[COLUMNS];
        for (int i = 0; i < n; i++) result[i] = tree(p->acc[r][i]);
        call_store(c, row0 + r, col, n, result);
    }
}

INLINE void run_panel(const int kind, const struct linear_call *c, int col0, int col1) {
    struct dense_panel *p = c->scratch;
    for (int col = col0; col < col1; col += COLUMNS) {
        int n = col1 - col < COLUMNS ? col1 - col : COLUMNS;
        for (int i = 0; i < n && kind == DENSE_ANY; i++) weight_decode(c->w->source, col + i, p->decoded + (size_t)i * (size_t)c->w->n_in);
        for (int row = 0; row < c->n_rows; row += PANEL_ROWS)
            panel_block(kind, c, p, col, n, row, c->n_rows - row < PANEL_ROWS ? c->n_rows - row : PANEL_ROWS);
    }
}

static size_t one_column(int n_rows, int n_in) { return (void)n_rows, (size_t)n_in * sizeof(float); }
static size_t panel_bytes(int n_rows, int n_in) { return (void)n_rows, (void)n_in, sizeof(struct dense_panel); }
static size_t decoded_bytes(int n_rows, int n_in) {
    return (void)n_rows, sizeof(struct dense_panel) + COLUMNS * (size_t)n_in * sizeof(float);
}

#define DENSE_KERNELS(name_, repr_, kind, form_, arithmetic_)                                                                  \
    static void stream_##name_(const struct linear_call *c, int a, int b) { run_stream(kind, c, a, b); }                       \
    static void panel_##name_(const struct linear_call *c, int a, int b) { run_panel(kind, c, a, b); }                         \
    const struct linear_kernel cpu_##name_##_avx2[2] = {                                                                       \
        {.name = #name_ " stream", .repr = repr_, .arithmetic = arithmetic_, .form = form_, .min_rows = 1, .max_rows = 4,      \
         .tile = 1, .stream_rows = kind == DENSE_ANY ? 0 : 4, .scratch_bytes = kind == DENSE_ANY ? one_column : NULL, .run = stream_##name_},                            \
        {.name = #name_ " panel", .repr = repr_, .arithmetic = arithmetic_, .form = form_, .min_rows = 5,                      \
         .max_rows = INT_MAX, .tile = 1, .scratch_bytes = kind == DENSE_ANY ? decoded_bytes : panel_bytes,                     \
         .run = panel_##name_},                                                                                                \
    };
DENSE_KERNELS(f32, "f32", DENSE_F32, FORM_F32, "avx2 fp32")
DENSE_KERNELS(f16, "f16", DENSE_F16, FORM_F32, "avx2 fp32")
DENSE_KERNELS(bf16, "bf16", DENSE_BF16, FORM_BF16, "avx2 bf16 by fp32")
DENSE_KERNELS(any, NULL, DENSE_ANY, FORM_F32, "avx2 fp32")
