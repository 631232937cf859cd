#include "help_device.h"

#include <unistd.h>

static struct backend *device;

static struct cache *make(size_t memory_bytes, const char *scheme, int kv_start) {
    struct cache_shape shape;
    struct kv_scheme one, schemes[3];
    help_shape(&shape);
    if (scheme) assert_int_equal(kv_scheme_parse(&one, scheme, 32, NULL), 0);
    for (int i = 0; i < 3; i++) schemes[i] = one;
    struct cache_options o = {.backend = device, .schemes = scheme ? schemes : NULL, .kv_start = kv_start,
                              .memory_bytes = memory_bytes, .snapshot_bytes = memory_bytes / 2, .max_undo_rows = 9};
    struct cache *c;
    struct weft_error e;
    if (cache_new(&c, &shape, &o, &e)) fail_msg("%s", e.message);
    return c;
}

enum { PLENTY = 64 << 20 };
static int32_t tokens[1024];
static void fill_tokens(void) {
    uint64_t r = 7;
    for (int i = 0; i < 1024; i++) tokens[i] = (int32_t)(help_random(&r) % 1000);
}

static void end(struct cache *c) {
    assert_int_equal(cache_used_bytes(c), 0);
    cache_free(c);
}

static const struct { const char *scheme; int start; } forms[] = {{NULL, 0}, {"8", 0}, {"3", 50}, {"turbo:k8v3", 64},
                                                                  {"4", 1000}};

static int count_pages(const struct sequence *s, int form) {
    int n = 0;
    for (int i = 0; i < s->n_blocks[form]; i++) n += s->pages[form][i] != NO_PAGE;
    return n;
}

static void after_every_keep_a_sequence_is_as_if_it_had_stepped_the_kept_rows(void **state) {
    (void)state;
    for (int f = 0; f < (int)(sizeof forms / sizeof *forms); f++)
        for (int before = 60; before <= 64; before += f == 0 ? 1 : 2)
            for (int n = 1; n <= 9; n += f == 0 ? 1 : 4)
                for (int keep = 0; keep <= n; keep++) {
                    struct cache *c = make(PLENTY, forms[f].scheme, forms[f].start);
                    struct sequence *s, *t = help_stepped(c, tokens, before + keep);
                    assert_int_equal(sequence_new(&s, c, NULL), 0);
                    assert_int_equal(help_step(s, tokens, before, 0, -1), 0);
                    int32_t draft[9];
                    for (int i = 0; i < n; i++) draft[i] = i < keep ? tokens[before + i] : 2000 + i;
                    assert_int_equal(help_step(s, draft, n, 1, keep), 0);
                    help_assert_same(s, t);
                    for (int i = 0; i < N_FORMS; i++) assert_int_equal(count_pages(s, i), count_pages(t, i));
                    sequence_free(s), sequence_free(t);
                    end(c);
                }
}

static void undo_steps_in_a_row_and_mixed_with_others_leave_no_trace(void **state) {
    (void)state;
    uint64_t r = 3;
    for (int round = 0; round < 40; round++) {
        struct cache *c = make(PLENTY, round % 2 ? "5" : NULL, round % 3 * 30);
        struct sequence *s[3];
        int at[3] = {0};
        for (int i = 0; i < 3; i++) assert_int_equal(sequence_new(&s[i], c, NULL), 0);
        for (int step = 0; step < 30; step++) {
            struct group g[3];
            int32_t mine[3][16];
            int keep[3], n = 0;
            for (int i = 0; i < 3; i++) {
                if (help_random(&r) % 4 == 0) continue;
                int undo = help_random(&r) % 2, most = undo ? 9 : help_random(&r) % 2 ? 16 : 1, rows = 1 + (int)(help_random(&r) % (uint32_t)most);
                keep[n] = undo ? (int)(help_random(&r) % (uint32_t)(rows + 1)) : rows;
                for (int j = 0; j < rows; j++) mine[n][j] = j < keep[n] ? tokens[at[i] + j] : 3000 + j;
                g[n] = (struct group){.seq = s[i], .n_rows = rows, .tokens = mine[n], .undo = undo};
                at[i] += keep[n++];
            }
            if (n == 0) continue;
            struct batch b = {.groups = g, .n_groups = n};
            assert_int_equal(cache_begin(c, &b, NULL), 0);
            help_forward(c, &b);
            cache_commit(c, &b, keep);
        }
        for (int i = 0; i < 3; i++) {
            struct sequence *t = help_stepped(c, tokens, at[i]);
            help_assert_same(s[i], t);
            sequence_free(s[i]), sequence_free(t);
        }
        end(c);
    }
}

