/* Exact search: rows are multiplied with all queries while they are in the cache, and each product is compared with the
   lowest score that is still useful to its query. No product is written to memory beyond the cache. */

#define PANEL (2 * WIDTH)                              /* queries of a panel: two vectors */
#define ROWS_AT_ONCE (WIDTH == 16 ? 12 : WIDTH == 1 ? 4 : 6)  /* rows whose products with a panel fit the registers */

INLINE TARGET floats NAME(load)(const void *from, const int kind, int64_t at) {
    if (kind == HALF) return NAME(load_halves)((const uint16_t *)from + at);
    if (kind == FLOAT) return NAME(load_floats)((const float *)from + at);
    float values[WIDTH];
    for (int i = 0; i < WIDTH; i++) values[i] = float_of_bfloat(((const uint16_t *)from)[at + i]);
    return NAME(load_floats)(values);
}

INLINE TARGET float NAME(load_one)(const void *from, const int kind, int64_t at) {
    if (kind == HALF) return float_of_half(((const uint16_t *)from)[at]);
    if (kind == FLOAT) return ((const float *)from)[at];
    return float_of_bfloat(((const uint16_t *)from)[at]);
}

/* The products of a row with `count` queries, at most 4; returns its squared length. */
INLINE TARGET float NAME(dots)(
    const void *row, const int kind, const float *queries, int64_t size, const int count, float *scores
) {
    floats own[2] = {{0}}, products[4][2] = {{{0}}};
    int64_t j = 0;
    for (; j + WIDTH <= size; j += 2 * WIDTH) {
        const int parts = j + 2 * WIDTH <= size ? 2 : 1;
        UNROLL for (int part = 0; part < parts; part++) {
            floats value = NAME(load)(row, kind, j + part * WIDTH);
            own[part] += value * value;
            UNROLL for (int query = 0; query < count; query++)
                products[query][part] += value * NAME(load_floats)(queries + query * size + j + part * WIDTH);
        }
    }
    float square = NAME(sum)(own[0] + own[1]);
    UNROLL for (int query = 0; query < count; query++) scores[query] = NAME(sum)(products[query][0] + products[query][1]);
    for (j = size / WIDTH * WIDTH; j < size; j++) {
        float value = NAME(load_one)(row, kind, j);
        square += value * value;
        for (int query = 0; query < count; query++) scores[query] += value * queries[query * size + j];
    }
    return square;
}

INLINE TARGET float NAME(dots_few)(
    const void *row, const int kind, const float *queries, int64_t size, int64_t count, float *scores
) {
    float square = 0;
    for (; count >= 4; count -= 4, queries += 4 * size, scores += 4)
        square = NAME(dots)(row, kind, queries, size, 4, scores);
    if (count == 3) return NAME(dots)(row, kind, queries, size, 3, scores);
    if (count == 2) return NAME(dots)(row, kind, queries, size, 2, scores);
    if (count == 1) return NAME(dots)(row, kind, queries, size, 1, scores);
    return square;
}

/* A row as floats; returns its squared length. */
INLINE TARGET float NAME(read_row)(const void *from, const int kind, int64_t size, float *row) {
    floats own[2] = {{0}};
    int64_t j = 0;
    for (; j + 2 * WIDTH <= size; j += 2 * WIDTH)
        UNROLL for (int part = 0; part < 2; part++) {
            floats value = NAME(load)(from, kind, j + part * WIDTH);
            NAME(store_floats)(row + j + part * WIDTH, value);
            own[part] += value * value;
        }
    float square = NAME(sum)(own[0] + own[1]);
    for (; j < size; j++) {
        row[j] = NAME(load_one)(from, kind, j);
        square += row[j] * row[j];
    }
    return square;
}

/* Remove components from a row of floats: their products with it are float64. */
TARGET static void NAME(project_out)(const double *components, int64_t n_components, int64_t size, float *row) {
    for (; n_components--; components += size) {
        double parts[8] = {0};
        int64_t j = 0;
        for (; j + 8 <= size; j += 8)
            UNROLL for (int i = 0; i < 8; i++) parts[i] += (double)row[j + i] * components[j + i];
        for (; j < size; j++) parts[0] += (double)row[j] * components[j];
        double along = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
        for (j = 0; j < size; j++) row[j] -= (float)(along * components[j]);
    }
}

/* The row, in floats, as it is compared, but for its length: product times *scale minus *bias is a score that orders
   rows as the metric does. */
