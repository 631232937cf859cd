/* Goldens are read where the JSON library is: not in a cross build. */
#include "help_ops.h"

int ops_golden_open(struct ops_golden *g, const char *name) { return (void)g, (void)name, 0; }
const struct tensor *ops_golden_tensor(const struct ops_golden *g, const char *name) { return (void)g, (void)name, NULL; }
float *ops_golden_floats(const struct ops_golden *g, const char *name) { return (void)g, (void)name, NULL; }
void ops_golden_close(struct ops_golden *g) { (void)g; }
