/* Dense products for AVX2, in place, lanes over k.
 *
 * Order, per row and column: one vector of 8 sums by FMA. fp32 and fp16 weights: element k goes to sum k mod 8, ascending; bf16: of
 * every 16 elements first the even ones, then the odd ones. The 8 sums are added as a tree of distances 4, 2, 1. A tail is filled
 * up with zeros.
 *
 * "stream" kernels read the file's rows, four at once and far apart. "panel" kernels widen the inputs once for a block of rows, which
 * stays in L2, and then 16 columns x STEPS vectors of weights at a time, which stay in L1 while all rows pass by; sums wait in memory
 * between panels. */
#include <immintrin.h>
#include <limits.h>

#include "cpu/isa.h"
#include "cpu/linear_call.h"
#include "cpu/linear_tile.h"

enum dense_kind { DENSE_F32, DENSE_F16, DENSE_BF16, DENSE_ANY };
enum {
    COLUMN_TILE = 4, ROW_TILE = 3, /* 12 sums in registers; seven loads for 12 products */
    COLUMNS = 16, STEPS = 32,      /* of a panel: 16 KiB in L1 of 32 */
    PANEL_ROWS = 96, ROWS_BYTES = 1 << 20,
};

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
            _mm_prefetch((const char *)((uintptr_t)w + (size_t)i * stride + at + (size_t)c->ahead.near), _MM_HINT_T0);
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

/* Rows are taken in blocks whose inputs, widened, are no more than ROWS_BYTES, and in sets of ROW_TILE of those. */
struct dense_panel {
    __m256 w[COLUMNS][STEPS], acc[PANEL_ROWS][COLUMNS];
    __m256 x[][ROW_TILE][STEPS]; /* [chunk of STEPS along k * sets + set] */
};

static int panel_chunks(int n_in) { return (n_in + 8 * STEPS - 1) / (8 * STEPS); }
static int panel_rows(int n_in) {
    int rows = ROWS_BYTES / (panel_chunks(n_in) * STEPS * (int)sizeof(__m256)) / ROW_TILE * ROW_TILE;
    return rows < ROW_TILE ? ROW_TILE : rows < PANEL_ROWS ? rows : PANEL_ROWS;
}
INLINE int chunk_steps(const int kind, int n_in, int chunk) {
    int left = (n_in - chunk * 8 * STEPS + step_k(kind) - 1) / step_k(kind) * step_vectors(kind);
    return left < STEPS ? left : STEPS;
}

/* Steps [0, n_steps) of one row from element k on. */
INLINE void fill_weight(const int kind, const uint8_t *row, int n_in, int k, int n_steps, __m256 *out) {
    for (int s = 0; s < n_steps; s += step_vectors(kind), k += step_k(kind)) {
        __m256 v[2];
        load_weight(kind, row + (size_t)k * (size_t)weight_size(kind), n_in - k, v);
        for (int i = 0; i < step_vectors(kind); i++) out[s + i] = v[i];
    }
}
INLINE void fill_input(const int kind, const void *row, int n_in, int k, int n_steps, __m256 *out) {
    for (int s = 0; s < n_steps; s += step_vectors(kind), k += step_k(kind)) {
        __m256 v[2];
        load_input(kind, row, k, n_in - k, v);
        for (int i = 0; i < step_vectors(kind); i++) out[s + i] = v[i];
    }
}

/* ROW_TILE rows and four columns, n_steps vectors along k; meanwhile n_steps lines from `ahead` on are asked for. */
INLINE void panel_tile(const __m256 (*w)[STEPS], const __m256 (*x)[STEPS], int first, int n_steps, const uint8_t *ahead, __m256 (*acc)[COLUMNS]) {
#define ALL(M) M(0, 0) M(0, 1) M(0, 2) M(0, 3) M(1, 0) M(1, 1) M(1, 2) M(1, 3) M(2, 0) M(2, 1) M(2, 2) M(2, 3)
#define LOAD(r, i) __m256 s##r##i = first ? _mm256_setzero_ps() : acc[r][i];
#define STORE(r, i) acc[r][i] = s##r##i;
#define COLUMN(i)                                                                                                     \
    {                                                                                                                 \
        __m256 v = w[i][s];                                                                                           \
        s0##i = _mm256_fmadd_ps(v, a, s0##i), s1##i = _mm256_fmadd_ps(v, b, s1##i), s2##i = _mm256_fmadd_ps(v, d, s2##i); \
    }
    ALL(LOAD)
#pragma GCC unroll 1
    for (int s = 0; s < n_steps; s++) {
        __m256 a = x[0][s], b = x[1][s], d = x[2][s];
        _mm_prefetch((const char *)ahead + 64 * s, _MM_HINT_T0);
        COLUMN(0) COLUMN(1) COLUMN(2) COLUMN(3)
    }
    ALL(STORE)
#undef ALL
#undef LOAD
#undef STORE
#undef COLUMN
}

