/* Affine products with int8 inputs on the tile unit (AMX): sets of 16 rows x 16 columns. The sums are those of linear_avx512.c:
 * integer dots are exact, whoever computes them, and what follows them is done in the same order; so few rows go there.
 *
 * A call first lays its inputs out as they are used. Then, 64 columns at a time, panels of PANEL_BLOCKS blocks are unpacked into L1
 * and used by all rows. Three things go on at once: the tile unit multiplies a unit of work (two blocks of 16 columns for 16 rows),
 * the dots of the unit before are stored, and the vector unit scales those of the unit before that. A store right behind its
 * product would wait for it, and the next product of that register for the store (1.7 times the time).
 *
 * Where tiles are at work, only one of the two ports for 512-bit floating-point arithmetic is: a product of 32 x 16 x 16 takes 16
 * cycles and its scaling 32 at least, measured; so the scaling is what there is to save. */
#include <limits.h>

#include "cpu/amx.h"
#include "cpu/isa.h"
#include "cpu/linear_affine_avx512.h"

enum {
    TILES = 4, ROWS = 16, PAIR = 2,
    PANEL_BLOCKS = 8, /* 16 KiB of codes */
    CHUNK = 8,        /* rows whose sums are in registers at once */
};

/* Two blocks of 16 rows. */
struct inputs {
    int8_t x[PAIR][ROWS][AFFINE_BLOCK];
    float scale[PAIR][ROWS];
    float sum[PAIR][ROWS]; /* groups of one block: theirs; larger ones: [0] of the last pair, the whole group's */
};

struct panel {
    __m512i codes[TILES][PANEL_BLOCKS][8];
    __m512 scale[PANEL_BLOCKS][TILES], bias[PANEL_BLOCKS][TILES]; /* [first block of a group] */
    __m512i dots[2][PAIR][ROWS];
    __m512 part[TILES][ROWS]; /* groups of four blocks: the scaled sum of the first two */
};

/* A call: inputs[set * n_pairs + pair], acc[set]. Then one panel of it: n_blocks blocks from block0 on, n_tiles tiles; the bytes
 * that follow in their streams, to be fetched while this one is at work. */
struct pass {
    const struct linear_call *c;
    struct panel *p;
    struct inputs *inputs;
    __m512 (*acc)[TILES][ROWS];
    int n_sets, n_pairs;
    int n_tiles, block0, n_blocks;
    const uint8_t *next[TILES];
    size_t next_share; /* of each unit of a tile */
};

static int sets(int n_rows) { return (n_rows + ROWS - 1) / ROWS; }

static size_t amx_bytes(int n_rows, int n_in) {
    size_t pairs = (size_t)(n_in + PAIR * AFFINE_BLOCK - 1) / (PAIR * AFFINE_BLOCK);
    return sizeof(struct panel) + (size_t)sets(n_rows) * (pairs * sizeof(struct inputs) + sizeof(__m512[TILES][ROWS]));
}

/* Behind the last row of a set: the last again, computed and not stored. Rows are padded to pairs of blocks. */
static void lay_out(const struct pass *s, const int group_blocks) {
    for (int i = 0; i < s->n_sets * ROWS; i++) {
        int row = i < s->c->n_rows ? i : s->c->n_rows - 1, r = i % ROWS;
        const int8_t *x = call_q8(s->c, row);
        const float *scale = call_q8_scale(s->c, row), *sum = call_q8_sum(s->c, row);
        struct inputs *to = s->inputs + (size_t)(i / ROWS) * (size_t)s->n_pairs;
        float group = 0;
        for (int pair = 0; pair < s->n_pairs; pair++, to++, x += PAIR * AFFINE_BLOCK, scale += PAIR, sum += PAIR) {
            _mm256_storeu_si256((void *)to->x[0][r], _mm256_loadu_si256((const void *)x));
            _mm256_storeu_si256((void *)to->x[1][r], _mm256_loadu_si256((const void *)(x + AFFINE_BLOCK)));
            to->scale[0][r] = scale[0], to->scale[1][r] = scale[1];
            if (pair * PAIR % group_blocks == 0) group = 0;
            to->sum[0][r] = group_blocks == 1 ? sum[0] : (group = group + sum[0] + sum[1]);
            to->sum[1][r] = sum[1];
        }
    }
}

