/* A model folder: its config, its tensors under canonical names, and who used which of them.
 *
 * Invariants
 * 1. Every tensor that the folder's files hold is in the table once, under its canonical name; two source names with one canonical
 *    name are an error unless their bytes are equal.
 * 2. A tensor is either used (checkpoint_take), skipped with a reason, or left: checkpoint_finish makes what is left of the text
 *    part an error.
 * 3. Mapped data lives until checkpoint_close. */
#ifndef CHECKPOINT_FOLDER_H
#define CHECKPOINT_FOLDER_H
#include "checkpoint/config.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"

struct entry {
    const char *name;           /* canonical */
    enum name_kind kind;
    const struct tensor *tensor;
    int used;
    const char *skipped;        /* the reason, or NULL */
};

struct checkpoint {
    char *folder;
    struct config config;
    struct generation_config generation;
    json_t *config_json, *generation_json; /* the latter may be NULL */
    int n_entries;
    struct entry *entries;      /* in bytewise order of canonical names */
    int n_skipped_files;
    char **skipped_files;       /* "FILE: reason" */
    struct checkpoint_files *files; /* private */
};

/* A folder that exists is itself; else ORG/NAME[@REVISION] is looked up in the Hugging Face cache folder `hub_cache` (NULL: none),
 * laid out as huggingface_hub does. *folder is freed with mem_free. When it is not there the sentence gives the download command. */
int checkpoint_find(char **folder, const char *path_or_name, const char *hub_cache, struct weft_error *e);

int checkpoint_open(struct checkpoint **out, const char *folder, struct weft_error *e);
void checkpoint_close(struct checkpoint *c);

/* NULL when there is none. Does not mark it as used. */
struct entry *checkpoint_entry(struct checkpoint *c, const char *name);
/* "MODULE.LEAF" or, with an empty leaf, "MODULE"; NULL when there is none. Taking marks it as used, looking does not. */
const struct tensor *checkpoint_look(struct checkpoint *c, const char *module, const char *leaf);
const struct tensor *checkpoint_take(struct checkpoint *c, const char *module, const char *leaf);
/* Any tensor whose canonical name begins so. */
int checkpoint_has_prefix(const struct checkpoint *c, const char *prefix);
/* Unused tensors whose canonical name begins with `prefix` are listed as skipped. `reason` outlives c. */
void checkpoint_skip(struct checkpoint *c, const char *prefix, const char *reason);
/* After the model took what it needs: text tensors that nobody used are an error; vision, MTP and unknown ones become skipped. */
int checkpoint_finish(struct checkpoint *c, struct weft_error *e);

/* A 1-D float tensor of n values (gains, A_log, dt_bias, bias): missing, misshapen and non-finite are errors. Marks it used. */
int checkpoint_read_vector(struct checkpoint *c, const char *name, int64_t n, float *out, struct weft_error *e);
/* [channels, taps, 1] (*layout 1: as MLX), [channels, 1, taps] (0: as Hugging Face), [channels, taps] (-1: does not tell).
 * out [channels][taps], oldest tap first: all hold the numbers in this order. */
int checkpoint_read_conv(struct checkpoint *c, const char *name, int64_t channels, int64_t taps, float *out, int *layout,
                         struct weft_error *e);
/* The config's entry for a canonical module path, override or global. 0 when the config says nothing. */
int checkpoint_claim(const struct checkpoint *c, const char *module, struct quantization_claim *out);
#endif
