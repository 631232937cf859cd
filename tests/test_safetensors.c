#include "help_test.h"

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

/* Header and n_data zero bytes as a file's bytes; released by the next call. */
static uint8_t *bytes;
static size_t n_bytes;

static void compose(const char *header, size_t n_header_claimed, size_t n_data) {
    size_t n = strlen(header);
    free(bytes);
    n_bytes = 8 + n + n_data;
    bytes = calloc(1, n_bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)n_header_claimed >> 8 * i);
    memcpy(bytes + 8, header, n);
}

static void refused(const char *header, size_t n_data, const char *because) {
    struct safetensors *s;
    struct weft_error e = {0};
    compose(header, strlen(header), n_data);
    assert_int_equal(safetensors_open_bytes(&s, bytes, n_bytes, "f.safetensors", &e), WEFT_ERROR_INPUT);
    if (!strstr(e.message, because)) fail_msg("\"%s\" does not say \"%s\"", e.message, because);
    assert_ptr_equal(strstr(e.message, "f.safetensors"), e.message);
}

static struct safetensors *accepted(const char *header, size_t n_data) {
    struct safetensors *s = NULL;
    struct weft_error e = {0};
    compose(header, strlen(header), n_data);
    if (safetensors_open_bytes(&s, bytes, n_bytes, "f", &e)) fail_msg("%s", e.message);
    return s;
}

static void every_lie_about_a_tensor_is_refused_by_name(void **state) {
    (void)state;
    refused("{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype \"F31\"");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" is missing");
    refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"a\" has no shape");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"a\" has no pair of data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "no pair of data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4, "no pair of data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0 of tensor \"a\"");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "dimension 0 of tensor \"a\"");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "at most 8");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],\"data_offsets\":[0,4]}}", 4, "shape of tensor \"a\" overflows");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 4, "overflows");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 4, "bad JSON");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8, "has 4 bytes where dtype and shape say 8");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "\"a\" lies at 0 to 4");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "\"a\" lies at 4 to 0");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "\"a\" lies at -4 to 0");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[9,9]}}", 4, "\"a\" lies at 9 to 9");
    refused("{\"a\":[1]}", 4, "\"a\" is described by no object");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
            "\"a\" and \"b\" overlap");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
            "duplicate");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ \"a\" is no text");
    refused("{\"__metadata__\":[]}", 0, "__metadata__ is no object");
    refused("[]", 0, "no JSON object");
    refused("{\"a\"", 0, "bad JSON");
}

static void a_header_length_that_lies_is_refused(void **state) {
    (void)state;
    static const uint64_t lengths[] = {0, 1, 3, 4, 100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct safetensors *s;
        struct weft_error e = {0};
        compose("{}", lengths[i], 0);
        assert_int_equal(safetensors_open_bytes(&s, bytes, n_bytes, "f", &e), WEFT_ERROR_INPUT);
        assert_non_null(strstr(e.message, "truncated"));
    }
    for (size_t n = 0; n <= 10; n++) {
        struct safetensors *s;
        struct weft_error e = {0};
        compose("{}", 2, 0);
        int code = safetensors_open_bytes(&s, bytes, n, "f", &e);
        assert_int_equal(code, n == 10 ? 0 : WEFT_ERROR_INPUT);
        if (!code) safetensors_close(s);
    }
}

static void a_git_lfs_pointer_is_called_by_its_name(void **state) {
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    struct safetensors *s;
    struct weft_error e = {0};
    assert_int_equal(safetensors_open_bytes(&s, (const uint8_t *)pointer, sizeof pointer - 1, "f", &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "Git LFS pointer"));
}

static void scalars_empty_tensors_gaps_and_null_metadata_are_legal(void **state) {
    (void)state;
    struct safetensors *s = accepted("{\"__metadata__\":null,\"z\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[1,3]},"
                                     "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[2,2]},"
                                     "\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[5,7]}}   ", 9);
    assert_int_equal(safetensors_count(s), 3);
    assert_string_equal(safetensors_at(s, 0)->name, "b");
    const struct tensor *z = safetensors_find(s, "z");
    assert_int_equal(z->n_dims, 0);
    assert_int_equal(tensor_elements(z), 1);
    assert_int_equal(tensor_elements(safetensors_find(s, "e")), 0);
    assert_null(safetensors_find(s, "y"));
    assert_null(safetensors_metadata(s, "format"));
    safetensors_close(s);
    s = accepted("{}", 0);
    assert_int_equal(safetensors_count(s), 0);
    assert_null(safetensors_find(s, "a"));
    safetensors_close(s);
}

