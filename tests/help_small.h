/* A small checkpoint written from a list of tensors that a test may edit first: what the loader must refuse, and little else. */
#ifndef HELP_SMALL_H
#define HELP_SMALL_H
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"

enum { SMALL_TENSORS = 128 };

struct small {
    int n;
    struct tensor_spec specs[SMALL_TENSORS];
    char names[SMALL_TENSORS][96];
    uint8_t fill[SMALL_TENSORS]; /* every byte of the tensor: 0x3d makes small positive floats of each type */
    char config[4096];
};

/* Two layers (delta rule, then attention), tied head: hidden 64, MLP 96, vocabulary 32, BF16, names `model.…`. */
void small_init(struct small *s);
/* The same with its projections affine: 4 bits in groups of 32. */
void small_init_affine(struct small *s);
struct tensor_spec *small_find(struct small *s, const char *name);
int small_add(struct small *s, const char *name, enum dtype dtype, int n_dims, int64_t a, int64_t b, int64_t c);
void small_remove(struct small *s, const char *name);
void small_rename(struct small *s, const char *name, const char *new_name);
/* Writes config.json and tensors [first, last) as FILE into the folder help_temp(folder), which it makes. Returns its path. */
const char *small_write(const struct small *s, const char *folder, const char *file, int first, int last);
void help_write_text(const char *folder, const char *file, const char *text);

/* Opens every module and vector that the config asks for, checks values of what is packed, and finishes: as a model does. */
int help_take_all(struct checkpoint *c, struct weft_error *e);
#endif
