/* An adapter's tensors: whose they are, and their values made ready. Private to lora/. */
#ifndef LORA_PARTS_H
#define LORA_PARTS_H
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "lora/adapter.h"
#include "lora/rules.h"

/* The tensors that belong to one target, as the file has them. */
struct slot {
    const struct tensor *a, *b, *magnitude, *replaced, *copy; /* copy: of the base's own weight */
    int is_embedding;       /* a and b are PEFT's lora_embedding_A and _B */
    char *path;             /* the module as the file calls it, without PEFT's prefix */
};

/* What one adapter does to one target. */
struct part {
    int rank; double scale;
    float *a, *b;           /* as in adapter_entry */
    float *magnitude;       /* DoRA: [n_out], or NULL */
    double *norms;          /* DoRA: [n_out][3]: |w|^2, w.d, |d|^2 of the rows w of W and d of BA */
    struct weight *weight;  /* the matrix or embedding that stands in, or NULL */
    struct linear *linear;
    float *values;          /* the vector that stands in, or NULL */
};

struct adapter {
    char *folder, *name;
    const struct adapter_base *base;
    struct rules rules;
    struct safetensors *file;
    struct arena arena;
    struct slot *slots;     /* [n_targets]; while opening */
    struct part *parts;     /* [n_targets] */
    uint64_t hash;
    int rank, n_copies, n_zero, n_same;
    void **packed; size_t *packed_bytes; int n_packed; /* device memory of replaced matrices: [n_targets] room */
    size_t bytes;
};

static inline int part_is_empty(const struct part *p) { return !p->rank && !p->weight && !p->values; }

/* slots.c: every tensor of the file to its target. */
int slots_fill(struct adapter *a, struct weft_error *e);
/* parts.c: low-rank parts and vectors, checked and widened. */
int part_read(struct adapter *a, int target, struct weft_error *e);
/* replaced.c: whole matrices. */
int part_replace(struct adapter *a, int target, struct weft_error *e);
int part_check_copy(struct adapter *a, int target, struct weft_error *e);
/* The head of a tied model follows its embedding. */
int part_tie_head(struct adapter *a, struct weft_error *e);
#endif
