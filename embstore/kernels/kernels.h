/* The compiled loops of embstore. None of them checks its arguments: compiled.pyx does, which calls them. */

#ifndef EMBSTORE_KERNELS_H
#define EMBSTORE_KERNELS_H

#include <stdint.h>

/* The version of the kernels that runs: 0 plain C, 1 with AVX2, 2 with AVX-512; and a limit on it, for tests. */
int target(void);
int limit_target(int most);

/* Copy rows of `row_nbytes` bytes to `out`; row r is in segment r / segment_rows, which begins at address
   bases[r / segment_rows] in memory. Stops at a row whose segment has the address 0 and returns its number,
   else n_rows. */
int64_t gather_rows(
    const uint64_t *bases, int64_t segment_rows, int64_t row_nbytes, const int64_t *rows, int64_t n_rows, char *out);

/* The products of rows of float16 bits [n_rows, size] with a query, and the rows' squared lengths. */
void dot_rows(
    const uint16_t *rows, int64_t n_rows, int64_t size, const float *query, float *products, float *squares);

#endif
