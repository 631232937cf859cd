/* Which layout and kernels a weight gets. */
#include <string.h>

#include "cpu/cpu.h"
#include "quant/quant.h"

static int serves(const struct cpu *c, const struct linear_kernel *k, const struct weight *w) {
    if (k->repr && strcmp(k->repr, w->repr->name) != 0) return 0;
    if (k->bits && k->bits != w->bits) return 0;
    return !(k->form == FORM_Q8 && c->precision == PRECISION_HIGH);
}

/* The first kernel of the list that goes with `lead` and serves a whole row class. */
static const struct linear_kernel *of_class(const struct cpu *c, const struct linear_kernel *lead, const struct weight *w, int class) {
    int low = class ? row_class_limit[class - 1] + 1 : 1, high = row_class_limit[class];
    for (int i = 0; i < c->n_kernels; i++) {
        const struct linear_kernel *k = c->kernels[i];
        if (k->layout != lead->layout || strcmp(k->arithmetic, lead->arithmetic) != 0 || k->form != lead->form) continue;
        if (serves(c, k, w) && k->min_rows <= low && k->max_rows >= high) return k;
    }
    return NULL;
}

int cpu_linear_choose(const struct backend *b, const struct weight *w, struct linear *out, struct weft_error *e) {
    const struct cpu *c = b->device;
    for (int i = 0; i < c->n_kernels; i++) {
        const struct linear_kernel *lead = c->kernels[i];
        if (!serves(c, lead, w)) continue;
        struct linear l = {.source = w, .n_in = (int)w->n_cols, .n_out = (int)w->n_rows};
        int n = 0;
        for (int class = 0; class < N_ROW_CLASSES; class++) n += (l.kernel[class] = of_class(c, lead, w, class)) != NULL;
        if (n < N_ROW_CLASSES) continue;
        l.data_bytes = lead->layout && lead->layout->bytes ? lead->layout->bytes(w) : 0;
        *out = l;
        return 0;
    }
    return error_set(e, WEFT_ERROR_SUPPORT, "%s: tensor %s: no kernel for representation %s with %d bits", w->file, w->name,
                     w->repr->name, w->bits);
}
