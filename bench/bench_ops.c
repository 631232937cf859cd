/* Times the kernels in the lists: bench_ops [--isa NAME] [--threads N] [--model 0.8b|4b] [--rows N] [--kernel TEXT] [--clock cpu]
 *
 * Every kernel runs over enough copies of a weight that each comes from memory, as in a model. Few rows are stated as a fraction
 * of what four streams read, many as a fraction of the peak of the instruction in use. Medians of ROUNDS. */
#define _GNU_SOURCE
#include "../bench/limits.h"

#include "cpu/cpu.h"
#include "quant/convert.h"
#include "quant/quant.h"

enum { COLD_BYTES = 1 << 30, MAX_COPIES = 512, TIMES = 7 };

struct shape { const char *model, *name; int n_out, n_in; };
static const struct shape shapes[] = {
    {"0.8b", "gate", 3584, 1024}, {"0.8b", "down", 1024, 3584}, {"0.8b", "qkv", 6144, 1024}, {"0.8b", "head", 248320, 1024},
    {"4b", "gate", 9216, 2560},   {"4b", "down", 2560, 9216},   {"4b", "qkv", 8192, 2560},   {"4b", "head", 248320, 2560},
};
struct stored { const char *repr; int bits, group; enum repr_kind kind; enum dtype dtype; };
static const struct stored stored[] = {
    {"affine", 2, 64, REPR_AFFINE, DTYPE_U32}, {"affine", 3, 64, REPR_AFFINE, DTYPE_U32}, {"affine", 4, 64, REPR_AFFINE, DTYPE_U32},
    {"affine", 5, 64, REPR_AFFINE, DTYPE_U32}, {"affine", 6, 64, REPR_AFFINE, DTYPE_U32}, {"affine", 8, 64, REPR_AFFINE, DTYPE_U32},
    {"affine", 4, 32, REPR_AFFINE, DTYPE_U32}, {"bf16", 16, 0, REPR_DENSE, DTYPE_BF16}, {"f16", 16, 0, REPR_DENSE, DTYPE_F16},
    {"f32", 32, 0, REPR_DENSE, DTYPE_F32},
};
static const int row_counts[] = {1, 2, 4, 8, 12, 16, 32, 64, 128, 512};

struct options { const char *isa, *model, *kernel; int threads, rows; };

static void decode(const struct weight *w, int64_t row, float *out) {
    for (int64_t k = 0; k < w->n_cols; k++) out[k] = float_from_bf16(load_u16(w->data + row * (int64_t)w->row_bytes + 2 * k));
}

/* Copies of one weight, packed if the kernel wants it. */
struct copies { struct representation repr; struct weight w[MAX_COPIES]; struct linear l[MAX_COPIES]; int n; uint8_t *memory, *packed; size_t memory_bytes, packed_bytes; };

static int copies_new(struct copies *c, const struct stored *s, const struct shape *sh, const struct linear_kernel *k) {
    *c = (struct copies){.repr = {s->repr, s->kind, s->dtype, 0, NULL, decode}};
    struct weight w = {.repr = &c->repr, .name = "w", .file = "f", .n_rows = sh->n_out, .n_cols = sh->n_in, .dtype = s->dtype,
                       .bits = s->bits, .group = s->group, .scale_dtype = DTYPE_BF16};
    w.row_bytes = (size_t)sh->n_in * (size_t)s->bits / 8;
    w.scale_row_bytes = s->group ? (size_t)(sh->n_in / s->group) * 2 : 0;
    size_t codes = w.row_bytes * (size_t)sh->n_out, scales = w.scale_row_bytes * (size_t)sh->n_out, bytes = (codes + 2 * scales + 63) / 64 * 64;
    c->n = (int)(COLD_BYTES / bytes) + 1;
    if (c->n > MAX_COPIES) c->n = MAX_COPIES;
    int packs = k->layout && k->layout->bytes;
    c->memory_bytes = bytes * (size_t)(packs ? 1 : c->n);
    c->memory = mem_map_pages(c->memory_bytes);
    c->packed_bytes = packs ? k->layout->bytes(&w) * (size_t)c->n : 0;
    c->packed = packs ? mem_map_pages(c->packed_bytes) : NULL;
    if (!c->memory || (packs && !c->packed)) return -1;
    for (size_t i = 0; i < c->memory_bytes; i += 2) { /* numbers of ordinary size in every type */
        uint16_t v = (uint16_t)((i * 2654435761u >> 13 & 0x83ff) | 0x3800);
        memcpy(c->memory + i, &v, 2);
    }
    for (int i = 0; i < c->n; i++) {
        c->w[i] = w;
        c->w[i].data = c->memory + (packs ? 0 : (size_t)i * bytes);
        c->w[i].scales = c->w[i].data + codes, c->w[i].biases = c->w[i].scales + scales;
        c->l[i] = (struct linear){.source = &c->w[i], .n_in = sh->n_in, .n_out = sh->n_out};
        for (int class = 0; class < N_ROW_CLASSES; class++) c->l[i].kernel[class] = k;
        if (!packs) continue;
        size_t each = c->packed_bytes / (size_t)c->n;
        c->l[i].data = c->packed + (size_t)i * each, c->l[i].data_bytes = each;
        if (i == 0) k->layout->pack(&c->w[0], c->packed, 0, sh->n_out);
        else memcpy(c->l[i].data, c->packed, each);
    }
    return 0;
}
static void copies_drop(struct copies *c) { mem_free_pages(c->memory, c->memory_bytes), mem_free_pages(c->packed, c->packed_bytes); }

