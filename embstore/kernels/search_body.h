/* Exact search: rows are multiplied with all queries while they are in the cache, and each product is compared with the
   lowest score that is still useful to its query. No product is written to memory beyond the cache. */

#define PANEL (2 * WIDTH)                              /* queries of a panel: two vectors */
#define ROWS_AT_ONCE (WIDTH == 16 ? 12 : 6)             /* rows whose products with a panel fit the registers */
#define LANES (WIDTH / 2)                              /* doubles of a vector */
typedef double NAME(doubles) __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));
#define doubles NAME(doubles)
#define ROWS_OF_FEW (WIDTH == 16 ? 4 : 2)              /* and with a few queries */

INLINE TARGET floats NAME(load)(row_t row, const int kind, int64_t at, const float *center) {
    if (kind == FLOAT) return NAME(load_floats)((const float *)row.values + at);
    if (kind == HALF) return NAME(load_halves)((const uint16_t *)row.values + at);
    if (kind == BFLOAT) return NAME(load_bfloats)((const uint16_t *)row.values + at);
    floats value = NAME(load_codes)((const int8_t *)row.values + at) * row.scale;
    ROUND(value);
    return value + NAME(load_floats)(center + at);
}

INLINE TARGET float NAME(load_one)(row_t row, const int kind, int64_t at, const float *center) {
    if (kind == FLOAT) return ((const float *)row.values)[at];
    if (kind == HALF) return float_of_half(((const uint16_t *)row.values)[at]);
    if (kind == BFLOAT) return float_of_bfloat(((const uint16_t *)row.values)[at]);
    float value = ((const int8_t *)row.values)[at] * row.scale;
    ROUND(value);
    return value + center[at];
}

/* Sums of products of some rows, up to 4 queries and of the rows with themselves, in up to two vectors each. */
typedef struct {
    floats own[ROWS_OF_FEW][2], products[ROWS_OF_FEW][4][2];
} NAME(sums_t);

/* Add the products of features [at, at + n_parts * WIDTH), and fetch those of the rows ahead. */
INLINE TARGET void NAME(add_products)(
    const row_t *rows, const char *const *ahead, const int n_parts, const int kind, const reading_t *reading,
    const int centered, const float *queries, int64_t size, const int count, int64_t at, NAME(sums_t) *sums
) {
    UNROLL for (int row = 0; row < ROWS_OF_FEW; row++) FETCH(ahead[row] + nbytes_of(kind, at));
    UNROLL for (int part = 0; part < n_parts; part++, at += WIDTH) {
        UNROLL for (int row = 0; row < ROWS_OF_FEW; row++) {
            floats value = NAME(load)(rows[row], kind, at, reading->center);
            if (centered) value -= NAME(load_floats)(reading->mean + at);
            sums->own[row][part] += value * value;
            UNROLL for (int query = 0; query < count; query++)
                sums->products[row][query][part] += value * NAME(load_floats)(queries + query * size + at);
        }
    }
}

/* The products of ROWS_OF_FEW rows, minus the mean if `centered`, with `count` queries, and their squared lengths:
   several rows and `n_parts` vectors of each at a time, so that the processor waits for none of them. */
INLINE TARGET void NAME(dots)(
    const row_t *rows, const char *const *ahead, const int n_parts, const int kind, const reading_t *reading,
    const int centered, const float *queries, int64_t size, const int count, float (*scores)[FEW_QUERIES], float *squares
) {
    NAME(sums_t) sums = {{{{0}}}, {{{{0}}}}};
    int64_t j = 0;
    for (; j + n_parts * WIDTH <= size; j += n_parts * WIDTH)
        NAME(add_products)(rows, ahead, n_parts, kind, reading, centered, queries, size, count, j, &sums);
    if (j + WIDTH <= size)
        NAME(add_products)(rows, ahead, 1, kind, reading, centered, queries, size, count, j, &sums);
    UNROLL for (int row = 0; row < ROWS_OF_FEW; row++) {
        squares[row] = NAME(sum)(sums.own[row][0] + sums.own[row][1]);
        UNROLL for (int query = 0; query < count; query++)
            scores[row][query] = NAME(sum)(sums.products[row][query][0] + sums.products[row][query][1]);
        for (int64_t at = size / WIDTH * WIDTH; at < size; at++) {
            float value = NAME(load_one)(rows[row], kind, at, reading->center);
            if (centered) value -= reading->mean[at];
            squares[row] += value * value;
            for (int query = 0; query < count; query++) scores[row][query] += value * queries[query * size + at];
        }
    }
}

