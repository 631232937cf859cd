#include "engine/adapters.h"

int adapter_choice_make(struct adapter_choice *out, struct weft_engine *x, const struct weft_adapter_use *uses, int n,
                        struct weft_error *e) {
    (void)x, (void)uses;
    *out = (struct adapter_choice){.names = ""};
    if (n) return error_set(e, WEFT_ERROR_SUPPORT, "adapters are not in this build");
    return 0;
}

void adapter_choice_hold(struct adapter_choice *c) { (void)c; }
void adapter_choice_drop(struct adapter_choice *c) { (void)c; }

int weft_adapter_open(struct weft_adapter **out, struct weft_engine *engine, const char *folder, char **report, struct weft_error *e) {
    (void)out, (void)engine, (void)report;
    return error_set(e, WEFT_ERROR_SUPPORT, "%s: adapters are not in this build", folder);
}

void weft_adapter_close(struct weft_adapter *a) { (void)a; }
