/* Any bytes as a safetensors file: refused with a sentence, or every byte of every tensor may be read. */
#include <string.h>

#include "base/error.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* The length is taken from the input itself, so that mutations reach what lies behind it: byte 7 odd keeps it as it stands. */
static size_t own_length(const uint8_t *bytes, size_t n_bytes) {
    size_t depth = 0;
    for (size_t i = 8; i < n_bytes; i++) {
        if (bytes[i] == '{') depth++;
        if (bytes[i] == '}' && --depth == 0) return i - 7;
    }
    return n_bytes - 8;
}

static volatile unsigned sink;

static void read_all(const struct safetensors *s) {
    char name[NAME_ROOM], shape[TENSOR_SHAPE_TEXT];
    for (int i = 0; i < safetensors_count(s); i++) {
        const struct tensor *t = safetensors_at(s, i);
        CHECK(safetensors_find(s, t->name) == t);
        CHECK(tensor_elements(t) * dtype_bytes(t->dtype) == (int64_t)t->n_bytes);
        for (size_t k = 0; k < t->n_bytes; k++) sink += t->data[k];
        tensor_shape_text(t, shape);
        name_canonical(t->name, i & 1, name);
        float value;
        if (dtype_is_float(t->dtype) && t->n_bytes) tensor_to_floats(t, tensor_elements(t) - 1, 1, &value);
    }
    for (int i = 0; i < safetensors_metadata_count(s); i++) {
        const char *key, *value;
        safetensors_metadata_at(s, i, &key, &value);
        sink += (unsigned)strlen(key) + (unsigned)strlen(value);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    struct safetensors *s;
    struct weft_error e = {0};
    uint8_t copy[4096];
    if (n_bytes > sizeof copy) return 0;
    if (n_bytes) memcpy(copy, bytes, n_bytes);
    if (n_bytes > 8 && !(copy[7] & 1)) {
        size_t n = own_length(copy, n_bytes);
        for (int i = 0; i < 8; i++) copy[i] = (uint8_t)((uint64_t)n >> 8 * i);
    }
    int code = safetensors_open_bytes(&s, copy, n_bytes, "fuzz", &e);
    CHECK(code == 0 || (code < 0 && e.message[0]));
    if (code) return 0;
    read_all(s);
    safetensors_close(s);
    return 0;
}
