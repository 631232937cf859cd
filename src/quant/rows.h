/* Private to the folder: the members of `representations`, one file each. */
#ifndef QUANT_ROWS_H
#define QUANT_ROWS_H
#include "quant/quant.h"

extern const struct representation repr_bf16, repr_f16, repr_f32, repr_affine, repr_fp8, repr_mxfp4, repr_mxfp8, repr_nvfp4;
#endif
