#include "cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const struct cpu_op *const op_table[N_OP_KINDS] = {
    [OP_EMBED] = &cpu_op_embed,
    [OP_NORM] = &cpu_op_norm,
    [OP_LINEAR] = &cpu_op_linear,
    [OP_CONVERT] = &cpu_op_convert,
    [OP_DELTA_PREPARE] = &cpu_op_delta_prepare,
    [OP_DELTA] = &cpu_op_delta,
    [OP_GATED_NORM] = &cpu_op_gated_norm,
    [OP_ATTENTION_PREPARE] = &cpu_op_attention_prepare,
    [OP_ATTENTION] = &cpu_op_attention,
    [OP_ATTENTION_MERGE] = &cpu_op_attention_merge,
    [OP_SILU_MUL] = &cpu_op_silu_mul,
    [OP_MOE_ROUTE] = &cpu_op_moe_route,
    [OP_MOE_LINEAR] = &cpu_op_moe_linear,
    [OP_MOE_COMBINE] = &cpu_op_moe_combine,
    [OP_COPY] = &cpu_op_copy,
    [OP_ADAPTER_DOWN] = &cpu_op_adapter_down,
    [OP_ADAPTER_UP] = &cpu_op_adapter_up,
    [OP_MOE_ADAPTER] = &cpu_op_moe_adapter,
};

static const char *const isa_names[] = {"amx", "avx512bf16", "avx512", "avxvnni", "avx2", "neon", "portable", NULL};

static size_t taken_bytes(const struct pool *p) { return CPU_MAX_OPS * (size_t)pool_threads(p) * sizeof(struct pool_taken); }

static int cpu_open(struct backend *b, const struct backend_options *o, struct weft_error *e) {
    const struct cpu_isa *isa = NULL;
    if (!o->isa) isa = cpu_isa_choose();
    for (int i = 0; o->isa && cpu_isas[i]; i++)
        if (strcmp(cpu_isas[i]->name, o->isa) == 0) isa = cpu_isas[i];
    if (!isa) return error_set(e, WEFT_ERROR_INPUT, "instruction set \"%s\" is not one this build knows", o->isa);
    if (!isa->runs_here()) return error_set(e, WEFT_ERROR_INPUT, "this processor does not run instruction set \"%s\"", isa->name);
    struct cpu *c = mem_map_pages(sizeof *c);
    struct pool_taken *taken = mem_map_pages(taken_bytes(o->pool));
    if (!c || !taken) return mem_free_pages(c, sizeof *c), mem_free_pages(taken, taken_bytes(o->pool)), error_memory(e, "the CPU device");
    b->table = &backend_cpu, b->pool = o->pool, b->device = c;
    c->taken = taken, c->pool = o->pool, c->isa = isa, c->precision = o->precision, c->kernels = isa->kernels;
    while (isa->kernels[c->n_kernels]) c->n_kernels++;
    snprintf(c->arithmetic, sizeof c->arithmetic, "cpu %s, precision %s", isa->name,
             o->precision == PRECISION_HIGH ? "high" : "default");
    return 0;
}

static void free_scratch(struct cpu *c) {
    mem_free_pages(c->scratch, c->scratch_bytes * (size_t)pool_threads(c->pool));
    mem_free_pages(c->shared, c->shared_bytes);
    c->scratch = NULL, c->shared = NULL;
}

static void cpu_close(struct backend *b) {
    struct cpu *c = b->device;
    if (!c) return;
    free_scratch(c);
    mem_free_pages(c->taken, taken_bytes(c->pool));
    mem_free_pages(c, sizeof *c);
    b->device = NULL;
}

static const char *cpu_isa_name(const struct backend *b) { return ((const struct cpu *)b->device)->isa->name; }
static const char *cpu_arithmetic(const struct backend *b) { return ((const struct cpu *)b->device)->arithmetic; }

static void *cpu_memory_new(struct backend *b, size_t bytes) { return (void)b, mem_map_pages(bytes); }
static void cpu_memory_free(struct backend *b, void *p, size_t bytes) { (void)b, mem_free_pages(p, bytes); }

/* Whole pages go back to the system, the edges are cleared by hand. */
static void cpu_memory_release(struct backend *b, void *p, size_t bytes) {
    (void)b;
    uintptr_t from = (uintptr_t)p, to = from + bytes, first = (from + 4095) / 4096 * 4096, last = to / 4096 * 4096;
    if (first >= last) {
        memset(p, 0, bytes);
        return;
    }
    memset(p, 0, first - from);
    memset((void *)last, 0, to - last);
    mem_release_pages((void *)first, last - first);
}

