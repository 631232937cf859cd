#include "cache/node.h"
#include "help_device.h"

static struct backend device = {.table = &help_device};
enum { PLENTY = 256 << 20, LONGEST = 320 };

static struct cache *make(size_t memory_bytes, size_t snapshot_bytes, const char *scheme, int kv_start) {
    struct cache_shape shape;
    struct kv_scheme one, schemes[3];
    help_shape(&shape);
    if (scheme) assert_int_equal(kv_scheme_parse(&one, scheme, 32, NULL), 0);
    for (int i = 0; i < 3; i++) schemes[i] = one;
    struct cache_options o = {.backend = &device, .schemes = scheme ? schemes : NULL, .kv_start = kv_start,
                              .memory_bytes = memory_bytes, .snapshot_bytes = snapshot_bytes, .max_undo_rows = 8};
    struct cache *c;
    struct weft_error e;
    if (cache_new(&c, &shape, &o, &e)) fail_msg("%s", e.message);
    return c;
}

static void end(struct cache *c, struct tree *t) {
    tree_free(t);
    assert_int_equal(cache_used_bytes(c), 0);
    for (int f = 0; f < N_FORMS; f++) assert_int_equal(c->pages[f].n_used, 0);
    assert_int_equal(c->snapshots.n_used, 0);
    cache_free(c);
}

static float hidden_of(const int32_t *tokens, int n) {
    uint64_t h = 1;
    for (int i = 0; i < n; i++) h = hash_mix(h, (uint64_t)(uint32_t)tokens[i]);
    return (float)(h % 1000003);
}

static void set_hidden(float out[HELP_HIDDEN], const int32_t *tokens, int n) {
    for (int i = 0; i < HELP_HIDDEN; i++) out[i] = hidden_of(tokens, n) + (float)i;
}

/* Runs rows up to n, with snapshots at these absolute rows (those behind the sequence's). 0, or cache_begin's code. */
static int run(struct tree *t, struct sequence *s, const int32_t *tokens, int n, const int *rows, int n_rows, int mtp) {
    int relative[LONGEST], count = 0, before = sequence_rows(s);
    for (int i = 0; i < n_rows; i++)
        if (rows[i] > before) relative[count++] = rows[i] - before;
    struct group g = {.seq = s, .n_rows = n - before, .tokens = tokens + before, .snapshot_rows = relative, .n_snapshots = count};
    struct batch b = {.groups = &g, .n_groups = 1};
    if (n > before) {
        int code = cache_begin(s->cache, &b, NULL);
        if (code) return code;
        help_forward(s->cache, &b);
        cache_commit(s->cache, &b, NULL);
        struct snapshot *mine[LONGEST];
        memcpy(mine, g.snapshots, sizeof *mine * (size_t)count);
        for (int i = 0; i < count; i++) {
            float hidden[HELP_HIDDEN];
            set_hidden(hidden, tokens, rows[n_rows - count + i]);
            if (mine[i] && rows[n_rows - count + i] == n) snapshot_set_hidden(mine[i], hidden);
        }
        int done = sequence_mtp_rows(s), code2 = 0;
        if (mtp && n - 1 > done) code2 = help_step_mtp(s, tokens + done + 1, n - 1 - done, -1);
        tree_store(t, s, mine, count, NULL);
        return code2;
    }
    return 0;
}

/* The sequence is what a cold run over its tokens gives. */
static void assert_cold(struct sequence *s, const int32_t *tokens, int n) {
    struct sequence *cold;
    assert_int_equal(sequence_rows(s), n);
    struct cache *c = s->cache, *other = NULL;
    if (c->options.memory_bytes < PLENTY) { /* a small budget has no room for a second one */
        struct cache_options o = c->options;
        o.memory_bytes = o.snapshot_bytes = PLENTY;
        assert_int_equal(cache_new(&other, &c->shape, &o, NULL), 0);
    }
    assert_int_equal(sequence_new(&cold, other ? other : c, NULL), 0);
    assert_int_equal(help_step(cold, tokens, n, 0, -1), 0);
    if (n > 1) assert_int_equal(help_step_mtp(cold, tokens + 1, n - 1, -1), 0);
    help_assert_same(s, cold);
    sequence_free(cold);
    cache_free(other);
}

struct known { int32_t tokens[LONGEST]; int row, hidden; uint64_t adapters; };

