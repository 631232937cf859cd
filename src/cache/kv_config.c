#include "base/json.h"
#include "cache/cache.h"

enum { MOST_BYTES = 16 << 20 };

static int read_entry(struct kv_scheme *schemes, uint8_t *seen, const struct cache_shape *shape, const uint8_t *is_attention,
                      int n_layers, const json_t *entry, const char *path, struct weft_error *e) {
    int64_t layer = 0, bits = 0, group = 64;
    if (!json_is_object(entry)) return error_set(e, WEFT_ERROR_INPUT, "%s: an entry of the list is not an object", path);
    int code = json_get_int(entry, "layer_idx", 1, 0, n_layers - 1, &layer, path, e);
    if (!code) code = json_get_int(entry, "bits", 1, 2, 16, &bits, path, e);
    if (!code) code = json_get_int(entry, "group_size", 0, 1, 1024, &group, path, e);
    if (code) return code;
    if (!is_attention[layer])
        return error_set(e, WEFT_ERROR_INPUT, "%s: layer %d has no attention rows to quantize", path, (int)layer);
    int at = 0;
    for (int i = 0; i < layer; i++) at += is_attention[i] != 0;
    if (seen[at]++) return error_set(e, WEFT_ERROR_INPUT, "%s: layer %d is listed twice", path, (int)layer);
    char text[32];
    snprintf(text, sizeof text, "%d", (int)bits);
    code = kv_scheme_parse(&schemes[at], text, (int)group, e);
    if (!code) code = kv_scheme_check(&schemes[at], shape->head_dim, e);
    return code ? error_prefix(e, "%s: layer %d", path, (int)layer) : 0;
}

int cache_read_kv_config(struct kv_scheme *schemes, const struct cache_shape *shape, const uint8_t *is_attention, int n_layers,
                         const char *path, struct weft_error *e) {
    json_t *list = NULL;
    uint8_t seen[1024] = {0};
    CHECK(shape->n_attention <= (int)sizeof seen);
    const struct kv_format *plain = shape->f32_rows ? &kv_f32 : &kv_bf16;
    for (int i = 0; i < shape->n_attention; i++) schemes[i] = (struct kv_scheme){plain, plain, 0, 0, 0};
    int code = json_read_file(&list, path, MOST_BYTES, e);
    if (code) return code;
    if (!json_is_array(list)) code = error_set(e, WEFT_ERROR_INPUT, "%s: not a list of layers", path);
    for (size_t i = 0; !code && i < json_array_size(list); i++)
        code = read_entry(schemes, seen, shape, is_attention, n_layers, json_array_get(list, i), path, e);
    json_decref(list);
    return code;
}
