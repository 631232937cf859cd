#define _GNU_SOURCE
#include "cache/session.h"

#include <sys/resource.h>
#include <signal.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "help_device.h"
#include "quant/convert.h"

static struct backend device = {.table = &help_device};
enum { PLENTY = 64 << 20 };
static const struct session_identity identity = {.model = 0x1234, .model_name = "tiny", .arithmetic = "portable", .adapters = ""};

static struct cache *make_scheme(const struct kv_scheme *schemes, int kv_start, size_t memory_bytes) {
    struct cache_shape shape;
    help_shape(&shape);
    struct cache_options o = {.backend = &device, .schemes = schemes, .kv_start = kv_start, .memory_bytes = memory_bytes,
                              .snapshot_bytes = memory_bytes, .max_undo_rows = 8, .max_context_rows = 4000};
    struct cache *c;
    assert_int_equal(cache_new(&c, &shape, &o, NULL), 0);
    return c;
}

static struct cache *make(const char *scheme, int kv_start) {
    struct kv_scheme s[3];
    for (int i = 0; i < 3; i++) assert_int_equal(kv_scheme_parse(&s[i], scheme, 32, NULL), 0);
    return make_scheme(s, kv_start, PLENTY);
}

static int32_t tokens[400];
static void fill_tokens(void) {
    for (int i = 0; i < 400; i++) tokens[i] = (i * 37 + i * i) % 500;
}

/* 160 rows, two of them pending, with MTP rows and a hidden row. */
static struct sequence *make_sequence(struct cache *c) {
    struct sequence *s;
    float hidden[HELP_HIDDEN] = {1, -2, 3, -4};
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    assert_int_equal(help_step(s, tokens, 158, 0, -1), 0);
    assert_int_equal(help_step(s, tokens + 158, 7, 1, 2), 0);
    assert_int_equal(help_step_mtp(s, tokens + 1, 100, -1), 0);
    sequence_set_hidden(s, hidden);
    return s;
}

static void a_restored_sequence_goes_on_as_the_live_one(void **state) {
    (void)state;
    static const struct { const char *scheme; int start; } forms[] = {{"16", 0}, {"f32", 0}, {"8", 0}, {"3", 70},
                                                                      {"turbo:k8v3", 128}, {"4", 500}};
    for (int i = 0; i < 6; i++) {
        const char *path = help_temp("session");
        struct cache *c = make(forms[i].scheme, forms[i].start);
        struct sequence *s = make_sequence(c), *t;
        struct weft_error e;
        if (session_save(s, path, &identity, &e)) fail_msg("%s", e.message);
        struct cache *c2 = make(forms[i].scheme, forms[i].start);
        if (session_load(&t, c2, path, &identity, 0, &e)) fail_msg("%s", e.message);
        assert_int_equal(sequence_mtp_rows(t), 100);
        assert_int_equal(sequence_mtp_aligned(t), 100);
        assert_memory_equal(sequence_hidden(t), sequence_hidden(s), HELP_HIDDEN * sizeof(float));
        help_assert_same(s, t);
        for (int j = 0; j < 2; j++) {
            struct sequence *x = j ? t : s;
            assert_int_equal(help_step(x, tokens + 160, 5, 1, 3), 0);
            assert_int_equal(help_step_mtp(x, tokens + 101, 62, -1), 0);
            assert_int_equal(help_step(x, tokens + 163, 200, 0, -1), 0);
        }
        help_assert_same(s, t);
        sequence_free(s), sequence_free(t), cache_free(c), cache_free(c2);
    }
}

static void a_session_holds_nothing_of_other_sequences(void **state) {
    (void)state;
    struct buf files[2];
    for (int i = 0; i < 2; i++) {
        const char *path = help_temp("clean");
        struct cache *c = make("5", 0);
        if (i) { /* pages that were used before */
            struct sequence *other;
            assert_int_equal(sequence_new(&other, c, NULL), 0);
            assert_int_equal(help_step(other, tokens + 100, 300, 0, -1), 0);
            assert_int_equal(help_step_mtp(other, tokens + 100, 300, -1), 0);
            sequence_free(other);
        }
        struct sequence *s = make_sequence(c);
        assert_int_equal(session_save(s, path, &identity, NULL), 0);
        buf_init(&files[i]);
        assert_int_equal(file_read(&files[i], path, PLENTY, NULL), 0);
        sequence_free(s), cache_free(c);
    }
    assert_int_equal(files[0].n, files[1].n);
    assert_memory_equal(files[0].data, files[1].data, files[0].n);
    buf_drop(&files[0]), buf_drop(&files[1]);
}

