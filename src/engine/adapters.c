#include "engine/adapters.h"

struct weft_adapter { struct weft_engine *engine; struct adapter *adapter; size_t bytes; };

/* Its own memory comes back with its end; the room that steps need for adapters stays with the model. */
static int take_memory(struct weft_adapter *a, const char *folder, struct weft_error *e) {
    struct weft_engine *x = a->engine;
    struct model_bytes now;
    model_sizes(x->model, &now);
    size_t own = adapter_bytes(a->adapter), need = own + now.workspace - x->workspace_bytes, left = engine_free_bytes(x);
    if (need > left || !cache_set_aside(x->cache, need))
        return error_set(e, WEFT_ERROR_MEMORY, "%s: the adapter needs %.1f MB, %.1f MB of the memory budget are free", folder,
                         (double)need / 1e6, (double)left / 1e6);
    x->workspace_bytes = now.workspace, a->bytes = own;
    return 0;
}

int weft_adapter_open(struct weft_adapter **out, struct weft_engine *x, const char *folder, char **report, struct weft_error *e) {
    struct weft_adapter *a = mem_new(1, sizeof *a);
    if (!a) return error_memory(e, folder);
    a->engine = x;
    int code = model_adapter_open(&a->adapter, x->model, folder, e);
    if (!code) code = take_memory(a, folder, e);
    struct buf text;
    size_t n;
    buf_init(&text);
    if (!code && report) {
        adapter_report(a->adapter, &text);
        if (!(*report = buf_take(&text, &n))) code = error_memory(e, folder);
    }
    buf_drop(&text);
    if (code) weft_adapter_close(a);
    else *out = a;
    return code;
}

void weft_adapter_close(struct weft_adapter *a) {
    if (!a) return;
    cache_give_back(a->engine->cache, a->bytes);
    model_adapter_close(a->engine->model, a->adapter);
    mem_free(a);
}

int adapter_choice_make(struct adapter_choice *out, struct weft_engine *x, const struct weft_adapter_use *uses, int n,
                        struct weft_error *e) {
    *out = (struct adapter_choice){.names = ""};
    if (n <= 0) return 0;
    struct adapter_use *own = mem_alloc((size_t)n * sizeof *own);
    if (!own) return error_memory(e, "a choice of adapters");
    int code = 0;
    for (int i = 0; i < n && !code; i++) {
        if (!uses[i].adapter || uses[i].adapter->engine != x)
            code = error_set(e, WEFT_ERROR_INPUT, "adapter %d of the choice was not opened with this engine", i);
        else own[i] = (struct adapter_use){uses[i].adapter->adapter, uses[i].weight};
    }
    if (!code) code = adapter_sets_get(&x->adapter_sets, &out->set, own, n, e);
    mem_free(own);
    if (code) return code;
    out->hash = adapter_set_hash(out->set), out->names = adapter_set_names(out->set);
    return 0;
}

void adapter_choice_hold(struct adapter_choice *c) { adapter_set_hold(c->set); }

void adapter_choice_drop(struct adapter_choice *c) {
    adapter_set_drop(c->set);
    *c = (struct adapter_choice){.names = ""};
}
