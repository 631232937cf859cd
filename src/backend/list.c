#include <string.h>

#include "backend/backend.h"

/* The list of devices in this build; plugins join it when they load. */
static const struct backend_table *const tables[] = {&backend_cpu, NULL};

const struct backend_table *backend_find(const char *name) {
    for (int i = 0; tables[i]; i++)
        if (strcmp(tables[i]->name, name) == 0) return tables[i];
    return NULL;
}
