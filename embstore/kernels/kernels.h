/* The compiled loops of embstore. None of them checks its arguments: compiled.pyx does, which calls them. */

#ifndef EMBSTORE_KERNELS_H
#define EMBSTORE_KERNELS_H

#include <stdint.h>

/* The version of the kernels that runs: 0 plain C, 1 with AVX2, 2 with AVX-512; and a limit on it, for tests. */
int target(void);
int limit_target(int most);

/* Copy rows of `row_nbytes` bytes to `out`, `widened` from float16 to float32; row r is in segment r / segment_rows, which
   begins at address bases[r / segment_rows] in memory. Stops at a row whose segment has the address 0, or early where the
   first rows take longer than most_nanoseconds each (0: any time), and returns its number, else n_rows. */
int64_t gather_rows(
    const uint64_t *bases, int64_t segment_rows, int64_t row_nbytes, const int64_t *rows, int64_t n_rows, char *out,
    int widened, int64_t most_nanoseconds);

/* Have the system read `nbytes` bytes at each of these ascending addresses of memory maps; returns at once. */
void will_need(const uint64_t *starts, int64_t n, int64_t nbytes);

/* Whether bytes of a memory map are in memory; nothing is read. So Linux says of all files of other users, and this of all
   on systems that do not tell. */
int is_resident(uint64_t start, int64_t nbytes);

/* How numbers are stored: float32, the bits of float16 or bfloat16, float64, which score_pairs alone takes, or int8
   codes, which score_pairs does not take: a value is code * scale + center, both rounded to float32. */
enum { FLOAT, HALF, BFLOAT, DOUBLE, CODES };
enum { COSINE, PRODUCT, DISTANCE };
/* Whether a row can be compared in float32: UNSURE is left to float64, BAD is not finite or too long. */
enum { FINE, UNSURE, BAD };
/* Up to this number of queries, rows are multiplied as they are read. */
enum { FEW_QUERIES = 4 };

/* Rows that are searched. `rows` are their numbers, or NULL: first, first + 1, ... Row r is vector r - first where the
   vectors are of more rows than these (`spread`), else they follow each other. */
typedef struct {
    const void *vectors;   /* [., size] */
    int kind;
    const float *scales;   /* [.] and [size], of CODES */
    const float *center;
    int64_t n, first;
    const int64_t *rows;
    int spread;
} block_t;

/* A search for the best rows of some queries; in float32, so that it keeps more candidates than are asked for. */
typedef struct {
    int64_t size, n_queries;
    int metric;
    const float *queries;      /* [n_queries, size], at unit length for COSINE */
    const float *panels;       /* the queries as pack_queries lays them out; NULL: rows are multiplied as they are read */
    const float *mean;         /* [size], subtracted from each row; NULL for none */
    float mean_length;
    /* A row in the group of a query is excluded: column g has the group of each row (int64, or int32 where it is narrow;
       NULL: its number), and queries [g, n_queries] those of the queries, -1 for none. */
    int64_t n_groups;
    const void *const *row_groups;
    const uint8_t *narrow;
    const int64_t *query_groups;
    /* The candidates of each query, [n_queries, capacity], of which filled[query] are set. When all are, the n_best
       best and some more remain, and least[query] is the lowest of them: no row below it is a candidate. `least` has a
       value for each query of the last panel, infinite beyond n_queries. */
    int64_t n_best, capacity;
    float *scores;
    int64_t *rows;
    int64_t *filled;
    float *least;
    float *buffer;             /* of buffer_floats(size, n_queries) floats */
} search_t;

/* The numbers of floats in the panels of queries and in the buffer of a search, and of queries in a panel. */
int64_t panels_floats(int64_t size, int64_t n_queries);
int64_t buffer_floats(int64_t size, int64_t n_queries);
int64_t panel_queries(void);
void pack_queries(const float *queries, int64_t n_queries, int64_t size, float *panels);

/* Add rows to a search. Sets state[i] of each, and `longest` to the largest squared length. Returns how many are not
   FINE. */
int64_t search_rows(const search_t *search, const block_t *block, uint8_t *state, float *longest);

/* A sketch has 4 bits of each feature, in levels of SKETCH_SIZE features. A level holds SKETCH_GROUP rows together: byte
   [i / 8, row, i % 4] has feature i where i % 8 < 4 in its lower half, and feature i + 4 in the upper one. After them come
   three bfloat16 of each row: its scale, and upper bounds of the length of what the codes leave out and of all features
   of further levels. */
