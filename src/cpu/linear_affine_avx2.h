/* Affine products of int8 inputs in registers of 256 bits: shared by the files with and without dot products of bytes (AVX-VNNI). Lanes
 * over columns, a tile of 16 columns in two registers; the order is that of linear_avx512.c, so that the bits are too.
 *
 * Without dot products: vpmaddubsw gives sums of two products in 16 bits, added up there over as many steps as fit (4-bit codes: all
 * eight; 5: four; 6: two), then widened. 8-bit codes would saturate and go as two halves of 4 bits.
 *
 * "few" kernels unpack in registers, for up to six rows at once. "panel" kernels unpack a panel of codes into L1 once and use it for
 * every row of the call; inputs are laid out once for all calls of the same rows: one address serves six rows, and memory is read in
 * order. Six rows x 2 halves are 12 sums, which leaves four registers: everything else comes from memory. */
#ifndef CPU_LINEAR_AFFINE_AVX2_H
#define CPU_LINEAR_AFFINE_AVX2_H
#include <immintrin.h>
#include <limits.h>
#include <string.h>

#include "cpu/linear_affine.h"
#include "cpu/linear_call.h"
#include "cpu/linear_tile.h"

enum {
    HALVES = 2,
    PANEL_BLOCKS = 8, /* 4 KiB of codes, 8 KiB of 8 bits, beside 2 KiB of a set of inputs in L1; with 16 the same speed */
    MOST_TILES = 8,   /* sums of 256 rows are 128 KiB */
};

/* The value stays in its register: without this it is loaded and unpacked again for every row. */
INLINE void keep(__m256i *v) { __asm__("" : "+x"(*v)); }
/* What was stored stays in memory: there are no registers left. */
#define IN_MEMORY() __asm__ volatile("" ::: "memory")

INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const void *)p); }
INLINE __m256i four_inputs(const int8_t *x) { return _mm256_set1_epi32((int32_t)load_u32(x)); }
INLINE void prefetch(const void *p, size_t ahead) { _mm_prefetch((const char *)((uintptr_t)p + ahead), _MM_HINT_T0); }

