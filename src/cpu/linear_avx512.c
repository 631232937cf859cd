/* Affine products for AVX-512 with VNNI. Lanes over 16 columns.
 *
 * Order with int8 inputs, per row and column: for each group, t = dot_shift (linear_affine.h), then for each of its blocks of 32 k
 * t = fma(DOT_MIDDLE + exact dot, scale of the block, t); acc = fma(s, t, acc); acc = fma(b, sum of the blocks' q8_sum, acc). With bf16
 * inputs: t = 0, t = fma(code, x, t) over the group's k in order, the sum of x likewise, then the same.
 *
 * "few" kernels unpack in registers: one row four tiles side by side, more rows two and two. "panel" kernels unpack a panel of codes
 * into L1 once and use it for every row of the call. With int8 inputs, these are laid out as the dots want them, once for all calls of
 * the same rows: one address serves six rows, and memory is read in order. */
#include <immintrin.h>
#include <limits.h>
#include <string.h>

#include "cpu/isa.h"
#include "cpu/linear_affine_avx512.h"

enum {
    PANEL_BLOCKS = 16, PANEL_TILES = 2, /* 16 blocks x 32 columns: 16 KiB of codes; a set's inputs take 4 */
    LEAST_SET = 3,      /* rows of a set, when there are more than SET_ROWS */
    MOST_PAIRS = 8,     /* sums of 256 rows are 256 KiB */
    FMA_ROWS = 6,       /* 6 rows x 4 tiles of fp32 sums */
};

/* Of no value: written before it is read, in a way that the compiler does not see. */
INLINE __m512 unset(void) {
    __m512 v;
    __asm__ volatile("" : "=v"(v)); /* not volatile, all are one, and copied */
    return v;
}

INLINE __m512 load_everywhere(const float *p) { /* by a load port */
    __m512 v;
    __asm__ volatile("vbroadcastss %1, %0" : "=v"(v) : "m"(*p));
    return v;
}

/* acc += codes of four k with the four inputs at x. */
INLINE void dot_four(__m512i *acc, __m512i codes, const int8_t *x) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(codes), "m"(*(const int32_t *)(const void *)x));
}
INLINE __m512i four_inputs(const int8_t *x) { return _mm512_set1_epi32((int32_t)load_u32(x)); }

/* One row and C tiles, the first at column col, the others c->apart columns further each: a whole group of one stream, then of the
 * next. */
INLINE void stream_q8(const struct linear_call *c, const struct affine_shape *shape, int col, int row, const int bits, const int C) {
    const uint8_t *in[STREAMS];
    const struct ahead ahead = c->ahead;
    const int8_t *x = call_q8(c, row);
    const float *x_scale = call_q8_scale(c, row), *x_sum = call_q8_sum(c, row);
    const __m512i middle = (__m512i)_mm512_set1_ps(DOT_MIDDLE);
    __m512 acc[STREAMS];
    for (int i = 0; i < C; i++) in[i] = affine_tile(c->w, shape, col + i * c->apart), acc[i] = _mm512_setzero_ps();
    for (int g = 0; g < shape->n_groups; g++, x += shape->group_blocks * AFFINE_BLOCK, x_scale += shape->group_blocks, x_sum += shape->group_blocks) {
        const float sum = sum_of_group(x_sum, shape->group_blocks);
        const __m512 shift = _mm512_set1_ps(dot_shift(x_scale, shape->group_blocks));
#pragma GCC unroll 4
        for (int i = 0; i < C; i++) {
            const uint8_t *at = in[i];
            __m512 t = shift;
            for (int b = 0; b < shape->group_blocks; b++, at += shape->block_bytes) {
                __m512i dot = middle;
                ask_block(at, bits, ahead);
#pragma GCC unroll 8
                for (int s = 0; s < 8; s++) dot_four(&dot, unpack_step(at, bits, s), x + b * AFFINE_BLOCK + 4 * s);
                t = _mm512_fmadd_ps((__m512)dot, _mm512_set1_ps(x_scale[b]), t);
            }
            ask(at, ahead);
            acc[i] = _mm512_fmadd_ps(load_scales(at, shape->scale), t, acc[i]);
            acc[i] = _mm512_fmadd_ps(load_scales(at + shape->scale_bytes, shape->scale), _mm512_set1_ps(sum), acc[i]);
            in[i] = at + 2 * shape->scale_bytes;
        }
    }
    for (int i = 0; i < C; i++) store_stream(c, row, col, i, acc[i]);
}