/* The same for up to FEW_QUERIES queries. */
INLINE TARGET void NAME(dots_few)(
    const row_t *rows, const char *const *ahead, const int kind, const reading_t *reading, const int centered,
    const float *queries, int64_t size, int64_t count, float (*scores)[FEW_QUERIES], float *squares
) {
    if (count == 4) NAME(dots)(rows, ahead, 1, kind, reading, centered, queries, size, 4, scores, squares);
    else if (count > 1) NAME(dots)(rows, ahead, 1, kind, reading, centered, queries, size, 2, scores, squares);
    if (count % 2 == 0) return;
    float last[ROWS_OF_FEW][FEW_QUERIES];
    NAME(dots)(rows, ahead, 2, kind, reading, centered, queries + (count - 1) * size, size, 1, last, squares);
    for (int row = 0; row < ROWS_OF_FEW; row++) scores[row][count - 1] = last[row][0];
}

/* A row minus the mean (NULL: none) as floats; returns its squared length. */
INLINE TARGET float NAME(read_row)(
    row_t from, const int kind, const float *center, const float *mean, int64_t size, float *row
) {
    floats own[2] = {{0}};
    int64_t j = 0;
    for (; j + 2 * WIDTH <= size; j += 2 * WIDTH)
        UNROLL for (int part = 0; part < 2; part++) {
            floats value = NAME(load)(from, kind, j + part * WIDTH, center);
            if (mean) value -= NAME(load_floats)(mean + j + part * WIDTH);
            NAME(store_floats)(row + j + part * WIDTH, value);
            own[part] += value * value;
        }
    float square = NAME(sum)(own[0] + own[1]);
    for (; j < size; j++) {
        row[j] = NAME(load_one)(from, kind, j, center);
        if (mean) row[j] -= mean[j];
        square += row[j] * row[j];
    }
    return square;
}

/* The squared length of a row of floats. */
INLINE TARGET float NAME(square_of)(float *row, int64_t size) {
    row_t own = {(const char *)row, 0};
    return NAME(read_row)(own, FLOAT, NULL, NULL, size, row);
}

/* Product times *scale minus *bias is a score that orders rows as the metric does. */
INLINE TARGET void NAME(measure)(const search_t *search, float square, float *scale, float *bias, float *longest) {
    *scale = search->metric == COSINE ? 1 / sqrtf(square) : 1;
    *bias = search->metric == DISTANCE ? square / 2 : 0;
    if (square > *longest) *longest = square;
}

/* Measure a row, in floats and minus the mean, of which float32 may not give the length; returns its state. */
TARGET static int NAME(transform_row)(
    const search_t *search, float square, float *row, float *scale, float *bias, float *longest
) {
    const int64_t size = search->size;
    if (search->metric != COSINE) {
        if (!(square < INFINITY)) return BAD;
    } else if (!(SMALLEST < square && square < INFINITY)) {
        float largest = largest_of(row, size);
        if (!(largest < INFINITY)) return BAD;
        if (search->mean) return UNSURE;
        for (int64_t j = 0; largest && j < size; j++) row[j] /= largest;
        square = largest ? NAME(square_of)(row, size) : 1;
    } else if (search->mean && sqrtf(square) + 2 * search->mean_length > CANCELLED * sqrtf(square)) {
        return UNSURE;
    }
    NAME(measure)(search, square, scale, bias, longest);
    return FINE;
}

/* Whether transform_row needs no look at the values of a row, as for most. */
INLINE TARGET int NAME(is_plain)(const reading_t *reading, float square) {
    return reading->least_square < square && square < INFINITY;
}

