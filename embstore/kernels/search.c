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
#define SAMPLE 32            /* scores among which a bound is looked for */
#define PREFETCH_PAIRS 2     /* pairs ahead of the one that is scored */
static const float SMALLEST = 1e-30f;  /* a squared length below which some squares may have underflowed */
static const float CANCELLED = 64;     /* a row this many times shorter than what was subtracted is left to float64 */

/* The processor itself reads ahead only within a page. */
#define FETCH(address) __builtin_prefetch(address)
#define FIRST_BIT(mask) __builtin_ctz(mask)

/* Rounds a product to float32 before it is added to, as numpy does: compilers make one operation of both. */
#if defined(__x86_64__)
#define ROUND(value) __asm__("" : "+v"(value))
#elif defined(__aarch64__)
#define ROUND(value) __asm__("" : "+w"(value))
#else
#define ROUND(value) __asm__("" : "+m"(value))
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

/* Keep the best candidates of a query, `n_best` of them or somewhat more, but not above `most`: where one of a sample of
   the scores has so many above it, this takes a few passes without a branch. Returns how many; none that is left out is
   above `least`. */
static int64_t keep_best(float *scores, int64_t *rows, int64_t count, int64_t n_best, int64_t most, float *least) {
    float sample[SAMPLE];
    for (int i = 0; i < SAMPLE; i++) {
        const float value = scores[(2 * i + 1) * count / (2 * SAMPLE)];
        int at = i;
        for (; at > 0 && sample[at - 1] < value; at--) sample[at] = sample[at - 1];
        sample[at] = value;
    }
    for (int low = 0, high = SAMPLE - 1; low <= high;) {
        const int middle = (low + high) / 2;
        const float bound = sample[middle];
        int32_t n_above = 0;
        for (int64_t i = 0; i < count; i++) n_above += scores[i] >= bound;
        if (n_above > most) high = middle - 1;
        if (n_above < n_best) low = middle + 1;
        if (n_above < n_best || n_above > most) continue;
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++) {
            const float score = scores[i];
            scores[kept] = score;
            rows[kept] = rows[i];
            kept += score >= bound;
        }
        *least = bound;
        return kept;
    }
    *least = select_best(scores, rows, count, n_best);
    return n_best;
}

static int is_excluded(const search_t *search, int64_t query, int64_t row) {
    for (int64_t group = 0; group < search->n_groups; group++) {
        int64_t own = search->query_groups[group * search->n_queries + query];
        const void *column = search->row_groups[group];
        if (own < 0) continue;
        if (own == (!column ? row : search->narrow[group] ? ((const int32_t *)column)[row] : ((const int64_t *)column)[row]))
            return 1;
    }
    return 0;
}

static void keep_candidate(const search_t *search, int64_t query, int64_t row, float score) {
    const int64_t n_best = search->n_best, capacity = search->capacity;
    float *scores = search->scores + query * capacity;
    int64_t *rows = search->rows + query * capacity, filled = search->filled[query];
    scores[filled] = score;
    rows[filled++] = row;
    if (filled == capacity) {
        const int64_t spare = capacity - n_best, more = n_best < spare ? n_best / 4 : spare / 4;
        filled = keep_best(scores, rows, filled, n_best, n_best + more, search->least + query);
    }
    search->filled[query] = filled;
}

static void add_candidate(const search_t *search, int64_t query, int64_t row, float score) {
    if (!is_excluded(search, query, row)) keep_candidate(search, query, row, score);
}

/* Add number i of a block of a sketch by its position, unless its row is excluded. */
static void add_position(const search_t *search, const sketch_block_t *block, int64_t query, int64_t i, float score) {
    const int64_t position = block->first + i, row = position - position % block->segment + block->offsets[i];
    if (!is_excluded(search, query, row)) keep_candidate(search, query, position, score);
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

void scan_sketch(
    const search_t *search, const sketch_block_t *block, const uint8_t *groups, const int8_t *weights,
    const sketch_terms_t *terms, const uint16_t *norms, const uint8_t *allowed, float *bounds
) {
    CHOOSE(scan_sketch)(search, block, groups, weights, terms, norms, allowed, bounds);
}

int64_t choose_sketch(
    const search_t *search, const sketch_block_t *block, const uint8_t *const *levels, int n_levels,
    const int8_t *weights, const sketch_terms_t *terms, const uint16_t *norms, float *bounds, const float *limits
) {
    return CHOOSE(choose_sketch)(search, block, levels, n_levels, weights, terms, norms, bounds, limits);
}

void score_pairs(
    const void *vectors, int kind, int64_t size, int metric, const double *queries, int64_t n_pairs,
    const int64_t *owners, const int64_t *numbers, double *scores
) {
    CHOOSE(score_pairs)(vectors, kind, size, metric, queries, n_pairs, owners, numbers, scores);
}
