/* Affine quantization as MLX stores it: value = code * scale + bias per group along K; codes of a row are one stream of bits,
 * lowest first. Both of MLX's encoders, exactly. */
#ifndef QUANT_AFFINE_H
#define QUANT_AFFINE_H
#include <stdint.h>

#include "base/error.h"
#include "checkpoint/dtype.h"

static inline int affine_bits_ok(int bits) { return bits >= 2 && bits <= 8 && bits != 7; }
static inline int affine_group_ok(int group) { return group == 32 || group == 64 || group == 128; }

/* n codes beginning with code `first` of a row; both multiples of 8. Bytes beyond the last code's are not read. */
void affine_unpack(const uint8_t *row, int bits, int64_t first, int64_t n, uint8_t *codes);
void affine_pack(const uint8_t *codes, int64_t n, int bits, uint8_t *row); /* n a multiple of 32; n * bits / 8 bytes written */

/* Metal: what published files are made with. CPU: MLX's other path; they differ in ties and in all-negative groups. */
enum affine_path { AFFINE_METAL, AFFINE_CPU };
/* One group of n values: codes [n], scale and bias unrounded (they are rounded to the storage type when stored). */
void affine_encode_group(const float *x, int n, int bits, enum affine_path path, uint8_t *codes, float *scale, float *bias);
/* A row of n values: packed codes [n * bits / 8 bytes], scales and biases [n / group] in dtype T (F32, F16 or BF16). `x` must
 * hold values of T already (widened) for the result to equal MLX's. */
void affine_encode_row(const float *x, int64_t n, int bits, int group, enum affine_path path, enum dtype t, uint8_t *row,
                       uint8_t *scales, uint8_t *biases);
#endif