/* The state is written with every fifth row alone only; forks, snapshots and steps of every kind see all rows. */
static void rows_alone_wait_and_count_as_if_they_did_not(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, NULL, 0);
    size_t bytes = cache_state_bytes(c);
    uint8_t *was = malloc(bytes);
    for (int n = 1; n <= 2 * WAIT_ROWS + 3; n++) {
        struct sequence *s, *f, *whole;
        struct snapshot *shot;
        assert_int_equal(sequence_new(&s, c, NULL), 0);
        assert_int_equal(help_step(s, tokens, 10, 0, -1), 0);
        for (int i = 0; i < n; i++) {
            memcpy(was, items_at(&c->states, s->slot), bytes);
            assert_int_equal(help_step(s, tokens + 10 + i, 1, 0, -1), 0);
            int written = memcmp(was, items_at(&c->states, s->slot), bytes) != 0;
            assert_int_equal(written, i % (WAIT_ROWS + 1) == WAIT_ROWS);
        }
        assert_int_equal(sequence_fork(&f, s, NULL), 0);
        assert_int_equal(help_step(f, tokens + 10 + n, 6, 1, 2), 0);
        assert_int_equal(help_step(f, tokens + 12 + n, 1, 0, -1), 0);
        assert_int_equal(help_step(f, tokens + 13 + n, 7, 0, -1), 0);
        assert_int_equal(sequence_new(&whole, c, NULL), 0);
        assert_int_equal(help_step(whole, tokens, 20 + n, 0, -1), 0);
        help_assert_same(f, whole);
        sequence_free(whole);
        assert_int_equal(sequence_new(&whole, c, NULL), 0);
        assert_int_equal(help_step(whole, tokens, 10 + n, 0, -1), 0);
        assert_int_equal(sequence_snapshot(&shot, s, NULL), 0);
        assert_memory_equal(items_at(&c->snapshots, shot->slot), items_at(&c->states, whole->slot), bytes);
        help_assert_same(s, whole);
        snapshot_free(shot), sequence_free(s), sequence_free(f), sequence_free(whole);
    }
    free(was);
    end(c);
}

static void a_fork_shares_pages_and_neither_sees_what_the_other_writes(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, "6", 10);
    struct sequence *s, *f, *t;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(help_step(s, tokens, 100, 0, -1), 0);
    assert_int_equal(help_step_mtp(s, tokens + 1, 99, -1), 0);
    assert_int_equal(help_step(s, tokens + 100, 5, 1, 3), 0);
    size_t alone = cache_used_bytes(c);
    assert_int_equal(sequence_fork(&f, s, NULL), 0);
    assert_int_equal(cache_used_bytes(c), alone + c->states.item_bytes + c->logs.item_bytes);
    assert_int_equal(help_step(f, tokens + 500, 40, 0, -1), 0);
    assert_int_equal(help_step(s, tokens + 103, 40, 0, -1), 0);
    t = help_stepped(c, tokens, 143);
    help_assert_same(s, t);
    sequence_free(t);
    int32_t other[143];
    memcpy(other, tokens, 103 * sizeof *other), memcpy(other + 103, tokens + 500, 40 * sizeof *other);
    t = help_stepped(c, other, 143);
    help_assert_same(f, t);
    sequence_free(t), sequence_free(s), sequence_free(f);
    end(c);
}