static void refused(struct cache *c, const char *path, const struct session_identity *id, uint64_t adapters, const char *why) {
    struct sequence *s = (struct sequence *)&device;
    struct weft_error e = {0};
    size_t used = cache_used_bytes(c);
    assert_true(session_load(&s, c, path, id, adapters, &e) < 0);
    assert_null(s);
    assert_int_equal(cache_used_bytes(c), used);
    assert_non_null(strstr(e.message, path));
    if (!strstr(e.message, why)) fail_msg("\"%s\" does not say \"%s\"", e.message, why);
}

static void a_session_of_something_else_is_refused_with_a_sentence(void **state) {
    (void)state;
    const char *path = help_temp("other");
    struct cache *c = make("8", 0), *other;
    struct sequence *s = make_sequence(c);
    assert_int_equal(session_save(s, path, &identity, NULL), 0);
    struct session_identity id = identity;
    id.model++;
    refused(c, path, &id, 0, "another model: tiny");
    id = identity, id.arithmetic = "avx512";
    refused(c, path, &id, 0, "computed with \"portable\"");
    id = identity, id.adapters = "shout=1";
    refused(c, path, &id, 5, "its adapters are \"\", those of this run \"shout=1\"");
    other = make("4", 0);
    refused(other, path, &identity, 0, "8/32");
    cache_free(other), other = make("8", 64);
    refused(other, path, &identity, 0, "from row 64");
    cache_free(other);
    struct kv_scheme schemes[3];
    for (int i = 0; i < 3; i++) assert_int_equal(kv_scheme_parse(&schemes[i], "8", 32, NULL), 0);
    other = make_scheme(schemes, 0, cache_request_bytes(c, 160, 0) - 1);
    refused(other, path, &identity, 0, "no room");
    cache_free(other);
    refused(c, help_temp("missing"), &identity, 0, "No such file");
    FILE *f = fopen(path, "w");
    fputs("hello", f), fclose(f);
    refused(c, path, &identity, 0, path);
    struct sequence *empty;
    assert_int_equal(sequence_new(&empty, c, NULL), 0);
    assert_int_equal(session_save(empty, path, &identity, NULL), WEFT_ERROR_INPUT);
    sequence_free(empty), sequence_free(s), cache_free(c);
}

