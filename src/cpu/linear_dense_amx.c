/* bf16 products on the tile unit (AMX), weights in place: 6 times the rate of fp32 FMA for many rows.
 *
 * Order, per row and column: for each 32 k, as the instruction has it, the products of even k are added up by FMA, those of odd k
 * likewise, both sums are added and the result is added to the accumulator. Denormal numbers count as zero. It is the same whichever
 * operand is which, so: up to FEW_ROWS rows, weights are the left operand (16 columns x 32 k) straight from the file's rows and inputs
 * are transposed once; more rows, inputs are the left operand and panels of weights are transposed. A tail is filled up with zeros. */
#include <immintrin.h>
#include <limits.h>
#include <string.h>

#include "cpu/amx.h"
#include "cpu/isa.h"
#include "cpu/linear_call.h"
#include "cpu/linear_tile_avx512.h"

enum {
    SIDE = 16, STEP = 32,         /* a tile: 16 rows or columns x 32 k */
    STEP_BYTES = STEP * 2,
    FEW_ROWS = 32,
    AHEAD_BYTES = 1536 << 10,     /* of L2: the columns at work and those after them */
    PANEL_STEPS = 16,             /* 2 tiles of columns x 512 k: 32 KiB */
};
typedef __m512i tile[SIDE];

static const struct amx_config shapes = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static int blocks(int n, int size) { return (n + size - 1) / size; }