/* Add the row to the candidates of the queries of one vector, from `first` on, whose scores are above the least. */
INLINE TARGET void NAME(keep)(const search_t *search, floats scores, int64_t first, int64_t row) {
    uint32_t mask = NAME(above)(scores, NAME(load_floats)(search->least + first));
    if (!mask) return;
    float values[WIDTH];
    NAME(store_floats)(values, scores);
    for (; mask; mask &= mask - 1) {
        const int i = FIRST_BIT(mask);
        add_candidate(search, first + i, row, values[i]);
    }
}

/* Multiply rows of floats with a panel: products [ROWS_AT_ONCE, PANEL], added to those of the features before. With
   each feature, a line that the next chunk needs is fetched: it is `step` bytes further than that of the last one. */
INLINE TARGET void NAME(multiply)(
    const float *rows, int64_t stride, const float *panel, int64_t size, const int n_vectors, int is_first,
    const char *ahead, int64_t step, float *products
) {
    floats sums[ROWS_AT_ONCE][2];
    UNROLL for (int row = 0; row < ROWS_AT_ONCE; row++)
        UNROLL for (int part = 0; part < n_vectors; part++)
            sums[row][part] = is_first ? (floats){0} : NAME(load_floats)(products + row * PANEL + part * WIDTH);
    for (int64_t j = 0; j < size; j++) {
        floats values[2];
        FETCH(ahead + j * step);
        UNROLL for (int part = 0; part < n_vectors; part++)
            values[part] = NAME(load_floats)(panel + j * PANEL + part * WIDTH);
        UNROLL for (int row = 0; row < ROWS_AT_ONCE; row++)
            UNROLL for (int part = 0; part < n_vectors; part++) sums[row][part] += rows[row * stride + j] * values[part];
    }
    UNROLL for (int row = 0; row < ROWS_AT_ONCE; row++)
        UNROLL for (int part = 0; part < n_vectors; part++)
            NAME(store_floats)(products + row * PANEL + part * WIDTH, sums[row][part]);
}

/* A chunk of rows in floats: a score is product * scale - bias. `ahead`: the rows after them, NULL if not known. */
typedef struct {
    const float *rows, *scale, *bias;
    int64_t stride, n, first;
    const char *ahead;
    int64_t row_nbytes;
} NAME(chunk_t);

/* Multiply a chunk with a panel of queries, a few features at a time, and keep the candidates. */
INLINE TARGET void NAME(search_panel)(
    const search_t *search, const block_t *block, const NAME(chunk_t) *chunk, int64_t first_query, const int n_vectors,
    float *products
) {
    const float *panel = aligned(search->panels) + first_query * search->size;
    const int fetches = chunk->ahead && first_query == 0;
    const int64_t step = fetches ? ROWS_AT_ONCE * chunk->row_nbytes / search->size : 0;
    for (int64_t j = 0; j < search->size; j += FEATURES) {
        int64_t features = search->size - j < FEATURES ? search->size - j : FEATURES;
        for (int64_t i = 0; i < chunk->n; i += ROWS_AT_ONCE) {
            const char *ahead = fetches ? chunk->ahead + i * chunk->row_nbytes + j * step : (const char *)panel;
            NAME(multiply)(
                chunk->rows + i * chunk->stride + j, chunk->stride, panel + j * PANEL, features, n_vectors, j == 0,
                ahead, step, products + i * PANEL);
        }
    }
    for (int64_t i = 0; i < chunk->n; i++)
        for (int part = 0; part < n_vectors; part++) {
            floats scores = NAME(load_floats)(products + i * PANEL + part * WIDTH) * chunk->scale[i] - chunk->bias[i];
            NAME(keep)(search, scores, first_query + part * WIDTH, number_of(block, chunk->first + i));
        }
}