static int deepest_known(const struct known *known, int n_known, const int32_t *tokens, int n, uint64_t adapters) {
    int best = 0;
    for (int i = 0; i < n_known; i++) {
        const struct known *k = &known[i];
        if (k->adapters != adapters || k->row > n || (k->row == n && !k->hidden) || k->row <= best) continue;
        if (memcmp(k->tokens, tokens, sizeof *tokens * (size_t)k->row) == 0) best = k->row;
    }
    return best;
}

/* Few different tokens, so that prompts branch everywhere. */
static int random_prompt(uint64_t *r, int32_t out[LONGEST]) {
    static const int shares[] = {0, 1, 63, 64, 65, 100, 128, 200};
    int share = shares[help_random(r) % 8], n = 1 + (int)(help_random(r) % LONGEST), flavour = (int)(help_random(r) % 3);
    for (int i = 0; i < LONGEST; i++) out[i] = i < share ? 7 + i % 5 : 20 + flavour + (help_random(r) % 40 == 0);
    return n;
}

static void play(uint64_t seed, int rounds, struct cache *c, int exact) {
    struct tree *t;
    static struct known known[4000];
    int n_known = 0, n_hits = 0;
    uint64_t r = seed;
    assert_int_equal(tree_new(&t, c, NULL), 0);
    for (int round = 0; round < rounds; round++) {
        int32_t tokens[LONGEST];
        int n = random_prompt(&r, tokens), rows[4], n_rows = 0, mtp = help_random(&r) % 3 > 0;
        uint64_t adapters = help_random(&r) % 4 == 0;
        struct prompt_rows p = {.tokens = tokens, .n_rows = n};
        struct sequence *s;
        assert_int_equal(sequence_new(&s, c, NULL), 0);
        sequence_set_adapters(s, adapters);
        int expected = deepest_known(known, n_known, tokens, n, adapters), found = tree_find(t, adapters, &p);
        int got = tree_restore(t, s, &p, NULL);
        if (exact) assert_int_equal(found, expected), assert_int_equal(got, expected);
        assert_true(got <= expected);
        if (got > 0) {
            n_hits++;
            assert_cold(s, tokens, got);
            float hidden[HELP_HIDDEN];
            set_hidden(hidden, tokens, got);
            if (got == n) assert_memory_equal(sequence_hidden(s), hidden, sizeof hidden);
            if (sequence_mtp_rows(s) < got - 1) sequence_cut_mtp(s, 0);
            mtp = mtp && sequence_mtp_rows(s) > 0;
        }
        for (int i = 0, at = got < 0 ? 0 : got; i < 3; i++) {
            at += 1 + (int)(help_random(&r) % 100);
            if (at < n) rows[n_rows++] = at;
        }
        rows[n_rows++] = n;
        if (got >= 0 && run(t, s, tokens, n, rows, n_rows, mtp) == 0) {
            assert_cold(s, tokens, n);
            for (int i = 0; i < n_rows && n_known < 4000; i++) {
                memcpy(known[n_known].tokens, tokens, sizeof tokens);
                known[n_known].row = rows[i], known[n_known].hidden = rows[i] == n, known[n_known++].adapters = adapters;
            }
        } else assert_false(exact);
        sequence_free(s);
        assert_true(cache_used_bytes(c) + c->idle_bytes <= c->options.memory_bytes);
        assert_true(c->snapshots.n_used <= c->snapshots.capacity);
    }
    assert_true(n_hits > rounds / 4);
    end(c, t);
}

static void with_room_every_prompt_gets_the_deepest_state_that_was_kept(void **state) {
    (void)state;
    play(1, 200, make(PLENTY, PLENTY, NULL, 0), 1);
    play(2, 100, make(PLENTY, PLENTY, "4", 100), 1);
}

static void without_room_what_is_restored_is_right_all_the_same(void **state) {
    (void)state;
    struct cache *probe = make(PLENTY, PLENTY, NULL, 0);
    size_t page = probe->pages[HIGH].item_bytes, slot = probe->states.item_bytes;
    cache_free(probe);
    play(3, 200, make(14 * page + 8 * slot, PLENTY, NULL, 0), 0);
    play(4, 200, make(PLENTY, 6 * (slot + 16), NULL, 0), 0);
    play(5, 200, make(8 * page + 20 * slot, 5 * (slot + 16), "8", 70), 0);
}

