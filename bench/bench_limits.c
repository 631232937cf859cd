/* What this machine can do, and from it the roof of each promised speed: bench_limits [THREADS [cpu]]; with "cpu" in the time that
 * the threads had of a processor, for machines that are shared with other work.
 *
 * A roof is the larger of the time to read (weights once, state once read and once written, KV rows once) at the rate of four
 * streams, and the time of the linear operations at the peak of the dot product in use. */
#define _GNU_SOURCE
#include "../bench/limits.h"

/* The published geometries. Experts: total, chosen, their width; a shared one of the same width. */
struct geometry { const char *name; int hidden, layers, inner, heads, kv_heads, head_dim, key_heads, value_heads, dim, vocab, experts, chosen; };
static const struct geometry geometries[] = {
    {"0.8B", 1024, 24, 3584, 8, 2, 256, 16, 16, 128, 248320, 0, 0},
    {"4B", 2560, 32, 9216, 16, 4, 256, 16, 32, 128, 248320, 0, 0},
    {"35B-A3B, 4 layers", 2048, 4, 512, 16, 2, 256, 16, 32, 128, 248320, 256, 8},
};
struct stored { const char *name; double bytes; int integer; }; /* of one weight, scales and biases included */
static const struct stored representations[] = {{"bf16", 2, 0}, {"affine 8, group 64", 8.5 / 8, 1}, {"affine 6, group 64", 6.5 / 8, 1}, {"affine 4, group 64", 4.5 / 8, 1}};

struct size { double body, experts, head; }; /* weights that a row meets: body, chosen experts; of the output head */

static struct size size_of(const struct geometry *g) {
    double h = g->hidden, values = (double)g->value_heads * g->dim, keys = (double)g->key_heads * g->dim, heads = (double)g->heads * g->head_dim;
    double delta = h * (2 * keys + values) + h * values + 2 * h * g->value_heads + values * h;
    double attention = h * 2 * heads + 2 * h * g->kv_heads * g->head_dim + heads * h, mlp = 3 * h * g->inner;
    struct size s = {.head = h * g->vocab};
    s.body = g->layers * (0.75 * delta + 0.25 * attention + mlp + (g->experts ? h * g->experts + h : 0));
    s.experts = g->layers * mlp * g->chosen;
    return s;
}

static double state_bytes(const struct geometry *g) {
    double channels = 2.0 * g->key_heads * g->dim + (double)g->value_heads * g->dim;
    return 2 * 4 * 0.75 * g->layers * ((double)g->value_heads * g->dim * g->dim + 3 * channels);
}
static double kv_row_bytes(const struct geometry *g) { return 0.25 * g->layers * 2.0 * g->kv_heads * g->head_dim * 2; }

static double larger(double a, double b) { return a > b ? a : b; }

static void print_decode(const struct geometry *g, const struct stored *r, const double *limit, int batch, int depth) {
    struct size s = size_of(g);
    double met = g->experts ? s.experts / g->chosen * g->experts * (1 - __builtin_pow(1 - (double)g->chosen / g->experts, batch)) : 0;
    double weights = (s.body + met + s.head) * r->bytes / (limit[READ_FOUR] * 1e9);
    double peak = r->integer ? limit[INT8_DOT] : larger(limit[BF16_DOT], limit[FMA]);
    double work = peak > 0 ? 2 * batch * (s.body + s.experts + s.head) / (peak * 1e9) : 0;
    double state = batch * (state_bytes(g) + depth * kv_row_bytes(g)) / (limit[READ_FOUR] * 1e9);
    double time = batch == 1 ? larger(weights + state, work) : larger(weights, work) + state;
    printf("%-18s %-19s decode, %2d sequences, depth %5d  %8.1f tok/s\n", g->name, r->name, batch, depth, batch / time);
}

static void print_prompt(const struct geometry *g, const struct stored *r, const double *limit, int rows) {
    struct size s = size_of(g);
    double peak = r->integer ? limit[INT8_DOT] : larger(limit[BF16_DOT], limit[FMA]);
    if (peak > 0) printf("%-18s %-19s prompt, %4d rows                 %8.1f tok/s\n", g->name, r->name, rows,
                         rows / ((2.0 * rows * (s.body + s.experts) + 2 * s.head) / (peak * 1e9)));
}

int main(int argc, char **argv) {
    struct weft_error e;
    struct pool *pool;
    if (pool_new(&pool, argc > 1 ? atoi(argv[1]) : 0, &e)) return fprintf(stderr, "%s\n", e.message), 1;
    double limit[N_LIMITS];
    count_cpu_time = argc > 2 && strcmp(argv[2], "cpu") == 0;
    if (limits_measure(pool, limit)) return fprintf(stderr, "no memory\n"), 1;
    printf("%d threads; best of %d\n", pool_threads(pool), ROUNDS);
    for (int i = 0; i < N_LIMITS; i++) printf("%-20s %8.1f %s\n", limit_name[i], limit[i], limit_unit[i]);
    printf("\nRoofs\n");
    for (size_t g = 0; g < sizeof geometries / sizeof *geometries; g++)
        for (size_t r = 0; r < sizeof representations / sizeof *representations; r++) {
            print_decode(&geometries[g], &representations[r], limit, 1, 0);
            print_decode(&geometries[g], &representations[r], limit, 1, 16384);
            print_decode(&geometries[g], &representations[r], limit, 4, 0);
            print_decode(&geometries[g], &representations[r], limit, 16, 0);
            print_prompt(&geometries[g], &representations[r], limit, 512);
        }
    pool_free(pool);
    return 0;
}
