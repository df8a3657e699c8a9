#define BODY "cosines_body.h"
#include "targets.h"

int64_t add_cosines_float(
    const cosines_t *sums, const void *vectors, int half, int64_t n, float *row, float *run_sums, float *first_sums,
    float *total
) {
    return CHOOSE(add_cosines_float)(sums, vectors, half, n, row, run_sums, first_sums, total);
}

int64_t add_cosines_double(
    const cosines_t *sums, const void *vectors, int half, int64_t n, double *row, double *run_sums, double *first_sums,
    double *total
) {
    return CHOOSE(add_cosines_double)(sums, vectors, half, n, row, run_sums, first_sums, total);
}
