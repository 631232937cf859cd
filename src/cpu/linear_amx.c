/* Affine products with int8 inputs on the tile unit (AMX): sets of 16 rows x 16 columns. The sums are those of linear_avx512.c:
 * integer dots are exact, whoever computes them, and what follows them is done in the same order; so few rows go there.
 *
 * A call first lays its inputs out as they are used. Then, 64 columns at a time, panels of PANEL_BLOCKS blocks are unpacked into L1
 * and used by all rows; up to 16 rows, blocks are unpacked one pair ahead of their use. Three things go on at once: the tile unit
 * multiplies a unit of work (two blocks of 16 columns for 16 rows), the dots of the unit before are stored, and the vector unit scales
 * those of units before that. A store right behind its product would wait for it, and the next product of that register for the store
 * (1.7 times the time).
 *
 * Where tiles are at work, multiplications and conversions have only one of the two ports for 512-bit vectors, additions and bitwise
 * operations both (measured on a Granite Rapids class processor: 0.93 and 0.48 cycles each); scaling is the bound. */
#include <limits.h>

#include "cpu/amx.h"
#include "cpu/isa.h"
#include "cpu/linear_affine_avx512.h"

enum {
    TILES = 4, ROWS = 16, PAIR = 2,
    PANEL_BLOCKS = 8, /* 16 KiB of codes */
    RING_BLOCKS = 4,  /* of a panel, where codes are unpacked on the way */
    CHUNK = 8,        /* rows whose sums are in registers at once */
    FEW_ROWS = 6,     /* the registers of the kernel for few rows do as many at once, a quarter faster */
};

/* Two blocks of 16 rows. */
struct inputs {
    int8_t x[PAIR][ROWS][AFFINE_BLOCK];
    float scale[PAIR][ROWS];
    float sum[PAIR][ROWS];   /* groups of one block: theirs; larger ones: [0] of the last pair, the whole group's */
    float shift[PAIR][ROWS]; /* dot_shift: likewise, but [0] of the first pair */
};

struct panel {
    __m512i codes[TILES][PANEL_BLOCKS + 1][8]; /* one more: loads 4 KiB behind a store would wait for it */
    __m512 scale[PANEL_BLOCKS][TILES], bias[PANEL_BLOCKS][TILES]; /* [first block of a group] */
    __m512i dots[2][PAIR][ROWS];
    __m512 part[TILES][ROWS]; /* groups of four blocks: the scaled sum of the first two */
};

/* A call: inputs[set * n_pairs + pair], acc[set]. Then one panel of it: n_blocks blocks from block0 on of the columns from col on;
 * `next`: what follows in their streams, to be fetched while this one is at work. Tiles behind the last column repeat the last. */
struct pass {
    const struct linear_call *c;
    struct panel *p;
    struct inputs *inputs;
    __m512 (*acc)[TILES][ROWS];
    int n_sets, n_pairs, ring; /* ring: slots of the panel, block b is in slot b % ring */
    int col, block0, n_blocks, last;
    const uint8_t *next[TILES];
    size_t next_share; /* bytes of each tile for each pair of each set */
};

static int sets(int n_rows) { return (n_rows + ROWS - 1) / ROWS; }

static size_t amx_bytes(int n_rows, int n_in) {
    size_t pairs = (size_t)(n_in + PAIR * AFFINE_BLOCK - 1) / (PAIR * AFFINE_BLOCK);
    return sizeof(struct panel) + (size_t)sets(n_rows) * (pairs * sizeof(struct inputs) + sizeof(__m512[TILES][ROWS]));
}

