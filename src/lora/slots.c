#include <stdlib.h>
#include <string.h>

#include "checkpoint/names.h"
#include "lora/parts.h"

enum leaf { LEAF_A, LEAF_B, LEAF_EMBEDDING_A, LEAF_EMBEDDING_B, LEAF_MAGNITUDE, LEAF_COPY, LEAF_REPLACED };

/* How a tensor's name ends: `path` is what stands before. */
struct spelled { enum leaf leaf; char path[NAME_ROOM]; };
struct ending { const char *text; enum leaf leaf; };

static int unknown(const struct tensor *t, const char *why, struct weft_error *e) {
    return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" %s", t->file, t->name, why);
}

static int cut(struct spelled *out, enum leaf leaf, const char *name, size_t n) {
    if (n >= sizeof out->path) return -1;
    out->leaf = leaf;
    memcpy(out->path, name, n);
    out->path[n] = 0;
    return 0;
}

/* "", ".weight", ".NAME" or ".NAME.weight", where NAME is the adapter's ("default"). */
static int is_tail(const char *tail) {
    if (!*tail || strcmp(tail, ".weight") == 0) return 1;
    const char *dot = strchr(tail + 1, '.');
    return *tail == '.' && tail[1] && strcmp(tail, ".bias") != 0 && (!dot || strcmp(dot, ".weight") == 0);
}

static int spell_peft(const struct tensor *t, struct spelled *out, struct weft_error *e) {
    static const struct ending marks[] = {
        {".lora_A", LEAF_A}, {".lora_B", LEAF_B}, {".lora_embedding_A", LEAF_EMBEDDING_A},
        {".lora_embedding_B", LEAF_EMBEDDING_B}, {".lora_magnitude_vector", LEAF_MAGNITUDE}};
    static const char prefix[] = "base_model.model.";
    const char *name = t->name, *at;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) name += sizeof prefix - 1;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (!(at = strstr(name, marks[i].text))) continue;
        if (!is_tail(at + strlen(marks[i].text))) return unknown(t, "is no part of a LoRA that is supported", e);
        return cut(out, marks[i].leaf, name, (size_t)(at - name)) ? unknown(t, "has too long a name", e) : 0;
    }
    static const char *const copies[] = {".base_layer.weight", ".original_module.weight"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(name), tail = strlen(copies[i]);
        if (n <= tail || strcmp(name + n - tail, copies[i]) != 0) continue;
        return cut(out, LEAF_COPY, name, n - tail) ? unknown(t, "has too long a name", e) : 0;
    }
    int bad = cut(out, LEAF_REPLACED, name, strlen(name));
    if (!bad && (at = strstr(name, ".modules_to_save."))) { /* PATH.modules_to_save.NAME.weight */
        const char *leaf = strchr(at + strlen(".modules_to_save."), '.');
        if (!leaf) return unknown(t, "is no part of a LoRA that is supported", e);
        snprintf(out->path, sizeof out->path, "%.*s%s", (int)(at - name), name, leaf);
    }
    return bad ? unknown(t, "has too long a name", e) : 0;
}

static int spell_mlx(const struct tensor *t, struct spelled *out, struct weft_error *e) {
    static const struct ending ends[] = {{".lora_a", LEAF_A}, {".lora_b", LEAF_B}, {".m", LEAF_MAGNITUDE}};
    size_t n = strlen(t->name);
    int bad = cut(out, LEAF_REPLACED, t->name, n);
    for (int i = 0; i < 3 && !bad; i++) {
        size_t end = strlen(ends[i].text);
        if (n > end && strcmp(t->name + n - end, ends[i].text) == 0) bad = cut(out, ends[i].leaf, t->name, n - end);
    }
    return bad ? unknown(t, "has too long a name", e) : 0;
}

static int find_target(const struct adapter_base *base, const char *name, int is_vector) {
    for (int i = 0; i < base->n_targets; i++)
        if ((base->targets[i].kind >= TARGET_GAIN) == is_vector && strcmp(base->targets[i].name, name) == 0) return i;
    return -1;
}

static int layer_of(const char *name) {
    return strncmp(name, "layers.", 7) == 0 && name[7] >= '0' && name[7] <= '9' ? (int)strtol(name + 7, NULL, 10) : -1;
}

static int no_target(const struct adapter *a, const struct tensor *t, const char *module, struct weft_error *e) {
    int last = -1, layer = layer_of(module);
    for (int i = 0; i < a->base->n_targets; i++)
        if (layer_of(a->base->targets[i].name) > last) last = layer_of(a->base->targets[i].name);
    if (layer > last)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is for layer %d, but the model has layers 0 to %d", t->file,
                         t->name, layer, last);
    return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is for \"%s\", which the model does not have", t->file, t->name,
                     module);
}

/* The target of a replaced tensor: a vector by its whole name, or a matrix by what stands before ".weight". */
static int find_replaced(const struct adapter_base *base, char *name) {
    int at = find_target(base, name, 1);
    size_t n = strlen(name), tail = strlen(".weight");
    if (at >= 0 || n <= tail || strcmp(name + n - tail, ".weight") != 0) return at;
    name[n - tail] = 0;
    return find_target(base, name, 0);
}

static int put(const struct tensor **place, const struct tensor *t, struct weft_error *e) {
    if (*place)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensors \"%s\" and \"%s\" have the same place", t->file, (*place)->name,
                         t->name);
    *place = t;
    return 0;
}

static int fill(struct adapter *a, const struct tensor *t, struct weft_error *e) {
    struct spelled s;
    char module[NAME_ROOM];
    int code = a->rules.format == FORMAT_PEFT ? spell_peft(t, &s, e) : spell_mlx(t, &s, e);
    if (code) return code;
    int kind = name_canonical(s.path, 0, module);
    if (kind < 0) return unknown(t, "has too long a name", e);
    if (kind == NAME_VISION)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: tensor \"%s\" is for the vision tower, which adapters cannot change",
                         t->file, t->name);
    int at = s.leaf == LEAF_REPLACED ? find_replaced(a->base, module) : find_target(a->base, module, 0);
    if (at < 0) return no_target(a, t, module, e);
    if (!dtype_is_float(t->dtype))
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is %s, not F32, F16 or BF16", t->file, t->name,
                         dtype_name(t->dtype));
    struct slot *slot = &a->slots[at];
    int embedding = s.leaf == LEAF_EMBEDDING_A || s.leaf == LEAF_EMBEDDING_B;
    if (embedding && a->base->targets[at].kind != TARGET_EMBEDDING)
        return unknown(t, "is for an embedding, but its module is none", e);
    slot->is_embedding |= embedding;
    if (!slot->path && !(slot->path = arena_copy_text(&a->arena, s.path, strlen(s.path)))) return error_memory(e, t->file);
    switch (s.leaf) {
    case LEAF_A: case LEAF_EMBEDDING_A: return put(&slot->a, t, e);
    case LEAF_B: case LEAF_EMBEDDING_B: return put(&slot->b, t, e);
    case LEAF_MAGNITUDE: return put(&slot->magnitude, t, e);
    case LEAF_COPY: return put(&slot->copy, t, e);
    case LEAF_REPLACED: return put(&slot->replaced, t, e);
    }
    return 0;
}

int slots_fill(struct adapter *a, struct weft_error *e) {
    int n = safetensors_count(a->file), code = 0;
    if (!n) return error_set(e, WEFT_ERROR_INPUT, "%s: holds no tensors", safetensors_path(a->file));
    for (int i = 0; i < n && !code; i++) code = fill(a, safetensors_at(a->file, i), e);
    return code;
}