static void cpu_copy(struct backend *b, void *to, const void *from, size_t bytes) { (void)b, memcpy(to, from, bytes); }

static const struct linear_kernel *const *cpu_linear_kernels(const struct backend *b, int *n) {
    const struct cpu *c = b->device;
    *n = c->n_kernels;
    return c->kernels;
}

static size_t scratch_needed(const struct cpu *c, const struct step_limits *l) {
    size_t most = SCRATCH_HEAD;
    for (int k = 0; k < N_OP_KINDS; k++) {
        size_t bytes = op_table[k]->scratch_bytes ? op_table[k]->scratch_bytes(c, l) : 0;
        if (bytes > most) most = bytes;
    }
    return (most + 4095) / 4096 * 4096;
}

static size_t cpu_reserved_bytes(const struct backend *b, const struct step_limits *l) {
    const struct cpu *c = b->device;
    return scratch_needed(c, l) * (size_t)pool_threads(c->pool) + cpu_attention_shared_bytes(l);
}

static int cpu_reserve(struct backend *b, const struct step_limits *l, struct weft_error *e) {
    struct cpu *c = b->device;
    free_scratch(c);
    c->scratch_bytes = scratch_needed(c, l), c->shared_bytes = cpu_attention_shared_bytes(l);
    c->scratch = mem_map_pages(c->scratch_bytes * (size_t)pool_threads(c->pool));
    c->shared = mem_map_pages(c->shared_bytes);
    c->limits = *l;
    if (c->scratch && c->shared) return 0;
    free_scratch(c);
    return error_memory(e, "the scratch memory of a step");
}

struct walk { struct cpu *c; const struct op *ops; int n; };

/* What a thread does while it waits before op `at`: memory has nothing to do at the seam between two matrices, else. */
struct seam { _Alignas(64) uint8_t head[SCRATCH_HEAD]; const struct walk *w; int at, thread, fetched, n_tasks; size_t bytes; };

static int fetch_seam(void *arg) {
    struct seam *s = arg;
    const struct cpu *c = s->w->c;
    int next = s->at;
    while (next < s->w->n && !op_table[s->w->ops[next].kind]->fetch) next++;
    if (next == s->w->n) return 0;
    const struct op *op = &s->w->ops[next];
    const struct cpu_op *how = op_table[op->kind];
    if (next != s->fetched) s->fetched = next, s->bytes = 0, s->n_tasks = how->n_tasks(c, op, s->head);
    int threads = pool_threads(c->pool), task = pool_share(s->n_tasks, s->thread, threads);
    return task < pool_share(s->n_tasks, s->thread + 1, threads) && how->fetch(op, s->head, task, &s->bytes);
}

static void walk_ops(void *arg, int thread, int n_threads) {
    struct walk *w = arg;
    struct cpu *c = w->c;
    struct seam seam = {.w = w, .thread = thread, .fetched = -1};
    void *scratch = c->scratch + (size_t)thread * c->scratch_bytes;
    for (int i = 0; i < w->n; i++) {
        const struct op *op = &w->ops[i];
        const struct cpu_op *how = op_table[op->kind];
        seam.at = i;
        if (op->wait && i > 0) pool_barrier_with(c->pool, fetch_seam, &seam);
        cpu_op_take(c, how, op, c->taken + (size_t)i * (size_t)n_threads, thread, n_threads, scratch);
    }
}

static void cpu_run(struct backend *b, const struct op *ops, int n_ops) {
    struct cpu *c = b->device;
    for (int at = 0; at < n_ops; at += CPU_MAX_OPS) {
        struct walk w = {c, ops + at, n_ops - at < CPU_MAX_OPS ? n_ops - at : CPU_MAX_OPS};
        for (int i = 0; i < w.n * pool_threads(c->pool); i++) atomic_store_explicit(&c->taken[i].n, 0, memory_order_relaxed);
        pool_run(c->pool, walk_ops, &w);
    }
}

const struct backend_table backend_cpu = {
    .version = BACKEND_VERSION, .name = "cpu", .isa_names = isa_names,
    .open = cpu_open, .close = cpu_close, .isa = cpu_isa_name, .arithmetic = cpu_arithmetic,
    .memory_new = cpu_memory_new, .memory_free = cpu_memory_free, .memory_release = cpu_memory_release, .copy = cpu_copy,
    .linear_kernels = cpu_linear_kernels, .linear_choose = cpu_linear_choose,
    .reserve = cpu_reserve, .reserved_bytes = cpu_reserved_bytes, .run = cpu_run,
};
