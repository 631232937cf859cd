/* Who used which tensor, and the reading of small ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/folder.h"

/* The first entry not below `name`. */
static int lower_bound(const struct checkpoint *c, const char *name) {
    int low = 0, high = c->n_entries;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (strcmp(c->entries[mid].name, name) < 0) low = mid + 1;
        else high = mid;
    }
    return low;
}

struct entry *checkpoint_entry(struct checkpoint *c, const char *name) {
    int i = lower_bound(c, name);
    return i < c->n_entries && strcmp(c->entries[i].name, name) == 0 ? &c->entries[i] : NULL;
}

static struct entry *entry_of(struct checkpoint *c, const char *module, const char *leaf) {
    char name[NAME_ROOM];
    int n = snprintf(name, sizeof name, "%s%s%s", module, leaf[0] ? "." : "", leaf);
    return n > 0 && n < NAME_ROOM ? checkpoint_entry(c, name) : NULL;
}

const struct tensor *checkpoint_look(struct checkpoint *c, const char *module, const char *leaf) {
    const struct entry *entry = entry_of(c, module, leaf);
    return entry ? entry->tensor : NULL;
}

const struct tensor *checkpoint_take(struct checkpoint *c, const char *module, const char *leaf) {
    struct entry *entry = entry_of(c, module, leaf);
    if (!entry) return NULL;
    entry->used = 1;
    return entry->tensor;
}

int checkpoint_has_prefix(const struct checkpoint *c, const char *prefix) {
    int i = lower_bound(c, prefix);
    return i < c->n_entries && strncmp(c->entries[i].name, prefix, strlen(prefix)) == 0;
}

void checkpoint_skip(struct checkpoint *c, const char *prefix, const char *reason) {
    for (int i = lower_bound(c, prefix); i < c->n_entries && strncmp(c->entries[i].name, prefix, strlen(prefix)) == 0; i++)
        if (!c->entries[i].used && !c->entries[i].skipped) c->entries[i].skipped = reason;
}

/* Tensors of the text part that do not take part in the forward. */
static int is_harmless(const char *name) {
    static const char *const tails[] = {".rotary_emb.inv_freq", ".input_scale", ".activation_scale", ".k_scale", ".v_scale"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t tail = strlen(tails[i]);
        if (n > tail && strcmp(name + n - tail, tails[i]) == 0) return 1;
    }
    return 0;
}

static int left_over(const struct checkpoint *c, const struct entry *entry, struct weft_error *e) {
    char *end;
    long layer = strncmp(entry->name, "layers.", 7) == 0 ? strtol(entry->name + 7, &end, 10) : 0;
    if (layer >= c->config.n_layers)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" belongs to layer %ld, but config.json has %d layers", entry->tensor->file,
                         entry->tensor->name, layer, c->config.n_layers);
    return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has no place in this architecture", entry->tensor->file, entry->tensor->name);
}

int checkpoint_finish(struct checkpoint *c, struct weft_error *e) {
    for (int i = 0; i < c->n_entries; i++) {
        struct entry *entry = &c->entries[i];
        if (entry->used || entry->skipped) continue;
        if (entry->kind == NAME_MTP) entry->skipped = "the MTP head is not in use";
        else if (entry->kind == NAME_VISION) entry->skipped = "the vision tower is not in use";
        else if (entry->kind == NAME_OTHER) entry->skipped = "unknown name";
        else if (is_harmless(entry->name)) entry->skipped = "takes no part in the computation";
        else return left_over(c, entry, e);
    }
    return 0;
}

static int take_floats(struct checkpoint *c, const char *name, const struct tensor **out, struct weft_error *e) {
    const struct tensor *t = *out = checkpoint_take(c, name, "");
    if (!t) return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is missing", c->folder, name);
    if (dtype_is_float(t->dtype)) return 0;
    return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is %s, not F32, F16 or BF16", t->file, t->name, dtype_name(t->dtype));
}

static int read_finite(const struct tensor *t, int64_t n, float *out, struct weft_error *e) {
    tensor_to_floats(t, 0, n, out);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return error_set(e, WEFT_ERROR_INPUT, "%s: element %lld of tensor \"%s\" is not finite", t->file, (long long)i, t->name);
    return 0;
}

int checkpoint_read_vector(struct checkpoint *c, const char *name, int64_t n, float *out, struct weft_error *e) {
    char shape[TENSOR_SHAPE_TEXT];
    const struct tensor *t;
    int code = take_floats(c, name, &t, e);
    if (code) return code;
    if (!tensor_is_shape(t, 1, &n))
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has the shape %s, expected [%lld]", t->file, t->name,
                         tensor_shape_text(t, shape), (long long)n);
    return read_finite(t, n, out, e);
}

int checkpoint_read_conv(struct checkpoint *c, const char *name, int64_t channels, int64_t taps, float *out, int *layout,
                         struct weft_error *e) {
    char shape[TENSOR_SHAPE_TEXT];
    const struct tensor *t;
    int code = take_floats(c, name, &t, e);
    if (code) return code;
    const int64_t mlx[3] = {channels, taps, 1}, hf[3] = {channels, 1, taps};
    if (tensor_is_shape(t, 2, mlx) || (taps == 1 && tensor_is_shape(t, 3, mlx))) *layout = -1;
    else if (tensor_is_shape(t, 3, mlx)) *layout = 1;
    else if (tensor_is_shape(t, 3, hf)) *layout = 0;
    else
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has the shape %s, expected [%lld, 1, %lld] or [%lld, %lld, 1]", t->file,
                         t->name, tensor_shape_text(t, shape), (long long)channels, (long long)taps, (long long)channels,
                         (long long)taps);
    return read_finite(t, channels * taps, out, e);
}
