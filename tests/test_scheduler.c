#include "help_test.h"

#include "engine/schedule.h"

enum { MOST = 40 };

static struct schedule_limits limits(void) { return (struct schedule_limits){512, 16, 64, 512, 1 << 24}; }

static struct schedule_item item(int context, int pending, int drafts) {
    return (struct schedule_item){.context = context, .pending = pending, .drafts = drafts};
}

static void check_limits(const struct schedule_item *items, int n, const struct schedule_limits *l, int rows) {
    int sum = 0, groups = 0, logits = 0, prompts = 0;
    for (int i = 0; i < n; i++) {
        assert_in_range(items[i].n_rows, 0, items[i].pending);
        assert_in_range(items[i].n_drafts, 0, items[i].drafts);
        if (items[i].n_drafts) assert_int_equal(items[i].n_rows, 1);
        sum += items[i].n_rows + items[i].n_drafts;
        groups += items[i].n_rows > 0;
        if (items[i].n_rows == items[i].pending) logits += 1 + items[i].n_drafts;
        if (items[i].pending > 1) {
            prompts += items[i].n_rows;
            assert_in_range(items[i].n_rows, 0, schedule_chunk(l, items[i].context));
        }
    }
    assert_int_equal(sum, rows);
    assert_in_range(sum, n ? 1 : 0, l->max_rows);
    assert_in_range(groups, n ? 1 : 0, l->max_groups);
    assert_in_range(logits, 0, l->max_logits);
    assert_in_range(prompts, 0, l->prefill_chunk);
}

static unsigned next(unsigned *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 8; }

static void no_plan_breaks_a_limit_or_is_empty(void **state) {
    (void)state;
    unsigned seed = 1;
    struct schedule_turn turn = {0};
    for (int trial = 0; trial < 20000; trial++) {
        struct schedule_limits l = {1 + (int)(next(&seed) % 700), 1 + (int)(next(&seed) % 20), 1 + (int)(next(&seed) % 70), 0,
                                    1 << 20};
        l.prefill_chunk = 1 + (int)(next(&seed) % (unsigned)l.max_rows);
        struct schedule_item items[MOST];
        int n = 1 + (int)(next(&seed) % MOST);
        for (int i = 0; i < n; i++) {
            int prompt = next(&seed) % 3 == 0;
            items[i] =
                item((int)(next(&seed) % 50000), prompt ? 2 + (int)(next(&seed) % 3000) : 1, prompt ? 0 : (int)(next(&seed) % 9));
        }
        check_limits(items, n, &l, schedule_plan(items, n, &l, &turn));
    }
}

static void decoding_goes_on_beside_a_long_prompt(void **state) {
    (void)state;
    struct schedule_limits l = limits();
    struct schedule_item items[4] = {item(0, 20000, 0), item(100, 1, 0), item(200, 1, 0), item(300, 1, 0)};
    struct schedule_turn turn = {0};
    schedule_plan(items, 4, &l, &turn);
    for (int i = 1; i < 4; i++) assert_int_equal(items[i].n_rows, 1);
    assert_in_range(items[0].n_rows, 400, 512);
}

static void several_prompts_share_a_step_and_short_ones_go_whole(void **state) {
    (void)state;
    struct schedule_limits l = limits();
    struct schedule_item items[3] = {item(0, 5000, 0), item(0, 40, 0), item(0, 5000, 0)};
    struct schedule_turn turn = {0};
    assert_int_equal(schedule_plan(items, 3, &l, &turn), 512);
    assert_int_equal(items[1].n_rows, 40);
    assert_int_equal(items[0].n_rows, 236);
    assert_int_equal(items[2].n_rows, 236);
}