/* Behind the last row of a set: the last again, computed and not stored. Rows are padded to pairs of blocks. */
INLINE void lay_out_as(const struct pass *s, const int group_blocks) {
    for (int i = 0; i < s->n_sets * ROWS; i++) {
        int row = i < s->c->n_rows ? i : s->c->n_rows - 1, r = i % ROWS;
        const int8_t *x = call_q8(s->c, row), *after = call_q8(s->c, row + 1 < s->c->n_rows ? row + 1 : row);
        const float *scale = call_q8_scale(s->c, row), *sum = call_q8_sum(s->c, row);
        struct inputs *to = s->inputs + (size_t)(i / ROWS) * (size_t)s->n_pairs;
        float group = 0;
        for (int pair = 0; pair < s->n_pairs; pair++, to++, x += PAIR * AFFINE_BLOCK, scale += PAIR, sum += PAIR) {
            _mm_prefetch((const char *)after + pair * PAIR * AFFINE_BLOCK, _MM_HINT_T0);
            _mm256_storeu_si256((void *)to->x[0][r], _mm256_loadu_si256((const void *)x));
            _mm256_storeu_si256((void *)to->x[1][r], _mm256_loadu_si256((const void *)(x + AFFINE_BLOCK)));
            to->scale[0][r] = scale[0], to->scale[1][r] = scale[1];
            if (pair * PAIR % group_blocks == 0) group = 0, to->shift[0][r] = dot_shift(scale, group_blocks);
            if (group_blocks == 1) to->shift[1][r] = dot_shift(scale + 1, 1);
            to->sum[0][r] = group_blocks == 1 ? sum[0] : (group = group + sum[0] + sum[1]);
            to->sum[1][r] = sum[1];
        }
    }
}

static void lay_out(const struct pass *s, int group_blocks) {
    if (group_blocks == 1) lay_out_as(s, 1);
    else if (group_blocks == 2) lay_out_as(s, 2);
    else lay_out_as(s, 4);
}

/* Blocks [block0, end) of tile i from its stream `at` on, whole groups or a part of one; what lies `ahead` is asked for (NULL: nothing).
 * Returns where the stream goes on. */
INLINE const uint8_t *fill_tile(struct panel *p, const struct affine_shape *shape, int i, const uint8_t *at, int block0, int end,
                                const struct ahead *ahead, const int ring, const int group_blocks, const int bits) {
    for (int block = block0; block < end; block++) {
        const int slot = block % ring;
        if (ahead) ask_block(at, bits, *ahead);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) p->codes[i][slot][v] = unpack_step(at, bits, v);
        at += shape->block_bytes;
        if ((block + 1) % group_blocks) continue;
        if (ahead) ask(at, *ahead);
        const int first = slot + 1 - group_blocks;
        p->scale[first][i] = load_scales(at, shape->scale), p->bias[first][i] = load_scales(at + shape->scale_bytes, shape->scale);
        at += 2 * shape->scale_bytes;
    }
    return at;
}

/* Where a pair of blocks of one set is: units of work are its four tiles. */
struct place { int set, pair; const struct inputs *x; const __m512i *codes; };

static inline struct place place_at(const struct pass *s, int set, int pair) {
    return (struct place){set, pair, s->inputs + (size_t)set * (size_t)s->n_pairs + s->block0 / PAIR + pair, s->p->codes[0][pair * PAIR % s->ring]};
}

