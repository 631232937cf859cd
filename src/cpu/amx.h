/* The tile unit of Intel processors from Sapphire Rapids on. */
#ifndef CPU_AMX_H
#define CPU_AMX_H
#include <stdint.h>

/* What _tile_loadconfig reads. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct amx_config) == 64, "64 bytes");
#endif
