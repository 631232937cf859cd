#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

enum { HEADER_LIMIT = 100000000 }; /* bytes: what the format allows */

struct safetensors {
    char *path;
    struct file_map map;      /* n_bytes 0 when the caller owns the bytes */
    struct arena arena;       /* names and metadata */
    int n_tensors, n_metadata;
    struct tensor *tensors;   /* sorted by name */
    struct text_pair *metadata;
};

/* One tensor's entry of the header: `data` points at the data section of n_data bytes. */
static int read_tensor(struct tensor *t, const json_t *o, const uint8_t *data, size_t n_data, struct weft_error *e) {
    const char *in = t->file, *name = t->name, *dtype = NULL;
    if (!json_is_object(o)) return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is described by no object", in, name);
    int code = json_get_text(o, "dtype", 1, &dtype, name, e);
    if (code) return error_prefix(e, "%s", in);
    if (!dtype_find(dtype, &t->dtype))
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has the unknown dtype \"%s\"", in, name, dtype);
    const json_t *shape = json_object_get(o, "shape"), *offsets = json_object_get(o, "data_offsets");
    if (!json_is_array(shape) || json_array_size(shape) > TENSOR_DIMS)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has no shape of at most %d dimensions", in, name, TENSOR_DIMS);
    t->n_dims = (int)json_array_size(shape);
    int64_t bytes = dtype_bytes(t->dtype);
    int overflow = 0, zero = 0;
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        t->shape[i] = json_is_integer(v) ? json_integer_value(v) : -1;
        if (t->shape[i] < 0)
            return error_set(e, WEFT_ERROR_INPUT, "%s: dimension %d of tensor \"%s\" is no count", in, i, name);
        if (t->shape[i] == 0) zero = 1;
        else overflow |= __builtin_mul_overflow(bytes, t->shape[i], &bytes);
    }
    if (overflow) return error_set(e, WEFT_ERROR_INPUT, "%s: the shape of tensor \"%s\" overflows", in, name);
    if (zero) bytes = 0;
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has no pair of data_offsets", in, name);
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > n_data)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" lies at %lld to %lld, but the file holds %zu bytes of data%s", in, name,
                         (long long)begin, (long long)end, n_data, (uint64_t)end > n_data ? " (truncated?)" : "");
    if (end - begin != bytes)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has %lld bytes where dtype and shape say %lld", in, name,
                         (long long)(end - begin), (long long)bytes);
    t->data = data + begin, t->n_bytes = (size_t)bytes;
    return 0;
}

static int read_metadata(struct safetensors *s, const json_t *o, struct weft_error *e) {
    if (!o || json_is_null(o)) return 0;
    if (!json_is_object(o)) return error_set(e, WEFT_ERROR_INPUT, "%s: __metadata__ is no object", s->path);
    s->metadata = arena_new(&s->arena, json_object_size(o), sizeof *s->metadata);
    if (!s->metadata) return error_memory(e, s->path);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v) {
        if (!json_is_string(v)) return error_set(e, WEFT_ERROR_INPUT, "%s: __metadata__ \"%s\" is no text", s->path, key);
        struct text_pair *p = &s->metadata[s->n_metadata++];
        p->key = arena_copy_text(&s->arena, key, strlen(key));
        p->value = arena_copy_text(&s->arena, json_string_value(v), json_string_length(v));
        if (!p->key || !p->value) return error_memory(e, s->path);
    }
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const struct tensor *x = *(const struct tensor *const *)a, *y = *(const struct tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

static int check_overlaps(const struct safetensors *s, struct weft_error *e) {
    const struct tensor **order = mem_new((size_t)s->n_tensors, sizeof *order);
    if (!order) return error_memory(e, s->path);
    for (int i = 0; i < s->n_tensors; i++) order[i] = &s->tensors[i];
    qsort(order, (size_t)s->n_tensors, sizeof *order, by_place);
    int code = 0;
    const struct tensor *before = NULL; /* the last one that has bytes */
    for (int i = 0; i < s->n_tensors && !code; i++) {
        const struct tensor *t = order[i];
        if (t->n_bytes == 0) continue;
        if (before && before->data + before->n_bytes > t->data)
            code = error_set(e, WEFT_ERROR_INPUT, "%s: tensors \"%s\" and \"%s\" overlap", s->path, before->name, t->name);
        before = t;
    }
    mem_free(order);
    return code;
}

static int read_header(struct safetensors *s, const json_t *header, const uint8_t *data, size_t n_data, struct weft_error *e) {
    if (!json_is_object(header)) return error_set(e, WEFT_ERROR_INPUT, "%s: the header is no JSON object", s->path);
    s->tensors = arena_new(&s->arena, json_object_size(header), sizeof *s->tensors);
    if (!s->tensors) return error_memory(e, s->path);
    const char *name;
    json_t *o;
    json_object_foreach((json_t *)header, name, o) {
        if (strcmp(name, "__metadata__") == 0) continue;
        struct tensor *t = &s->tensors[s->n_tensors++];
        t->file = s->path, t->name = arena_copy_text(&s->arena, name, strlen(name));
        if (!t->name) return error_memory(e, s->path);
        int code = read_tensor(t, o, data, n_data, e);
        if (code) return code;
    }
    qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_name);
    int code = check_overlaps(s, e);
    return code ? code : read_metadata(s, json_object_get(header, "__metadata__"), e);
}

