/* A model of nothing but state, for tests of the cache: attention rows and delta state that depend on tokens, positions and
 * everything before them. It runs the three ops that write sequence memory on any device; `help_device` is a plain scalar one. */
#ifndef HELP_DEVICE_H
#define HELP_DEVICE_H
#include "cache/state.h"
#include "help_test.h"

extern const struct backend_table help_device;

enum { HELP_HIDDEN = 4 };
void help_shape(struct cache_shape *out); /* 2 attention layers and an MTP one, 3 delta layers, small and of odd sizes */
void help_forward(struct cache *c, const struct batch *b);

/* n rows of tokens that follow from `tokens`, as one group. Returns cache_begin's code; commits keep rows (-1: all). */
int help_step(struct sequence *s, const int32_t *tokens, int n, int undo, int keep);
int help_step_mtp(struct sequence *s, const int32_t *tokens, int n, int keep);
/* Folds both and compares rows, positions, state, convolution inputs and attention rows, bit for bit. */
void help_assert_same(struct sequence *a, struct sequence *b);
/* A new sequence that stepped the tokens one by one. */
struct sequence *help_stepped(struct cache *c, const int32_t *tokens, int n);

/* Calls run for the scalar device and for the CPU under each of its ISAs that runs here; returns the sum of what it returns. */
int help_each_device(int (*run_group)(struct backend *device));

uint32_t help_random(uint64_t *state);
#endif
