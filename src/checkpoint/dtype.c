#include "checkpoint/dtype.h"

#include <string.h>

static const struct { const char *name; int bytes; } dtypes[N_DTYPES] = {
    [DTYPE_BOOL] = {"BOOL", 1},       [DTYPE_U8] = {"U8", 1},           [DTYPE_I8] = {"I8", 1},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [DTYPE_F8_E8M0] = {"F8_E8M0", 1},
    [DTYPE_U16] = {"U16", 2},         [DTYPE_I16] = {"I16", 2},         [DTYPE_F16] = {"F16", 2},
    [DTYPE_BF16] = {"BF16", 2},       [DTYPE_U32] = {"U32", 4},         [DTYPE_I32] = {"I32", 4},
    [DTYPE_F32] = {"F32", 4},         [DTYPE_U64] = {"U64", 8},         [DTYPE_I64] = {"I64", 8},
    [DTYPE_F64] = {"F64", 8},         [DTYPE_C64] = {"C64", 8},
};

const char *dtype_name(enum dtype d) { return dtypes[d].name; }
int dtype_bytes(enum dtype d) { return dtypes[d].bytes; }

int dtype_find(const char *name, enum dtype *out) {
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return *out = (enum dtype)i, 1;
    return 0;
}
