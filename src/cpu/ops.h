/* What the drivers of ops share. */
#ifndef CPU_OPS_H
#define CPU_OPS_H
#include "cpu/cpu.h"
#include "cpu/vec.h"

/* Puts columns [col0, col0 + n) of a result row into the forms of `out`; col0 is a multiple of 32, n too unless it reaches the
 * row's end. The padding behind the last column is cleared. `x` may be the f32 form itself. */
void cpu_rows_put(const struct cpu_vec *vec, const struct rows *out, int64_t row, int col0, int n, const float *x);

/* How many heads of `dim` columns a task must take so that its columns begin and end at blocks of 32: 1, or all of them. */
static inline int cpu_heads_together(int dim, int n_heads) { return dim % Q8_BLOCK == 0 ? 1 : n_heads; }
#endif