/* The dots of a unit into tiles 4 and 5 or 6 and 7. Where a pair is half a pair, what the panel held is multiplied too. */
INLINE void multiply(const struct place *at, const int tile) {
    const __m512i *codes = at->codes + tile * (PANEL_BLOCKS + 1) * 8;
    if (tile == 0) {
        _tile_loadd(0, at->x->x[0], AFFINE_BLOCK);
        _tile_loadd(1, at->x->x[1], AFFINE_BLOCK);
    }
    _tile_loadd(2, codes, 64);
    _tile_loadd(3, codes + 8, 64);
    if (tile % 2) {
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

INLINE void store_dots(struct panel *p, const int tile) {
    if (tile % 2) {
        _tile_stored(4, p->dots[tile % 2][0], 64);
        _tile_stored(5, p->dots[tile % 2][1], 64);
    } else {
        _tile_stored(6, p->dots[tile % 2][0], 64);
        _tile_stored(7, p->dots[tile % 2][1], 64);
    }
}

/* DOT_MIDDLE + dot. */
INLINE __m512 float_dot(__m512i dot) { return _mm512_castsi512_ps(_mm512_add_epi32(dot, _mm512_castps_si512(_mm512_set1_ps(DOT_MIDDLE)))); }

#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < CHUNK; r++)

/* t += the dots of block b, scaled. */
INLINE void add_block(__m512 t[CHUNK], const __m512i *dots, const float *scale) {
    EACH_ROW t[r] = _mm512_fmadd_ps(float_dot(dots[r]), _mm512_set1_ps(scale[r]), t[r]);
}

/* acc += a whole group: scale * t + bias * sum of the row. */
INLINE void add_group(__m512 acc[CHUNK], const __m512 t[CHUNK], __m512 scale, __m512 bias, const float *sum) {
    EACH_ROW acc[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(sum[r]), _mm512_fmadd_ps(scale, t[r], acc[r]));
}

INLINE void scale_chunk(const struct pass *s, const struct place *at, const int tile, const int row, const int group_blocks) {
    struct panel *p = s->p;
    const __m512i(*dots)[ROWS] = (const __m512i(*)[ROWS])p->dots[tile % 2];
    const struct inputs *x = at->x;
    const int second = group_blocks == 4 && at->pair % 2, first = (at->pair - second) * PAIR, slot = first % s->ring; /* of the two pairs of a group */
    __m512 *to = s->acc[at->set][tile] + row, *part = p->part[tile] + row, t[CHUNK], acc[CHUNK];
    EACH_ROW t[r] = second ? part[r] : _mm512_set1_ps(x->shift[0][row + r]);
    add_block(t, dots[0] + row, x->scale[0] + row);
    if (group_blocks > 1) add_block(t, dots[1] + row, x->scale[1] + row);
    if (group_blocks == 4 && !second) {
        EACH_ROW part[r] = t[r];
        return;
    }
    if (s->block0 + first == 0) {
        EACH_ROW acc[r] = _mm512_setzero_ps();
    } else {
        EACH_ROW acc[r] = to[r];
    }
    add_group(acc, t, p->scale[slot][tile], p->bias[slot][tile], x->sum[0] + row);
    if (group_blocks == 1 && s->n_blocks - first > 1) {
        EACH_ROW t[r] = _mm512_set1_ps(x->shift[1][row + r]);
        add_block(t, dots[1] + row, x->scale[1] + row);
        add_group(acc, t, p->scale[slot + 1][tile], p->bias[slot + 1][tile], x->sum[1] + row);
    }
    EACH_ROW to[r] = acc[r];
}

/* Asks for what comes later: a share of the next panel's bytes, from memory, of the next set's inputs, and, in the last panel, of the
 * places for results. Little by little: all at once they would fill the processor's list of misses. */
INLINE void fetch(const struct pass *s, const struct place *at, int pairs, const int tile) {
    const char *codes = (const char *)s->next[tile] + (size_t)(at->set * pairs + at->pair) * s->next_share;
    for (size_t b = 0; b < s->next_share; b += 64) _mm_prefetch(codes + b, _MM_HINT_T1);
    for (int r = at->pair, row; s->last && r < ROWS && (row = at->set * ROWS + r) < s->c->n_rows; r += pairs)
        __builtin_prefetch(call_y(s->c, row) + s->col + tile * AFFINE_TILE, 1);
    if (at->set + 1 == s->n_sets) return;
    const char *inputs = (const char *)(at->x + s->n_pairs);
    for (size_t b = (size_t)tile * 64; b < sizeof(struct inputs); b += TILES * 64) _mm_prefetch(inputs + b, _MM_HINT_T0);
    const __m512 *acc = s->acc[at->set + 1][tile];
    for (int r = at->pair; r < ROWS && s->block0; r += pairs) _mm_prefetch((const char *)(acc + r), _MM_HINT_T0);
}

INLINE void all_rows(const struct pass *s, const int group_blocks) {
    const int pairs = (s->n_blocks + PAIR - 1) / PAIR;
    struct place at = place_at(s, 0, 0), next;
    multiply(&at, 0);
    store_dots(s->p, 0);
    multiply(&at, 1);
    for (; at.set < s->n_sets; at = next) {
        next = at.pair + 1 < pairs ? place_at(s, at.set, at.pair + 1) : place_at(s, at.set + 1, 0);
        const int more = next.set < s->n_sets;
        multiply(&at, 2);
        fetch(s, &at, pairs, 0);
        scale_chunk(s, &at, 0, 0, group_blocks);
        store_dots(s->p, 1);
        scale_chunk(s, &at, 0, CHUNK, group_blocks);
        multiply(&at, 3);
        fetch(s, &at, pairs, 1);
        scale_chunk(s, &at, 1, 0, group_blocks);
        store_dots(s->p, 2);
        scale_chunk(s, &at, 1, CHUNK, group_blocks);
        if (more) multiply(&next, 0);
        fetch(s, &at, pairs, 2);
        scale_chunk(s, &at, 2, 0, group_blocks);
        store_dots(s->p, 3);
        scale_chunk(s, &at, 2, CHUNK, group_blocks);
        if (more) multiply(&next, 1);
        fetch(s, &at, pairs, 3);
        scale_chunk(s, &at, 3, 0, group_blocks);
        if (more) store_dots(s->p, 0);
        scale_chunk(s, &at, 3, CHUNK, group_blocks);
    }
}

static __attribute__((noinline)) void run_pass(const struct pass *s, int group_blocks) {
    if (group_blocks == 1) all_rows(s, 1);
    else if (group_blocks == 2) all_rows(s, 2);
    else all_rows(s, 4);
}

/* Up to one set of rows: memory is the bound, so codes are unpacked on the way, one pair ahead. */
INLINE void one_set(const struct pass *s, const struct affine_shape *shape, const uint8_t *const *tile, const int bits, const int group_blocks,
                    const int rows) {
    const int pairs = s->n_pairs, n = s->n_blocks;
    const struct ahead *ahead = &s->c->ahead;
    const uint8_t *in[TILES];
#define UNPACK(i, pair)                                                                                                          \
    if ((pair) < pairs)                                                                                                          \
        in[i] = fill_tile(s->p, shape, i, in[i], (pair) * PAIR, (pair) * PAIR + PAIR < n ? (pair) * PAIR + PAIR : n, ahead,      \
                          RING_BLOCKS, group_blocks, bits);
    for (int i = 0; i < TILES; i++) {
        in[i] = tile[i];
        UNPACK(i, 0)
    }
    struct place at = place_at(s, 0, 0), next;
    multiply(&at, 0);
    store_dots(s->p, 0);
    multiply(&at, 1);
    for (; at.pair < pairs; at = next) {
        next = place_at(s, 0, at.pair + 1);
        const int more = next.pair < pairs;
        UNPACK(0, at.pair + 1)
        multiply(&at, 2);
        scale_chunk(s, &at, 0, 0, group_blocks);
        store_dots(s->p, 1);
        if (rows > CHUNK) scale_chunk(s, &at, 0, CHUNK, group_blocks);
        UNPACK(1, at.pair + 1)
        multiply(&at, 3);
        scale_chunk(s, &at, 1, 0, group_blocks);
        store_dots(s->p, 2);
        if (rows > CHUNK) scale_chunk(s, &at, 1, CHUNK, group_blocks);
        UNPACK(2, at.pair + 1)
        if (more) multiply(&next, 0);
        scale_chunk(s, &at, 2, 0, group_blocks);
        store_dots(s->p, 3);
        if (rows > CHUNK) scale_chunk(s, &at, 2, CHUNK, group_blocks);
        UNPACK(3, at.pair + 1)
        if (more) multiply(&next, 1);
        scale_chunk(s, &at, 3, 0, group_blocks);
        if (more) store_dots(s->p, 0);
        if (rows > CHUNK) scale_chunk(s, &at, 3, CHUNK, group_blocks);
    }
#undef UNPACK
}

/* 0, 1: 16 rows x 32 inputs; 2, 3: 32 inputs x 16 columns; the others: 16 x 16 dots. */
static const struct amx_config shapes = {
    .palette = 1, .row_bytes = {32, 32, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 8, 8, 16, 16, 16, 16},
};
/* The same with 8 rows. */
static const struct amx_config half_shapes = {
    .palette = 1, .row_bytes = {32, 32, 64, 64, 64, 64, 64, 64}, .rows = {8, 8, 8, 8, 8, 8, 8, 8},
};

INLINE void run_panels(struct pass *s, const struct affine_shape *shape, const uint8_t **in, int n_blocks, const int bits) {
    for (s->block0 = 0; s->block0 < n_blocks; s->block0 += PANEL_BLOCKS) {
        s->n_blocks = n_blocks - s->block0 < PANEL_BLOCKS ? n_blocks - s->block0 : PANEL_BLOCKS;
        s->last = s->block0 + s->n_blocks == n_blocks;
        for (int i = 0; i < TILES; i++) {
            in[i] = fill_tile(s->p, shape, i, in[i], 0, s->n_blocks, NULL, PANEL_BLOCKS, shape->group_blocks, bits);
            s->next[i] = in[i] + (s->last ? (TILES - 1) * shape->tile_bytes : 0); /* behind the last panel: the first of the next columns */
        }
        size_t bytes = (size_t)(s->n_blocks / shape->group_blocks) * shape->group_bytes;
        s->next_share = (bytes / (size_t)(s->n_sets * ((s->n_blocks + PAIR - 1) / PAIR)) + 63) / 64 * 64;
        run_pass(s, shape->group_blocks);
    }
}

INLINE void one_set_of(const struct pass *s, const struct affine_shape *shape, const uint8_t *const *tile, const int bits, const int rows) {
    if (shape->group_blocks == 1) one_set(s, shape, tile, bits, 1, rows);
    else if (shape->group_blocks == 2) one_set(s, shape, tile, bits, 2, rows);
    else one_set(s, shape, tile, bits, 4, rows);
}

INLINE void run_amx(const struct linear_call *c, int col0, int col1, const int bits) {
    struct affine_shape shape = affine_shape(c->w->source);
    int n_blocks = shape.n_groups * shape.group_blocks, width = c->apart ? AFFINE_TILE : TILES * AFFINE_TILE, apart = c->apart ? c->apart : AFFINE_TILE;
    struct pass s = {.c = c, .p = c->scratch, .n_sets = sets(c->n_rows), .n_pairs = (n_blocks + PAIR - 1) / PAIR};
    s.acc = (void *)(s.p + 1), s.inputs = (void *)(s.acc + s.n_sets), s.ring = s.n_sets == 1 ? RING_BLOCKS : PANEL_BLOCKS;
    if (!c->same_rows) lay_out(&s, shape.group_blocks);
    _tile_loadconfig(c->n_rows <= CHUNK ? &half_shapes : &shapes);
    for (s.col = col0; s.col < col1; s.col += width) {
        int tiles = c->apart ? TILES : (col1 - s.col + AFFINE_TILE - 1) / AFFINE_TILE;
        if (tiles > TILES) tiles = TILES;
        const uint8_t *in[TILES];
        for (int i = 0; i < TILES; i++) in[i] = affine_tile(c->w, &shape, s.col + (i < tiles ? i : tiles - 1) * apart);
        if (s.n_sets == 1) {
            s.block0 = 0, s.n_blocks = n_blocks;
            if (c->n_rows <= CHUNK) one_set_of(&s, &shape, in, bits, CHUNK);
            else one_set_of(&s, &shape, in, bits, ROWS);
        } else {
            run_panels(&s, &shape, in, n_blocks, bits);
        }
        for (int r = 0; r < c->n_rows; r++)
            for (int i = 0; i < tiles; i++) {
                if (c->apart) store_stream(c, r, s.col, i, s.acc[r / ROWS][i][r % ROWS]);
                else store_tile(c, r, s.col + i * AFFINE_TILE, s.acc[r / ROWS][i][r % ROWS]);
            }
    }
    _tile_release(); /* else every switch of threads saves 8 KiB */
}

#define KERNEL(BITS)                                                                                                       \
    static void amx_##BITS(const struct linear_call *c, int a, int b) {                                                    \
        if (c->n_rows <= FEW_ROWS) cpu_affine##BITS##_avx512[0].run(c, a, b);                                              \
        else run_amx(c, a, b, BITS);                                                                                       \
    }                                                                                                                      \
    const struct linear_kernel cpu_affine##BITS##_amx = {                                                                  \
        .name = "affine" #BITS " q8 amx", .repr = "affine", .bits = BITS, .layout = &cpu_layout_affine,                    \
        .arithmetic = "fma codes by q8", .form = FORM_Q8, .min_rows = 5, .max_rows = INT_MAX, .tile = AFFINE_TILE,         \
        .stream_rows = ROWS,                                                                                               \
        .scratch_bytes = amx_bytes, .run = amx_##BITS};
AFFINE_BITS(KERNEL)