static void write_bytes(const char *path, const char *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void a_damaged_session_is_refused_wherever_the_damage_is(void **state) {
    (void)state;
    const char *path = help_temp("damaged");
    struct cache *c = make("2", 40);
    struct sequence *s = make_sequence(c);
    struct buf file;
    buf_init(&file);
    assert_int_equal(session_save(s, path, &identity, NULL), 0);
    assert_int_equal(file_read(&file, path, PLENTY, NULL), 0);
    size_t header = 8;
    for (int i = 0; i < 3; i++) header += (size_t)(uint8_t)file.data[i] << 8 * i;
    for (size_t at = 0; at < file.n; at += at < header ? 1 : 997) { /* every byte of the header, samples of the data */
        char was = file.data[at];
        file.data[at] = (char)(was ^ 1 << at % 8);
        write_bytes(path, file.data, file.n);
        refused(c, path, &identity, 0, path);
        file.data[at] = was;
    }
    for (size_t n = 0; n < file.n; n += n < header + 64 ? 7 : 4999) {
        write_bytes(path, file.data, n);
        refused(c, path, &identity, 0, path);
    }
    write_bytes(path, file.data, file.n - 1);
    refused(c, path, &identity, 0, path);
    size_t n = file.n;
    write_bytes(path, file.data, n);
    struct sequence *t;
    assert_int_equal(session_load(&t, c, path, &identity, 0, NULL), 0);
    buf_add_char(&file, 0);
    write_bytes(path, file.data, n + 1);
    refused(c, path, &identity, 0, path);
    sequence_free(t), sequence_free(s), cache_free(c);
    buf_drop(&file);
}

static void a_full_disk_leaves_the_old_session(void **state) {
    (void)state;
    const char *path = help_temp("full");
    struct cache *c = make("8", 0);
    struct sequence *s = make_sequence(c), *t;
    assert_int_equal(session_save(s, path, &identity, NULL), 0);
    assert_int_equal(help_step(s, tokens + 160, 200, 0, -1), 0);
    struct rlimit was, tight = {100000, 100000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    tight.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    struct weft_error e;
    int code = session_save(s, path, &identity, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(code, WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "cannot be written"));
    assert_int_equal(session_load(&t, c, path, &identity, 0, NULL), 0);
    assert_int_equal(sequence_rows(t), 160);
    sequence_free(t);
    /* The sequence is as it was. */
    struct sequence *u = help_stepped(c, tokens, 360);
    help_assert_same(s, u);
    assert_int_equal(session_save(s, "/nonexistent/folder/x", &identity, &e), WEFT_ERROR_INPUT);
    sequence_free(u), sequence_free(s), cache_free(c);
}

static void every_failing_allocation_of_save_and_load_is_an_error(void **state) {
    (void)state;
    const char *path = help_temp("nth"), *mlx = help_temp("nth.safetensors");
    const uint8_t is_attention[] = {0, 0, 0, 1, 1};
    const struct mlx_layout layout = {is_attention, 5, "m"};
    struct cache *c = make("8", 0);
    struct sequence *s = make_sequence(c), *t = NULL;
    assert_int_equal(session_save(s, path, &identity, NULL), 0);
    assert_int_equal(session_save_mlx(s, mlx, &layout, NULL), 0);
    for (int what = 0; what < 4; what++)
        for (int nth = 0, code = -1; code; nth++) {
            int n;
            size_t used = cache_used_bytes(c);
            t = NULL;
            mem_fail_at(nth, 1);
            if (what == 0) code = session_save(s, path, &identity, NULL);
            else if (what == 1) code = session_load(&t, c, path, &identity, 0, NULL);
            else if (what == 2) code = session_save_mlx(s, mlx, &layout, NULL);
            else code = session_load_mlx(&t, c, mlx, &layout, &n, NULL);
            mem_fail_at(-1, 0);
            if (code) assert_null(t), assert_int_equal(cache_used_bytes(c), used);
            sequence_free(t);
            assert_true(nth < 4000);
        }
    sequence_free(s), cache_free(c);
}

/* ---- MLX prompt caches ---- */

static const uint8_t mlx_attention[] = {0, 0, 1, 0, 1};
static const struct mlx_layout mlx = {mlx_attention, 5, "tiny"};

/* As help_assert_same, but convolution inputs only as near as bf16 has them. */
static void assert_near(struct sequence *a, struct sequence *b) {
    struct cache *c = a->cache;
    sequence_fold(a), sequence_fold(b);
    for (int layer = 0; layer < c->shape.n_delta; layer++) {
        size_t at = (size_t)layer * c->delta.layer_bytes;
        float *x = (float *)(items_at(&c->states, a->slot) + at + c->delta.conv),
            *y = (float *)(items_at(&b->cache->states, b->slot) + at + c->delta.conv);
        for (size_t i = 0; i < (c->delta.layer_bytes - c->delta.conv) / sizeof(float); i++) {
            assert_true(y[i] == (c->shape.f32_rows ? x[i] : float_from_bf16(bf16_from_float(x[i]))));
            x[i] = y[i];
        }
    }
    help_assert_same(a, b);
}

static void an_mlx_prompt_cache_comes_back_as_it_went(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        const char *path = help_temp("prompt.safetensors"), *schemes[] = {"16", "8", "3", "6"};
        struct cache *c = make(schemes[i], 0);
        struct sequence *s = make_sequence(c), *t;
        struct weft_error e;
        int n;
        if (session_save_mlx(s, path, &mlx, &e)) fail_msg("%s", e.message);
        if (session_load_mlx(&t, c, path, &mlx, &n, &e)) fail_msg("%s", e.message);
        assert_int_equal(n, 160);
        assert_int_equal(sequence_mtp_rows(t), 0);
        assert_near(s, t);
        struct safetensors *f;
        assert_int_equal(safetensors_open(&f, path, NULL), 0);
        assert_string_equal(safetensors_metadata(f, "2.0"), "ArraysCache");
        assert_string_equal(safetensors_metadata(f, "2.2"), i ? "QuantizedKVCache" : "KVCache");
        assert_string_equal(safetensors_metadata(f, i ? "0.2.0" : "0.2"), i ? "160" : "");
        if (i) assert_string_equal(safetensors_metadata(f, "0.2.1"), "32");
        if (i) assert_string_equal(safetensors_metadata(f, "0.2.2"), schemes[i]);
        assert_true(tensor_is_shape(safetensors_find(f, "0.0.1"), 4, (int64_t[]){1, 4, 16, 16}));
        assert_true(tensor_is_shape(safetensors_find(f, "0.0.0"), 3, (int64_t[]){1, 3, 128}));
        assert_int_equal(safetensors_find(f, "0.1")->n_bytes, 0);
        const struct tensor *keys = safetensors_find(f, i ? "2.0.0" : "2.0");
        assert_true(tensor_is_shape(keys, 4, i ? (int64_t[]){1, 2, 160, 64 * (schemes[i][0] - '0') / 32}
                                    : (int64_t[]){1, 2, 160, 64}));
        /* Element [v][k] of head 1 in the file is [k][v] of ours. */
        float ours = ((float *)items_at(&c->states, s->slot))[(16 + 3) * 16 + 5], theirs;
        tensor_to_floats(safetensors_find(f, "0.0.1"), (16 + 5) * 16 + 3, 1, &theirs);
        assert_true(ours == theirs);
        safetensors_close(f);
        sequence_free(s), sequence_free(t), cache_free(c);
    }
}

/* The file again, each array through `change`, which may rename or drop it (NULL) or give it another dtype. */
static void rewrite(const char *from, const char *to, int older, int without_tokens) {
    struct safetensors *f;
    struct tensor_spec specs[64];
    struct text_pair pairs[64];
    char names[64][16];
    const struct tensor *tensors[64];
    int n = 0, n_pairs = 0;
    assert_int_equal(safetensors_open(&f, from, NULL), 0);
    for (int i = 0; i < safetensors_count(f); i++) {
        const struct tensor *t = safetensors_at(f, i);
        int layer = atoi(t->name);
        snprintf(names[n], sizeof names[n], "%s", t->name);
        if (older && !mlx_attention[layer]) {
            if (t->n_bytes == 0) continue;
            snprintf(names[n], sizeof names[n], "%d.%c", layer, t->name[strlen(t->name) - 1]);
        }
        specs[n] = (struct tensor_spec){.name = names[n], .dtype = t->dtype, .n_dims = t->n_dims};
        memcpy(specs[n].shape, t->shape, sizeof t->shape);
        if (older && t->dtype == DTYPE_F32) specs[n].dtype = DTYPE_BF16;
        tensors[n++] = t;
    }
    for (int i = 0; i < safetensors_metadata_count(f); i++) {
        safetensors_metadata_at(f, i, &pairs[n_pairs].key, &pairs[n_pairs].value);
        if (!without_tokens || strcmp(pairs[n_pairs].key, "1.tokens") != 0) n_pairs++;
    }
    struct safetensors_writer *w;
    assert_int_equal(safetensors_open_writer(&w, to, specs, n, pairs, n_pairs, NULL), 0);
    for (int i = 0; i < n; i++) {
        if (specs[i].dtype == tensors[i]->dtype) {
            assert_int_equal(safetensors_write(w, tensors[i]->data, tensors[i]->n_bytes, NULL), 0);
            continue;
        }
        for (int64_t j = 0; j < tensor_elements(tensors[i]); j++) {
            float v;
            tensor_to_floats(tensors[i], j, 1, &v);
            uint16_t h = bf16_from_float(v);
            assert_int_equal(safetensors_write(w, &h, 2, NULL), 0);
        }
    }
    assert_int_equal(safetensors_close_writer(w, 1, NULL), 0);
    safetensors_close(f);
}

static void older_and_foreign_prompt_caches_load_too(void **state) {
    (void)state;
    const char *path = help_temp("new.safetensors"), *old = help_temp("old.safetensors");
    struct cache *c = make("16", 0);
    struct sequence *s = make_sequence(c), *t;
    int n;
    assert_int_equal(session_save_mlx(s, path, &mlx, NULL), 0);
    rewrite(path, old, 1, 1);
    struct weft_error e;
    if (session_load_mlx(&t, c, old, &mlx, &n, &e)) fail_msg("%s", e.message);
    assert_int_equal(n, 0);
    assert_int_equal(sequence_rows(t), 160);
    assert_int_equal(sequence_next_position(t), 160);
    for (int i = 0; i < 160; i++) assert_true(t->keys[i] < 0 && t->tokens[i] == -1);
    float *x = (float *)items_at(&c->states, s->slot), *y = (float *)items_at(&c->states, t->slot);
    for (int i = 0; i < 4 * 16 * 16; i++) assert_true(y[i] == float_from_bf16(bf16_from_float(x[i])));
    assert_int_equal(help_step(t, tokens + 160, 10, 0, -1), 0);
    sequence_free(t);
    /* bf16 rows are quantized as they would have been on arrival. */
    struct cache *c8 = make("8", 100);
    struct sequence *u;
    assert_int_equal(session_load_mlx(&u, c8, path, &mlx, &n, NULL), 0);
    float a[64], b[64];
    struct kv_shape k8 = {8, 32, 64};
    uint8_t *block = mem_alloc(kv_k_bytes(&c8->schemes[1], 64));
    for (int row = 0; row < 160; row++) {
        kv_bf16.k.read_row(items_at(&c->pages[HIGH], s->pages[HIGH][row / 64]) + c->layer_offset[HIGH][1],
                           (struct kv_shape){0, 0, 64}, row % 64, a);
        if (row >= 100) {
            kv_affine.k.write_row(block, k8, row % 64, a), kv_affine.k.read_row(block, k8, row % 64, a);
            kv_affine.k.read_row(items_at(&c8->pages[HIGH], u->pages[HIGH][row / 64]) + c8->layer_offset[HIGH][1], k8, row % 64,
                                 b);
        } else
            kv_bf16.k.read_row(items_at(&c8->pages[LOW], u->pages[LOW][row / 64]) + c8->layer_offset[LOW][1],
                               (struct kv_shape){0, 0, 64}, row % 64, b);
        assert_memory_equal(a, b, sizeof a);
    }
    mem_free(block);
    sequence_free(u), sequence_free(s), cache_free(c), cache_free(c8);
}

static void an_mlx_prompt_cache_that_does_not_fit_is_refused(void **state) {
    (void)state;
    const char *path = help_temp("misfit.safetensors");
    struct cache *c = make("8", 0), *other;
    struct sequence *s = make_sequence(c), *t;
    struct weft_error e;
    int n;
    assert_int_equal(session_save_mlx(s, path, &mlx, NULL), 0);
    const char *schemes[] = {"4", "16", "turbo:k8v3"};
    for (int i = 0; i < 4; i++) {
        other = make(i < 3 ? schemes[i] : "8", i < 3 ? 0 : 10);
        assert_int_equal(session_load_mlx(&t, other, path, &mlx, &n, &e), WEFT_ERROR_INPUT);
        assert_non_null(strstr(e.message, "layer 2"));
        assert_int_equal(cache_used_bytes(other), 0);
        cache_free(other);
    }
    const uint8_t order[] = {0, 0, 0, 1, 1};
    const struct mlx_layout swapped = {order, 5, NULL};
    assert_int_equal(session_load_mlx(&t, c, path, &swapped, &n, &e), WEFT_ERROR_INPUT);
    assert_int_equal(session_save(s, path, &identity, NULL), 0);
    assert_int_equal(session_load_mlx(&t, c, path, &mlx, &n, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "not an MLX prompt cache"));
    sequence_free(s), cache_free(c);
    c = make("turbo:k8v3", 0), s = make_sequence(c);
    assert_int_equal(session_save_mlx(s, path, &mlx, &e), WEFT_ERROR_SUPPORT);
    sequence_free(s), cache_free(c);
    assert_true(session_is_mlx("a.safetensors"));
    assert_false(session_is_mlx("a.session") || session_is_mlx(".safetensors"));
}

int main(void) {
    fill_tokens();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_sequence_goes_on_as_the_live_one),
        cmocka_unit_test(a_session_holds_nothing_of_other_sequences),
        cmocka_unit_test(a_session_of_something_else_is_refused_with_a_sentence),
        cmocka_unit_test(a_damaged_session_is_refused_wherever_the_damage_is),
        cmocka_unit_test(a_full_disk_leaves_the_old_session),
        cmocka_unit_test(every_failing_allocation_of_save_and_load_is_an_error),
        cmocka_unit_test(an_mlx_prompt_cache_comes_back_as_it_went),
        cmocka_unit_test(older_and_foreign_prompt_caches_load_too),
        cmocka_unit_test(an_mlx_prompt_cache_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