/* The score of each query with a row that float32 does not compare as it is; returns its state. */
TARGET static int NAME(score_odd)(
    const search_t *search, const reading_t *reading, row_t row, int kind, float *scores, float *longest
) {
    float scale, bias, products[ROWS_OF_FEW][FEW_QUERIES], squares[ROWS_OF_FEW], *buffer = search->buffer;
    row_t rows[ROWS_OF_FEW];
    const char *ahead[ROWS_OF_FEW];
    for (int i = 0; i < ROWS_OF_FEW; i++) rows[i].values = ahead[i] = (const char *)buffer;
    float square = NAME(read_row)(row, kind, reading->center, reading->mean, search->size, buffer);
    int state = NAME(transform_row)(search, square, buffer, &scale, &bias, longest);
    if (state != FINE) return state;
    NAME(dots_few)(
        rows, ahead, FLOAT, reading, 0, search->queries, search->size, search->n_queries, products, squares);
    for (int64_t query = 0; query < search->n_queries; query++) scores[query] = products[0][query] * scale - bias;
    return FINE;
}

/* Score row i of each of ROWS_OF_FEW parts of the block, as far as there are; returns how many are not FINE. */
INLINE TARGET int64_t NAME(search_group)(
    const search_t *search, const block_t *block, const reading_t *reading, const int kind, const int centered,
    int64_t i, uint8_t *state, float *longest
) {
    const int64_t part_rows = (block->n + ROWS_OF_FEW - 1) / ROWS_OF_FEW, last = block->n - 1;
    const int64_t size = search->size, nbytes = nbytes_of(kind, size), lead = AHEAD_NBYTES / nbytes + 1;
    float scores[ROWS_OF_FEW][FEW_QUERIES], squares[ROWS_OF_FEW], scale, bias;
    row_t rows[ROWS_OF_FEW];
    const char *ahead[ROWS_OF_FEW];
    int64_t n_other = 0;
    UNROLL for (int row = 0; row < ROWS_OF_FEW; row++) {
        const int64_t own = i + row * part_rows, next = own + lead;
        rows[row] = row_of(block, kind, size, own < last ? own : last);
        ahead[row] = row_of(block, kind, size, next < last ? next : last).values;
    }
    NAME(dots_few)(rows, ahead, kind, reading, centered, search->queries, size, search->n_queries, scores, squares);
    for (int row = 0; row < ROWS_OF_FEW; row++) {
        const int64_t own = i + row * part_rows;
        if (own > last) break;
        state[own] = FINE;
        if (NAME(is_plain)(reading, squares[row])) {
            NAME(measure)(search, squares[row], &scale, &bias, longest);
            for (int64_t query = 0; query < search->n_queries; query++)
                scores[row][query] = scores[row][query] * scale - bias;
        } else {
            state[own] = (uint8_t)NAME(score_odd)(search, reading, rows[row], kind, scores[row], longest);
            if (state[own] != FINE) {
                n_other++;
                continue;
            }
        }
        for (int64_t query = 0; query < search->n_queries; query++)
            if (scores[row][query] > search->least[query])
                add_candidate(search, query, number_of(block, own), scores[row][query]);
    }
    return n_other;
}

INLINE TARGET int64_t NAME(search_few)(
    const search_t *search, const block_t *block, const int kind, const int centered, uint8_t *state, float *longest
) {
    const reading_t reading = reading_of(search, block);
    int64_t n_other = 0;
    for (int64_t i = 0; i * ROWS_OF_FEW < block->n; i++)
        n_other += NAME(search_group)(search, block, &reading, kind, centered, i, state, longest);
    return n_other;
}

/* Read rows [start, start + count) of the block into a chunk; returns how many are not FINE. */
INLINE TARGET int64_t NAME(read_chunk)(
    const search_t *search, const block_t *block, const reading_t *reading, const int kind, int64_t start,
    int64_t count, int64_t stride, float *chunk, float *scale, float *bias, uint8_t *state, float *longest
) {
    const int64_t size = search->size, nbytes = nbytes_of(kind, size), lead = AHEAD_NBYTES / nbytes + 1;
    int64_t n_other = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t next = start + i + lead;
        const char *ahead = row_of(block, kind, size, next < block->n ? next : block->n - 1).values;
        for (int64_t at = 0; at < nbytes; at += 64) FETCH(ahead + at);
        const row_t from = row_of(block, kind, size, start + i);
        float *row = chunk + i * stride, square;
        square = NAME(read_row)(from, kind, reading->center, reading->mean, size, row);
        state[start + i] = FINE;
        if (NAME(is_plain)(reading, square)) {
            NAME(measure)(search, square, scale + i, bias + i, longest);
            continue;
        }
        state[start + i] = (uint8_t)NAME(transform_row)(search, square, row, scale + i, bias + i, longest);
        if (state[start + i] != FINE) {
            n_other++;
            memset(row, 0, size * sizeof(float));
            bias[i] = INFINITY;
        }
    }
    return n_other;
}