static void drafts_take_only_what_nobody_certain_wants(void **state) {
    (void)state;
    struct schedule_limits l = {10, 16, 10, 10, 0};
    struct schedule_item items[4] = {item(10, 1, 8), item(10, 1, 8), item(10, 1, 8), item(10, 1, 0)};
    struct schedule_turn turn = {0};
    assert_int_equal(schedule_plan(items, 4, &l, &turn), 10);
    for (int i = 0; i < 4; i++) assert_int_equal(items[i].n_rows, 1);
    for (int i = 0; i < 3; i++) assert_int_equal(items[i].n_drafts, 2);
    struct schedule_item with_prompt[2] = {item(10, 1, 8), item(0, 100, 0)};
    schedule_plan(with_prompt, 2, &l, &turn);
    assert_int_equal(with_prompt[0].n_drafts, 0);
    assert_int_equal(with_prompt[1].n_rows, 9);
}

static void everyone_gets_his_turn_when_a_step_is_too_small_for_all(void **state) {
    (void)state;
    struct schedule_limits l = {4, 3, 4, 4, 0};
    int done[10] = {0};
    struct schedule_turn turn = {0};
    for (int step = 0; step < 40; step++) {
        struct schedule_item items[10];
        for (int i = 0; i < 10; i++) items[i] = item(10, 1, 0);
        schedule_plan(items, 10, &l, &turn);
        for (int i = 0; i < 10; i++) done[i] += items[i].n_rows;
    }
    for (int i = 0; i < 10; i++) assert_in_range(done[i], 8, 16);
}

static void prompts_and_decoding_ones_do_not_starve_each_other(void **state) {
    (void)state;
    struct schedule_limits l = {8, 4, 8, 8, 0};
    int done[9] = {0}, left[9] = {1, 1, 1, 1, 1, 1, 300, 300, 300};
    struct schedule_turn turn = {0};
    for (int step = 0; step < 90; step++) {
        struct schedule_item items[9];
        for (int i = 0; i < 9; i++) items[i] = item(10, left[i], 0);
        schedule_plan(items, 9, &l, &turn);
        for (int i = 0; i < 9; i++) {
            done[i] += items[i].n_rows;
            if (i >= 6 && left[i] - items[i].n_rows > 1) left[i] -= items[i].n_rows;
        }
    }
    for (int i = 0; i < 9; i++) assert_true(done[i] >= 20);
}

static void chunks_shrink_with_the_context(void **state) {
    (void)state;
    struct schedule_limits l = limits();
    assert_int_equal(schedule_chunk(&l, 0), 512);
    assert_int_equal(schedule_chunk(&l, 32768), 512);
    assert_int_equal(schedule_chunk(&l, 65536), 256);
    assert_int_equal(schedule_chunk(&l, 262144), 64);
    for (int context = 1; context < 1 << 20; context += 997) {
        int rows = schedule_chunk(&l, context);
        assert_true(rows >= 16 && (rows == 16 || (long long)rows * context <= l.max_pairs));
    }
}

static void a_plan_depends_on_its_arguments_alone(void **state) {
    (void)state;
    struct schedule_limits l = limits();
    struct schedule_item a[3] = {item(0, 900, 0), item(5, 1, 4), item(9, 1, 2)}, b[3];
    memcpy(b, a, sizeof b);
    struct schedule_turn turn_a = {5, 2}, turn_b = {5, 2};
    assert_int_equal(schedule_plan(a, 3, &l, &turn_a), schedule_plan(b, 3, &l, &turn_b));
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(&turn_a, &turn_b, sizeof turn_a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_plan_breaks_a_limit_or_is_empty),
        cmocka_unit_test(decoding_goes_on_beside_a_long_prompt),
        cmocka_unit_test(several_prompts_share_a_step_and_short_ones_go_whole),
        cmocka_unit_test(drafts_take_only_what_nobody_certain_wants),
        cmocka_unit_test(everyone_gets_his_turn_when_a_step_is_too_small_for_all),
        cmocka_unit_test(prompts_and_decoding_ones_do_not_starve_each_other),
        cmocka_unit_test(chunks_shrink_with_the_context),
        cmocka_unit_test(a_plan_depends_on_its_arguments_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
