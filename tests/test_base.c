#include "help_test.h"

#include <stdatomic.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"

static void an_error_holds_one_clean_sentence(void **state) {
    (void)state;
    struct weft_error e = {0};
    assert_int_equal(error_set(&e, WEFT_ERROR_INPUT, "%s: bad \n name", "file"), WEFT_ERROR_INPUT);
    assert_string_equal(e.message, "file: bad ? name");
    error_prefix(&e, "model %d", 3);
    assert_string_equal(e.message, "model 3: file: bad ? name");
}

static void the_nth_allocation_fails_when_a_test_asks(void **state) {
    (void)state;
    mem_fail_at(1, 0);
    void *a = mem_alloc(8), *b = mem_alloc(8), *c = mem_alloc(8);
    mem_fail_at(-1, 0);
    assert_non_null(a), assert_null(b), assert_non_null(c);
    mem_free(a), mem_free(c);
}

static void a_buffer_remembers_that_an_append_failed(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b);
    buf_add_text(&b, "abc");
    mem_fail_at(0, 0);
    for (int i = 0; i < 100; i++) buf_add_text(&b, "0123456789");
    mem_fail_at(-1, 0);
    assert_true(b.failed);
    assert_null(buf_take(&b, NULL));
}

struct region { struct pool *p; atomic_int next, sum[8]; int seen[8]; };

static void add_up(void *arg, int thread, int n_threads) {
    struct region *r = arg;
    (void)n_threads;
    for (int phase = 0; phase < 8; phase++) {
        atomic_fetch_add(&r->sum[phase], thread + 1);
        pool_barrier(r->p);
        if (thread == 0) r->seen[phase] = atomic_load(&r->sum[phase]);
    }
}

static void a_barrier_lets_nobody_through_before_all_have_come(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct weft_error e;
        struct region r = {0};
        assert_int_equal(pool_new(&r.p, threads, &e), 0);
        for (int round = 0; round < 200; round++) {
            for (int i = 0; i < 8; i++) atomic_store(&r.sum[i], 0);
            pool_run(r.p, add_up, &r);
            for (int i = 0; i < 8; i++) assert_int_equal(r.seen[i], threads * (threads + 1) / 2);
        }
        pool_free(r.p);
    }
}

enum { MOST_PIECES = 40 };
struct cut_region { struct pool_taken taken[5]; int n, idle; atomic_int times[MOST_PIECES]; };

/* `idle` takes nothing: the others do its share too. */
static void take_pieces(void *arg, int thread, int n_threads) {
    struct cut_region *r = arg;
    for (int piece; thread != r->idle && (piece = pool_take(r->taken, r->n, thread, n_threads)) >= 0;) atomic_fetch_add(&r->times[piece], 1);
}

static void every_piece_is_taken_once_whoever_stays_away(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct weft_error e;
        struct pool *p;
        assert_int_equal(pool_new(&p, threads, &e), 0);
        for (int n = 0; n <= MOST_PIECES; n++) {
            struct cut_region r = {.n = n, .idle = threads > 1 ? n % threads : -1};
            assert_int_equal(pool_share(n, 0, threads), 0);
            assert_int_equal(pool_share(n, threads, threads), n);
            pool_run(p, take_pieces, &r);
            for (int i = 0; i < n; i++) assert_int_equal(atomic_load(&r.times[i]), 1);
        }
        pool_free(p);
    }
}

static void a_writer_leaves_the_old_file_until_it_commits(void **state) {
    (void)state;
    struct weft_error e;
    struct file_writer w;
    struct buf b;
    const char *path = help_temp("file");
    for (int round = 0; round < 3; round++) {
        assert_int_equal(file_open_writer(&w, path, &e), 0);
        assert_int_equal(file_write(&w, round ? "new" : "old", 3, &e), 0);
        file_close_writer(&w, round != 1, &e);
        buf_init(&b);
        assert_int_equal(file_read(&b, path, 100, &e), 0);
        assert_string_equal(b.data, round == 2 ? "new" : "old");
        buf_drop(&b);
    }
    assert_int_equal(file_open_writer(&w, help_temp("none/file"), &e), WEFT_ERROR_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_holds_one_clean_sentence),
        cmocka_unit_test(the_nth_allocation_fails_when_a_test_asks),
        cmocka_unit_test(a_buffer_remembers_that_an_append_failed),
        cmocka_unit_test(a_barrier_lets_nobody_through_before_all_have_come),
        cmocka_unit_test(every_piece_is_taken_once_whoever_stays_away),
        cmocka_unit_test(a_writer_leaves_the_old_file_until_it_commits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