static void what_is_written_reads_back_the_same_from_unaligned_pieces(void **state) {
    (void)state;
    struct tensor_spec specs[] = {{"z.weight", DTYPE_U8, 1, {3}}, {"a \"quoted\" \\ name\n", DTYPE_F32, 2, {2, 2}},
                                  {"half", DTYPE_F16, 1, {2}}, {"brain", DTYPE_BF16, 0, {0}}, {"none", DTYPE_I64, 1, {0}}};
    struct text_pair meta[] = {{"model", "x\t\"y\""}, {"tokens", "1,2"}};
    const char *path = help_temp("w.safetensors");
    struct safetensors_writer *w;
    struct weft_error e = {0};
    assert_int_equal(safetensors_open_writer(&w, path, specs, 5, meta, 2, &e), 0);
    float values[4] = {1, -2, 3.5f, 1e-30f};
    uint16_t halves[2] = {0x3c00, 0x8001}, brain = 0x3f81;
    uint8_t data[3 + 16 + 4 + 2] = {7, 8, 9};
    memcpy(data + 3, values, 16), memcpy(data + 19, halves, 4), memcpy(data + 23, &brain, 2);
    for (size_t i = 0; i < sizeof data; i += 5) assert_int_equal(safetensors_write(w, data + i, 5, &e), 0);
    assert_int_equal(safetensors_close_writer(w, 1, &e), 0);
    struct safetensors *s;
    assert_int_equal(safetensors_open(&s, path, &e), 0);
    assert_int_equal(safetensors_count(s), 5);
    assert_string_equal(safetensors_metadata(s, "model"), "x\t\"y\"");
    assert_int_equal(safetensors_metadata_count(s), 2);
    const struct tensor *t = safetensors_find(s, specs[1].name);
    assert_true(((uintptr_t)safetensors_find(s, "z.weight")->data & 63) == 0);
    float back[4];
    tensor_to_floats(t, 0, 4, back);
    assert_memory_equal(back, values, 16);
    tensor_to_floats(safetensors_find(s, "half"), 0, 2, back);
    assert_true(back[0] == 1 && back[1] == -0x1p-24f);
    tensor_to_floats(safetensors_find(s, "brain"), 0, 1, back);
    assert_true(back[0] == 1.0078125f);
    assert_int_equal(tensor_elements(safetensors_find(s, "none")), 0);
    safetensors_close(s);
}

static void a_writer_closed_without_commit_leaves_nothing(void **state) {
    (void)state;
    struct tensor_spec spec = {"a", DTYPE_F32, 1, {2}};
    const char *path = help_temp("gone.safetensors");
    struct safetensors_writer *w;
    struct weft_error e = {0};
    assert_int_equal(safetensors_open_writer(&w, path, &spec, 1, NULL, 0, &e), 0);
    assert_int_equal(safetensors_write(w, "1234", 4, &e), 0);
    assert_int_equal(safetensors_close_writer(w, 0, &e), 0);
    assert_false(file_exists(path));
    assert_int_equal(safetensors_open_writer(&w, help_temp("no/such/folder"), &spec, 1, NULL, 0, &e), WEFT_ERROR_INPUT);
}

static void reading_and_writing_survive_every_failed_allocation(void **state) {
    (void)state;
    const char *path = help_temp("m.safetensors");
    struct tensor_spec specs[] = {{"a", DTYPE_F32, 1, {1}}, {"b", DTYPE_F32, 1, {1}}};
    int opened = 0, written = 0;
    for (int n = 0; !opened || !written; n++) {
        assert_true(n < 1000);
        struct safetensors_writer *w = NULL;
        struct weft_error e = {0};
        mem_fail_at(n, 0);
        int code = safetensors_open_writer(&w, path, specs, 2, NULL, 0, &e);
        mem_fail_at(-1, 0);
        assert_true(code == 0 || code == WEFT_ERROR_MEMORY);
        if (!code) {
            assert_int_equal(safetensors_write(w, "12345678", 8, &e), 0);
            assert_int_equal(safetensors_close_writer(w, 1, &e), 0);
            written = 1;
        }
        struct safetensors *s = NULL;
        static const char header[] = "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
        compose(header, strlen(header), 4);
        mem_fail_at(n, 0);
        code = safetensors_open_bytes(&s, bytes, n_bytes, "f", &e);
        mem_fail_at(-1, 0);
        assert_true(code == 0 || code == WEFT_ERROR_MEMORY);
        if (!code) safetensors_close(s), opened = 1;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lie_about_a_tensor_is_refused_by_name),
        cmocka_unit_test(a_header_length_that_lies_is_refused),
        cmocka_unit_test(a_git_lfs_pointer_is_called_by_its_name),
        cmocka_unit_test(scalars_empty_tensors_gaps_and_null_metadata_are_legal),
        cmocka_unit_test(what_is_written_reads_back_the_same_from_unaligned_pieces),
        cmocka_unit_test(a_writer_closed_without_commit_leaves_nothing),
        cmocka_unit_test(reading_and_writing_survive_every_failed_allocation),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(bytes);
    return failed;
}