INLINE TARGET int64_t NAME(search_many)(
    const search_t *search, const block_t *block, const int kind, uint8_t *state, float *longest
) {
    const reading_t reading = reading_of(search, block);
    const int64_t size = search->size, stride = stride_of(size), most = chunk_rows(size, search->n_queries);
    float *scale = aligned(search->buffer), *bias = scale + most, *rows = bias + most, *products = rows + most * stride;
    int64_t n_other = 0;
    for (int64_t start = 0; start < block->n; start += most) {
        const int64_t count = block->n - start < most ? block->n - start : most;
        n_other += NAME(read_chunk)(
            search, block, &reading, kind, start, count, stride, rows, scale, bias, state, longest);
        const char *ahead = block->spread ? NULL : row_of(block, kind, size, start).values + count * nbytes_of(kind, size);
        const NAME(chunk_t) chunk = {rows, scale, bias, stride, count, start, ahead, nbytes_of(kind, size)};
        for (int64_t query = 0; query < search->n_queries; query += PANEL)
            if (search->n_queries - query > WIDTH) NAME(search_panel)(search, block, &chunk, query, 2, products);
            else NAME(search_panel)(search, block, &chunk, query, 1, products);
    }
    return n_other;
}

INLINE TARGET int64_t NAME(search_kind)(
    const search_t *search, const block_t *block, const int kind, uint8_t *state, float *longest
) {
    if (search->panels) return NAME(search_many)(search, block, kind, state, longest);
    if (search->mean) return NAME(search_few)(search, block, kind, 1, state, longest);
    return NAME(search_few)(search, block, kind, 0, state, longest);
}

TARGET static int64_t NAME(search_rows)(
    const search_t *search, const block_t *block, uint8_t *state, float *longest
) {
    if (block->kind == HALF) return NAME(search_kind)(search, block, HALF, state, longest);
    if (block->kind == BFLOAT) return NAME(search_kind)(search, block, BFLOAT, state, longest);
    if (block->kind == CODES) return NAME(search_kind)(search, block, CODES, state, longest);
    return NAME(search_kind)(search, block, FLOAT, state, longest);
}

TARGET static int64_t NAME(panel_queries)(void) {
    return PANEL;
}

TARGET static void NAME(pack_queries)(const float *queries, int64_t n_queries, int64_t size, float *panels) {
    panels = aligned(panels);
    for (int64_t first = 0; first < n_queries; first += PANEL, panels += PANEL * size)
        for (int64_t query = 0; query < PANEL; query++)
            for (int64_t j = 0; j < size; j++)
                panels[j * PANEL + query] = first + query < n_queries ? queries[(first + query) * size + j] : 0;
}

INLINE TARGET double NAME(load_double)(const void *from, const int kind, int64_t at) {
    const row_t row = {from, 0};
    return kind == DOUBLE ? ((const double *)from)[at] : NAME(load_one)(row, kind, at, NULL);
}

/* LANES numbers from `at` on. */
INLINE TARGET doubles NAME(load_doubles)(const void *from, const int kind, int64_t at) {
#ifdef WIDTH_16
    const __m128i *halves_at = (const __m128i *)((const uint16_t *)from + at);
    if (kind == FLOAT) return (doubles)_mm512_cvtps_pd(_mm256_loadu_ps((const float *)from + at));
    if (kind == HALF) return (doubles)_mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(halves_at)));
