/* Single ops on a CPU device of a chosen ISA. */
#ifndef HELP_OPS_H
#define HELP_OPS_H
#include "backend/backend.h"
#include "checkpoint/safetensors.h"
#include "help_test.h"

struct ops_device { struct backend b; struct pool *pool; };
/* 0 when this build or processor does not have the ISA. */
int ops_open(struct ops_device *d, const char *isa, int n_threads, const struct step_limits *l);
void ops_close(struct ops_device *d);
void ops_run(struct ops_device *d, const struct op *ops, int n);

/* for (OPS_EACH_ISA(isa)) runs the body with the name of every ISA, the missing ones included (ops_open tells). */
#define OPS_EACH_ISA(isa) const char *const *at_ = backend_cpu.isa_names, *isa; (isa = *at_) != NULL; at_++

/* Random numbers about -2..2, the same on every machine. */
float ops_random(uint64_t *state);
void ops_fill(uint64_t *state, float *x, size_t n, float scale);
float *ops_new(size_t n); /* zeroed; freed by free */
/* sqrt(sum (got - want)^2 / sum want^2) */
double ops_error(const float *got, const double *want, size_t n);

/* A tensor of a golden file as floats (freed by free), or NULL when the folder of goldens is not there. */
struct ops_golden { struct safetensors *file; };
int ops_golden_open(struct ops_golden *g, const char *name); /* 0: not there */
const struct tensor *ops_golden_tensor(const struct ops_golden *g, const char *name);
float *ops_golden_floats(const struct ops_golden *g, const char *name);
void ops_golden_close(struct ops_golden *g);
#endif