struct walk { const struct cpu *cpu; struct op op[MAX_COPIES]; struct pool_taken *taken; int n; uint8_t *scratch; size_t scratch_bytes; double ms[MAX_THREADS]; };
static void walk(void *arg, int thread, int n_threads) {
    struct walk *w = arg;
    double start = thread_ms();
    for (int i = 0; i < w->n; i++)
        cpu_op_take(w->cpu, &cpu_op_linear, &w->op[i], w->taken + i * n_threads, thread, n_threads, w->scratch + (size_t)thread * w->scratch_bytes);
    w->ms[thread] = thread_ms() - start;
}

static int compare(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static struct rows rows_new(int n, int width) {
    struct rows r = {.width = width, .padded = rows_pad(width), .forms = FORM_F32 | FORM_BF16 | FORM_Q8};
    size_t values = (size_t)n * (size_t)r.padded;
    r.f32 = mem_map_pages(values * 4), r.bf16 = mem_map_pages(values * 2), r.q8 = mem_map_pages(values);
    r.q8_scale = mem_map_pages(values / 8), r.q8_sum = mem_map_pages(values / 8);
    for (size_t i = 0; i < values; i++) r.f32[i] = (float)(i % 17) - 8, r.bf16[i] = bf16_from_float(r.f32[i]), r.q8[i] = (int8_t)(i % 255 - 127);
    for (size_t i = 0; i < values / 32; i++) r.q8_scale[i] = 0.5f, r.q8_sum[i] = 1;
    return r;
}
static void rows_drop(struct rows *r, int n) {
    size_t values = (size_t)n * (size_t)r->padded;
    mem_free_pages(r->f32, values * 4), mem_free_pages(r->bf16, values * 2), mem_free_pages(r->q8, values);
    mem_free_pages(r->q8_scale, values / 8), mem_free_pages(r->q8_sum, values / 8);
}

static void bench_one(struct cpu *cpu, const struct linear_kernel *k, struct copies *c, const struct stored *s, const struct shape *sh, int n_rows,
                      const double *limit) {
    static struct walk w;
    struct step_limits l = {.max_rows = n_rows, .max_width = sh->n_in};
    struct rows x = rows_new(n_rows, sh->n_in);
    size_t y_bytes = (size_t)n_rows * (size_t)sh->n_out * 4;
    float *y = mem_map_pages(y_bytes);
    double ms[TIMES], operations = 2.0 * n_rows * sh->n_out * sh->n_in;
    w.taken = mem_map_pages(MAX_COPIES * (size_t)pool_threads(cpu->pool) * sizeof *w.taken);
    w.cpu = cpu, w.n = c->n, w.scratch_bytes = (cpu_op_linear.scratch_bytes(cpu, &l) + 4095) / 4096 * 4096;
    while (w.n > 1 && operations * w.n > 4e11) w.n--; /* a second or two */
    w.scratch = mem_map_pages(w.scratch_bytes * (size_t)pool_threads(cpu->pool));
    for (int i = 0; i < w.n; i++)
        w.op[i] = (struct op){.kind = OP_LINEAR, .linear = {.x = x, .n_rows = n_rows, .n_parts = 1, .part = {{&c->l[i], y, sh->n_out, 0}}}};
    for (int t = -1; t < TIMES; t++) {
        for (int i = 0; i < w.n * pool_threads(cpu->pool); i++) atomic_store(&w.taken[i].n, 0);
        pool_run(cpu->pool, walk, &w);
        for (int i = 0; i < pool_threads(cpu->pool) && t >= 0; i++)
            if (i == 0 || w.ms[i] / w.n > ms[t]) ms[t] = w.ms[i] / w.n;
    }
    qsort(ms, TIMES, sizeof *ms, compare);
    double middle = ms[count_cpu_time ? 0 : TIMES / 2], rate = operations / middle * 1e-6, bytes = (double)(c->l[0].data ? c->l[0].data_bytes : c->w[0].row_bytes * (size_t)sh->n_out);
    double peak = k->form == FORM_Q8 ? limit[INT8_DOT] : k->form == FORM_BF16 && limit[BF16_DOT] > limit[FMA] ? limit[BF16_DOT] : limit[FMA];
    printf("%-20s g%-3d %-4s %-4s %4d rows %9.3f ms %7.1f GB/s %4.2f of read %8.1f GOP/s %4.2f of peak\n", k->name, s->group, sh->model, sh->name,
           n_rows, middle, bytes / middle * 1e-6, bytes / middle * 1e-6 / limit[READ_FOUR], rate, peak > 0 ? rate / peak : 0);
    fflush(stdout);
    mem_free_pages(w.taken, MAX_COPIES * (size_t)pool_threads(cpu->pool) * sizeof *w.taken);
    mem_free_pages(y, y_bytes), mem_free_pages(w.scratch, w.scratch_bytes * (size_t)pool_threads(cpu->pool));
    rows_drop(&x, n_rows);
}

static int bench_linear(struct cpu *cpu, const struct options *o, const double *limit) {
    static struct copies c;
    for (int i = 0; cpu->isa->kernels[i]; i++) {
        const struct linear_kernel *k = cpu->isa->kernels[i];
        for (size_t s = 0; s < sizeof stored / sizeof *stored; s++) {
            if ((k->repr && strcmp(k->repr, stored[s].repr) != 0) || (k->bits && k->bits != stored[s].bits)) continue;
            if (!k->repr && strcmp(stored[s].repr, "bf16") != 0) continue;
            char name[64];
            snprintf(name, sizeof name, "%s g%d", k->name, stored[s].group);
            if (o->kernel && !strstr(name, o->kernel)) continue;
            for (size_t h = 0; h < sizeof shapes / sizeof *shapes; h++) {
                if (o->model && strcmp(o->model, shapes[h].model) != 0) continue;
                if (copies_new(&c, &stored[s], &shapes[h], k)) return -1;
                for (size_t r = 0; r < (o->rows ? 1 : sizeof row_counts / sizeof *row_counts); r++) {
                    int rows = o->rows ? o->rows : row_counts[r];
                    if (rows < k->min_rows || rows > k->max_rows || (shapes[h].n_out > 100000 && rows > 16)) continue;
                    bench_one(cpu, k, &c, &stored[s], &shapes[h], rows, limit);
                }
                copies_drop(&c);
            }
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    struct options o = {0};
    struct weft_error e;
    struct cpu cpu = {.isa = cpu_isa_choose()};
    double limit[N_LIMITS];
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return fprintf(stderr, "%s: an unknown option, or one without its value\n", argv[i]), 1;
        if (strcmp(argv[i], "--isa") == 0) o.isa = argv[i + 1];
        else if (strcmp(argv[i], "--model") == 0) o.model = argv[i + 1];
        else if (strcmp(argv[i], "--kernel") == 0) o.kernel = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0) o.threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--clock") == 0) count_cpu_time = strcmp(argv[i + 1], "cpu") == 0;
        else if (strcmp(argv[i], "--rows") == 0) o.rows = atoi(argv[i + 1]);
        else return fprintf(stderr, "unknown option %s\n", argv[i]), 1;
    }
    for (int i = 0; o.isa && cpu_isas[i]; i++)
        if (strcmp(o.isa, cpu_isas[i]->name) == 0) cpu.isa = cpu_isas[i];
    if (pool_new(&cpu.pool, o.threads, &e)) return fprintf(stderr, "%s\n", e.message), 1;
    cpu.kernels = cpu.isa->kernels;
    while (cpu.kernels[cpu.n_kernels]) cpu.n_kernels++;
    if (limits_measure(cpu.pool, limit)) return 1;
    printf("%s, %d threads:", cpu.isa->name, pool_threads(cpu.pool));
    for (int i = 0; i < N_LIMITS; i++) printf(" %s %.1f %s%s", limit_name[i], limit[i], limit_unit[i], i + 1 < N_LIMITS ? ";" : "\n");
    int code = bench_linear(&cpu, &o, limit);
    pool_free(cpu.pool);
    return code != 0;
}