INLINE void fill_panel(const struct pass *s, const struct affine_shape *shape, const uint8_t *const *in, const int bits) {
    for (int i = 0; i < s->n_tiles; i++) {
        const uint8_t *at = in[i];
        for (int block = 0; block < s->n_blocks;) {
            int first = block;
            for (int b = 0; b < shape->group_blocks; b++, block++, at += shape->block_bytes)
#pragma GCC unroll 8
                for (int v = 0; v < 8; v++) s->p->codes[i][block][v] = unpack_step(at, bits, v);
            s->p->scale[first][i] = load_scales(at, shape->scale), s->p->bias[first][i] = load_scales(at + shape->scale_bytes, shape->scale);
            at += 2 * shape->scale_bytes;
        }
    }
}

/* A unit of work: rows 16 * set ..., blocks `block` and the next of the panel, columns of one tile. */
struct unit { int set, block, tile; };

static inline struct unit next_unit(const struct pass *s, struct unit u) {
    if (++u.tile < s->n_tiles) return u;
    u.tile = 0;
    if ((u.block += PAIR) < s->n_blocks) return u;
    u.block = 0, u.set++;
    return u;
}

static inline const struct inputs *inputs_of(const struct pass *s, struct unit u) {
    return s->inputs + (size_t)u.set * (size_t)s->n_pairs + (s->block0 + u.block) / PAIR;
}

/* The dots of unit number i into tiles 4 and 5 or 6 and 7. Where a pair is half a pair, what the panel held is multiplied too. */
static inline void multiply(const struct pass *s, struct unit u, int i) {
    const __m512i(*codes)[8] = (const __m512i(*)[8])s->p->codes[u.tile] + u.block;
    if (u.tile == 0) {
        const struct inputs *x = inputs_of(s, u);
        _tile_loadd(0, x->x[0], AFFINE_BLOCK);
        _tile_loadd(1, x->x[1], AFFINE_BLOCK);
    }
    _tile_loadd(2, codes[0], 64);
    _tile_loadd(3, codes[1], 64);
    if (i % 2) {
        _tile_zero(4);
        _tile_zero(5);
        _tile_dpbsud(4, 0, 2);
        _tile_dpbsud(5, 1, 3);
    } else {
        _tile_zero(6);
        _tile_zero(7);
        _tile_dpbsud(6, 0, 2);
        _tile_dpbsud(7, 1, 3);
    }
}

static inline void store_dots(struct panel *p, int i) {
    if (i % 2) {
        _tile_stored(4, p->dots[1][0], 64);
        _tile_stored(5, p->dots[1][1], 64);
    } else {
        _tile_stored(6, p->dots[0][0], 64);
        _tile_stored(7, p->dots[0][1], 64);
    }
}

#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < CHUNK; r++)

/* t += the dots of block b, scaled. */
INLINE void add_block(__m512 t[CHUNK], const __m512i *dots, const float *scale) {
    EACH_ROW t[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), _mm512_set1_ps(scale[r]), t[r]);
}

/* acc += a whole group: scale * t + bias * sum of the row. */
INLINE void add_group(__m512 acc[CHUNK], const __m512 t[CHUNK], __m512 scale, __m512 bias, const float *sum) {
    EACH_ROW acc[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(sum[r]), _mm512_fmadd_ps(scale, t[r], acc[r]));
}

INLINE void scale_chunk(const struct pass *s, struct unit u, const __m512i (*dots)[ROWS], int row, const int group_blocks) {
    struct panel *p = s->p;
    const struct inputs *x = inputs_of(s, u);
    const int second = group_blocks == 4 && u.block % 4; /* of the two pairs of a group */
    int first = u.block - (second ? PAIR : 0);
    __m512 *to = s->acc[u.set][u.tile] + row, *part = p->part[u.tile] + row, t[CHUNK], acc[CHUNK];
    EACH_ROW t[r] = second ? part[r] : _mm512_setzero_ps();
    add_block(t, dots[0] + row, x->scale[0] + row);
    if (group_blocks > 1) add_block(t, dots[1] + row, x->scale[1] + row);
    if (group_blocks == 4 && !second) {
        EACH_ROW part[r] = t[r];
        return;
    }
    EACH_ROW acc[r] = to[r];
    add_group(acc, t, p->scale[first][u.tile], p->bias[first][u.tile], x->sum[0] + row);
    if (group_blocks == 1 && s->n_blocks - u.block > 1) {
        EACH_ROW t[r] = _mm512_setzero_ps();
        add_block(t, dots[1] + row, x->scale[1] + row);
        add_group(acc, t, p->scale[first + 1][u.tile], p->bias[first + 1][u.tile], x->sum[1] + row);
    }
    EACH_ROW to[r] = acc[r];
}

/* Asks for what comes later: a share of the next panel's bytes, from memory (all at once they would fill the processor's list of
 * misses), and of the next set's inputs. */