static void mtp_rows_have_their_own_count_and_provisional_ones_are_overwritten(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, NULL, 0);
    struct sequence *s, *t;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(sequence_new(&t, c, NULL), 0);
    assert_int_equal(help_step(s, tokens, 63, 0, -1), 0);
    assert_int_equal(help_step_mtp(s, tokens + 1, 62, -1), 0);
    assert_int_equal(help_step_mtp(s, tokens + 63, 4, 1), 0); /* the last of them in the next page */
    assert_int_equal(sequence_mtp_rows(s), 63);
    assert_int_equal(sequence_mtp_aligned(s), 63);
    assert_int_equal(s->n_blocks[MTP], 1);
    int32_t wrong[3] = {5, 6, 7};
    assert_int_equal(help_step_mtp(s, wrong, 3, 0), 0);
    assert_int_equal(help_step(s, tokens + 63, 37, 0, -1), 0);
    assert_int_equal(help_step_mtp(s, tokens + 64, 36, -1), 0);
    assert_int_equal(help_step(t, tokens, 100, 0, -1), 0);
    assert_int_equal(help_step_mtp(t, tokens + 1, 99, -1), 0);
    assert_int_equal(sequence_mtp_aligned(s), 99);
    help_assert_same(s, t);
    /* A gap: the next MTP row stands for a later row. */
    assert_int_equal(help_step(s, tokens + 100, 10, 0, -1), 0);
    int32_t at = 105, one = 9;
    struct group g = {.seq = s, .n_rows = 1, .tokens = &one, .positions = &at, .n_axes = 1};
    struct batch b = {.groups = &g, .n_groups = 1, .mtp = 1};
    assert_int_equal(cache_begin(c, &b, NULL), 0);
    help_forward(c, &b);
    cache_commit(c, &b, NULL);
    assert_int_equal(sequence_mtp_rows(s), 100);
    assert_int_equal(sequence_mtp_aligned(s), 99);
    sequence_cut_mtp(s, 50);
    assert_int_equal(sequence_mtp_aligned(s), 50);
    sequence_free(s), sequence_free(t);
    end(c);
}

static void positions_go_on_behind_the_largest_and_are_given_back(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, NULL, 0);
    struct sequence *s;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(help_step(s, tokens, 3, 0, -1), 0);
    int32_t media[] = {-1, -2, -3, -4}, at[] = {3, 3, 3, 3, 3, 3, 4, 4, 3, 9, 3, 4};
    float rows[4 * HELP_HIDDEN] = {0};
    struct group g = {.seq = s, .n_rows = 4, .tokens = media, .embeddings = rows, .positions = at, .n_axes = 3, .undo = 1};
    struct batch b = {.groups = &g, .n_groups = 1};
    int keep = 1;
    assert_int_equal(cache_begin(c, &b, NULL), 0);
    assert_memory_equal(cache_positions(c) + 3, ((int32_t[]){3, 3, 9}), 12);
    help_forward(c, &b);
    cache_commit(c, &b, &keep);
    assert_int_equal(sequence_next_position(s), 4);
    g.n_rows = 1, g.n_axes = 1, g.tokens = media, g.positions = at + 9;
    assert_int_equal(cache_begin(c, &b, NULL), 0);
    help_forward(c, &b);
    cache_commit(c, &b, NULL);
    assert_int_equal(sequence_next_position(s), 10);
    assert_int_equal(help_step(s, tokens, 2, 0, -1), 0);
    assert_memory_equal(sequence_positions(s), ((int32_t[]){0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 9, 9, 9, 10, 10, 10, 11, 11, 11}),
                        84);
    assert_true(s->keys[3] < 0 && s->keys[4] < 0 && s->keys[3] != s->keys[4]);
    sequence_free(s);
    end(c);
}

