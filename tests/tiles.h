/* The tile unit (AMX) in plain C, for processors without one: included before anything else, it takes the place of the intrinsics that
 * src/cpu/*_amx.c call. Integer products have the unit's own bits; sums of bf16 products are near it, in another order. */
#ifndef TILES_H
#define TILES_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { TILES_N = 8, TILES_ROWS = 16, TILES_ROW_BYTES = 64 };
/* As _tile_loadconfig reads it (cpu/amx.h). */
static _Thread_local struct { uint8_t palette, start_row, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } tiles_config;
static _Thread_local uint8_t tiles[TILES_N][TILES_ROWS][TILES_ROW_BYTES];

static inline void tiles_configure(const void *config) {
    memcpy(&tiles_config, config, sizeof tiles_config);
    memset(tiles, 0, sizeof tiles);
}
static inline void tiles_release(void) { memset(&tiles_config, 0, sizeof tiles_config); } /* what follows has no rows */
static inline void tiles_zero(int t) { memset(tiles[t], 0, sizeof tiles[t]); }
static inline void tiles_load(int t, const void *from, ptrdiff_t stride) {
    tiles_zero(t);
    for (int r = 0; r < tiles_config.rows[t]; r++) memcpy(tiles[t][r], (const uint8_t *)from + r * stride, tiles_config.row_bytes[t]);
}
static inline void tiles_store(int t, void *to, ptrdiff_t stride) {
    for (int r = 0; r < tiles_config.rows[t]; r++) memcpy((uint8_t *)to + r * stride, tiles[t][r], tiles_config.row_bytes[t]);
}

/* sum[row][column] += signed bytes of a [row] by unsigned bytes of b [four of the steps][column]. */
static inline void tiles_dot_bytes(int sum, int a, int b) {
    for (int r = 0; r < tiles_config.rows[sum]; r++)
        for (int c = 0; c < tiles_config.row_bytes[sum] / 4; c++) {
            int32_t s;
            memcpy(&s, &tiles[sum][r][4 * c], 4);
            for (int k = 0; k < tiles_config.row_bytes[a]; k++) s += (int8_t)tiles[a][r][k] * tiles[b][k / 4][4 * c + k % 4];
            memcpy(&tiles[sum][r][4 * c], &s, 4);
        }
}
static inline float tiles_bf16(const uint8_t *p) {
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline void tiles_dot_bf16(int sum, int a, int b) {
    for (int r = 0; r < tiles_config.rows[sum]; r++)
        for (int c = 0; c < tiles_config.row_bytes[sum] / 4; c++) {
            float s;
            memcpy(&s, &tiles[sum][r][4 * c], 4);
            for (int k = 0; k < tiles_config.row_bytes[a] / 2; k++)
                s += tiles_bf16(&tiles[a][r][2 * k]) * tiles_bf16(&tiles[b][k / 2][4 * c + 2 * (k % 2)]);
            memcpy(&tiles[sum][r][4 * c], &s, 4);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig tiles_configure
#define _tile_release tiles_release
#define _tile_zero tiles_zero
#define _tile_loadd tiles_load
#define _tile_stored tiles_store
#define _tile_dpbsud tiles_dot_bytes
#define _tile_dpbf16ps tiles_dot_bf16
#endif
