#include "engine/adapters.h"

int adapters_resolve(struct weft_request *r, struct weft_error *e) {
    r->adapter_names = "";
    if (r->o.n_adapters) return error_set(e, WEFT_ERROR_SUPPORT, "adapters are not in this build");
    return 0;
}
