/* Affine weights packed for lanes over output columns.
 *
 * A tile is 16 columns; its stream holds, group after group along k, the group's blocks of 32 k, then 16 scales, then 16
 * biases in the file's own type. A block is the codes of 32 k x 16 columns in bit planes: a code of 5 bits is a 4-bit plane and a
 * 1-bit plane, 3 is 2 + 1, 6 is 4 + 2. Steps of 4 k: "vector s" below is 64 bytes, byte 4 * column + kk for k = 4 * s + kk,
 * s = 0..7, which is what a dot product of bytes wants.
 *   8-bit plane  512 bytes: vectors 0..7
 *   4-bit plane  256 bytes: 4 vectors, v_i = vector 2i | vector 2i+1 << 4
 *   2-bit plane  128 bytes: 2 vectors, v_i = vector 4i | 4i+1 << 2 | 4i+2 << 4 | 4i+3 << 6
 *   1-bit plane   64 bytes: bit s of each byte is vector s
 * Columns beyond the last repeat it; their results are not stored. With 16-bit scales every part starts at a multiple of 64. */
#ifndef CPU_LINEAR_AFFINE_H
#define CPU_LINEAR_AFFINE_H
#include "backend/linear.h"
#include "quant/quant.h"

/* EACH(bits) for every number of bits that codes have. */
#define AFFINE_BITS(EACH) EACH(2) EACH(3) EACH(4) EACH(5) EACH(6) EACH(8)

enum { AFFINE_TILE = 16, AFFINE_BLOCK = 32, AFFINE_BLOCK_CODES = AFFINE_TILE * AFFINE_BLOCK };

struct affine_shape {
    int n_groups, group_blocks, bits;
    enum dtype scale;
    size_t block_bytes, scale_bytes; /* scale_bytes: of 16 scales */
    size_t group_bytes, tile_bytes;
};

static inline struct affine_shape affine_shape(const struct weight *w) {
    struct affine_shape s = {.n_groups = (int)(w->n_cols / w->group), .group_blocks = w->group / AFFINE_BLOCK, .bits = w->bits};
    s.scale = w->scale_dtype;
    s.block_bytes = (size_t)w->bits * (AFFINE_BLOCK_CODES / 8), s.scale_bytes = AFFINE_TILE * (w->scale_dtype == DTYPE_F32 ? 4u : 2u);
    s.group_bytes = (size_t)s.group_blocks * s.block_bytes + 2 * s.scale_bytes;
    s.tile_bytes = (size_t)s.n_groups * s.group_bytes;
    return s;
}

static inline const uint8_t *affine_tile(const struct linear *w, const struct affine_shape *s, int col) {
    return (const uint8_t *)w->data + (size_t)(col / AFFINE_TILE) * s->tile_bytes;
}

/* Dots of int8 inputs start at DOT_MIDDLE, as bits: |dot| < 2^22, and all of [2^23, 2^24) is integers, so their bits are then those of
 * the fp32 number DOT_MIDDLE + dot, and no conversion is needed. What the middles of a group's blocks add to its sum of scaled dots is
 * taken off beforehand: t = dot_shift; for each block t = fma(DOT_MIDDLE + dot, scale, t). DOT_MIDDLE * scale is exact
 * (backend/rows.h), so with one block t is dot * scale rounded once. With two, t is off by 1.3 scales (root mean square), with four by
 * 3, where the rounding of the inputs makes 20 and 28 with codes of 4 bits, 4 and 6 with codes of 2. */
#define DOT_MIDDLE 0x1.8p23f
static inline float sum_of_group(const float *block, int group_blocks) {
    float all = block[0];
    for (int b = 1; b < group_blocks; b++) all += block[b];
    return all;
}
static inline float dot_shift(const float *scale, int group_blocks) { return -DOT_MIDDLE * sum_of_group(scale, group_blocks); }

/* linear_pack.c */
extern const struct linear_layout cpu_layout_affine;
#endif