static int read_bytes(struct safetensors *s, const uint8_t *bytes, size_t n_bytes, struct weft_error *e) {
    if (n_bytes >= 22 && memcmp(bytes, "version https://git-lfs", 22) == 0)
        return error_set(e, WEFT_ERROR_INPUT, "%s: this is a Git LFS pointer, not the file it stands for", s->path);
    if (n_bytes < 8)
        return error_set(e, WEFT_ERROR_INPUT, "%s: %zu bytes are too few for a safetensors file", s->path, n_bytes);
    uint64_t n_header = 0;
    for (int i = 7; i >= 0; i--) n_header = n_header << 8 | bytes[i];
    if (n_header < 2 || n_header > HEADER_LIMIT || n_header > n_bytes - 8)
        return error_set(e, WEFT_ERROR_INPUT, "%s: no safetensors file, or truncated: a header of %llu bytes in a file of %zu", s->path,
                         (unsigned long long)n_header, n_bytes);
    json_t *header = NULL;
    int code = json_parse_unique(&header, (const char *)bytes + 8, n_header, s->path, e);
    if (!code) code = read_header(s, header, bytes + 8 + n_header, n_bytes - 8 - n_header, e);
    json_decref(header);
    return code;
}

static struct safetensors *start(const char *path) {
    struct safetensors *s = mem_new(1, sizeof *s);
    if (!s) return NULL;
    arena_init(&s->arena);
    s->path = mem_copy_text(path, strlen(path));
    if (!s->path) return mem_free(s), NULL;
    return s;
}

int safetensors_open_bytes(struct safetensors **out, const uint8_t *bytes, size_t n_bytes, const char *name, struct weft_error *e) {
    struct safetensors *s = start(name);
    if (!s) return error_memory(e, name);
    int code = read_bytes(s, bytes, n_bytes, e);
    if (code) return safetensors_close(s), code;
    *out = s;
    return 0;
}

int safetensors_open(struct safetensors **out, const char *path, struct weft_error *e) {
    struct safetensors *s = start(path);
    if (!s) return error_memory(e, path);
    int code = file_open_map(&s->map, path, e);
    if (!code) code = read_bytes(s, s->map.data, s->map.n_bytes, e);
    if (code) return safetensors_close(s), code;
    *out = s;
    return 0;
}

void safetensors_close(struct safetensors *s) {
    if (!s) return;
    if (s->map.data) file_close_map(&s->map);
    arena_drop(&s->arena);
    mem_free(s->path);
    mem_free(s);
}

const char *safetensors_path(const struct safetensors *s) { return s->path; }
int safetensors_count(const struct safetensors *s) { return s->n_tensors; }
const struct tensor *safetensors_at(const struct safetensors *s, int i) { return &s->tensors[i]; }

const struct tensor *safetensors_find(const struct safetensors *s, const char *name) {
    struct tensor key = {.name = name};
    if (s->n_tensors == 0) return NULL;
    return bsearch(&key, s->tensors, (size_t)s->n_tensors, sizeof key, by_name);
}

const char *safetensors_metadata(const struct safetensors *s, const char *key) {
    for (int i = 0; i < s->n_metadata; i++)
        if (strcmp(s->metadata[i].key, key) == 0) return s->metadata[i].value;
    return NULL;
}

int safetensors_metadata_count(const struct safetensors *s) { return s->n_metadata; }

void safetensors_metadata_at(const struct safetensors *s, int i, const char **key, const char **value) {
    *key = s->metadata[i].key, *value = s->metadata[i].value;
}