TARGET static int NAME(transform_row)(
    const search_t *search, float square, float *row, float *scale, float *bias, float *longest
) {
    const int64_t size = search->size;
    *scale = 1;
    *bias = 0;
    if (search->mean) {
        for (int64_t j = 0; j < size; j++) row[j] -= search->mean[j];
        square = NAME(read_row)(row, FLOAT, size, row);
    }
    float subtracted = sqrtf(square) + 2 * search->mean_length;
    if (search->n_components) {
        NAME(project_out)(search->components, search->n_components, size, row);
        square = NAME(read_row)(row, FLOAT, size, row);
    }
    if (search->metric != COSINE) {
        if (!(square < INFINITY)) return BAD;
        if (square > *longest) *longest = square;
        if (search->metric == DISTANCE) *bias = square / 2;
        return FINE;
    }
    if (!(SMALLEST < square && square < INFINITY)) {
        float largest = largest_of(row, size);
        if (!(largest < INFINITY)) return BAD;
        if (search->mean) return UNSURE;
        if (largest == 0) return FINE;
        for (int64_t j = 0; j < size; j++) row[j] /= largest;
        square = NAME(read_row)(row, FLOAT, size, row);
    } else if (search->mean && subtracted > CANCELLED * sqrtf(square)) {
        return UNSURE;
    }
    *scale = 1 / sqrtf(square);
    return FINE;
}

/* Like transform_row for a row as it is stored, of squared length `square`; most rows need no look at their values. */
INLINE TARGET int NAME(is_plain)(const search_t *search, float square) {
    return !search->mean && SMALLEST < square && square < INFINITY;
}

INLINE TARGET void NAME(measure)(const search_t *search, float square, float *scale, float *bias, float *longest) {
    *scale = search->metric == COSINE ? 1 / sqrtf(square) : 1;
    *bias = search->metric == DISTANCE ? square / 2 : 0;
    if (square > *longest) *longest = square;
}

/* Add the row to the candidates of the queries of one vector, from `first` on, whose scores are above the least. */
INLINE TARGET void NAME(keep)(const search_t *search, floats scores, int64_t first, int64_t row) {
    uint32_t mask = NAME(above)(scores, NAME(load_floats)(search->least + first));
    if (!mask) return;
    float values[WIDTH];
    NAME(store_floats)(values, scores);
    for (int i = 0; mask; i++, mask >>= 1)
        if (mask & 1) add_candidate(search, first + i, row, values[i]);
}

/* Multiply rows of floats with a panel: products [ROWS_AT_ONCE, PANEL], added to those of the features before. */
INLINE TARGET void NAME(multiply)(
    const float *rows, int64_t stride, const float *panel, int64_t size, const int n_vectors, int is_first, float *products
) {
    floats sums[ROWS_AT_ONCE][2];
    UNROLL for (int row = 0; row < ROWS_AT_ONCE; row++)
        UNROLL for (int part = 0; part < n_vectors; part++)
            sums[row][part] = is_first ? (floats){0} : NAME(load_floats)(products + row * PANEL + part * WIDTH);
    for (int64_t j = 0; j < size; j++) {
        floats values[2];
        UNROLL for (int part = 0; part < n_vectors; part++)
            values[part] = NAME(load_floats)(panel + j * PANEL + part * WIDTH);
        UNROLL for (int row = 0; row < ROWS_AT_ONCE; row++)
            UNROLL for (int part = 0; part < n_vectors; part++) sums[row][part] += rows[row * stride + j] * values[part];
    }
    UNROLL for (int row = 0; row < ROWS_AT_ONCE; row++)
        UNROLL for (int part = 0; part < n_vectors; part++)
            NAME(store_floats)(products + row * PANEL + part * WIDTH, sums[row][part]);
}

/* Multiply a chunk of n rows with a panel of queries, a few features at a time, and keep the candidates. */
INLINE TARGET void NAME(search_panel)(
    const search_t *search, const float *chunk, int64_t stride, int64_t n, const float *scale, const float *bias,
    const int64_t *rows, int64_t first_query, const int n_vectors, float *products
) {
    const float *panel = aligned(search->panels) + first_query * search->size;
    for (int64_t j = 0; j < search->size; j += FEATURES) {
        int64_t features = search->size - j < FEATURES ? search->size - j : FEATURES;
        for (int64_t i = 0; i < n; i += ROWS_AT_ONCE)
            NAME(multiply)(
                chunk + i * stride + j, stride, panel + j * PANEL, features, n_vectors, j == 0, products + i * PANEL);
    }
    for (int64_t i = 0; i < n; i++)
        for (int part = 0; part < n_vectors; part++) {
            floats scores = NAME(load_floats)(products + i * PANEL + part * WIDTH) * scale[i] - bias[i];
            NAME(keep)(search, scores, first_query + part * WIDTH, rows[i]);
        }
}

