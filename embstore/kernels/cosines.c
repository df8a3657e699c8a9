#include <stdlib.h>

#define BODY "cosines_body.h"
#include "targets.h"

int64_t add_cosines_float(const cosines_t *sums) {
    return CHOOSE(add_cosines_float)(sums);
}

int64_t add_cosines_double(const cosines_t *sums) {
    return CHOOSE(add_cosines_double)(sums);
}