/* 16 x 16 words of 32 bits. */
INLINE void transpose(__m512i v[SIDE]) {
    __m512i t[SIDE];
    for (int i = 0; i < SIDE; i += 2) t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    for (int i = 0; i < SIDE; i += 4)
        for (int j = 0; j < 2; j++) {
            v[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            v[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    for (int i = 0; i < SIDE; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_i32x4(v[i + j], v[i + 4 + j], 0x88);
            t[i + 4 + j] = _mm512_shuffle_i32x4(v[i + j], v[i + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        v[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
        v[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    }
}

/* The step of n rows of `stride` bytes each from `from` on; `bytes`: what is left of a row. Zeros else. */
INLINE void load_step(const uint8_t *from, size_t stride, int n, size_t bytes, __m512i v[SIDE]) {
    __mmask32 m = bytes >= STEP_BYTES ? ~0u : (1u << bytes / 2) - 1;
    for (int i = 0; i < SIDE; i++) v[i] = i < n ? _mm512_maskz_loadu_epi16(m, from + (size_t)i * stride) : _mm512_setzero_si512();
}

/* ---- few rows ---- */

struct few { float result[STREAMS][SIDE][SIDE]; tile part[STREAMS], x[]; }; /* x[step * n_sets + set]: pairs of k x rows */

static size_t few_bytes(int n_rows, int n_in) {
    int sets = blocks(n_rows < FEW_ROWS ? n_rows : FEW_ROWS, SIDE);
    return sizeof(struct few) + (size_t)sets * (size_t)blocks(n_in, STEP) * sizeof(tile);
}

static void lay_out_few(const struct linear_call *c, struct few *f, int n_sets) {
    for (int step = 0, steps = blocks(c->w->n_in, STEP); step < steps; step++)
        for (int set = 0; set < n_sets; set++) {
            __m512i v[SIDE];
            for (int r = 0; r < SIDE; r++) {
                int row = set * SIDE + r;
                v[r] = row < c->n_rows ? _mm512_loadu_si512(call_bf16(c, row) + step * STEP) : _mm512_setzero_si512();
            }
            transpose(v);
            for (int r = 0; r < SIDE; r++) f->x[step * n_sets + set][r] = v[r];
        }
}

/* Sets of 16 columns, col of the streams from `stream` on. n: columns of a set. */
struct columns { int col, stream, n; };

/* A tile of weights is 16 short pieces of rows, which memory does not like. So whole sets are read byte after byte, one set ahead: bytes
 * [at, end) of the set of each stream. */
INLINE void read_ahead(const uint8_t *const *from, size_t at, size_t end, size_t ahead, const int streams) {
    for (; at < end; at += 64)
        for (int i = 0; i < streams; i++) {
            _mm_prefetch((const char *)((uintptr_t)from[i] + at + ahead), _MM_HINT_T0);
            __m512i v = _mm512_loadu_si512(from[i] + at);
            __asm__ volatile("" ::"v"(v));
        }
}

INLINE void few_columns(const struct linear_call *c, struct few *f, struct columns s, int more, const int streams, const int n_sets) {
    const struct weight *w = c->w->source;
    const size_t stride = w->row_bytes;
    const uint8_t *from[STREAMS];
    for (int i = 0; i < streams; i++) from[i] = w->data + (size_t)(s.col + (s.stream + i) * c->apart) * stride;
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int step = 0, steps = blocks(c->w->n_in, STEP); step < steps; step++) {
        const size_t at = (size_t)step * STEP_BYTES;
        const int whole = s.n == SIDE && at + STEP_BYTES <= stride;
        if (more && whole) read_ahead(from, SIDE * (stride + at), SIDE * (stride + at + STEP_BYTES), (size_t)c->ahead.near, streams);
        for (int i = 0; i < streams && !whole; i++) load_step(from[i] + at, stride, s.n, stride - at, f->part[i]);
        const uint8_t *left[STREAMS];
        const size_t apart = whole ? stride : STEP_BYTES;
        for (int i = 0; i < streams; i++) left[i] = whole ? from[i] + at : (const uint8_t *)f->part[i];
        _tile_loadd(2, f->x[step * n_sets], STEP_BYTES);
        if (n_sets == 2) _tile_loadd(3, f->x[step * n_sets + 1], STEP_BYTES);
        _tile_loadd(0, left[0], apart);
        _tile_dpbf16ps(4, 0, 2);
        if (n_sets == 2) _tile_dpbf16ps(5, 0, 3);
        if (streams == 1) continue;
        _tile_loadd(1, left[1], apart);
        _tile_dpbf16ps(6, 1, 2);
        if (n_sets == 2) _tile_dpbf16ps(7, 1, 3);
        if (streams == 2) continue;
        _tile_loadd(0, left[2], apart);
        _tile_dpbf16ps(5, 0, 2);
        _tile_loadd(1, left[3], apart);
        _tile_dpbf16ps(7, 1, 2);
    }
    /* result[stream * n_sets + set][column][row] */
    _tile_stored(4, f->result[0], 64);
    _tile_stored(5, f->result[n_sets == 2 ? 1 : 2], 64);
    _tile_stored(6, f->result[n_sets == 2 ? 2 : 1], 64);
    _tile_stored(7, f->result[3], 64);
    const __m512i lane = _mm512_mullo_epi32(_mm512_set1_epi32(SIDE), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (int i = 0; i < streams; i++)
        for (int row = 0; row < c->n_rows; row++) {
            float result[SIDE];
            _mm512_storeu_ps(result, _mm512_i32gather_ps(lane, &f->result[i * n_sets + row / SIDE][0][row % SIDE], 4));
            call_store(c, row, s.col + (s.stream + i) * (int)c->y_apart, s.n, result);
        }
}

INLINE void run_streams(const struct linear_call *c, int col0, int col1, int stream, const int streams, const int n_sets) {
    const struct weight *w = c->w->source;
    const uint8_t *from[STREAMS];
    for (int i = 0; i < streams; i++) from[i] = w->data + (size_t)(col0 + (stream + i) * c->apart) * w->row_bytes;
    read_ahead(from, 0, SIDE * w->row_bytes / 64 * 64, (size_t)c->ahead.near, streams);
    for (int col = col0; col < col1; col += SIDE)
        few_columns(c, c->scratch, (struct columns){col, stream, SIDE}, col + SIDE < col1, streams, n_sets);
}

INLINE void run_sets(const struct linear_call *c, int col0, int col1, const int n_sets) {
    if (!c->same_rows) lay_out_few(c, c->scratch, n_sets);
    _tile_loadconfig(&shapes);
    if (n_sets == 1 && c->apart && 2 * STREAMS * SIDE * c->w->source->row_bytes <= AHEAD_BYTES) run_streams(c, col0, col1, 0, STREAMS, n_sets);
    else if (c->apart) run_streams(c, col0, col1, 0, 2, n_sets), run_streams(c, col0, col1, 2, 2, n_sets);
    for (int col = col0; !c->apart && col < col1; col += SIDE)
        few_columns(c, c->scratch, (struct columns){col, 0, col1 - col < SIDE ? col1 - col : SIDE}, 0, 1, n_sets);
    _tile_release();
}

static void run_few(const struct linear_call *c, int col0, int col1) {
    if (c->n_rows <= SIDE) run_sets(c, col0, col1, 1);
    else run_sets(c, col0, col1, 2);
}

/* ---- many rows ---- */

/* weights[column tile][step]: pairs of k x columns; acc[set][column tile]; then x[set * steps + step], all sets' inputs. */
struct many { tile weights[2][PANEL_STEPS]; float acc[][2][SIDE][SIDE]; };

static int many_sets(int n_rows) { return blocks(n_rows, 2 * SIDE) * 2; }
static size_t many_bytes(int n_rows, int n_in) {
    return sizeof(struct many) + (size_t)many_sets(n_rows) * (sizeof(float[2][SIDE][SIDE]) + (size_t)blocks(n_in, STEP) * sizeof(tile));
}

static void lay_out_many(const struct linear_call *c, tile *x, int n_sets, int steps) {
    for (int i = 0; i < n_sets * SIDE; i++) { /* behind the last row: the last again, computed and not stored */
        const uint16_t *row = call_bf16(c, i < c->n_rows ? i : c->n_rows - 1);
        for (int step = 0; step < steps; step++) x[i / SIDE * steps + step][i % SIDE] = _mm512_loadu_si512(row + step * STEP);
    }
}

/* One panel of a call, and the next one, for which memory is asked meanwhile: its rows and the lines of each. */
struct pass { struct many *m; const tile *x; int steps, first, n; const uint8_t *next; size_t stride; int next_rows, next_lines; };

static void fill_panel(const struct pass *p, const struct weight *w, int col, int n_columns) {
    for (int t = 0; t < 2; t++)
        for (int s = 0; s < p->n; s++) {
            __m512i v[SIDE];
            size_t at = (size_t)(p->first + s) * STEP_BYTES;
            int left = n_columns - t * SIDE;
            load_step(w->data + (size_t)(col + t * SIDE) * w->row_bytes + at, w->row_bytes, left < SIDE ? left : SIDE, w->row_bytes - at, v);
            transpose(v);
            for (int i = 0; i < SIDE; i++) p->m->weights[t][s][i] = v[i];
        }
}

/* Two sets of rows and two tiles of columns. */
static void multiply(const struct pass *p, int set) {
    float(*acc)[2][SIDE][SIDE] = p->m->acc + set;
    const tile *x0 = p->x + (size_t)set * (size_t)p->steps + p->first, *x1 = x0 + p->steps;
    if (p->first == 0) {
        _tile_zero(4);
        _tile_zero(5);
        _tile_zero(6);
        _tile_zero(7);
    } else {
        _tile_loadd(4, acc[0][0], 64);
        _tile_loadd(5, acc[0][1], 64);
        _tile_loadd(6, acc[1][0], 64);
        _tile_loadd(7, acc[1][1], 64);
    }
    for (int s = 0; s < p->n; s++) {
        _tile_loadd(0, x0[s], 64);
        _tile_loadd(2, p->m->weights[0][s], 64);
        _tile_dpbf16ps(4, 0, 2);
        _tile_loadd(3, p->m->weights[1][s], 64);
        _tile_dpbf16ps(5, 0, 3);
        _tile_loadd(1, x1[s], 64);
        _tile_dpbf16ps(6, 1, 2);
        _tile_dpbf16ps(7, 1, 3);
    }
    _tile_stored(4, acc[0][0], 64);
    _tile_stored(5, acc[0][1], 64);
    _tile_stored(6, acc[1][0], 64);
    _tile_stored(7, acc[1][1], 64);
}

/* Lines [from, from + n) of the next panel. */
static inline void fetch(const struct pass *p, int from, int n) {
    for (int i = from; i < from + n && i < p->next_rows * p->next_lines; i++)
        _mm_prefetch((const char *)p->next + (size_t)(i / p->next_lines) * p->stride + (size_t)(i % p->next_lines) * 64, _MM_HINT_T1);
}

static void run_many(const struct linear_call *c, int col0, int col1) {
    const struct weight *w = c->w->source;
    struct many *m = c->scratch;
    const int n_sets = many_sets(c->n_rows), steps = blocks(c->w->n_in, STEP);
    tile *x = (void *)(m->acc + n_sets);
    if (!c->same_rows) lay_out_many(c, x, n_sets, steps);
    _tile_loadconfig(&shapes);
    for (int col = col0; col < col1; col += 2 * SIDE) {
        int n = col1 - col < 2 * SIDE ? col1 - col : 2 * SIDE;
        for (int first = 0; first < steps; first += PANEL_STEPS) {
            struct pass p = {.m = m, .x = x, .steps = steps, .first = first, .n = steps - first < PANEL_STEPS ? steps - first : PANEL_STEPS};
            int last = first + PANEL_STEPS >= steps, next_col = last ? col + 2 * SIDE : col, next_first = last ? 0 : first + PANEL_STEPS;
            p.stride = w->row_bytes, p.next = w->data + (size_t)next_col * w->row_bytes + (size_t)next_first * STEP_BYTES;
            p.next_rows = col1 - next_col < 2 * SIDE ? col1 - next_col : 2 * SIDE;
            p.next_lines = steps - next_first < PANEL_STEPS ? steps - next_first : PANEL_STEPS;
            fill_panel(&p, w, col, n);
            int share = blocks(2 * SIDE * PANEL_STEPS, n_sets / 2);
            for (int set = 0; set < n_sets; set += 2) {
                fetch(&p, set / 2 * share, share);
                for (int r = set * SIDE; last && r < (set + 2) * SIDE && r < c->n_rows; r++)
                    for (int i = 0; i < n; i += 16) __builtin_prefetch(call_y(c, r) + col + i, 1);
                multiply(&p, set);
            }
        }
        for (int r = 0; r < c->n_rows; r++)
            for (int t = 0; t * SIDE < n; t++)
                call_store(c, r, col + t * SIDE, n - t * SIDE < SIDE ? n - t * SIDE : SIDE, m->acc[r / SIDE][t][r % SIDE]);
    }
    _tile_release();
}

#define KERNEL(name_, low, high, few, scratch, how)                                                                             \
    {.name = "bf16 amx " name_, .repr = "bf16", .arithmetic = "amx bf16", .form = FORM_BF16, .min_rows = low, .max_rows = high, \
     .tile = 1, .stream_rows = few, .scratch_bytes = scratch, .run = how}
const struct linear_kernel cpu_bf16_amx[2] = {
    KERNEL("few", 1, FEW_ROWS, FEW_ROWS, few_bytes, run_few), KERNEL("many", 1, INT_MAX, 0, many_bytes, run_many),
};
