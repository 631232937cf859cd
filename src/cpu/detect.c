/* Which ISA this processor runs, and which it should: compiled without ISA flags. */
#include "cpu/isa.h"

static int always(void) { return 1; }

static const struct cpu_isa portable = {
    .name = "portable", .runs_here = always,
    .vec = &cpu_vec_portable, .delta = &cpu_delta_portable, .attention = &cpu_attention_portable,
    .kernels = cpu_kernels_portable,
};

const struct cpu_isa *const cpu_isas[] = {&portable, NULL};

const struct cpu_isa *cpu_isa_choose(void) { return &portable; }
