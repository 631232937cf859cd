/* The CPU device: one parallel region per step walks the op list; within an op, threads take tasks by counter, each its own share first.
 *
 * Files: cpu.c the driver; detect.c the choice of ISA; op_*.c the drivers of ops over primitives; linear*.c matrix products;
 * NAME_portable.c, NAME_avx2.c, NAME_avx512.c, NAME_avx512bf16.c, NAME_neon.c the primitives per ISA. */
#ifndef CPU_CPU_H
#define CPU_CPU_H
#include <stdatomic.h>

#include "backend/backend.h"
#include "base/pool.h"

struct cpu_isa;

enum { CPU_MAX_OPS = 1024, SCRATCH_HEAD = 128 };

struct cpu {
    struct pool *pool;
    const struct cpu_isa *isa;
    enum precision precision;
    char arithmetic[256];
    const struct linear_kernel *const *kernels; int n_kernels;
    struct step_limits limits;
    size_t scratch_bytes;               /* of each thread */
    uint8_t *scratch;                   /* n_threads * scratch_bytes */
    float *shared; size_t shared_bytes; /* partial results of attention, shared by all threads */
    struct pool_taken *taken;           /* [CPU_MAX_OPS][n_threads] */
};

/* How one kind of op runs: n_tasks independent tasks, of which a thread takes neighbours; results do not depend on the cut. */
struct cpu_op {
    /* head: SCRATCH_HEAD bytes of any content, 64-byte aligned, in which it may leave what run and fetch of this op find there */
    int (*n_tasks)(const struct cpu *c, const struct op *op, void *head);
    /* scratch: this thread's; it begins with the head, which run may change */
    void (*run)(const struct cpu *c, const struct op *op, int task, void *scratch);
    size_t (*scratch_bytes)(const struct cpu *c, const struct step_limits *l); /* per thread; NULL: none */
    /* Asks memory for a little of what a task will read, *at bytes on; moves *at. 0: there is no more to ask for. NULL: nothing. */
    int (*fetch)(const struct op *op, const void *head, int task, size_t *at);
};
/* What this thread can get of an op's tasks. taken: one counter for each thread. */
static inline void cpu_op_take(const struct cpu *c, const struct cpu_op *how, const struct op *op, struct pool_taken *taken, int thread,
                               int n_threads, void *scratch) {
    for (int n = how->n_tasks(c, op, scratch), task; (task = pool_take(taken, n, thread, n_threads)) >= 0;) how->run(c, op, task, scratch);
}

/* op_linear.c */
extern const struct cpu_op cpu_op_embed, cpu_op_linear, cpu_op_moe_linear;
/* op_rows.c */
extern const struct cpu_op cpu_op_norm, cpu_op_convert, cpu_op_gated_norm, cpu_op_silu_mul, cpu_op_copy;
/* op_delta.c */
extern const struct cpu_op cpu_op_delta_prepare, cpu_op_delta;
/* op_attention.c */
extern const struct cpu_op cpu_op_attention_prepare, cpu_op_attention, cpu_op_attention_merge;
size_t cpu_attention_shared_bytes(const struct step_limits *l);
/* op_moe.c */
extern const struct cpu_op cpu_op_moe_route, cpu_op_moe_combine;
/* op_adapter.c */
extern const struct cpu_op cpu_op_adapter_down, cpu_op_adapter_up, cpu_op_moe_adapter;

/* The primitives of one ISA. Each member's contract stands beside its type in the named header. */
struct cpu_vec;       /* vec.h: rows: sums, norms, exp, conversions */
struct cpu_delta;     /* delta.h */
struct cpu_attention; /* attention.h */
struct cpu_isa {
    const char *name;
    int (*runs_here)(void);                     /* CPUID says it can */
    const struct cpu_vec *vec;
    const struct cpu_delta *delta;
    const struct cpu_attention *attention;
    const struct linear_kernel *const *kernels; /* NULL-terminated; of both precisions, best first */
    struct ahead ahead;                         /* of weights, in kernels for few rows */
};
/* Best first, NULL-terminated; portable is last and always runs. */
extern const struct cpu_isa *const cpu_isas[];
/* detect.c: the ISA for this processor, by its model (a run must repeat: never by timing). */
const struct cpu_isa *cpu_isa_choose(void);

/* linear.c */
int cpu_linear_choose(const struct backend *b, const struct weight *w, struct linear *out, struct weft_error *e);
#endif
