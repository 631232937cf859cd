/* What every test includes: cmocka with the headers it wants before it. */
#ifndef HELP_TEST_H
#define HELP_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "weft.h"

/* The folder of goldens and checkpoints beside the repository, or NULL: tests on it skip when it is not there.
 * help_shared("goldens/model/odd.json") gives the path in a static buffer of its own, four of which are in turn. */
const char *help_shared(const char *path);
/* A path inside the repository. */
const char *help_source(const char *path);
/* A fresh folder for this test program's files, removed at exit. */
const char *help_temp(const char *name);

#endif
