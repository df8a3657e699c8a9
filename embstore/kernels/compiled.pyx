# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled loops over arrays, which release the GIL. Each checks the shapes of its arguments, not their values."""

from libc.stdint cimport int64_t, uint16_t, uint64_t

cdef extern from "kernels.h" nogil:
    int c_limit_target "limit_target" (int most)
    int64_t c_gather_rows "gather_rows" (
        const uint64_t *bases, int64_t segment_rows, int64_t row_nbytes, const int64_t *rows, int64_t n_rows, char *out
    )
    void c_dot_rows "dot_rows" (
        const uint16_t *rows, int64_t n_rows, int64_t size, const float *query, float *products, float *squares
    )


def limit_target(int most):
    return c_limit_target(most)


def gather_rows(
    const uint64_t[::1] bases, int64_t segment_rows, int64_t row_nbytes, const int64_t[::1] rows, char[::1] out
):
    cdef int64_t n_rows = rows.shape[0], copied
    if out.shape[0] != n_rows * row_nbytes:
        raise ValueError("out has another size than the rows")
    if not n_rows:
        return 0
    with nogil:
        copied = c_gather_rows(&bases[0], segment_rows, row_nbytes, &rows[0], n_rows, &out[0])
    return copied


def dot_rows(const uint16_t[:, ::1] rows, const float[::1] query, float[::1] products, float[::1] squares):
    cdef int64_t n_rows = rows.shape[0], size = rows.shape[1]
    if not n_rows or not size or query.shape[0] != size or products.shape[0] != n_rows or squares.shape[0] != n_rows:
        raise ValueError("the shapes of the arguments do not fit")
    with nogil:
        c_dot_rows(&rows[0, 0], n_rows, size, &query[0], &products[0], &squares[0])