static void what_only_the_tree_holds_makes_room_for_a_step(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, PLENTY, NULL, 0);
    size_t one = cache_request_bytes(c, 256, 0), snapshot = c->snapshots.item_bytes;
    cache_free(c);
    c = make(2 * one + 2 * snapshot, PLENTY, NULL, 0);
    struct tree *t;
    assert_int_equal(tree_new(&t, c, NULL), 0);
    for (int i = 0; i < 20; i++) {
        int32_t tokens[256];
        for (int j = 0; j < 256; j++) tokens[j] = i * 1000 + j;
        struct sequence *a, *b;
        assert_int_equal(sequence_new(&a, c, NULL), 0);
        assert_int_equal(sequence_new(&b, c, NULL), 0);
        int rows[] = {128, 256};
        assert_int_equal(run(t, a, tokens, 256, rows, 2, 0), 0);
        tokens[0] = -0x7000;
        assert_int_equal(run(t, b, tokens, 256, rows, 2, 0), 0);
        sequence_free(a), sequence_free(b);
    }
    struct tree_stats stats;
    tree_get_stats(t, &stats);
    assert_true(stats.n_snapshots > 0);
    tree_clear(t);
    assert_int_equal(cache_used_bytes(c), 0);
    end(c, t);
}

static void what_only_the_tree_holds_makes_room_for_what_lies_elsewhere(void **state) {
    (void)state;
    struct cache *c = make(16 << 20, 16 << 20, NULL, 0);
    struct tree *t;
    struct sequence *a, *b;
    int32_t tokens[256];
    static const int rows[] = {128, 256};
    for (int j = 0; j < 256; j++) tokens[j] = j;
    assert_int_equal(tree_new(&t, c, NULL), 0);
    assert_int_equal(sequence_new(&a, c, NULL), 0);
    assert_int_equal(run(t, a, tokens, 256, rows, 2, 0), 0);
    size_t all = cache_memory_bytes(c), kept = cache_used_bytes(c);
    assert_false(cache_set_aside(c, all + 1));
    assert_int_equal(cache_used_bytes(c), kept); /* that takes nothing from the tree */
    assert_false(cache_set_aside(c, all));       /* a sequence keeps its own */
    assert_int_equal(cache_memory_bytes(c), all);
    sequence_free(a);
    assert_true(cache_set_aside(c, all));
    assert_int_equal(cache_memory_bytes(c) + cache_used_bytes(c) + c->idle_bytes, 0);
    assert_int_equal(sequence_new(&b, c, NULL), 0);
    assert_int_equal(run(t, b, tokens, 256, rows, 2, 0), WEFT_ERROR_MEMORY);
    cache_give_back(c, all);
    assert_int_equal(run(t, b, tokens, 256, rows, 2, 0), 0);
    assert_cold(b, tokens, 256);
    sequence_free(b);
    end(c, t);
}

static void thinning_leaves_evenly_spaced_snapshots_and_the_last_one(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, PLENTY, NULL, 0);
    size_t snapshot = c->snapshots.item_bytes + HELP_HIDDEN * sizeof(float);
    cache_free(c);
    c = make(PLENTY, 8 * snapshot, NULL, 0);
    struct tree *t;
    struct sequence *s;
    enum { N = 256 * 40 };
    int32_t *tokens = malloc(sizeof *tokens * N);
    for (int i = 0; i < N; i++) tokens[i] = i;
    assert_int_equal(tree_new(&t, c, NULL), 0);
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    for (int at = 256; at <= N; at += 256) assert_int_equal(run(t, s, tokens, at, &at, 1, 0), 0);
    sequence_free(s);
    int last = 0, widest = 0;
    for (int n = 1; n <= N; n += 255) {
        struct prompt_rows p = {.tokens = tokens, .n_rows = n};
        int got = tree_find(t, 0, &p);
        if (n - got > widest) widest = n - got;
        if (got > last) last = got;
    }
    struct prompt_rows p = {.tokens = tokens, .n_rows = N};
    assert_int_equal(tree_find(t, 0, &p), N);
    assert_true(widest <= 3 * N / 8);
    free(tokens);
    end(c, t);
}

