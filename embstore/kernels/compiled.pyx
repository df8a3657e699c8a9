# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled loops over arrays, which release the GIL. Each checks the shapes of its arguments, not their values."""

from cpython.buffer cimport Py_buffer, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.stdio cimport SEEK_END
from libc.stdlib cimport free, malloc

cdef extern from "unistd.h" nogil:
    int64_t lseek(int descriptor, int64_t offset, int whence)

cdef extern from "kernels.h" nogil:
    enum:
        FEW_QUERIES
        CODES, PRODUCT
        SKETCH_SIZE
        SKETCH_GROUP
        SKETCH_GROUP_NBYTES
    ctypedef struct search_t:
        int64_t size, n_queries, n_groups, n_best, capacity
        int metric
        float mean_length
        const float *queries
        const float *panels
        const float *mean
        const void **row_groups
        const uint8_t *narrow
        const int64_t *query_groups
        float *scores
        int64_t *rows
        int64_t *filled
        float *least
        float *buffer
    ctypedef struct block_t:
        const void *vectors
        int kind
        const float *scales
        const float *center
        int64_t n, first
        const int64_t *rows
        int spread
    ctypedef struct cosines_t:
        int64_t size, n, width
        const void *vectors
        int half
        const int64_t *words
        int64_t n_words
        int64_t *word_counts
        void *word_sums
        double *word_totals
        const int64_t *sentences
        const int64_t *sentence_sizes
        double *sentence_values
        int64_t *runs
        void *run_sums
        void *buffers
        double *total
    int c_limit_target "limit_target" (int most)
    void c_will_need "will_need" (const uint64_t *starts, int64_t n, int64_t nbytes)
    int c_is_resident "is_resident" (uint64_t start, int64_t nbytes)
    int64_t c_gather_rows "gather_rows" (
        const uint64_t *bases, int64_t segment_rows, int64_t row_nbytes, const int64_t *rows, int64_t n_rows, char *out,
        int widened, int64_t most_nanoseconds
    )
    int64_t panels_floats(int64_t size, int64_t n_queries)
    int64_t buffer_floats(int64_t size, int64_t n_queries)
    int64_t panel_queries()
    void c_pack_queries "pack_queries" (const float *queries, int64_t n_queries, int64_t size, float *panels)
    int64_t search_rows(const search_t *search, const block_t *block, uint8_t *state, float *longest)
    ctypedef struct sketch_terms_t:
        int offset
    ctypedef struct sketch_block_t:
        int64_t n, first, stride, segment
        const uint16_t *offsets
    void scan_sketch(
        const search_t *search, const sketch_block_t *block, const uint8_t *groups, const int8_t *weights,
        const sketch_terms_t *terms, const uint16_t *norms, const uint8_t *allowed, float *bounds
    )
    int64_t choose_sketch(
        const search_t *search, const sketch_block_t *block, const uint8_t **levels, int n_levels,
        const int8_t *weights, const sketch_terms_t *terms, const uint16_t *norms, float *bounds, const float *limits
    )
    void c_score_pairs "score_pairs" (
        const void *vectors, int kind, int64_t size, int metric, const double *queries, int64_t n_pairs,
        const int64_t *owners, const int64_t *numbers, double *scores
    )
    int64_t add_cosines_float(const cosines_t *sums)
    int64_t add_cosines_double(const cosines_t *sums)


def limit_target(int most):
    return c_limit_target(most)


def gather_rows(
    const uint64_t[::1] bases, int64_t segment_rows, int64_t row_nbytes, const int64_t[::1] rows, out,
    int64_t most_nanoseconds
):
    cdef int64_t n_rows = rows.shape[0], copied
    cdef int widened
    cdef Py_buffer target
    if not n_rows:
        return 0
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        widened = target.len == 2 * n_rows * row_nbytes
        if target.len != n_rows * row_nbytes and not widened:
            raise ValueError("out has another size than the rows")
        with nogil:
            copied = c_gather_rows(
                &bases[0], segment_rows, row_nbytes, &rows[0], n_rows, <char *>target.buf, widened, most_nanoseconds
            )
    finally:
        PyBuffer_Release(&target)
    return copied