#elif defined(WIDTH_8)
    const __m128i *halves_at = (const __m128i *)((const uint16_t *)from + at);
    if (kind == FLOAT) return (doubles)_mm256_cvtps_pd(_mm_loadu_ps((const float *)from + at));
    if (kind == HALF) return (doubles)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(halves_at)));
#endif
    if (kind == DOUBLE) return *(const doubles *)((const double *)from + at);
    double values[LANES];
    for (int i = 0; i < LANES; i++) values[i] = NAME(load_double)(from, kind, at + i);
    return *(const doubles *)values;
}

/* Vector i of sums has every fourth vector of numbers, from vector i on. */
INLINE TARGET double NAME(score_pair)(
    const void *row, const int kind, int64_t size, const int metric, const double *query
) {
    enum { SUMS = 4 };
    doubles products[SUMS] = {{0}}, squares[SUMS] = {{0}};
    int64_t j = 0;
    for (; j + SUMS * LANES <= size; j += SUMS * LANES)
        UNROLL for (int i = 0; i < SUMS; i++) {
            const doubles other = *(const doubles *)(query + j + i * LANES);
            doubles own = NAME(load_doubles)(row, kind, j + i * LANES);
            if (metric == DISTANCE) own -= other;
            if (metric != DISTANCE) products[i] += own * other;
            if (metric != PRODUCT) squares[i] += own * own;
        }
    double sums[2] = {0}, parts[2][LANES];
    *(doubles *)parts[0] = (products[0] + products[1]) + (products[2] + products[3]);
    *(doubles *)parts[1] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    for (int i = 0; i < LANES; i++) sums[0] += parts[0][i], sums[1] += parts[1][i];
    for (; j < size; j++) {
        const double value = NAME(load_double)(row, kind, j), own = metric == DISTANCE ? value - query[j] : value;
        sums[0] += value * query[j];
        sums[1] += own * own;
    }
    if (metric == DISTANCE) return sqrt(sums[1]);
    if (metric == PRODUCT) return sums[0];
    return sums[1] == 0 ? 0 : sums[0] / sqrt(sums[1]);  /* NaN for a row that is not finite */
}

INLINE TARGET void NAME(score_kind)(
    const void *vectors, const int kind, int64_t size, const int metric, const double *queries, int64_t n_pairs,
    const int64_t *owners, const int64_t *numbers, double *scores
) {
    const int64_t nbytes = size * (kind == DOUBLE ? 8 : kind == FLOAT ? 4 : 2);
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        const int64_t next = pair + PREFETCH_PAIRS < n_pairs ? pair + PREFETCH_PAIRS : pair;
        const char *row = (const char *)vectors + numbers[pair] * nbytes;
        const char *ahead = (const char *)vectors + numbers[next] * nbytes;
        if (numbers[next] != numbers[pair])
            for (int64_t at = 0; at < nbytes; at += 64) FETCH(ahead + at);
        scores[pair] = NAME(score_pair)(row, kind, size, metric, queries + owners[pair] * size);
    }
}

#define SCORE(kind) \
    if (metric == DISTANCE) \
        NAME(score_kind)(vectors, kind, size, DISTANCE, queries, n_pairs, owners, numbers, scores); \
    else if (metric == PRODUCT) \
        NAME(score_kind)(vectors, kind, size, PRODUCT, queries, n_pairs, owners, numbers, scores); \
    else \
        NAME(score_kind)(vectors, kind, size, COSINE, queries, n_pairs, owners, numbers, scores)

TARGET static void NAME(score_pairs)(
    const void *vectors, int kind, int64_t size, int metric, const double *queries, int64_t n_pairs,
    const int64_t *owners, const int64_t *numbers, double *scores
) {
    if (kind == DOUBLE) SCORE(DOUBLE);
    else if (kind == HALF) SCORE(HALF);
    else if (kind == BFLOAT) SCORE(BFLOAT);
    else SCORE(FLOAT);
}

#undef SCORE
#undef PANEL
#undef ROWS_AT_ONCE
#undef ROWS_OF_FEW
#undef LANES
#undef doubles

#include "sketch_body.h"
