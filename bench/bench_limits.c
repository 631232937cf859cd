/* What this machine can do, and from it the roof of each promised speed: bench_limits [THREADS [cpu]]; with
 * "cpu" in the time that the threads had of a processor, for machines that are shared with other work. */
#define _GNU_SOURCE
#include "../bench/limits.h"

int main(int argc, char **argv) {
    struct weft_error e;
    struct pool *pool;
    if (pool_new(&pool, argc > 1 ? atoi(argv[1]) : 0, &e)) return fprintf(stderr, "%s\n", e.message), 1;
    double limit[N_LIMITS];
    count_cpu_time = argc > 2 && strcmp(argv[2], "cpu") == 0;
    if (limits_measure(pool, limit)) return fprintf(stderr, "no memory\n"), 1;
    printf("%d threads; best of %d\n", pool_threads(pool), ROUNDS);
    for (int i = 0; i < N_LIMITS; i++) printf("%-20s %8.1f %s\n", limit_name[i], limit[i], limit_unit[i]);
    pool_free(pool);
    return 0;
}