def take_rows(
    dict files, const uint64_t[::1] bases, int64_t segment_rows, int64_t row_nbytes, int64_t most_nanoseconds,
    const int64_t[::1] rows, int64_t n_stored, int64_t partition_rows, const uint8_t[::1] committed, out,
    bint checks
):
    cdef int64_t i, number
    cdef int shift = int(partition_rows - 1).bit_length()
    cdef bytearray marked = bytearray(committed.shape[0])
    if not rows.shape[0] or (<int64_t>1 << shift) != partition_rows or committed.shape[0] << shift < n_stored:
        return -1
    last = None
    for i in range(rows.shape[0]):
        number = rows[i] >> shift
        if not 0 <= rows[i] < n_stored or not committed[number]:
            return -1
        if not marked[number]:
            marked[number], file = 1, files.get(number)
            if file is None:
                return -1
            if checks and file is not last and lseek(file.descriptor, 0, SEEK_END) < <int64_t>file.nbytes:
                return -1
            last = file  # of all partitions, in HDF5
    return gather_rows(bases, segment_rows, row_nbytes, rows, out, most_nanoseconds)


def is_resident(uint64_t start, int64_t nbytes):
    return bool(c_is_resident(start, nbytes))


def will_need(const uint64_t[::1] starts, int64_t nbytes):
    cdef int64_t n = starts.shape[0]
    if n and nbytes > 0:
        with nogil:
            c_will_need(&starts[0], n, nbytes)


def pack_queries(const float[:, ::1] queries):
    cdef int64_t n_queries = queries.shape[0], size = queries.shape[1]
    cdef float[::1] panels
    if n_queries <= FEW_QUERIES:
        return None
    panels = _floats(panels_floats(size, n_queries))
    with nogil:
        c_pack_queries(&queries[0, 0], n_queries, size, &panels[0])
    return panels


def padded_queries(int64_t n_queries):
    return (n_queries + panel_queries() - 1) // panel_queries() * panel_queries()


cdef float[::1] _floats(int64_t count):
    return memoryview(bytearray(4 * count)).cast("f")