INLINE TARGET int64_t NAME(search_few)(
    const search_t *search, const void *vectors, const int kind, int64_t n, const int64_t *rows, uint8_t *state,
    float *longest
) {
    const int64_t size = search->size;
    int64_t n_other = 0;
    float scores[FEW_QUERIES], *row = search->buffer;
    for (int64_t i = 0; i < n; i++) {
        const void *from = (const char *)vectors + i * size * (kind == FLOAT ? 4 : 2);
        prefetch(from, size * (kind == FLOAT ? 4 : 2));
        float scale, bias, square = NAME(dots_few)(from, kind, search->queries, size, search->n_queries, scores);
        state[i] = FINE;
        if (NAME(is_plain)(search, square)) {
            NAME(measure)(search, square, &scale, &bias, longest);
        } else {
            square = NAME(read_row)(from, kind, size, row);
            state[i] = (uint8_t)NAME(transform_row)(search, square, row, &scale, &bias, longest);
            if (state[i] != FINE) {
                n_other++;
                continue;
            }
            NAME(dots_few)(row, FLOAT, search->queries, size, search->n_queries, scores);
        }
        for (int64_t query = 0; query < search->n_queries; query++) {
            float score = scores[query] * scale - bias;
            if (score > search->least[query]) add_candidate(search, query, rows[i], score);
        }
    }
    return n_other;
}

INLINE TARGET int64_t NAME(search_many)(
    const search_t *search, const void *vectors, const int kind, int64_t n, const int64_t *rows, uint8_t *state,
    float *longest
) {
    const int64_t size = search->size, stride = stride_of(size), most = chunk_rows(size, search->n_queries);
    float *scale = aligned(search->buffer), *bias = scale + most, *chunk = bias + most, *products = chunk + most * stride;
    int64_t n_other = 0;
    for (int64_t start = 0; start < n; start += most) {
        int64_t count = n - start < most ? n - start : most;
        for (int64_t i = 0; i < count; i++) {
            const void *from = (const char *)vectors + (start + i) * size * (kind == FLOAT ? 4 : 2);
            prefetch(from, size * (kind == FLOAT ? 4 : 2));
            float *row = chunk + i * stride, square = NAME(read_row)(from, kind, size, row);
            state[start + i] = FINE;
            if (NAME(is_plain)(search, square)) {
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
        for (int64_t query = 0; query < search->n_queries; query += PANEL)
            if (search->n_queries - query > WIDTH)
                NAME(search_panel)(search, chunk, stride, count, scale, bias, rows + start, query, 2, products);
            else
                NAME(search_panel)(search, chunk, stride, count, scale, bias, rows + start, query, 1, products);
    }
    return n_other;
}

TARGET static int64_t NAME(search_rows)(
    const search_t *search, const void *vectors, int kind, int64_t n, const int64_t *rows, uint8_t *state,
    float *longest
) {
    if (search->panels) {
        if (kind == HALF) return NAME(search_many)(search, vectors, HALF, n, rows, state, longest);
        if (kind == BFLOAT) return NAME(search_many)(search, vectors, BFLOAT, n, rows, state, longest);
        return NAME(search_many)(search, vectors, FLOAT, n, rows, state, longest);
    }
    if (kind == HALF) return NAME(search_few)(search, vectors, HALF, n, rows, state, longest);
    if (kind == BFLOAT) return NAME(search_few)(search, vectors, BFLOAT, n, rows, state, longest);
    return NAME(search_few)(search, vectors, FLOAT, n, rows, state, longest);
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
    return kind == DOUBLE ? ((const double *)from)[at] : NAME(load_one)(from, kind, at);
}

INLINE TARGET double NAME(score_pair)(const void *row, const int kind, int64_t size, int metric, const double *query) {
    double products[8] = {0}, squares[8] = {0};
    int64_t j = 0;
    for (; j < size; j += 8) {
        double values[8] = {0};
        const int64_t count = size - j < 8 ? size - j : 8;
        if (count == 8)
            UNROLL for (int i = 0; i < 8; i++) values[i] = NAME(load_double)(row, kind, j + i);
        else
            for (int64_t i = 0; i < count; i++) values[i] = NAME(load_double)(row, kind, j + i);
        for (int i = 0; i < (count == 8 ? 8 : count); i++) {
            double own = metric == DISTANCE ? values[i] - query[j + i] : values[i];
            products[i] += values[i] * query[j + i];
            squares[i] += own * own;
        }
    }
    for (int half = 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++) products[i] += products[i + half], squares[i] += squares[i + half];
    if (metric == DISTANCE) return sqrt(squares[0]);
    if (metric == PRODUCT) return products[0];
    return squares[0] > 0 ? products[0] / sqrt(squares[0]) : 0;
}

TARGET static void NAME(score_pairs)(
    const void *vectors, int kind, int64_t size, int metric, const double *queries, int64_t n_pairs,
    const int64_t *owners, const int64_t *numbers, double *scores
) {
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        const double *query = queries + owners[pair] * size;
        const void *row = (const char *)vectors + numbers[pair] * size * (kind == DOUBLE ? 8 : kind == FLOAT ? 4 : 2);
        if (kind == DOUBLE) scores[pair] = NAME(score_pair)(row, DOUBLE, size, metric, query);
        else if (kind == HALF) scores[pair] = NAME(score_pair)(row, HALF, size, metric, query);
        else if (kind == BFLOAT) scores[pair] = NAME(score_pair)(row, BFLOAT, size, metric, query);
        else scores[pair] = NAME(score_pair)(row, FLOAT, size, metric, query);
    }
}

#undef PANEL
#undef ROWS_AT_ONCE