/* Scales or biases of half h as fp32. */
INLINE __m256 load_scales(const uint8_t *p, enum dtype t, int h) {
    if (t == DTYPE_F32) return _mm256_loadu_ps((const float *)(const void *)p + 8 * h);
    __m128i v = _mm_loadu_si128((const void *)(p + 16 * h));
    if (t == DTYPE_F16) return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

INLINE __m256i shift(__m256i v, const int left) {
    return left > 0 ? _mm256_slli_epi16(v, left) : left < 0 ? _mm256_srli_epi16(v, -left) : v;
}

/* Half h of vector s of a block; of 8-bit codes all bits. */
INLINE __m256i unpack_step(const uint8_t *in, const int bits, const int s, const int h) {
    const int main_bits = bits == 8 ? 8 : bits >= 4 ? 4 : 2, more = bits - main_bits, per = 8 / main_bits;
    __m256i v = load(in + s / per * 64 + 32 * h);
    if (bits == 8) return v;
    v = _mm256_and_si256(shift(v, -(s % per) * main_bits), _mm256_set1_epi8((char)((1 << main_bits) - 1)));
    if (!more) return v;
    const int per_more = 8 / (more ? more : 1);
    __m256i p = shift(load(in + main_bits * 64 + s / per_more * 64 + 32 * h), main_bits - s % per_more * more);
    return _mm256_or_si256(v, _mm256_and_si256(p, _mm256_set1_epi8((char)(((1 << more) - 1) << main_bits))));
}

#if defined(WITH_DOT_BYTES)
#if !defined(DOT_BYTES) /* tests have one for processors without */
#define DOT_BYTES(sum, codes, x) __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(*(sum)) : "x"(codes), "x"(x))
#endif
/* A block is one chunk: eight steps of dots from DOT_MIDDLE on. */
enum { PARTS = 1 };
INLINE int chunk_steps(const int bits) { return (void)bits, 8; }
INLINE int chunk_count(const int bits) { return (void)bits, 1; }
INLINE int first_step(const int bits, const int chunk) { return (void)bits, (void)chunk, 0; }
INLINE __m256i chunk_codes(__m256i v, const int bits, const int chunk) { return (void)bits, (void)chunk, v; }
INLINE __m256i chunk_start(void) { /* by a load port: a copy of a register may take a vector port */
    static const float middle = DOT_MIDDLE;
    __m256i v;
    __asm__ volatile("vbroadcastss %1, %0" : "=x"(v) : "m"(middle));
    return v;
}
INLINE void add_dots(__m256i *sum, __m256i codes, __m256i four, const int first) {
    (void)first;
    DOT_BYTES(sum, codes, four);
}
INLINE __m256i chunk_sum(__m256i sum, __m256i before, const int bits, const int chunk) { return (void)before, (void)bits, (void)chunk, sum; }
#else
/* How the dots of a block are cut into chunks, after each of which sums of 16 bits are widened: so many steps of 4 k each, of 8-bit
 * codes first the low halves of all steps, then the high ones. */
enum { PARTS = 2 };
INLINE int chunk_steps(const int bits) { return bits <= 4 || bits == 8 ? 8 : bits == 5 ? 4 : 2; }
INLINE int chunk_count(const int bits) { return bits == 8 ? 2 : 8 / chunk_steps(bits); }
INLINE int first_step(const int bits, const int chunk) { return bits == 8 ? 0 : chunk * chunk_steps(bits); }
/* Codes of a step as a chunk's dots take them. */
INLINE __m256i chunk_codes(__m256i v, const int bits, const int chunk) {
    if (bits != 8) return v;
    return _mm256_and_si256(chunk ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
}
/* Of no value: written before it is read, in a way that the compiler does not see. */
INLINE __m256i chunk_start(void) {
    __m256i v;
    __asm__ volatile("" : "=x"(v)); /* not volatile, all are one, and copied */
    return v;
}
/* Written out, since GCC 12 makes a tree of the sums of all steps, for which it has not the registers. */
INLINE void add_dots(__m256i *sum, __m256i codes, __m256i four, const int first) {
    __m256i pairs;
    if (first) __asm__("vpmaddubsw %2, %1, %0" : "=x"(*sum) : "x"(codes), "x"(four));
    else __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(*sum), "=&x"(pairs) : "x"(codes), "x"(four));
}
/* DOT_MIDDLE and what the chunks before came to, and this one. */
INLINE __m256i chunk_sum(__m256i sum, __m256i before, const int bits, const int chunk) {
    const __m256i middle = _mm256_castps_si256(_mm256_set1_ps(DOT_MIDDLE)), weight = _mm256_set1_epi16(bits == 8 && chunk ? 16 : 1);
    return _mm256_add_epi32(chunk ? before : middle, _mm256_madd_epi16(sum, weight));
}
#endif

INLINE void store_half(const struct linear_call *c, float *y, int n, __m256 v) {
    if (n >= 8) {
        _mm256_storeu_ps(y, c->accumulate ? _mm256_add_ps(_mm256_loadu_ps(y), v) : v);
        return;
    }
    float result[8];
    _mm256_storeu_ps(result, v);
    for (int j = 0; j < n; j++) y[j] = c->accumulate ? y[j] + result[j] : result[j];
}

/* The tile at column col of the row's results, which lie at y. */
INLINE void store_tile(const struct linear_call *c, float *y, int col, const __m256 v[HALVES]) {
    for (int h = 0; h < HALVES; h++) store_half(c, y + 8 * h, c->w->n_out - col - 8 * h, v[h]);
}

#define START(r) __m256i s##r##0 = chunk_start(), s##r##1 = chunk_start();
#define STEP(r)                                                                                                           \
    if (R > r) {                                                                                                          \
        __m256i four = four_inputs(X(r) + 4 * s);                                                                         \
        add_dots(&s##r##0, v0, four, s == first_step(bits, chunk)), add_dots(&s##r##1, v1, four, s == first_step(bits, chunk)); \
    }
#define WIDEN(r) if (R > r) d[r][0] = chunk_sum(s##r##0, d[r][0], bits, chunk), d[r][1] = chunk_sum(s##r##1, d[r][1], bits, chunk);
/* d = DOT_MIDDLE + the dots of a block, whose codes are CODES(s, h), with the inputs X(r). */
#define BLOCK_DOTS()                                                                                                      \
    __m256i d[SET_ROWS][HALVES];                                                                                          \
    _Pragma("GCC unroll 4") for (int chunk = 0; chunk < chunk_count(bits); chunk++) {                                     \
        IN_MEMORY(); /* inputs, too: a second chunk loads them anew */                                                    \
        TILE_ROWS(START)                                                                                                  \
        _Pragma("GCC unroll 8") for (int s = first_step(bits, chunk); s < first_step(bits, chunk) + chunk_steps(bits); s++) { \
            __m256i v0 = CODES(s, 0), v1 = CODES(s, 1);                                                                   \
            keep(&v0), keep(&v1);                                                                                         \
            TILE_ROWS(STEP)                                                                                               \
        }                                                                                                                 \
        TILE_ROWS(WIDEN)                                                                                                  \
    }

/* R rows and the tiles of all streams: a whole group of one stream, then of the next. */
INLINE void few_q8(const struct linear_call *c, const struct affine_shape *shape, int col, int row0, const int bits, const int R) {
    const int n_streams = c->apart ? STREAMS : 1;
    const uint8_t *in[STREAMS];
    const size_t ahead = (size_t)c->ahead.near;
    const int8_t *x[SET_ROWS];
    const float *x_scale[SET_ROWS], *x_sum[SET_ROWS];
    __m256 acc[STREAMS][SET_ROWS][HALVES];
    for (int r = 0; r < R; r++) x[r] = call_q8(c, row0 + r), x_scale[r] = call_q8_scale(c, row0 + r), x_sum[r] = call_q8_sum(c, row0 + r);
    for (int i = 0; i < n_streams; i++) {
        in[i] = affine_tile(c->w, shape, col + i * c->apart);
        for (int r = 0; r < R; r++) acc[i][r][0] = acc[i][r][1] = _mm256_setzero_ps();
    }
    for (int g = 0; g < shape->n_groups; g++) {
        const int block0 = g * shape->group_blocks;
        float sum[SET_ROWS], start[SET_ROWS];
        for (int r = 0; r < R; r++) {
            sum[r] = x_sum[r][block0];
            for (int b = 1; b < shape->group_blocks; b++) sum[r] += x_sum[r][block0 + b];
            start[r] = dot_shift(x_scale[r] + block0, shape->group_blocks);
        }
#pragma GCC unroll 1
        for (int i = 0; i < n_streams; i++) {
            const uint8_t *at = in[i];
            __m256 t[SET_ROWS][HALVES];
            for (int r = 0; r < R; r++) t[r][0] = t[r][1] = _mm256_set1_ps(start[r]);
            for (int block = block0; block < block0 + shape->group_blocks; block++, at += shape->block_bytes) {
                for (int v = 0; v < bits; v++) prefetch(at + v * 64, ahead);
#define X(r) (x[r] + block * AFFINE_BLOCK)
#define CODES(s, h) chunk_codes(unpack_step(at, bits, s, h), bits, chunk)
                BLOCK_DOTS()
#undef X
#undef CODES
                for (int r = 0; r < R; r++)
                    for (int h = 0; h < HALVES; h++)
                        t[r][h] = _mm256_fmadd_ps(_mm256_castsi256_ps(d[r][h]), _mm256_set1_ps(x_scale[r][block]), t[r][h]);
            }
            prefetch(at, ahead);
            for (int h = 0; h < HALVES; h++) {
                __m256 scale = load_scales(at, shape->scale, h), bias = load_scales(at + shape->scale_bytes, shape->scale, h);
                for (int r = 0; r < R; r++)
                    acc[i][r][h] = _mm256_fmadd_ps(bias, _mm256_set1_ps(sum[r]), _mm256_fmadd_ps(scale, t[r][h], acc[i][r][h]));
            }
            in[i] = at + 2 * shape->scale_bytes;
        }
    }
    for (int i = 0; i < n_streams; i++)
        for (int r = 0; r < R; r++) store_tile(c, call_y(c, row0 + r) + col + i * c->y_apart, col + i * c->apart, acc[i][r]);
}

INLINE void run_few_q8(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    for (int col = col0; col < col1; col += AFFINE_TILE)
        for (int row = 0, n; row < c->n_rows; row += n) {
            n = rows_of_set(c->n_rows - row);
#define CALL(R) few_q8(c, &shape, col, row, bits, R)
            TILE_CASES(n, CALL)
#undef CALL
        }
}

/* Unpacked codes and scales of PANEL_BLOCKS blocks of a tile. PARTS == 2: 8-bit codes in halves. */
struct panel {
    __m256i codes[PANEL_BLOCKS][PARTS][8][HALVES];
    __m256 scale[PANEL_BLOCKS][HALVES], bias[PANEL_BLOCKS][HALVES]; /* [group of the panel] */
    __m256 t[SET_ROWS][HALVES];
};
/* Inputs of a set of rows for those blocks. */
struct panel_set {
    int8_t x[SET_ROWS][PANEL_BLOCKS * AFFINE_BLOCK];
    float scale[SET_ROWS][PANEL_BLOCKS];
    float start[SET_ROWS][PANEL_BLOCKS], sum[SET_ROWS][PANEL_BLOCKS]; /* [group of the panel] */
};
typedef __m256 tile_acc[HALVES];

static size_t panel_sets(int n_rows) { return (size_t)(n_rows + SET_ROWS - 1) / SET_ROWS; }
static size_t panels_of(int n_in) { return (size_t)(n_in + PANEL_BLOCKS * AFFINE_BLOCK - 1) / (PANEL_BLOCKS * AFFINE_BLOCK); }

/* Scratch memory: a panel, the sums [tile][row], the inputs [panel][set]. */
static size_t panel_bytes(int n_rows, int n_in) {
    return sizeof(struct panel) + MOST_TILES * (size_t)n_rows * sizeof(tile_acc) + panels_of(n_in) * panel_sets(n_rows) * sizeof(struct panel_set);
}

/* One panel of a tile for all rows. `ahead`: what the next panel is made of, of which `step` bytes are asked for with each group of
 * each set, so that memory is at work all the time. */
struct panel_pass {
    const struct linear_call *c;
    const struct affine_shape *shape;
    struct panel *p;
    const struct panel_set *in;
    tile_acc *acc;
    int col, n_groups, first, last;
    const uint8_t *ahead, *ahead_end;
    size_t step;
};

static void fill_sets(const struct linear_call *c, struct panel_set *set, int group_blocks, int block0, int n_groups) {
    for (int row = 0, n; row < c->n_rows; row += n, set++) {
        n = rows_of_set(c->n_rows - row);
        for (int r = 0; r < n; r++) {
            const float *scale = call_q8_scale(c, row + r) + block0, *sum = call_q8_sum(c, row + r) + block0;
            memcpy(set->x[r], call_q8(c, row + r) + block0 * AFFINE_BLOCK, (size_t)(n_groups * group_blocks * AFFINE_BLOCK));
            memcpy(set->scale[r], scale, (size_t)(n_groups * group_blocks) * sizeof *scale);
            for (int g = 0; g < n_groups; g++, scale += group_blocks, sum += group_blocks)
                set->start[r][g] = dot_shift(scale, group_blocks), set->sum[r][g] = sum_of_group(sum, group_blocks);
        }
    }
}

INLINE void unpack_panel(struct panel *p, const struct affine_shape *shape, const uint8_t *from, int n_groups, const int bits) {
    for (int g = 0, block = 0; g < n_groups; g++) {
        for (int b = 0; b < shape->group_blocks; b++, block++, from += shape->block_bytes)
#pragma GCC unroll 8
            for (int s = 0; s < 8; s++)
#pragma GCC unroll 2
                for (int h = 0; h < HALVES; h++) {
                    __m256i v = unpack_step(from, bits, s, h);
                    p->codes[block][0][s][h] = chunk_codes(v, bits, 0);
                    if (bits == 8 && PARTS == 2) p->codes[block][PARTS - 1][s][h] = chunk_codes(v, bits, 1);
                }
        for (int h = 0; h < HALVES; h++) {
            p->scale[g][h] = load_scales(from, shape->scale, h);
            p->bias[g][h] = load_scales(from + shape->scale_bytes, shape->scale, h);
        }
        from += 2 * shape->scale_bytes;
    }
}

/* A set of R rows against the panel. */
INLINE void panel_q8(struct panel_pass *pass, const struct panel_set *in, tile_acc *acc, const int bits, const int R) {
    struct panel *p = pass->p;
    const int group_blocks = pass->shape->group_blocks;
#define X(r) (in->x[r] + block * AFFINE_BLOCK)
#define CODES(s, h) codes[bits == 8 && PARTS == 2 ? chunk : 0][s][h]
#define SCALE_FIRST(r)                                                                                        \
    if (R > r) {                                                                                              \
        __m256 scale = _mm256_set1_ps(in->scale[r][block]), start = _mm256_set1_ps(in->start[r][g]);          \
        p->t[r][0] = _mm256_fmadd_ps(_mm256_castsi256_ps(d[r][0]), scale, start);                             \
        p->t[r][1] = _mm256_fmadd_ps(_mm256_castsi256_ps(d[r][1]), scale, start);                             \
    }
#define SCALE(r)                                                                                              \
    if (R > r) {                                                                                              \
        __m256 scale = _mm256_set1_ps(in->scale[r][block]);                                                   \
        p->t[r][0] = _mm256_fmadd_ps(_mm256_castsi256_ps(d[r][0]), scale, p->t[r][0]);                        \
        p->t[r][1] = _mm256_fmadd_ps(_mm256_castsi256_ps(d[r][1]), scale, p->t[r][1]);                        \
    }
#define ADD(r)                                                                                                \
    if (R > r) {                                                                                              \
        __m256 sum = _mm256_set1_ps(in->sum[r][g]);                                                           \
        acc[r][0] = _mm256_fmadd_ps(bias0, sum, _mm256_fmadd_ps(scale0, p->t[r][0], acc[r][0]));              \
        acc[r][1] = _mm256_fmadd_ps(bias1, sum, _mm256_fmadd_ps(scale1, p->t[r][1], acc[r][1]));              \
    }
    for (int g = 0, block = 0; g < pass->n_groups; g++) {
        const uint8_t *end = pass->ahead_end - pass->ahead < (ptrdiff_t)pass->step ? pass->ahead_end : pass->ahead + pass->step;
        for (; pass->ahead < end; pass->ahead += 64) prefetch(pass->ahead, 0);
        for (int b = 0; b < group_blocks; b++, block++) {
            const __m256i(*codes)[8][HALVES] = p->codes[block];
            BLOCK_DOTS()
            if (b) {
                TILE_ROWS(SCALE)
            } else {
                TILE_ROWS(SCALE_FIRST)
            }
        }
        IN_MEMORY();
        const __m256 scale0 = p->scale[g][0], scale1 = p->scale[g][1], bias0 = p->bias[g][0], bias1 = p->bias[g][1];
        TILE_ROWS(ADD)
    }
#undef X
#undef CODES
#undef SCALE_FIRST
#undef SCALE
#undef ADD
}

/* All sets; results go out with the set that completes them. One copy for weights of all bits whose dots are the same. */
INLINE void panel_rows_q8(struct panel_pass *pass, const int bits) {
    const struct panel_set *in = pass->in;
    for (int row = 0, n; row < pass->c->n_rows; row += n, in++) {
        tile_acc *acc = pass->acc + row;
        n = rows_of_set(pass->c->n_rows - row);
        for (int r = 0; pass->first && r < n; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        for (int r = 0; pass->last && r < n; r++) prefetch(call_y(pass->c, row + r) + pass->col, 0);
#define CALL(R) panel_q8(pass, in, acc, bits, R)
        TILE_CASES(n, CALL)
#undef CALL
        for (int r = 0; pass->last && r < n; r++) store_tile(pass->c, call_y(pass->c, row + r) + pass->col, pass->col, acc[r]);
    }
}
static __attribute__((noinline)) void panel_rows_q8_4(struct panel_pass *pass) { panel_rows_q8(pass, 4); }

/* Panel after panel along k for MOST_TILES tiles, so that inputs of a panel come from L2. */
INLINE void run_panel_q8(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    const int most = PANEL_BLOCKS / shape.group_blocks;
    const size_t n_sets = panel_sets(c->n_rows);
    struct panel *p = c->scratch;
    tile_acc *acc = (tile_acc *)(p + 1);
    struct panel_set *sets = (struct panel_set *)(acc + MOST_TILES * (size_t)c->n_rows);
    for (int first_col = col0, n_tiles; first_col < col1; first_col += n_tiles * AFFINE_TILE) {
        n_tiles = (col1 - first_col + AFFINE_TILE - 1) / AFFINE_TILE;
        if (n_tiles > MOST_TILES) n_tiles = MOST_TILES;
        struct panel_pass pass = {.c = c, .shape = &shape, .p = p};
        struct panel_set *in = sets;
        for (int g = 0; g < shape.n_groups; g += pass.n_groups, in += n_sets) {
            pass.in = in, pass.n_groups = shape.n_groups - g < most ? shape.n_groups - g : most;
            pass.first = g == 0, pass.last = g + pass.n_groups == shape.n_groups;
            if (!c->same_rows && first_col == col0) fill_sets(c, in, shape.group_blocks, g * shape.group_blocks, pass.n_groups);
            for (int i = 0; i < n_tiles; i++) {
                pass.col = first_col + i * AFFINE_TILE, pass.acc = acc + i * c->n_rows;
                /* The next tile; the first one's next panel; the first panel of what comes behind. */
                int next_g = i + 1 < n_tiles ? g : pass.last ? 0 : g + pass.n_groups, n_ahead = shape.n_groups - next_g < most ? shape.n_groups - next_g : most;
                size_t bytes = (size_t)n_ahead * shape.group_bytes;
                pass.ahead = affine_tile(c->w, &shape, i + 1 < n_tiles || pass.last ? pass.col + AFFINE_TILE : first_col) + (size_t)next_g * shape.group_bytes;
                if (c->behind && pass.last && pass.col + AFFINE_TILE >= col1) pass.ahead = c->behind;
                pass.ahead_end = pass.ahead + bytes, pass.step = (bytes / ((size_t)pass.n_groups * n_sets) + 64) / 64 * 64;
                unpack_panel(p, &shape, affine_tile(c->w, &shape, pass.col) + (size_t)g * shape.group_bytes, pass.n_groups, bits);
                if (bits <= 4 || PARTS == 1) panel_rows_q8_4(&pass);
                else panel_rows_q8(&pass, bits);
            }
        }
    }
}

#define KERNEL(BITS, FORM, form_, kind, low, high, streams, scratch)                                                             \
    {.name = "affine" #BITS " " #form_ " " #kind, .repr = "affine", .bits = BITS, .layout = &cpu_layout_affine,                  \
     .arithmetic = "fma codes by " #form_, .form = FORM, .min_rows = low, .max_rows = high, .tile = AFFINE_TILE,                 \
     .stream_rows = streams, .scratch_bytes = scratch, .run = kind##_##form_##_##BITS}
#define KERNELS_Q8(BITS) \
    KERNEL(BITS, FORM_Q8, q8, few, 1, 32, 32, NULL), KERNEL(BITS, FORM_Q8, q8, panel, 5, INT_MAX, SET_ROWS, panel_bytes)
#define FUNCTIONS_Q8(BITS)                                                                                                       \
    static __attribute__((noinline)) void few_q8_##BITS(const struct linear_call *c, int a, int b) { run_few_q8(c, a, b, BITS); } \
    static void panel_q8_##BITS(const struct linear_call *c, int a, int b) {                                                     \
        if (c->n_rows <= SET_ROWS) few_q8_##BITS(c, a, b); /* for one set, unpacking once saves nothing, and streams read faster */ \
        else run_panel_q8(c, a, b, BITS);                                                                                        \
    }
#endif
