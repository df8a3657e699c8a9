/* The parts of exact search that do not depend on the processor. */

#include <math.h>
#include <stddef.h>

#include "kernels.h"

#define FEATURES 256         /* features multiplied at a time: those of a panel fit the first cache */
#define CHUNK_FLOATS 32768   /* floats of the rows that are multiplied with all queries: they fit the second cache */
#define MANY_FLOATS 262144   /* floats of queries that do not fit it, and then of rows: queries are read more rarely */
#define AHEAD_NBYTES 2048    /* what is fetched into the cache is this far ahead of what is read */
#define GROUP 12             /* chunks are whole groups of rows, 12 or 6 */
#define MOST_PANEL 32
static const float SMALLEST = 1e-30f;  /* a squared length below which some squares may have underflowed */
static const float CANCELLED = 64;     /* a row this many times shorter than what was subtracted is left to float64 */

/* The processor itself reads ahead only within a page. */
#ifdef __GNUC__
#define FETCH(address) __builtin_prefetch(address)
#else
#define FETCH(address)
#endif

/* Rounds a product to float32 before it is added to, as numpy does: compilers make one operation of both. */
#if defined(__GNUC__) && defined(__x86_64__)
#define ROUND(value) __asm__("" : "+v"(value))
#elif defined(__GNUC__) && defined(__aarch64__)
#define ROUND(value) __asm__("" : "+w"(value))
#elif defined(__GNUC__)
#define ROUND(value) __asm__("" : "+m"(value))
#else
#define ROUND(value)
#endif

/* The first address from here on that a vector of any target is aligned at. */
static inline float *aligned(const float *from) {
    return (float *)(((uintptr_t)from + 63) & ~(uintptr_t)63);
}

/* Rows of floats begin at a distance that is no power of two, or they would share the sets of the cache. */
static inline int64_t stride_of(int64_t size) {
    return (size + 15) / 16 * 16 + 16;
}

static inline int64_t chunk_rows(int64_t size, int64_t n_queries) {
    int64_t floats = n_queries * size > MANY_FLOATS ? MANY_FLOATS : CHUNK_FLOATS;
    int64_t groups = floats / (GROUP * stride_of(size));
    return GROUP * (groups > 4 ? groups : 4);
}

/* The largest magnitude; infinite if a value is not finite. */
static float largest_of(const float *row, int64_t size) {
    float largest = 0;
    for (int64_t j = 0; j < size; j++) {
        float value = fabsf(row[j]);
        if (!(value < INFINITY)) return INFINITY;
        if (value > largest) largest = value;
    }
    return largest;
}

/* Move the `n_best` largest scores and their rows to the front; return the lowest of them. */
static float select_best(float *scores, int64_t *rows, int64_t count, int64_t n_best) {
    int64_t first = 0, last = count - 1;
    while (first < last) {
        float pivot = scores[(first + last) / 2];
        int64_t left = first, right = last;
        while (left <= right) {
            while (scores[left] > pivot) left++;
            while (scores[right] < pivot) right--;
            if (left > right) break;
            float score = scores[left];
            int64_t row = rows[left];
            scores[left] = scores[right];
            rows[left++] = rows[right];
            scores[right] = score;
            rows[right--] = row;
        }
        if (n_best - 1 <= right) last = right;
        else if (n_best - 1 >= left) first = left;
        else break;
    }
    float least = scores[0];
    for (int64_t i = 1; i < n_best; i++)
        if (scores[i] < least) least = scores[i];
    return least;
}

static void add_candidate(const search_t *search, int64_t query, int64_t row, float score) {
    for (int64_t group = 0; group < search->n_groups; group++) {
        int64_t own = search->query_groups[group * search->n_queries + query];
        if (own >= 0 && search->row_groups[group][row] == own) return;
    }
    float *scores = search->scores + query * search->capacity;
    int64_t *rows = search->rows + query * search->capacity, filled = search->filled[query];
    scores[filled] = score;
    rows[filled++] = row;
    if (filled == search->capacity) {
        search->least[query] = select_best(scores, rows, filled, search->n_best);
        filled = search->n_best;
    }
    search->filled[query] = filled;
}

/* A stored row; its scale is of CODES. */
typedef struct {
    const char *values;
    float scale;
} row_t;

/* How the rows of a search are read: what is subtracted from them, and from which squared length on one is compared as
   it is. Of shorter ones, float32 may not give the length. */
typedef struct {
    const float *mean, *center;
    float least_square;
} reading_t;

static inline int64_t nbytes_of(int kind, int64_t size) {
    return size * (kind == FLOAT ? 4 : kind == CODES ? 1 : 2);
}

static inline row_t row_of(const block_t *block, const int kind, int64_t size, int64_t i) {
    int64_t at = block->spread ? block->rows[i] - block->first : i;
    row_t row = {(const char *)block->vectors + at * nbytes_of(kind, size), kind == CODES ? block->scales[at] : 0};
    return row;
}

static inline int64_t number_of(const block_t *block, int64_t i) {
    return block->rows ? block->rows[i] : block->first + i;
}

static reading_t reading_of(const search_t *search, const block_t *block) {
    float length = search->mean && search->metric == COSINE ? 3 * search->mean_length / (CANCELLED - 1) : 0;
    reading_t reading = {search->mean, block->center, length * length > SMALLEST ? length * length : SMALLEST};
    if (search->n_components) reading.least_square = INFINITY;
    return reading;
}

#define BODY "search_body.h"
#include "targets.h"

int64_t panel_queries(void) {
    return CHOOSE(panel_queries)();
}

int64_t panels_floats(int64_t size, int64_t n_queries) {
    return (n_queries + MOST_PANEL) * size + 16;
}

int64_t buffer_floats(int64_t size, int64_t n_queries) {
    return chunk_rows(size, n_queries) * (stride_of(size) + MOST_PANEL + 2) + 16;
}

void pack_queries(const float *queries, int64_t n_queries, int64_t size, float *panels) {
    CHOOSE(pack_queries)(queries, n_queries, size, panels);
}

int64_t search_rows(const search_t *search, const block_t *block, uint8_t *state, float *longest) {
    return CHOOSE(search_rows)(search, block, state, longest);
}

void score_pairs(
    const void *vectors, int kind, int64_t size, int metric, const double *queries, int64_t n_pairs,
    const int64_t *owners, const int64_t *numbers, double *scores
) {
    CHOOSE(score_pairs)(vectors, kind, size, metric, queries, n_pairs, owners, numbers, scores);
}