INLINE void fetch(const struct pass *s, struct unit u) {
    int pairs = (s->n_blocks + PAIR - 1) / PAIR, part = u.set * pairs + u.block / PAIR;
    const char *codes = (const char *)s->next[u.tile] + (size_t)part * s->next_share;
    for (size_t i = 0; i < s->next_share; i += 64) _mm_prefetch(codes + i, _MM_HINT_T1);
    if (u.set + 1 == s->n_sets) return;
    const char *inputs = (const char *)(inputs_of(s, u) + s->n_pairs);
    for (size_t i = (size_t)u.tile * 64; i < sizeof(struct inputs); i += TILES * 64) _mm_prefetch(inputs + i, _MM_HINT_T0);
}

INLINE void all_rows(const struct pass *s, const int group_blocks) {
    struct unit scaled = {0}, stored, multiplied;
    multiply(s, scaled, 0);
    store_dots(s->p, 0);
    stored = next_unit(s, scaled);
    if (stored.set < s->n_sets) multiply(s, stored, 1);
    for (int i = 0; scaled.set < s->n_sets; scaled = stored, stored = multiplied, i++) {
        multiplied = next_unit(s, stored);
        if (multiplied.set < s->n_sets) multiply(s, multiplied, i);
        if (stored.set < s->n_sets) store_dots(s->p, i + 1);
        fetch(s, scaled);
        for (int row = 0; row < ROWS; row += CHUNK) scale_chunk(s, scaled, (const __m512i(*)[ROWS])s->p->dots[i % 2], row, group_blocks);
    }
}

static __attribute__((noinline)) void run_pass(const struct pass *s, int group_blocks) {
    if (group_blocks == 1) all_rows(s, 1);
    else if (group_blocks == 2) all_rows(s, 2);
    else all_rows(s, 4);
}

static const struct amx_config shapes = { /* 0, 1: 16 rows x 32 inputs; 2, 3: 32 inputs x 16 columns; the others: 16 x 16 dots */
    .palette = 1, .row_bytes = {32, 32, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 8, 8, 16, 16, 16, 16},
};

INLINE void run_amx(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    int n_blocks = shape.n_groups * shape.group_blocks;
    struct pass s = {.c = c, .p = c->scratch, .n_sets = sets(c->n_rows), .n_pairs = (n_blocks + PAIR - 1) / PAIR};
    s.acc = (void *)(s.p + 1), s.inputs = (void *)(s.acc + s.n_sets);
    lay_out(&s, shape.group_blocks);
    _tile_loadconfig(&shapes);
    for (int col = col0; col < col1; col += TILES * AFFINE_TILE) {
        int left = (col1 - col + AFFINE_TILE - 1) / AFFINE_TILE;
        const uint8_t *in[TILES];
        s.n_tiles = left < TILES ? left : TILES;
        for (int i = 0; i < s.n_tiles; i++) in[i] = affine_tile(c->w, &shape, col + i * AFFINE_TILE);
        memset(s.acc, 0, (size_t)s.n_sets * sizeof *s.acc);
        for (s.block0 = 0; s.block0 < n_blocks; s.block0 += PANEL_BLOCKS) {
            s.n_blocks = n_blocks - s.block0 < PANEL_BLOCKS ? n_blocks - s.block0 : PANEL_BLOCKS;
            fill_panel(&s, &shape, in, bits);
            size_t bytes = (size_t)(s.n_blocks / shape.group_blocks) * shape.group_bytes;
            for (int i = 0; i < s.n_tiles; i++) in[i] += bytes, s.next[i] = in[i];
            int parts = s.n_sets * ((s.n_blocks + PAIR - 1) / PAIR);
            s.next_share = (bytes / (size_t)parts + 63) / 64 * 64;
            run_pass(&s, shape.group_blocks);
        }
        for (int r = 0; r < c->n_rows; r++)
            for (int i = 0; i < s.n_tiles; i++) store_tile(c, r, col + i * AFFINE_TILE, s.acc[r / ROWS][i][r % ROWS]);
    }
    _tile_release(); /* else every switch of threads saves 8 KiB */
}

#define KERNEL(BITS)                                                                                                       \
    static void amx_##BITS(const struct linear_call *c, int a, int b) { run_amx(c, a, b, BITS); }                          \
    const struct linear_kernel cpu_affine##BITS##_amx = {                                                                  \
        .name = "affine" #BITS " q8 amx", .repr = "affine", .bits = BITS, .layout = &cpu_layout_affine,                    \
        .arithmetic = "fma codes by q8", .form = FORM_Q8, .min_rows = 9, .max_rows = INT_MAX, .tile = AFFINE_TILE,         \
        .scratch_bytes = amx_bytes, .run = amx_##BITS};
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(8)
