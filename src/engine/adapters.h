/* Adapters of the public API: handles, and the sets that requests and sequences use. */
#ifndef ENGINE_ADAPTERS_H
#define ENGINE_ADAPTERS_H
#include "engine/inside.h"

/* Sums of weighted adapters, made ready for groups. All zero: none. */
int adapter_choice_make(struct adapter_choice *out, struct weft_engine *x, const struct weft_adapter_use *uses, int n,
                        struct weft_error *e);
void adapter_choice_hold(struct adapter_choice *c); /* one more owner */
void adapter_choice_drop(struct adapter_choice *c);
#endif
