#include "backend/backend.h"

#include <limits.h>

const int row_class_limit[N_ROW_CLASSES] = {4, 8, 15, 32, INT_MAX};

int row_class(int n_rows) {
    int c = 0;
    while (n_rows > row_class_limit[c]) c++;
    return c;
}