static void an_exact_repeat_has_its_hidden_row_and_needs_nothing_computed(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, PLENTY, "6", 30);
    struct tree *t;
    struct sequence *s;
    int32_t tokens[100];
    for (int i = 0; i < 100; i++) tokens[i] = i * i % 31;
    int rows[] = {40, 100};
    assert_int_equal(tree_new(&t, c, NULL), 0);
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(run(t, s, tokens, 100, rows, 2, 1), 0);
    assert_int_equal(help_step(s, tokens, 5, 1, 3), 0); /* going on changes nothing of it */
    sequence_free(s);
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    struct prompt_rows p = {.tokens = tokens, .n_rows = 100};
    assert_int_equal(tree_restore(t, s, &p, NULL), 100);
    assert_int_equal(sequence_mtp_aligned(s), 99);
    float hidden[HELP_HIDDEN];
    set_hidden(hidden, tokens, 100);
    assert_memory_equal(sequence_hidden(s), hidden, sizeof hidden);
    assert_cold(s, tokens, 100);
    sequence_free(s);
    p.n_rows = 40; /* a prompt that ends at a snapshot without a hidden row cannot use that one */
    assert_int_equal(tree_find(t, 0, &p), 0);
    end(c, t);
}

static void mtp_rows_that_came_later_replace_pages_without_them(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, PLENTY, NULL, 0);
    struct tree *t;
    struct sequence *s;
    int32_t tokens[300];
    for (int i = 0; i < 300; i++) tokens[i] = i % 17;
    int rows[] = {100, 200};
    assert_int_equal(tree_new(&t, c, NULL), 0);
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(run(t, s, tokens, 200, rows, 2, 0), 0);
    sequence_free(s);
    struct prompt_rows p = {.tokens = tokens, .n_rows = 300};
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(tree_restore(t, s, &p, NULL), 200);
    assert_int_equal(sequence_mtp_rows(s), 0);
    assert_int_equal(help_step_mtp(s, tokens + 1, 199, -1), 0);
    assert_int_equal(run(t, s, tokens, 250, &(int){250}, 1, 1), 0);
    sequence_free(s);
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(tree_restore(t, s, &p, NULL), 250);
    assert_int_equal(sequence_mtp_rows(s), 249);
    assert_cold(s, tokens, 250);
    sequence_free(s);
    end(c, t);
}

static int restored(struct tree *t, struct cache *c, const struct prompt_rows *p) {
    struct sequence *s;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    int n = tree_restore(t, s, p, NULL);
    assert_int_equal(n, tree_find(t, 0, p));
    sequence_free(s);
    return n;
}

static void media_rows_match_by_their_keys_and_positions_alone(void **state) {
    (void)state;
    struct cache *c = make(PLENTY, PLENTY, NULL, 0);
    struct tree *t;
    struct sequence *s;
    int32_t tokens[8] = {1, -1, -2, -3, -4, 2, 3, 4};
    int32_t positions[3][8] = {{0, 1, 1, 1, 1, 3, 4, 5}, {0, 1, 1, 2, 2, 3, 4, 5}, {0, 1, 2, 1, 2, 3, 4, 5}};
    int64_t keys[8] = {0, 11, 12, 13, 14, 0, 0, 0};
    assert_int_equal(tree_new(&t, c, NULL), 0);
    for (int with = 0; with < 2; with++) {
        float embeddings[4 * HELP_HIDDEN] = {0};
        struct group g = {.n_rows = 7, .tokens = tokens, .keys = with ? keys : NULL, .embeddings = embeddings,
                          .snapshot_rows = &(int){7}, .n_snapshots = 1, .positions = NULL, .n_axes = 3};
        int32_t first[3][7];
        for (int a = 0; a < 3; a++) memcpy(first[a], positions[a], sizeof first[a]);
        g.positions = first[0];
        struct batch b = {.groups = &g, .n_groups = 1};
        assert_int_equal(sequence_new(&s, c, NULL), 0);
        g.seq = s;
        assert_int_equal(cache_begin(c, &b, NULL), 0);
        help_forward(c, &b);
        cache_commit(c, &b, NULL);
        struct snapshot *mine = g.snapshots[0];
        assert_int_equal(tree_store(t, s, &mine, 1, NULL), 0);
        sequence_free(s);
        struct prompt_rows p = {.tokens = tokens, .n_rows = 8, .keys = keys, .positions = positions[0], .n_axes = 3};
        assert_int_equal(restored(t, c, &p), with ? 7 : 0);
        p.keys = NULL;
        assert_int_equal(restored(t, c, &p), 0);
        p.keys = keys, p.positions = NULL;
        assert_int_equal(restored(t, c, &p), 0);
        int64_t other[8] = {0, 11, 12, 13, 15, 0, 0, 0};
        p.keys = other, p.positions = positions[0];
        assert_int_equal(restored(t, c, &p), 0);
    }
    end(c, t);
}

