/* The little of cmocka that the tests of the CPU device use, for processors whose cmocka is not installed: the first failure ends the program. */
#ifndef CROSS_CMOCKA_H
#define CROSS_CMOCKA_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define fail_msg(...) (printf(__VA_ARGS__), printf("\n"), exit(1))
#define assert_true(c) ((c) ? (void)0 : fail_msg("%s:%d: %s", __FILE__, __LINE__, #c))
#define assert_false(c) assert_true(!(c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)
#define print_message(...) printf(__VA_ARGS__)
#define print_error(...) printf(__VA_ARGS__)
#define skip() do { printf("skipped\n"); return; } while (0)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)
struct CMUnitTest { const char *name; void (*run)(void **state); };
#define cmocka_unit_test(f) {#f, f}
#define cmocka_run_group_tests(tests, a, b) run_all(tests, sizeof(tests) / sizeof *(tests))
static inline int run_all(const struct CMUnitTest *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        tests[i].run(&state);
        printf("ok %s\n", tests[i].name);
    }
    return 0;
}
#endif
