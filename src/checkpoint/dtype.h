/* Element types as safetensors files spell them. */
#ifndef CHECKPOINT_DTYPE_H
#define CHECKPOINT_DTYPE_H
#include <stddef.h>

enum dtype {
    DTYPE_BOOL, DTYPE_U8, DTYPE_I8, DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_F8_E8M0, DTYPE_U16, DTYPE_I16, DTYPE_F16, DTYPE_BF16,
    DTYPE_U32, DTYPE_I32, DTYPE_F32, DTYPE_U64, DTYPE_I64, DTYPE_F64, DTYPE_C64, N_DTYPES
};

const char *dtype_name(enum dtype d);              /* "BF16" */
int dtype_bytes(enum dtype d);                     /* of one element */
int dtype_find(const char *name, enum dtype *out); /* 1 when there is such a type */
/* F32, F16 or BF16: what every unquantized tensor of a model may be. */
static inline int dtype_is_float(enum dtype d) { return d == DTYPE_F32 || d == DTYPE_F16 || d == DTYPE_BF16; }
#endif