/* Lane j of the result: the tree of v[j]. */
INLINE __m256 reduce(const __m256 *v) {
    __m256 u[4], s[2];
    for (int j = 0; j < 4; j++) /* halves: column j below, j + 4 above */
        u[j] = _mm256_add_ps(_mm256_permute2f128_ps(v[j], v[j + 4], 0x20), _mm256_permute2f128_ps(v[j], v[j + 4], 0x31));
    for (int j = 0; j < 2; j++) /* quarters: columns j, j + 2 */
        s[j] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(u[j]), _mm256_castps_pd(u[j + 2]))),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(u[j]), _mm256_castps_pd(u[j + 2]))));
    __m256 r = _mm256_add_ps(_mm256_shuffle_ps(s[0], s[1], 0x88), _mm256_shuffle_ps(s[0], s[1], 0xdd));
    return _mm256_permute_ps(r, 0xd8);
}

/* The first n of the columns from col on are stored after the last chunk. Rows beyond the last are computed from what the scratch
 * memory holds and not stored. */
static __attribute__((noinline)) void panel_sets(const struct linear_call *c, struct dense_panel *p, int col, int n, int row0, int n_rows,
                                                 int chunk, int n_steps) {
    int n_sets = (n_rows + ROW_TILE - 1) / ROW_TILE;
    for (int set = 0, row = 0; set < n_sets; set++, row += ROW_TILE) {
        const __m256(*x)[STEPS] = p->x[chunk * n_sets + set];
        for (int i = 0; i < COLUMNS; i += COLUMN_TILE)
            panel_tile(&p->w[i], x, chunk == 0, n_steps, (const uint8_t *)(x + ROW_TILE) + (size_t)(i / COLUMN_TILE) * 64 * STEPS,
                       (__m256(*)[COLUMNS])&p->acc[row][i]);
        if (chunk + 1 < panel_chunks(c->w->n_in)) continue;
        for (int r = row; r < n_rows && r < row + ROW_TILE; r++) {
            float result[COLUMNS];
            for (int i = 0; i < COLUMNS; i += 8) _mm256_storeu_ps(result + i, reduce(&p->acc[r][i]));
            call_store(c, row0 + r, col, n, result);
        }
    }
}

/* Rows [row0, row0 + n_rows). Columns beyond the last are computed from a stale panel and not stored. */
INLINE void panel_block(const int kind, const struct linear_call *c, int col0, int col1, int row0, int n_rows) {
    const struct weight *w = c->w->source;
    const int n_in = c->w->n_in, n_chunks = panel_chunks(n_in), n_sets = (n_rows + ROW_TILE - 1) / ROW_TILE;
    float *decoded = c->scratch;
    struct dense_panel *p = kind == DENSE_ANY ? (void *)(decoded + COLUMNS * n_in) : c->scratch;
    for (int r = 0; r < n_rows; r++)
        for (int chunk = 0; chunk < n_chunks; chunk++)
            fill_input(kind, input_row(kind, c, row0 + r), n_in, chunk * 8 * STEPS, chunk_steps(kind, n_in, chunk),
                       p->x[chunk * n_sets + r / ROW_TILE][r % ROW_TILE]);
    for (int col = col0; col < col1; col += COLUMNS) {
        int n = col1 - col < COLUMNS ? col1 - col : COLUMNS;
        for (int i = 0; i < n && kind == DENSE_ANY; i++) weight_decode(w, col + i, decoded + i * n_in);
        for (int chunk = 0; chunk < n_chunks; chunk++) {
            int steps = chunk_steps(kind, n_in, chunk);
            for (int i = 0; i < n; i++)
                fill_weight(kind, kind == DENSE_ANY ? (const uint8_t *)(decoded + i * n_in) : w->data + (size_t)(col + i) * w->row_bytes,
                            n_in, chunk * 8 * STEPS, steps, p->w[i]);
            panel_sets(c, p, col, n, row0, n_rows, chunk, steps);
        }
    }
}

INLINE void run_panel(const int kind, const struct linear_call *c, int col0, int col1) {
    for (int row = 0, n, most = panel_rows(c->w->n_in); row < c->n_rows; row += n) {
        n = c->n_rows - row < most ? c->n_rows - row : most;
        panel_block(kind, c, col0, col1, row, n);
    }
}

static size_t one_column(int n_rows, int n_in) { return (void)n_rows, (size_t)n_in * sizeof(float); }
static size_t panel_bytes(int n_rows, int n_in) { /* fewer columns than n_in may need more rows' memory, but no more than ROWS_BYTES */
    size_t set_bytes = (size_t)panel_chunks(n_in) * sizeof(__m256[ROW_TILE][STEPS]);
    return (void)n_rows, sizeof(struct dense_panel) + (set_bytes > ROWS_BYTES ? set_bytes : ROWS_BYTES);
}
static size_t decoded_bytes(int n_rows, int n_in) { return COLUMNS * (size_t)n_in * sizeof(float) + panel_bytes(n_rows, n_in); }

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
