#define BODY "search_body.h"
#include "targets.h"

void dot_rows(
    const uint16_t *rows, int64_t n_rows, int64_t size, const float *query, float *products, float *squares
) {
    CHOOSE(dot_rows)(rows, n_rows, size, query, products, squares);
}