cdef class Candidates:
    cdef search_t _search
    cdef tuple _arrays
    cdef float[::1] _buffer
    cdef const void **_groups

    def __init__(
        self,
        const float[:, ::1] queries,
        const float[::1] panels,
        int metric,
        const float[::1] mean,
        float mean_length,
        row_groups,
        const int64_t[:, ::1] query_groups,
        int64_t n_best,
        float[:, ::1] scores,
        int64_t[:, ::1] rows,
        int64_t[::1] filled,
        float[::1] least,
    ):
        cdef search_t *search = &self._search
        cdef const int64_t[::1] column
        cdef const int32_t[::1] narrow_column
        cdef uint8_t *narrow
        cdef int64_t n_queries = queries.shape[0], size = queries.shape[1], group
        if not n_queries or not size or least.shape[0] < padded_queries(n_queries):
            raise ValueError("there are no queries, or too few least scores")
        if (scores.shape[0], rows.shape[0], filled.shape[0]) != (n_queries, n_queries, n_queries):
            raise ValueError("the candidates are not those of the queries")
        if scores.shape[1] != rows.shape[1] or not 0 < n_best < scores.shape[1]:
            raise ValueError("the candidates have no place for the best of them and one more")
        if mean is not None and mean.shape[0] != size:
            raise ValueError("the mean is not of the size of the queries")
        if query_groups.shape[0] != len(row_groups) or (len(row_groups) and query_groups.shape[1] != n_queries):
            raise ValueError("the groups of rows and of queries do not fit")
        if panels is None and n_queries > FEW_QUERIES:
            raise ValueError("more queries than a few must be packed")
        self._buffer = _floats(buffer_floats(size, n_queries))
        self._arrays = (queries, panels, mean, row_groups, query_groups, scores, rows, filled, least)
        self._groups = <const void **>malloc((sizeof(void *) + 1) * (len(row_groups) + 1))
        narrow = <uint8_t *>(self._groups + len(row_groups) + 1)
        for group in range(len(row_groups)):
            self._groups[group], narrow[group] = NULL, False
            if row_groups[group] is not None and row_groups[group].dtype.itemsize == sizeof(int32_t):
                narrow_column = row_groups[group]
                self._groups[group], narrow[group] = &narrow_column[0], True
            elif row_groups[group] is not None:
                column = row_groups[group]
                self._groups[group] = &column[0]
        search.size, search.n_queries, search.metric = size, n_queries, metric
        search.queries = &queries[0, 0]
        search.panels = NULL if panels is None else &panels[0]
        search.mean = NULL if mean is None else &mean[0]
        search.mean_length = mean_length
        search.n_groups, search.row_groups, search.narrow = len(row_groups), self._groups, narrow
        search.query_groups = &query_groups[0, 0] if len(row_groups) else NULL
        search.n_best, search.capacity = n_best, scores.shape[1]
        search.scores, search.rows, search.filled, search.least = &scores[0, 0], &rows[0, 0], &filled[0], &least[0]
        search.buffer = &self._buffer[0]

    def __dealloc__(self):
        free(self._groups)

    def add(
        self,
        const char[:, ::1] vectors,
        int kind,
        uint8_t[::1] state,
        int64_t first,
        const int64_t[::1] rows = None,
        bint spread = False,
        const float[::1] scales = None,
        const float[::1] center = None,
    ):
        cdef int64_t n_vectors = vectors.shape[0], n = state.shape[0], n_other
        cdef float longest = 0
        cdef block_t block
        if vectors.shape[1] != self._search.size * (4, 2, 2, 0, 1)[kind] or (n != n_vectors and not spread):
            raise ValueError("the shapes of the arguments do not fit")
        if (rows is None and spread) or (rows is not None and rows.shape[0] != n):
            raise ValueError("the rows are not those of the states")
        if kind == CODES and (scales is None or scales.shape[0] != n_vectors or center.shape[0] != self._search.size):
            raise ValueError("codes need a scale for each vector, and a center")
        if not n:
            return 0, 0.0
        if spread and not first <= rows[0] <= rows[n - 1] < first + n_vectors:
            raise ValueError("the rows are not among the vectors")
        block.vectors, block.kind, block.n, block.first, block.spread = &vectors[0, 0], kind, n, first, spread
        block.rows = NULL if rows is None else &rows[0]
        block.scales = NULL if scales is None else &scales[0]
        block.center = NULL if center is None else &center[0]
        with nogil:
            n_other = search_rows(&self._search, &block, &state[0], &longest)
        return n_other, longest

    def scan(
        self,
        const uint8_t[:, ::1] groups,
        int64_t first,
        int64_t n,
        int64_t segment,
        const uint16_t[::1] offsets,
        const uint16_t[::1] norms,
        const uint8_t[::1] allowed,
        const int8_t[:, ::1] weights,
        const uint8_t[:, ::1] terms,
        float[:, :] bounds,
    ):
        cdef sketch_block_t block = self._block(first, n, segment, offsets, norms, bounds, 1, weights, terms)
        self._check_groups(groups, n)
        if allowed is not None and allowed.shape[0] != n:
            raise ValueError("those that are allowed are not those of the rows")
        if n > 0:
            with nogil:
                scan_sketch(
                    &self._search, &block, &groups[0, 0], &weights[0, 0], <const sketch_terms_t *>&terms[0, 0],
                    NULL if norms is None else &norms[0], NULL if allowed is None else &allowed[0], &bounds[0, 0]
                )

    def choose(
        self,
        levels,
        int64_t first,
        int64_t n,
        int64_t segment,
        const uint16_t[::1] offsets,
        const uint16_t[::1] norms,
        const int8_t[:, ::1] weights,
        const uint8_t[:, ::1] terms,
        float[:, :] bounds,
        const float[::1] limits,
    ):
        cdef int64_t n_read = 0, query
        cdef int level, n_levels = len(levels)
        cdef const uint8_t *starts[16]
        cdef const uint8_t[:, ::1] groups
        cdef sketch_block_t block = self._block(first, n, segment, offsets, norms, bounds, n_levels, weights, terms)
        if limits.shape[0] != self._search.n_queries or not 0 < n_levels <= 16:
            raise ValueError("the limits are not those of the queries, or the levels are not 1 to 16")
        if n <= 0:
            return 0
        for query in range(self._search.n_queries):
            if self._search.filled[query] + block.n + SKETCH_GROUP >= self._search.capacity:
                raise ValueError("the candidates have no place for all rows")
        for level in range(n_levels):
            groups = levels[level]
            self._check_groups(groups, n)
            starts[level] = &groups[0, 0]
        with nogil:
            n_read = choose_sketch(
                &self._search, &block, starts, n_levels, &weights[0, 0], <const sketch_terms_t *>&terms[0, 0],
                NULL if norms is None else &norms[0], &bounds[0, 0], &limits[0]
            )
        return n_read

    cdef sketch_block_t _block(
        self,
        int64_t first,
        int64_t n,
        int64_t segment,
        const uint16_t[::1] offsets,
        const uint16_t[::1] norms,
        float[:, :] bounds,
        int64_t n_levels,
        const int8_t[:, ::1] weights,
        const uint8_t[:, ::1] terms,
    ) except *:
        cdef sketch_block_t block
        cdef int64_t padded = (n + SKETCH_GROUP - 1) // SKETCH_GROUP * SKETCH_GROUP, n_queries = self._search.n_queries
        if norms is None and self._search.metric != PRODUCT:
            raise ValueError("this metric needs the norms")
        if offsets.shape[0] != padded or segment <= 0 or (norms is not None and norms.shape[0] != padded):
            raise ValueError("the norms or offsets are not those of the rows")
        if (bounds.shape[0], bounds.shape[1]) != (n_queries, padded) or bounds.strides[1] != 4:
            raise ValueError("the bounds are not those of the queries and rows")
        if (weights.shape[0], weights.shape[1]) != (n_queries * n_levels, SKETCH_SIZE):
            raise ValueError("the weights are not those of the queries")
        if (terms.shape[0], terms.shape[1]) != (n_queries * n_levels, sizeof(sketch_terms_t)):
            raise ValueError("the terms are not those of the queries")
        block.n, block.first, block.stride, block.segment = n, first, bounds.strides[0] // 4, segment
        block.offsets = &offsets[0] if padded else NULL
        return block

    cdef _check_groups(self, const uint8_t[:, ::1] groups, int64_t n):
        if groups.shape[0] != (n + SKETCH_GROUP - 1) // SKETCH_GROUP or groups.shape[1] != SKETCH_GROUP_NBYTES:
            raise ValueError("the groups are not those of the rows")