static void every_failing_allocation_leaves_a_tree_that_works(void **state) {
    (void)state;
    for (int nth = 0, failed = 1; failed; nth++) {
        struct cache *c = make(PLENTY, PLENTY, NULL, 0);
        struct tree *t;
        int32_t a[100], b[100];
        for (int i = 0; i < 100; i++) a[i] = i, b[i] = i < 50 ? i : -9000 - i + 18000;
        assert_int_equal(tree_new(&t, c, NULL), 0);
        struct sequence *s[3];
        struct snapshot *n[2];
        for (int i = 0; i < 3; i++) assert_int_equal(sequence_new(&s[i], c, NULL), 0);
        assert_int_equal(help_step(s[0], a, 100, 0, -1), 0), assert_int_equal(help_step(s[1], b, 100, 0, -1), 0);
        assert_int_equal(sequence_snapshot(&n[0], s[0], NULL), 0), assert_int_equal(sequence_snapshot(&n[1], s[1], NULL), 0);
        int32_t longer[101];
        memcpy(longer, a, sizeof a), longer[100] = 1;
        struct prompt_rows p = {.tokens = longer, .n_rows = 101};
        mem_fail_at(nth, 1);
        int code = tree_store(t, s[0], &n[0], 1, NULL), code2 = tree_store(t, s[1], &n[1], 1, NULL);
        int got = tree_restore(t, s[2], &p, NULL);
        mem_fail_at(-1, 0);
        failed = code || code2 || got <= 0;
        if (got > 0) assert_cold(s[2], a, 100);
        assert_int_equal(tree_find(t, 0, &p), code ? 0 : 100);
        assert_int_equal(tree_store_end(t, s[0], NULL), 0);
        assert_int_equal(tree_find(t, 0, &p), 100);
        for (int i = 0; i < 3; i++) sequence_free(s[i]);
        end(c, t);
        assert_true(nth < 50);
    }
}

static void snapshots_are_wanted_at_message_ends_multiples_and_the_end(void **state) {
    (void)state;
    enum { END = 90, NL = 10 };
    int32_t tokens[] = {1, 2, END, NL, 3, END, 4, 5, END, END, NL, 6, NL, 7};
    int32_t ends[] = {91, END};
    struct snapshot_rule rule = {.ends = ends, .n_ends = 2, .newline = NL, .every = 7};
    int out[16], n = snapshot_rows(&rule, tokens, 14, 0, 14, out, 16);
    assert_int_equal(n, 6);
    assert_memory_equal(out, ((int[]){4, 6, 7, 9, 11, 14}), 6 * sizeof *out);
    /* The newline may be in the next chunk. */
    n = snapshot_rows(&rule, tokens, 14, 0, 3, out, 16);
    assert_int_equal(n, 0);
    n = snapshot_rows(&rule, tokens, 14, 3, 3, out, 16);
    assert_int_equal(n, 2);
    assert_memory_equal(out, ((int[]){1, 3}), 2 * sizeof *out);
    n = snapshot_rows(&rule, tokens, 14, 0, 14, out, 2);
    assert_memory_equal(out, ((int[]){11, 14}), 2 * sizeof *out);
    assert_int_equal(n, 2);
    n = snapshot_rows(&rule, NULL, 0, 18, 10, out, 16); /* an answer */
    assert_int_equal(n, 2);
    assert_memory_equal(out, ((int[]){3, 10}), 2 * sizeof *out);
    rule.every = 0;
    assert_int_equal(snapshot_rows(&rule, NULL, 0, 18, 10, out, 16), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_room_every_prompt_gets_the_deepest_state_that_was_kept),
        cmocka_unit_test(without_room_what_is_restored_is_right_all_the_same),
        cmocka_unit_test(what_only_the_tree_holds_makes_room_for_a_step),
        cmocka_unit_test(what_only_the_tree_holds_makes_room_for_what_lies_elsewhere),
        cmocka_unit_test(thinning_leaves_evenly_spaced_snapshots_and_the_last_one),
        cmocka_unit_test(an_exact_repeat_has_its_hidden_row_and_needs_nothing_computed),
        cmocka_unit_test(mtp_rows_that_came_later_replace_pages_without_them),
        cmocka_unit_test(media_rows_match_by_their_keys_and_positions_alone),
        cmocka_unit_test(every_failing_allocation_leaves_a_tree_that_works),
        cmocka_unit_test(snapshots_are_wanted_at_message_ends_multiples_and_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