/* A step of two sequences, one of which shares a page, under every budget from nothing to enough. */
static void a_step_gets_everything_or_changes_nothing_whatever_the_budget(void **state) {
    (void)state;
    int n_failed = 0, n_passed = 0;
    struct cache *probe = make(PLENTY, "4", 70);
    size_t grain = probe->pages[HIGH].item_bytes / 2,
        most = 9 * probe->pages[LOW].item_bytes + 4 * (probe->states.item_bytes + probe->logs.item_bytes);
    end(probe);
    for (size_t budget = 0; budget < most; budget += grain) {
        struct cache *c = make(budget, "4", 70);
        struct sequence *s[2] = {0};
        assert_int_equal(sequence_new(&s[0], c, NULL), 0);
        if (help_step(s[0], tokens, 90, 0, -1) == 0 && sequence_fork(&s[1], s[0], NULL) == 0) {
            struct group g[2] = {{.seq = s[0], .n_rows = 9, .tokens = tokens + 90, .undo = 1},
                                 {.seq = s[1], .n_rows = 60, .tokens = tokens + 90}};
            struct batch b = {.groups = g, .n_groups = 2};
            size_t used = cache_used_bytes(c);
            struct weft_error e;
            int code = cache_begin(c, &b, &e), keep[2] = {4, 60};
            if (code) {
                n_failed++;
                assert_int_equal(code, WEFT_ERROR_MEMORY);
                assert_int_equal(cache_used_bytes(c), used);
            } else {
                cache_abort(c, &b);
                assert_int_equal(cache_used_bytes(c), used);
                assert_int_equal(cache_begin(c, &b, &e), 0);
                help_forward(c, &b);
                cache_commit(c, &b, keep);
                n_passed++;
            }
            assert_true(cache_peak_bytes(c) <= budget);
            for (int i = 0; i < 2; i++) {
                struct cache *other = make(PLENTY, "4", 70);
                struct sequence *t = help_stepped(other, tokens, code ? 90 : 90 + keep[i]);
                help_assert_same(s[i], t);
                sequence_free(t);
                end(other);
            }
        }
        sequence_free(s[0]), sequence_free(s[1]);
        end(c);
    }
    assert_true(n_failed > 0 && n_passed > 0);
}

static void a_request_within_the_admitted_bytes_never_fails(void **state) {
    (void)state;
    for (int start = 0; start <= 130; start += 65)
        for (int n = 1; n < 260; n += 13) {
            struct cache *c = make(PLENTY, "8", start);
            size_t bytes = cache_request_bytes(c, n, 1);
            end(c);
            c = make(bytes, "8", start);
            struct sequence *s;
            assert_int_equal(sequence_new(&s, c, NULL), 0);
            for (int at = 0; at < n; at += 9) assert_int_equal(help_step(s, tokens + at, n - at < 9 ? n - at : 9, 1, -1), 0);
            assert_int_equal(help_step_mtp(s, tokens, n, -1), 0);
            assert_int_equal(cache_peak_bytes(c), bytes);
            sequence_free(s);
            end(c);
        }
}

static void every_failing_allocation_is_reported_and_changes_nothing(void **state) {
    (void)state;
    int failures = 0;
    for (int nth = 0;; nth++) {
        struct cache *c = NULL;
        struct cache_shape shape;
        help_shape(&shape);
        struct cache_options o = {.backend = device, .memory_bytes = PLENTY, .snapshot_bytes = PLENTY, .max_undo_rows = 4};
        struct sequence *s = NULL, *f = NULL;
        mem_fail_at(nth, 1);
        int code = cache_new(&c, &shape, &o, NULL), stepped = 0;
        if (!code) code = sequence_new(&s, c, NULL);
        if (!code && !(code = help_step(s, tokens, 70, 0, -1))) stepped = 70;
        if (!code && !(code = help_step(s, tokens + 70, 3, 1, 2))) stepped = 72;
        if (!code) code = sequence_fork(&f, s, NULL);
        mem_fail_at(-1, 0);
        if (code) failures++, assert_int_equal(code, WEFT_ERROR_MEMORY);
        if (s) {
            assert_int_equal(sequence_rows(s), stepped);
            assert_int_equal(help_step(s, tokens + stepped, 100 - stepped, 0, -1), 0);
            struct sequence *t = help_stepped(c, tokens, 100);
            help_assert_same(s, t);
            sequence_free(t);
        }
        sequence_free(s), sequence_free(f);
        if (c) end(c);
        if (!code) break;
    }
    assert_true(failures > 10);
}

