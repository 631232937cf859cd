/* Adapters of the public API: handles, and the sets that requests and sequences use. */
#ifndef ENGINE_ADAPTERS_H
#define ENGINE_ADAPTERS_H
#include "engine/inside.h"

/* Fills r->adapters, r->adapter_hash and r->adapter_names from r->o. */
int adapters_resolve(struct weft_request *r, struct weft_error *e);
#endif