enum { SKETCH_SIZE = 64, SKETCH_GROUP = 16, SKETCH_GROUP_NBYTES = 608 };

/* What a query makes of a level. Value of a row, of which `step`, `spread` and `of_error` are in each level:
   base + scale (step (2 product - offset) + spread) + of_error error + of_norm norm + of_square norm^2; its bound has
   of_tail tail more. Both are to be divided by the norm if `divides`. Where no term is of the norm, norms may be NULL. A
   norm is stored as the 16 bits of a float32 after its sign. */
typedef struct {
    float base, step, spread, of_error, of_tail, of_norm, of_square;
    int32_t offset, divides;
} sketch_terms_t;

/* Positions `first`, first + 1, ... of a sketch, their rows in the segment, and how far apart the bounds of two queries
   are. Norms and bounds are up to a whole group. Candidates are positions. */
typedef struct {
    int64_t n, first, stride, segment;
    const uint16_t *offsets;
} sketch_block_t;

/* Set the bounds of all rows by the first level; a row that is not `allowed` (NULL: all are) has an infinitely low one.
   Rows between value and bound are candidates, if above the least score of a query; where that is infinite, nothing is
   set. */
void scan_sketch(
    const search_t *search, const sketch_block_t *block, const uint8_t *groups, const int8_t *weights,
    const sketch_terms_t *terms, const uint16_t *norms, const uint8_t *allowed, float *bounds);

/* Add the levels after the first to the bounds of groups of which one is above the limit of a query, times the norm if the
   terms divide by it, and add the rows that are above it still to a search. `weights` and `terms` are by level and query.
   Returns how many groups were read. */
enum { SKETCH_LIST = 64 };
int64_t choose_sketch(
    const search_t *search, const sketch_block_t *block, const uint8_t *const *levels, int n_levels,
    const int8_t *weights, const sketch_terms_t *terms, const uint16_t *norms, float *bounds, const float *limits);

/* The scores in float64 of pairs: query owners[i] (at unit length for COSINE) and row numbers[i]. The order of additions
   is the same for all pairs, so that equal vectors have equal scores. DISTANCE is Euclidean. */
void score_pairs(
    const void *vectors, int kind, int64_t size, int metric, const double *queries, int64_t n_pairs,
    const int64_t *owners, const int64_t *numbers, double *scores);

/* Sums of unit vectors by word, by sentence and in all; what is of the type of the arithmetic is void. */
typedef struct {
    int64_t size, n;
    /* Of a word's sum: size, or 2 size where the plain vectors are summed after it. Then vectors without a word are
       left out, and there are neither sentences nor a total. */
    int64_t width;
    const void *vectors;            /* [n, size] */
    int half;                       /* whether they are float16 bits, else of the type of the arithmetic */
    const int64_t *words;           /* [n], the word of each vector, -1 for none; NULL without words */
    int64_t n_words;
    /* Of each word: the row of its total or -1, the vectors in its sum, and how many vectors are not zero. A sum of
       FLUSH_COUNT vectors is moved to the total. */
    int64_t *word_counts;           /* [word, 3] */
    void *word_sums;                /* [word, width] */
    double *word_totals;            /* [frequent word, width] */
    const int64_t *sentences;       /* [n], ascending except for -1; NULL without sentences */
    const int64_t *sentence_sizes;  /* [sentence] */
    double *sentence_values;        /* [sentence] */
    /* The sentence being read, and one that begins before this part: its number or -1, and how many of its vectors
       were read; the sum of these, and that of their unit vectors. */
    int64_t *runs;                  /* [2, 2] */
    void *run_sums;                 /* [2, 2, size] */
    void *buffers;                  /* [2, size]: a vector, and a sum that is added to the total, 0 between calls */
    double *total;                  /* [size], of all unit vectors but those of the sentence being read */
} cosines_t;

enum { FLUSH_COUNT = 64 };

/* Add vectors. Returns how many are not zero, -1 if one is not finite or its square overflows, -2 if memory is short. */
int64_t add_cosines_float(const cosines_t *sums);
int64_t add_cosines_double(const cosines_t *sums);

#endif