static void steps_in_reserved_room_allocate_nothing(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, "4", 0);
    struct sequence *s;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(sequence_reserve(s, 1000, NULL), 0);
    int at = 64, wish[1] = {64};
    for (int i = 0; i < 100; i++) {
        struct group g = {.seq = s, .n_rows = i ? 4 : at, .tokens = tokens, .undo = i > 0, .snapshot_rows = i ? &(int){2} : wish,
                          .n_snapshots = 1};
        struct batch b = {.groups = &g, .n_groups = 1};
        uint64_t before = mem_count();
        int keep = i ? i % 5 : at;
        assert_int_equal(cache_begin(c, &b, NULL), 0);
        cache_commit(c, &b, &keep);
        if (i) assert_int_equal(mem_count(), before);
        snapshot_free(g.snapshots[0]);
    }
    sequence_free(s);
    end(c);
}

static void a_snapshot_holds_what_stepping_to_its_row_gives(void **state) {
    (void)state;
    for (int undo = 0; undo < 2; undo++)
        for (int keep = 0; keep <= 8; keep += 4) {
            struct cache *c = make(PLENTY, NULL, 0);
            struct sequence *s;
            assert_int_equal(sequence_new(&s, c, NULL), 0);
            assert_int_equal(help_step(s, tokens, 62, 0, -1), 0);
            assert_int_equal(help_step(s, tokens + 62, 7, 1, 2), 0);
            int rows[] = {1, 4, 5, 8}, kept = undo ? keep : 8;
            struct group g = {.seq = s, .n_rows = 8, .tokens = tokens + 64, .undo = undo, .snapshot_rows = rows,
                              .n_snapshots = 4};
            struct batch b = {.groups = &g, .n_groups = 1};
            assert_int_equal(cache_begin(c, &b, NULL), 0);
            help_forward(c, &b);
            cache_commit(c, &b, &kept);
            for (int i = 0; i < 4; i++) {
                assert_int_equal(g.snapshots[i] != NULL, rows[i] <= kept);
                if (!g.snapshots[i]) continue;
                struct sequence *t = help_stepped(c, tokens, 64 + rows[i]);
                assert_int_equal(snapshot_row(g.snapshots[i]), 64 + rows[i]);
                assert_memory_equal(items_at(&c->snapshots, g.snapshots[i]->slot), items_at(&c->states, t->slot),
                                    cache_state_bytes(c));
                sequence_free(t), snapshot_free(g.snapshots[i]);
            }
            struct snapshot *last;
            if (kept) {
                assert_int_equal(sequence_snapshot(&last, s, NULL), 0);
                struct sequence *t = help_stepped(c, tokens, 64 + kept);
                assert_memory_equal(items_at(&c->snapshots, last->slot), items_at(&c->states, t->slot), cache_state_bytes(c));
                snapshot_free(last), sequence_free(t);
            }
            sequence_free(s);
            end(c);
        }
}

static void a_sequence_whose_step_was_dropped_is_refused(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, NULL, 0);
    struct sequence *s;
    struct weft_error e;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(help_step(s, tokens, 5, 0, 0), 0);
    struct group g = {.seq = s, .n_rows = 1, .tokens = tokens};
    struct batch b = {.groups = &g, .n_groups = 1};
    assert_int_equal(cache_begin(c, &b, &e), WEFT_ERROR_INPUT);
    sequence_free(s);
    end(c);
}