def score_pairs(
    const char[:, ::1] vectors,
    int kind,
    int metric,
    const double[:, ::1] queries,
    const int64_t[::1] owners,
    const int64_t[::1] numbers,
    double[::1] scores,
):
    cdef int64_t n_pairs = owners.shape[0], size = queries.shape[1]
    if numbers.shape[0] != n_pairs or scores.shape[0] != n_pairs or vectors.shape[1] != size * (4, 2, 2, 8)[kind]:
        raise ValueError("the shapes of the arguments do not fit")
    if not n_pairs:
        return
    with nogil:
        c_score_pairs(
            &vectors[0, 0], kind, size, metric, &queries[0, 0], n_pairs, &owners[0], &numbers[0], &scores[0]
        )


ctypedef fused real:
    float
    double


def add_cosines(of, vectors, bint half, words, sentences, sizes):
    arrays = of.word_counts, of.word_totals, of.values, of.runs, of.total, of.word_sums, of.run_sums, of.buffers
    return _add_cosines(vectors, half, words, sentences, sizes, *arrays)


def _add_cosines(
    const char[:, ::1] vectors,
    bint half,
    const int64_t[::1] words,
    const int64_t[::1] sentences,
    const int64_t[::1] sentence_sizes,
    int64_t[:, ::1] word_counts,
    double[:, ::1] word_totals,
    double[::1] sentence_values,
    int64_t[:, ::1] runs,
    double[::1] total,
    real[:, ::1] word_sums,
    real[:, :, ::1] run_sums,
    real[:, ::1] buffers,
):
    cdef cosines_t sums
    cdef int64_t n = vectors.shape[0], size = total.shape[0], n_words = word_sums.shape[0], n_nonzero
    if not n:
        return 0
    if not (
        vectors.shape[1] == size * (2 if half else sizeof(real))
        and words.shape[0] in (0, n) and sentences.shape[0] in (0, n)
        and sentence_sizes.shape[0] == sentence_values.shape[0]
        and (word_counts.shape[0], word_counts.shape[1], runs.shape[0], runs.shape[1]) == (n_words, 3, 2, 2)
        and (run_sums.shape[0], run_sums.shape[1], buffers.shape[0]) == (2, 2, 2)
        and word_sums.shape[1] in (size, 2 * size) and word_totals.shape[1] == word_sums.shape[1]
        and size == run_sums.shape[2] == buffers.shape[1]
    ):
        raise ValueError("the shapes of the arguments do not fit")
    sums.size, sums.n, sums.half, sums.width = size, n, half, word_sums.shape[1]
    sums.vectors = &vectors[0, 0]
    sums.words = &words[0] if words.shape[0] else NULL
    sums.n_words = n_words
    sums.word_counts = &word_counts[0, 0] if n_words else NULL
    sums.word_sums = &word_sums[0, 0] if n_words else NULL
    sums.word_totals = &word_totals[0, 0] if word_totals.shape[0] else NULL
    sums.sentences = &sentences[0] if sentences.shape[0] else NULL
    sums.sentence_sizes = &sentence_sizes[0] if sentence_sizes.shape[0] else NULL
    sums.sentence_values = &sentence_values[0] if sentence_values.shape[0] else NULL
    sums.runs, sums.run_sums, sums.buffers, sums.total = &runs[0, 0], &run_sums[0, 0, 0], &buffers[0, 0], &total[0]
    with nogil:
        n_nonzero = add_cosines_float(&sums) if real is float else add_cosines_double(&sums)
    if n_nonzero == -2:
        raise MemoryError("the memory is short")
    return n_nonzero
