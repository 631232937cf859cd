/* Packing of affine weights (linear_affine.h): words of eight codes are spread to bytes by shifts alone, so that a plain compiler
 * vectorises it and packing keeps up with reading the file. */
#include <string.h>

#include "cpu/linear_affine.h"
#include "quant/convert.h"

static size_t affine_bytes(const struct weight *w) {
    struct affine_shape s = affine_shape(w);
    return (size_t)((w->n_rows + AFFINE_TILE - 1) / AFFINE_TILE) * s.tile_bytes;
}

/* Eight codes of `bits` bits, lowest first, to eight bytes: halves, quarters, eighths are moved apart. */
static inline __attribute__((always_inline)) uint64_t spread(uint64_t x, int bits) {
    uint64_t half = (1ull << 4 * bits) - 1, quarter = ((1ull << 2 * bits) - 1) * 0x0000000100000001ull;
    uint64_t one = ((1ull << bits) - 1) * 0x0001000100010001ull;
    x = (x & half) | (x >> 4 * bits & half) << 32;
    x = (x & quarter) | (x >> 2 * bits & quarter) << 16;
    return (x & one) | (x >> bits & one) << 8;
}

/* One block: the 32 codes of column c are at in[c] + at. w[s][c]: vector s, column c. Eight bytes at a time are read, of which
 * `bits` count; in the last block of a row no more than those, since the file may end there. */
static inline __attribute__((always_inline)) void block_words(const uint8_t *const *in, size_t at, int bits, int last, uint32_t w[8][16]) {
    for (int c = 0; c < AFFINE_TILE; c++) {
        for (int o = 0; o < 4; o++) {
            uint64_t x = 0;
            memcpy(&x, in[c] + at + o * bits, last ? (size_t)bits : 8);
            if (bits < 8) x = spread(x, bits);
            w[2 * o][c] = (uint32_t)x, w[2 * o + 1][c] = (uint32_t)(x >> 32);
        }
    }
}

/* The plane of `width` bits that starts at bit `low` of each code. */
static inline __attribute__((always_inline)) uint8_t *plane(uint32_t w[8][16], int low, int width, uint8_t *out) {
    uint32_t mask = ((1u << width) - 1) * 0x01010101u;
    for (int v = 0, per = 8 / width; v < 8 / per; v++, out += 64) {
        uint32_t word[16] = {0};
        for (int i = 0; i < per; i++)
            for (int c = 0; c < 16; c++) word[c] |= (w[v * per + i][c] >> low & mask) << i * width;
        memcpy(out, word, 64);
    }
    return out;
}

static inline __attribute__((always_inline)) void pack_tile(const struct affine_shape *s, const uint8_t *const *in,
                                                            const uint8_t *const *scale, const uint8_t *const *bias, int bits,
                                                            uint8_t *out) {
    size_t at = 0, each = s->scale_bytes / AFFINE_TILE;
    for (int g = 0; g < s->n_groups; g++) {
        for (int b = 0; b < s->group_blocks; b++, at += (size_t)bits * 4) {
            uint32_t w[8][16];
            if (g + 1 == s->n_groups && b + 1 == s->group_blocks) block_words(in, at, bits, 1, w);
            else block_words(in, at, bits, 0, w);
            if (bits == 8) memcpy(out, w, 512), out += 512;
            if (bits >= 4 && bits < 8) out = plane(w, 0, 4, out);
            if (bits < 4) out = plane(w, 0, 2, out);
            if (bits == 6) out = plane(w, 4, 2, out);
            if (bits == 5) out = plane(w, 4, 1, out);
            if (bits == 3) out = plane(w, 2, 1, out);
        }
        for (int c = 0; c < AFFINE_TILE; c++) {
            memcpy(out + (size_t)c * each, scale[c] + (size_t)g * each, each);
            memcpy(out + s->scale_bytes + (size_t)c * each, bias[c] + (size_t)g * each, each);
        }
        out += 2 * s->scale_bytes;
    }
}

static void affine_pack_columns(const struct weight *w, void *out, int col0, int col1) {
    struct affine_shape s = affine_shape(w);
    for (int col = col0; col < col1; col += AFFINE_TILE) {
        uint8_t *tile = (uint8_t *)out + (size_t)(col / AFFINE_TILE) * s.tile_bytes;
        const uint8_t *in[AFFINE_TILE], *scale[AFFINE_TILE], *bias[AFFINE_TILE];
        for (int c = 0; c < AFFINE_TILE; c++) {
            size_t row = (size_t)(col + c < w->n_rows ? col + c : w->n_rows - 1); /* beyond the last: anything finite, never stored */
            in[c] = w->data + row * w->row_bytes;
            scale[c] = w->scales + row * w->scale_row_bytes, bias[c] = w->biases + row * w->scale_row_bytes;
        }
        switch (w->bits) {
        case 2: pack_tile(&s, in, scale, bias, 2, tile); break;
        case 3: pack_tile(&s, in, scale, bias, 3, tile); break;
        case 4: pack_tile(&s, in, scale, bias, 4, tile); break;
        case 5: pack_tile(&s, in, scale, bias, 5, tile); break;
        case 6: pack_tile(&s, in, scale, bias, 6, tile); break;
        default: pack_tile(&s, in, scale, bias, 8, tile); break;
        }
    }
}

const struct linear_layout cpu_layout_affine = {
    .name = "tiles of 16 columns, bit planes", .bytes = affine_bytes, .pack = affine_pack_columns, .tile = AFFINE_TILE,
};
