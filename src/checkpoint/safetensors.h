/* Safetensors files: one mapped read-only, or one written.
 *
 * Invariants of an open file
 * 1. Its structure was validated completely: every tensor's bytes lie inside the file, overlap no other tensor's and are as many
 *    as dtype and shape say; no name occurs twice; no shape product overflows.
 * 2. Data may start at any address: never read it through a uint16_t or uint32_t pointer, use memcpy or quant/convert.h.
 * 3. Nothing is known about the values. */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H
#include <stdint.h>

#include "base/error.h"
#include "checkpoint/dtype.h"

enum { TENSOR_DIMS = 8 };

struct tensor {
    const char *name; /* as in the file */
    enum dtype dtype;
    int n_dims;       /* 0: a scalar */
    int64_t shape[TENSOR_DIMS];
    const uint8_t *data;
    size_t n_bytes;
    const char *file; /* path, for sentences */
};

int64_t tensor_elements(const struct tensor *t);
int tensor_is_shape(const struct tensor *t, int n_dims, const int64_t *shape);
/* "[3, 4]" in out. */
enum { TENSOR_SHAPE_TEXT = 192 };
const char *tensor_shape_text(const struct tensor *t, char out[TENSOR_SHAPE_TEXT]);
/* F32, F16 or BF16 to float, element by element, finite or not. `t` must be one of the three. */
void tensor_to_floats(const struct tensor *t, int64_t first, int64_t n, float *out);

struct safetensors;
int safetensors_open(struct safetensors **out, const char *path, struct weft_error *e);
/* The same over bytes that the caller keeps alive; `name` stands for the path in sentences. */
int safetensors_open_bytes(struct safetensors **out, const uint8_t *bytes, size_t n_bytes, const char *name, struct weft_error *e);
void safetensors_close(struct safetensors *s);
const char *safetensors_path(const struct safetensors *s);
int safetensors_count(const struct safetensors *s);
const struct tensor *safetensors_at(const struct safetensors *s, int i); /* in bytewise order of names */
const struct tensor *safetensors_find(const struct safetensors *s, const char *name);
/* __metadata__; NULL when the key is not there (or the section is null or missing). */
const char *safetensors_metadata(const struct safetensors *s, const char *key);
int safetensors_metadata_count(const struct safetensors *s);
void safetensors_metadata_at(const struct safetensors *s, int i, const char **key, const char **value);

/* What a file is to hold. Names must differ. */
struct tensor_spec { const char *name; enum dtype dtype; int n_dims; int64_t shape[TENSOR_DIMS]; };
struct text_pair { const char *key, *value; };

/* Writes the header (names sorted, padded to 64 bytes), then takes the data of all tensors in the order of `specs`, in pieces of
 * any size. Close with commit = 1 after exactly as many bytes as the specs say (an error otherwise); with commit = 0 nothing is
 * left behind. With `n_metadata` 0 the section holds {"format": "pt"}. */
struct safetensors_writer;
int safetensors_open_writer(struct safetensors_writer **out, const char *path, const struct tensor_spec *specs, int n_specs,
                            const struct text_pair *metadata, int n_metadata, struct weft_error *e);
int safetensors_write(struct safetensors_writer *w, const void *bytes, size_t n, struct weft_error *e);
int safetensors_close_writer(struct safetensors_writer *w, int commit, struct weft_error *e);
#endif