/* R rows and the tiles of all streams, two at a time: 12 dots and 12 scaled sums in registers, codes unpacked on the way and used by all
 * rows. A whole group of two streams, then of the other two. */
INLINE void direct_q8(const struct linear_call *c, const struct affine_shape *shape, int col, int row0, const int bits, const int R) {
    static const float middle = DOT_MIDDLE;
    const uint8_t *in[STREAMS];
    const struct ahead ahead = c->ahead;
    const int8_t *x[SET_ROWS];
    const float *x_scale[SET_ROWS], *x_sum[SET_ROWS];
    __m512 acc[STREAMS][SET_ROWS];
    for (int r = 0; r < R; r++) x[r] = call_q8(c, row0 + r), x_scale[r] = call_q8_scale(c, row0 + r), x_sum[r] = call_q8_sum(c, row0 + r);
    for (int i = 0; i < STREAMS; i++) {
        in[i] = affine_tile(c->w, shape, col + i * c->apart);
        for (int r = 0; r < R; r++) acc[i][r] = _mm512_setzero_ps();
    }
    for (int g = 0; g < shape->n_groups; g++) {
        const int block0 = g * shape->group_blocks;
        float sum[SET_ROWS] = {0}, shift[SET_ROWS];
        for (int b = 0; b < shape->group_blocks; b++)
            for (int r = 0; r < R; r++) sum[r] += x_sum[r][block0 + b];
        for (int r = 0; r < R; r++) shift[r] = dot_shift(x_scale[r] + block0, shape->group_blocks);
        __asm__ volatile("" ::: "memory"); /* acc and sum stay in memory: there are no registers left */
#define SUMS(r)                                                                                \
    __m512 t##r##0 = unset(), t##r##1 = unset();                                             \
    if (R > r) t##r##0 = load_everywhere(&shift[r]), t##r##1 = load_everywhere(&shift[r]);
#define DOTS(r) __m512i d##r##0 = (__m512i)load_everywhere(&middle), d##r##1 = (__m512i)load_everywhere(&middle);
#define STEP(r)                                                                              \
    if (R > r) {                                                                             \
        __m512i four = four_inputs(x[r] + block * AFFINE_BLOCK + 4 * s);                     \
        dot_bytes(&d##r##0, v0, four), dot_bytes(&d##r##1, v1, four);                        \
    }
#define SCALE(r)                                                                             \
    if (R > r) {                                                                             \
        __m512 scale = _mm512_set1_ps(x_scale[r][block]);                                    \
        t##r##0 = _mm512_fmadd_ps((__m512)d##r##0, scale, t##r##0);                          \
        t##r##1 = _mm512_fmadd_ps((__m512)d##r##1, scale, t##r##1);                          \
    }
#define ADD(r)                                                                               \
    if (R > r) {                                                                             \
        __m512 x_sum_r = _mm512_set1_ps(sum[r]);                                             \
        acc[i][r] = _mm512_fmadd_ps(bias0, x_sum_r, _mm512_fmadd_ps(scale0, t##r##0, acc[i][r])); \
        acc[i + 1][r] = _mm512_fmadd_ps(bias1, x_sum_r, _mm512_fmadd_ps(scale1, t##r##1, acc[i + 1][r])); \
    }
#pragma GCC unroll 1
        for (int i = 0; i < STREAMS; i += 2) {
            const uint8_t *in0 = in[i], *in1 = in[i + 1];
            TILE_ROWS(SUMS)
            for (int block = block0; block < block0 + shape->group_blocks; block++) {
                TILE_ROWS(DOTS)
                ask_block(in0, bits, ahead), ask_block(in1, bits, ahead);
#pragma GCC unroll 8
                for (int s = 0; s < 8; s++) {
                    __m512i v0 = unpack_step(in0, bits, s), v1 = unpack_step(in1, bits, s);
                    keep(&v0), keep(&v1);
                    TILE_ROWS(STEP)
                }
                in0 += shape->block_bytes, in1 += shape->block_bytes;
                TILE_ROWS(SCALE)
            }
            __m512 scale0 = load_scales(in0, shape->scale), bias0 = load_scales(in0 + shape->scale_bytes, shape->scale);
            __m512 scale1 = load_scales(in1, shape->scale), bias1 = load_scales(in1 + shape->scale_bytes, shape->scale);
            ask(in0, ahead), ask(in1, ahead);
            in[i] = in0 + 2 * shape->scale_bytes, in[i + 1] = in1 + 2 * shape->scale_bytes;
            TILE_ROWS(ADD)
        }
#undef SUMS
#undef DOTS
#undef STEP
#undef SCALE
#undef ADD
    }
    for (int i = 0; i < STREAMS; i++)
        for (int r = 0; r < R; r++) store_stream(c, row0 + r, col, i, acc[i][r]);
}

INLINE void direct_rows_q8(const struct linear_call *c, const struct affine_shape *shape, int col, const int bits) {
    for (int row = 0, left = c->n_rows, n; left > 0; row += n, left -= n) {
        n = rows_of_set(left);
#define CALL(R) direct_q8(c, shape, col, row, bits, R)
        TILE_CASES(n, CALL)
#undef CALL
    }
}

INLINE void run_few_q8(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    for (int col = col0; col < col1; col += AFFINE_TILE) {
        if (!c->apart)
            for (int row = 0; row < c->n_rows; row++) stream_q8(c, &shape, col, row, bits, 1);
        else if (c->n_rows == 1) stream_q8(c, &shape, col, 0, bits, STREAMS);
        else direct_rows_q8(c, &shape, col, bits);
    }
}

/* Unpacked codes and scales of PANEL_BLOCKS blocks of 32 columns. */
struct panel {
    __m512i codes[PANEL_BLOCKS][8][PANEL_TILES];
    struct panel_scales { __m512 scale[PANEL_TILES], bias[PANEL_TILES]; } group[PANEL_BLOCKS];
};
/* Inputs of a block of a set of rows. */
struct panel_in {
    int8_t x[SET_ROWS][AFFINE_BLOCK];
    float scale[SET_ROWS], shift[SET_ROWS], sum[SET_ROWS]; /* shift: of the group that begins with this block; sum: of that which ends */
};
typedef __m512 panel_acc[PANEL_TILES];

static size_t panel_sets(int n_rows) { return (size_t)(n_rows + SET_ROWS - 1) / SET_ROWS; }
static size_t blocks_of(int n_in) { return (size_t)(n_in + AFFINE_BLOCK - 1) / AFFINE_BLOCK; }

/* Scratch memory: a panel, the sums [pair of tiles][row] behind those of a set that is none, the inputs [panel][set][block] likewise. */
static size_t panel_bytes(int n_rows, int n_in) {
    return sizeof(struct panel) + (SET_ROWS + MOST_PAIRS * (size_t)n_rows) * sizeof(panel_acc) +
           (1 + blocks_of(n_in) * panel_sets(n_rows)) * sizeof(struct panel_in);
}

/* One panel of a pair of tiles, the first at column col, for all rows. What the next panel is made of, from `ahead` on and as much a tile
 * further, is asked for by ahead_lines lines with each group of each set, so that memory is at work all the time; into L2, since L1 is
 * full. */
struct panel_pass {
    const struct linear_call *c;
    const struct affine_shape *shape;
    const uint8_t *from; /* the weights of the first tile */
    struct panel *p;
    panel_acc *acc, *waste; /* waste: where sums of a set that is none go */
    int col, n_tiles, n_groups, first, last;
    const uint8_t *ahead, *ahead_end;
    int ahead_lines;
};

static void fill_sets(const struct linear_call *c, struct panel_in *in, int group_blocks, int block0, int n_blocks) {
    for (int row = 0, n; row < c->n_rows; row += n, in += n_blocks) {
        n = rows_of_set(c->n_rows - row);
        for (int r = 0; r < n; r++) {
            const int8_t *x = call_q8(c, row + r) + block0 * AFFINE_BLOCK;
            const float *scale = call_q8_scale(c, row + r) + block0, *sum = call_q8_sum(c, row + r) + block0;
            for (int b = 0; b < n_blocks; b++) {
                if (b % 2 == 0) prefetch(x + b * AFFINE_BLOCK, 4 * (size_t)c->x->padded);
                memcpy(in[b].x[r], x + b * AFFINE_BLOCK, AFFINE_BLOCK);
                in[b].scale[r] = scale[b];
            }
            for (int b = 0; b < n_blocks; b += group_blocks) {
                in[b].shift[r] = dot_shift(scale + b, group_blocks);
                in[b + group_blocks - 1].sum[r] = sum_of_group(sum + b, group_blocks);
            }
        }
    }
}

/* Not a call, since panel_q8 keeps values in registers that calls may change. */
INLINE void panel_results(const struct panel_pass *s, panel_acc *acc, int row, int rows) {
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < s->n_tiles; i++) store_tile(s->c, row + r, s->col + i * AFFINE_TILE, acc[r][i]);
}

/* All sets of rows, whose inputs begin at `in`, against a panel. The first set makes the panel, which takes three quarters of the time that
 * it takes by itself.
 *
 * What follows the dots of a block is spread over the dots of the next one, of whichever set: a row's scaling is behind the dots of the
 * rows before it, a group's scales and sums are a row at each further step. In one piece they leave the dots' ports idle, since what waits
 * for dots fills the scheduler (an eighth slower). So the first block has one before it, which is none. Registers are named: the compiler
 * copies and spills. So nothing in here may be a call. */
INLINE void panel_q8(const struct panel_pass *s, const struct panel_in *in, const int bits) {
    const struct affine_shape *shape = s->shape;
    const int group_blocks = shape->group_blocks, n_rows = s->c->n_rows;
    const uint8_t *from0 = s->from, *from1 = from0 + (s->n_tiles > 1 ? shape->tile_bytes : 0), *ahead = s->ahead;
    panel_acc *acc = s->acc, *last_acc = s->waste;
    const struct panel_scales *last = s->p->group;
    int last_rows = SET_ROWS;
#define EVERYWHERE(v, x) __asm__ volatile("vbroadcastss %1, %0" : "=v"(v) : "m"(x));
#define DOT_BYTES(d, v, x) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(d) : "v"(v), "v"(x));
#define FMA(t, v, x) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(t) : "v"(v), "v"(x));
#define COPY(v, x) __asm__ volatile("vmovaps %1, %0" : "=v"(v) : "v"(x)); /* no port is taken */
#define FMA_MEMORY(t, v, m) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(t) : "v"(v), "m"(m)); /* t += v * m */
#define SCALE_ADD(t, m, v) __asm__ volatile("vfmadd132ps %2, %1, %0" : "+v"(t) : "v"(v), "m"(m));  /* t = t * m + v */
#define STORE(m, t) __asm__ volatile("vmovaps %1, %0" : "=m"(m) : "v"(t));
#define CLEAR(r) COPY(d##r##0, middle) COPY(d##r##1, middle) COPY(t##r##0, middle) COPY(t##r##1, middle)
#define SCALE(r)                                                              \
    {                                                                         \
        __m512 scale = load_everywhere(&in[-1].scale[r]);                     \
        FMA(t##r##0, d##r##0, scale) FMA(t##r##1, d##r##1, scale)             \
    }
#define ADD(r)                                                                \
    {                                                                         \
        __m512 sum = load_everywhere(&in[-1].sum[r]);                         \
        __m512 acc0 = _mm512_load_ps(&last_acc[r][0]), acc1 = _mm512_load_ps(&last_acc[r][1]); \
        SCALE_ADD(t##r##0, last->scale[0], acc0) SCALE_ADD(t##r##1, last->scale[1], acc1) \
        FMA_MEMORY(t##r##0, sum, last->bias[0]) FMA_MEMORY(t##r##1, sum, last->bias[1])   \
        STORE(last_acc[r][0], t##r##0) STORE(last_acc[r][1], t##r##1)         \
    }
#define DOT(r)                                                                \
    if (R > r) {                                                              \
        __m512i four = four_inputs(in->x[r] + 4 * s8);                        \
        DOT_BYTES(d##r##0, v0, four) DOT_BYTES(d##r##1, v1, four)             \
    }
#define LAST_HAS(r) (r < LEAST_SET || last_rows > r) /* the last set has a row r */
#define WAS(r) (begins ? LAST_HAS(r) : R > r)        /* the block before this one has */
#define FIRST_DOT(r)                                                          \
    if (WAS(r)) SCALE(r)                                                      \
    if (R > r) { COPY(d##r##0, middle) COPY(d##r##1, middle) }                \
    DOT(r)
#define NEXT_GROUP(r)                                                         \
    if (s8 == r + 1) {                                                        \
        if (WAS(r)) ADD(r)                                                    \
        if (R > r) { EVERYWHERE(t##r##0, in->shift[r]) COPY(t##r##1, t##r##0) } \
    }
#define STEP(n)                                                               \
    {                                                                         \
        enum { s8 = n };                                                      \
        __m512i v0 = UNPACKS ? unpack_step(from0, bits, s8) : codes[s8][0], v1 = UNPACKS ? unpack_step(from1, bits, s8) : codes[s8][1]; \
        keep(&v0), keep(&v1);                                                 \
        if (UNPACKS) codes[s8][0] = v0, codes[s8][1] = v1;                    \
        if (s8 == 0) { TILE_ROWS(FIRST_DOT) } else { TILE_ROWS(DOT) }         \
        if (begins) { TILE_ROWS(NEXT_GROUP) }                                 \
    }
#define BLOCK(n)                                                              \
    {                                                                         \
        enum { begins = n };                                                  \
        STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)       \
        codes += 8, in++;                                                     \
        if (UNPACKS) from0 += shape->block_bytes, from1 += shape->block_bytes; \
    }
/* A set of ROWS rows and all groups of the panel. */
#define SET(ROWS, MAKES)                                                      \
    {                                                                         \
        enum { R = ROWS, UNPACKS = MAKES };                                   \
        for (int g = s->n_groups; g > 0; g--) {                               \
            for (int i = s->ahead_lines; i > 0; i--) {                        \
                _mm_prefetch((const char *)ahead, _MM_HINT_T1), _mm_prefetch((const char *)ahead + shape->tile_bytes, _MM_HINT_T1); \
                ahead = ahead < s->ahead_end ? ahead + 64 : ahead;            \
            }                                                                 \
            BLOCK(1)                                                          \
            for (int b = 1; b < group_blocks; b++) BLOCK(0)                   \
            if (UNPACKS) {                                                    \
                const enum dtype t = shape->scale;                            \
                const size_t each = shape->scale_bytes;                       \
                group->scale[0] = load_scales(from0, t), group->scale[1] = load_scales(from1, t); \
                group->bias[0] = load_scales(from0 + each, t), group->bias[1] = load_scales(from1 + each, t); \
                from0 += 2 * each, from1 += 2 * each;                         \
            }                                                                 \
            last_acc = acc, last_rows = R, last = group++;                    \
        }                                                                     \
        break;                                                                \
    }
    register __m512i d00 __asm__("zmm8"), d01 __asm__("zmm9"), d10 __asm__("zmm10"), d11 __asm__("zmm11"), d20 __asm__("zmm12"), d21 __asm__("zmm13");
    register __m512i d30 __asm__("zmm14"), d31 __asm__("zmm15"), d40 __asm__("zmm16"), d41 __asm__("zmm17"), d50 __asm__("zmm18"), d51 __asm__("zmm19");
    register __m512 t00 __asm__("zmm20"), t01 __asm__("zmm21"), t10 __asm__("zmm22"), t11 __asm__("zmm23"), t20 __asm__("zmm24"), t21 __asm__("zmm25");
    register __m512 t30 __asm__("zmm26"), t31 __asm__("zmm27"), t40 __asm__("zmm28"), t41 __asm__("zmm29"), t50 __asm__("zmm30"), t51 __asm__("zmm31");
    register __m512 middle __asm__("zmm7") = _mm512_set1_ps(DOT_MIDDLE);
    TILE_ROWS(CLEAR)
    for (int row = 0, rows, was = 0; row < n_rows; row += rows, acc += rows, was = rows) {
        __m512i(*codes)[PANEL_TILES] = s->p->codes[0];
        struct panel_scales *group = s->p->group;
        rows = rows_of_set(n_rows - row);
        for (int r = 0; s->first && r < rows; r++)
            for (int i = 0; i < PANEL_TILES; i++) STORE(acc[r][i], _mm512_setzero_ps()) /* an instruction: memset would be a call */
        for (int r = 0; s->last && r < rows; r++)
            for (int i = 0; i < s->n_tiles; i++) __builtin_prefetch(call_y(s->c, row + r) + s->col + i * AFFINE_TILE, 1, 3);
        switch (row == 0 ? rows : -rows) { /* of more than SET_ROWS rows: the first set has four at least, others three */
        case 4: SET(4, 1)
        case 5: SET(5, 1)
        case 6: SET(6, 1)
        case -3: SET(3, 0)
        case -4: SET(4, 0)
        case -5: SET(5, 0)
        default: SET(6, 0)
        }
        if (s->last && row > 0) panel_results(s, acc - was, row - was, was);
    }
#define END_SCALE(r) if (LAST_HAS(r)) SCALE(r)
#define END_ADD(r) if (LAST_HAS(r)) ADD(r)
    TILE_ROWS(END_SCALE)
    TILE_ROWS(END_ADD)
    if (s->last) panel_results(s, last_acc, n_rows - last_rows, last_rows);
#undef EVERYWHERE
#undef DOT_BYTES
#undef FMA
#undef COPY
#undef FMA_MEMORY
#undef SCALE_ADD
#undef STORE
#undef CLEAR
#undef SCALE
#undef ADD
#undef DOT
#undef LAST_HAS
#undef WAS
#undef FIRST_DOT
#undef NEXT_GROUP
#undef STEP
#undef BLOCK
#undef SET
#undef END_SCALE
#undef END_ADD
}

/* Panel after panel along k for MOST_PAIRS pairs of tiles, so that inputs of a panel come from L2. */
INLINE void run_panel_q8(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    const int most = PANEL_BLOCKS / shape.group_blocks, width = PANEL_TILES * AFFINE_TILE;
    const size_t n_sets = panel_sets(c->n_rows);
    struct panel *p = c->scratch;
    panel_acc *acc = (panel_acc *)(p + 1) + SET_ROWS;
    struct panel_in *sets = (struct panel_in *)(acc + MOST_PAIRS * (size_t)c->n_rows) + 1;
    for (int first_col = col0, n_pairs; first_col < col1; first_col += n_pairs * width) {
        n_pairs = (col1 - first_col + width - 1) / width;
        if (n_pairs > MOST_PAIRS) n_pairs = MOST_PAIRS;
        struct panel_pass s = {.c = c, .shape = &shape, .p = p, .waste = acc - SET_ROWS};
        struct panel_in *in = sets;
        for (int g = 0; g < shape.n_groups; g += s.n_groups, in += n_sets * (size_t)(s.n_groups * shape.group_blocks)) {
            s.n_groups = shape.n_groups - g < most ? shape.n_groups - g : most;
            s.first = g == 0, s.last = g + s.n_groups == shape.n_groups;
            if (!c->same_rows && first_col == col0)
                fill_sets(c, in, shape.group_blocks, g * shape.group_blocks, s.n_groups * shape.group_blocks);
            for (int i = 0; i < n_pairs; i++) {
                s.col = first_col + i * width, s.acc = acc + i * c->n_rows;
                s.n_tiles = col1 - s.col > AFFINE_TILE ? PANEL_TILES : 1;
                /* The next pair; the first one's next panel; the first panel of what comes behind this call. */
                int next_g = i + 1 < n_pairs ? g : s.last ? 0 : g + s.n_groups, n_ahead = shape.n_groups - next_g < most ? shape.n_groups - next_g : most;
                size_t bytes = (size_t)n_ahead * shape.group_bytes;
                s.ahead = affine_tile(c->w, &shape, i + 1 < n_pairs || s.last ? s.col + width : first_col) + (size_t)next_g * shape.group_bytes;
                if (c->behind && s.last && s.col + width >= col1) s.ahead = c->behind;
                s.ahead_end = s.ahead + bytes, s.ahead_lines = (int)(bytes / ((size_t)s.n_groups * n_sets) / 64) + 1;
                s.from = affine_tile(c->w, &shape, s.col) + (size_t)g * shape.group_bytes;
                panel_q8(&s, in, bits);
            }
        }
    }
}

/* bf16 inputs: the same over codes widened to fp32. */
INLINE __m512 code_at(const __m512i *v, const int kk) { /* k = 4 s + kk of the 16 columns */
    __m512i q = kk < 3 ? _mm512_and_si512(kk ? _mm512_srli_epi32(*v, (unsigned)(8 * kk)) : *v, _mm512_set1_epi32(255)) : _mm512_srli_epi32(*v, 24);
    return _mm512_cvtepi32_ps(q);
}

INLINE void stream_bf16(const struct linear_call *c, const struct affine_shape *shape, int col, int row, const int bits, const int C) {
    const uint8_t *in[STREAMS];
    const struct ahead ahead = c->ahead;
    const uint16_t *x = call_bf16(c, row);
    __m512 acc[STREAMS];
    for (int i = 0; i < C; i++) in[i] = affine_tile(c->w, shape, col + i * c->apart), acc[i] = _mm512_setzero_ps();
    for (int g = 0, block = 0; g < shape->n_groups; g++) {
        __m512 t[STREAMS];
        float sum = 0;
        for (int i = 0; i < C; i++) t[i] = _mm512_setzero_ps();
        for (int b = 0; b < shape->group_blocks; b++, block++) {
            __m512i v[STREAMS][8];
            for (int i = 0; i < C; i++) ask_block(in[i], bits, ahead), unpack(in[i], bits, v[i]), in[i] += shape->block_bytes;
            for (int s = 0; s < 8; s++)
#pragma GCC unroll 4
                for (int kk = 0; kk < 4; kk++) {
                    float value = float_from_bf16(x[block * AFFINE_BLOCK + 4 * s + kk]);
                    sum += value;
                    for (int i = 0; i < C; i++) t[i] = _mm512_fmadd_ps(code_at(&v[i][s], kk), _mm512_set1_ps(value), t[i]);
                }
        }
        for (int i = 0; i < C; i++) {
            acc[i] = _mm512_fmadd_ps(load_scales(in[i], shape->scale), t[i], acc[i]);
            acc[i] = _mm512_fmadd_ps(load_scales(in[i] + shape->scale_bytes, shape->scale), _mm512_set1_ps(sum), acc[i]);
            in[i] += 2 * shape->scale_bytes;
        }
    }
    for (int i = 0; i < C; i++) store_stream(c, row, col, i, acc[i]);
}

INLINE void run_few_bf16(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    for (int col = col0; col < col1; col += AFFINE_TILE)
        for (int row = 0; row < c->n_rows; row++) {
            if (c->apart) stream_bf16(c, &shape, col, row, bits, STREAMS);
            else stream_bf16(c, &shape, col, row, bits, 1);
        }
}

/* A group of 64 columns, its codes as fp32, then sums of all rows. */
struct wide_panel {
    __m512 values[4 * AFFINE_BLOCK][STREAMS], scale[STREAMS], bias[STREAMS];
    __m512 acc[][STREAMS]; /* [row] */
};

static size_t wide_panel_bytes(int n_rows, int n_in) {
    return (void)n_in, sizeof(struct wide_panel) + (size_t)n_rows * STREAMS * sizeof(__m512);
}

INLINE void fill_wide(struct wide_panel *p, const struct affine_shape *shape, int i, const uint8_t *at, const int bits) {
    for (int b = 0; b < shape->group_blocks; b++, at += shape->block_bytes) {
        __m512i v[8];
        for (int line = 0; line < bits; line++) prefetch(at + line * 64, shape->group_bytes);
        unpack(at, bits, v);
        for (int s = 0; s < 8; s++)
#pragma GCC unroll 4
            for (int kk = 0; kk < 4; kk++) p->values[b * AFFINE_BLOCK + 4 * s + kk][i] = code_at(&v[s], kk);
    }
    p->scale[i] = load_scales(at, shape->scale), p->bias[i] = load_scales(at + shape->scale_bytes, shape->scale);
}

/* R rows from row0 on against the n values from k0 on. */
INLINE void panel_bf16(const struct linear_call *c, struct wide_panel *p, int k0, int n, int row0, const int R) {
    float x[FMA_ROWS][4 * AFFINE_BLOCK], sum[FMA_ROWS] = {0};
    __m512(*acc)[STREAMS] = p->acc + row0;
    for (int r = 0; r < R; r++) {
        const uint16_t *from = call_bf16(c, row0 + r) + k0;
        for (int k = 0; k < n; k++) x[r][k] = float_from_bf16(from[k]);
    }
    for (int k = 0; k < n; k++)
        for (int r = 0; r < R; r++) sum[r] += x[r][k];
    TILE_ROWS(TILE_DECLARE)
    TILE_ROWS(TILE_CLEAR)
#define PRODUCT(r, i) fma_into(&s##r##i, a##i, b);
#define ROW(r) if (R > r) { __m512 b = _mm512_set1_ps(x[r][k]); TILE_VECTORS(PRODUCT, r) }
#pragma GCC unroll 1
    for (int k = 0; k < n; k++) {
        __m512 a0 = p->values[k][0], a1 = p->values[k][1], a2 = p->values[k][2], a3 = p->values[k][3];
        keep_floats(&a0), keep_floats(&a1), keep_floats(&a2), keep_floats(&a3);
        TILE_ROWS(ROW)
    }
#undef PRODUCT
#undef ROW
    __m512 t[FMA_ROWS][STREAMS], *p0 = t[0], *p1 = t[1], *p2 = t[2], *p3 = t[3], *p4 = t[4], *p5 = t[5];
    TILE_ROWS(TILE_STORE)
    for (int r = 0; r < R; r++)
        for (int i = 0; i < STREAMS; i++)
            acc[r][i] = _mm512_fmadd_ps(p->bias[i], _mm512_set1_ps(sum[r]), _mm512_fmadd_ps(p->scale[i], t[r][i], acc[r][i]));
}

static __attribute__((noinline)) void panel_rows_bf16(const struct linear_call *c, struct wide_panel *p, int k0, int n) {
    for (int row = 0; row < c->n_rows; row += FMA_ROWS) {
#define CALL(R) panel_bf16(c, p, k0, n, row, R)
        TILE_CASES(c->n_rows - row, CALL)
#undef CALL
    }
}

INLINE void run_panel_bf16(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    struct wide_panel *p = c->scratch;
    int n = shape.group_blocks * AFFINE_BLOCK;
    for (int col = col0; col < col1; col += STREAMS * AFFINE_TILE) {
        int left = (col1 - col + AFFINE_TILE - 1) / AFFINE_TILE, tiles = left < STREAMS ? left : STREAMS;
        memset(p->acc, 0, (size_t)c->n_rows * sizeof *p->acc);
        for (int g = 0; g < shape.n_groups; g++) {
            for (int i = 0; i < tiles; i++)
                fill_wide(p, &shape, i, affine_tile(c->w, &shape, col + i * AFFINE_TILE) + (size_t)g * shape.group_bytes, bits);
            panel_rows_bf16(c, p, g * n, n);
        }
        for (int r = 0; r < c->n_rows; r++)
            for (int i = 0; i < tiles; i++) store_tile(c, r, col + i * AFFINE_TILE, p->acc[r][i]);
    }
}

#define KERNEL(BITS, FORM, form_, kind, low, high, streams, scratch)                                                             \
    {.name = "affine" #BITS " " #form_ " " #kind, .repr = "affine", .bits = BITS, .layout = &cpu_layout_affine,                  \
     .arithmetic = "fma codes by " #form_, .form = FORM, .min_rows = low, .max_rows = high, .tile = AFFINE_TILE,                 \
     .stream_rows = streams, .scratch_bytes = scratch, .run = kind##_##form_##_##BITS}
#define KERNELS(BITS)                                                                                                            \
    static void few_q8_##BITS(const struct linear_call *c, int a, int b) { run_few_q8(c, a, b, BITS); }                          \
    static void panel_q8_##BITS(const struct linear_call *c, int a, int b) {                                                     \
        if (c->n_rows <= SET_ROWS) few_q8_##BITS(c, a, b); /* for one set, unpacking once saves nothing, and streams read faster */ \
        else run_panel_q8(c, a, b, BITS);                                                                                        \
    }                                                                                                                            \
    static void few_bf16_##BITS(const struct linear_call *c, int a, int b) { run_few_bf16(c, a, b, BITS); }                      \
    static void panel_bf16_##BITS(const struct linear_call *c, int a, int b) { run_panel_bf16(c, a, b, BITS); }                  \
    const struct linear_kernel cpu_affine##BITS##_avx512[4] = {                                                                  \
        KERNEL(BITS, FORM_Q8, q8, few, 1, 32, 32, NULL), KERNEL(BITS, FORM_Q8, q8, panel, 5, INT_MAX, SET_ROWS, panel_bytes), \
        KERNEL(BITS, FORM_BF16, bf16, few, 1, 4, 4, NULL), KERNEL(BITS, FORM_BF16, bf16, panel, 5, INT_MAX, 0, wide_panel_bytes), \
    };
AFFINE_BITS(KERNELS)