static void the_sizes_are_what_is_used(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, "turbo:k8v3", 64);
    struct cache_bytes size;
    cache_sizes(&c->shape, &c->options, &size);
    struct sequence *s;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(help_step(s, tokens, 200, 0, -1), 0);
    assert_int_equal(cache_used_bytes(c), size.low_page + 3 * size.page + size.state);
    assert_int_equal(help_step(s, tokens + 200, 2, 1, 1), 0);
    assert_int_equal(cache_used_bytes(c), size.low_page + 3 * size.page + size.state + size.log);
    sequence_free(s);
    end(c);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f), fclose(f);
}

static void a_kv_config_gives_each_listed_layer_its_scheme(void **state) {
    (void)state;
    struct cache_shape shape;
    help_shape(&shape);
    struct kv_scheme schemes[3];
    const uint8_t is_attention[8] = {0, 0, 0, 1, 0, 0, 0, 1};
    struct weft_error e;
    const char *path = help_temp("kv_config.json");
    write_text(path, "[{\"layer_idx\": 7, \"bits\": 4, \"group_size\": 32, \"why\": []}]");
    if (cache_read_kv_config(schemes, &shape, is_attention, 8, path, &e)) fail_msg("%s", e.message);
    assert_ptr_equal(schemes[0].k, &kv_bf16), assert_ptr_equal(schemes[1].k, &kv_affine),
    assert_ptr_equal(schemes[2].k, &kv_bf16);
    assert_int_equal(schemes[1].k_bits, 4), assert_int_equal(schemes[1].group, 32);
    const char *bad[] = {
        "{}", "[3]", "[{\"layer_idx\": 3}]", "[{\"bits\": 4}]", "[{\"layer_idx\": 2, \"bits\": 4}]",
        "[{\"layer_idx\": 8, \"bits\": 4}]",
        "[{\"layer_idx\": 3, \"bits\": 7}]", "[{\"layer_idx\": 3, \"bits\": 4, \"group_size\": 16}]",
        "[{\"layer_idx\": -1, \"bits\": 4}]",
        "[{\"layer_idx\": 3, \"bits\": 4}, {\"layer_idx\": 3, \"bits\": 8}]",
        "[{\"layer_idx\": 3, \"bits\": 4, \"group_size\": 128}]", "[",
    };
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        write_text(path, bad[i]);
        assert_true(cache_read_kv_config(schemes, &shape, is_attention, 8, path, &e) < 0);
        assert_non_null(strstr(e.message, "kv_config.json"));
    }
    unlink(path);
}

static int run_group(struct backend *b) {
    device = b;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_every_keep_a_sequence_is_as_if_it_had_stepped_the_kept_rows),
        cmocka_unit_test(undo_steps_in_a_row_and_mixed_with_others_leave_no_trace),
        cmocka_unit_test(rows_alone_wait_and_count_as_if_they_did_not),
        cmocka_unit_test(a_fork_shares_pages_and_neither_sees_what_the_other_writes),
        cmocka_unit_test(mtp_rows_have_their_own_count_and_provisional_ones_are_overwritten),
        cmocka_unit_test(positions_go_on_behind_the_largest_and_are_given_back),
        cmocka_unit_test(a_step_gets_everything_or_changes_nothing_whatever_the_budget),
        cmocka_unit_test(a_request_within_the_admitted_bytes_never_fails),
        cmocka_unit_test(every_failing_allocation_is_reported_and_changes_nothing),
        cmocka_unit_test(steps_in_reserved_room_allocate_nothing),
        cmocka_unit_test(a_snapshot_holds_what_stepping_to_its_row_gives),
        cmocka_unit_test(a_sequence_whose_step_was_dropped_is_refused),
        cmocka_unit_test(the_sizes_are_what_is_used),
        cmocka_unit_test(a_kv_config_gives_each_listed_layer_its_scheme),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    fill_tokens();
    return help_each_device(run_group);
}
