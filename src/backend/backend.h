/* What a device fills in. The model builds a step as a list of ops; a device runs the list.
 *
 * Invariants
 * 1. An op with `wait` set starts when every op before it is complete; ops without it may overlap with those before them
 *    back to the last waiting one. The builder guarantees that such ops touch disjoint memory.
 * 2. No op allocates. Everything an op points to outlives the run.
 * 3. Every result value depends on its own rows and its own sequence alone (see linear.h; for attention and the delta rule see
 *    ops.h), so that packing, chunking and threads never show.
 * 4. Functions that return int give 0 or a WEFT_ERROR_ code with a sentence. */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H
#include "backend/linear.h"
#include "backend/ops.h"
#include "base/error.h"
#include "base/pool.h"

enum { BACKEND_VERSION = 1 };
enum precision { PRECISION_DEFAULT, PRECISION_HIGH };

struct backend_options {
    struct pool *pool;       /* borrowed; the CPU's threads */
    const char *isa;         /* NULL: chosen by the CPU's model; else a name of isa_names */
    enum precision precision;
};

/* The largest step a plan will run; a device sizes its own scratch memory by it. */
struct step_limits {
    int max_rows, max_groups, max_context_rows;
    int n_heads, n_kv_heads, head_dim;
    int key_heads, value_heads, key_dim, value_dim, conv_kernel;
    int max_width; /* widest activation row */
    int n_experts, top_k;
};

struct backend {
    const struct backend_table *table;
    struct pool *pool;
    void *device; /* the device's own */
};

struct backend_table {
    int version;
    const char *name;
    const char *const *isa_names; /* NULL-terminated, best first */
    int (*open)(struct backend *b, const struct backend_options *o, struct weft_error *e);
    void (*close)(struct backend *b);
    const char *(*isa)(const struct backend *b);
    /* One line that names everything that decides result bits; part of a session's fingerprint. */
    const char *(*arithmetic)(const struct backend *b);
    /* Lazily touched memory, zeroed. A device's own address space: only ops and copy read it. */
    void *(*memory_new)(struct backend *b, size_t bytes);
    void (*memory_free)(struct backend *b, void *p, size_t bytes);
    void (*memory_release)(struct backend *b, void *p, size_t bytes); /* gives pages back; contents become zero */
    void (*copy)(struct backend *b, void *to, const void *from, size_t bytes);
    /* The kernels of this instance (its ISA and precision), best first within a row class. */
    const struct linear_kernel *const *(*linear_kernels)(const struct backend *b, int *n);
    /* Picks layout and kernels; sets data_bytes but not data. WEFT_ERROR_SUPPORT when nothing can run it. */
    int (*linear_choose)(const struct backend *b, const struct weight *w, struct linear *out, struct weft_error *e);
    int (*reserve)(struct backend *b, const struct step_limits *limits, struct weft_error *e);
    size_t (*reserved_bytes)(const struct backend *b, const struct step_limits *limits);
    void (*run)(struct backend *b, const struct op *ops, int n_ops);
};

extern const struct backend_table backend_cpu;  /* src/cpu */
/* The table with this name, or NULL. */
const struct backend_table *backend_find(const char *name);
#endif
