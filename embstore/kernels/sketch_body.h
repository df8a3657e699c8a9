/* Sketches: codes of 4 bits in levels of 64 features, which are multiplied with queries of 8 bits, 16 rows at a time, in
   integers. */

/* The integer products of a group of rows with a query: 4 features of each row fill 32 bits, and the sums of 8 products
   of codes and weights, 2 x 8 x 15 x 127 at most, fit 16 bits. */
INLINE TARGET void NAME(multiply_group)(const uint8_t *codes, const int8_t *weights, int32_t *products) {
#if WIDTH >= 8
    int32_t own[SKETCH_SIZE / 4];
    memcpy(own, weights, SKETCH_SIZE);
#endif
#ifdef WIDTH_16
    const __m512i mask = _mm512_set1_epi8(0xF), ones = _mm512_set1_epi16(1);
    __m512i low = _mm512_setzero_si512(), high = low;
    UNROLL for (int part = 0; part < SKETCH_SIZE / 8; part++) {
        const __m512i bytes = _mm512_loadu_si512(codes + 4 * SKETCH_GROUP * part);
        const __m512i other = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask), even = _mm512_and_si512(bytes, mask);
        low = _mm512_add_epi16(low, _mm512_maddubs_epi16(even, _mm512_set1_epi32(own[2 * part])));
        high = _mm512_add_epi16(high, _mm512_maddubs_epi16(other, _mm512_set1_epi32(own[2 * part + 1])));
    }
    _mm512_storeu_si512(products, _mm512_add_epi32(_mm512_madd_epi16(low, ones), _mm512_madd_epi16(high, ones)));
#elif defined(WIDTH_8)
    const __m256i mask = _mm256_set1_epi8(0xF), ones = _mm256_set1_epi16(1);
    __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, high[2] = {low[0], low[0]};
    UNROLL for (int part = 0; part < SKETCH_SIZE / 8; part++) UNROLL for (int half = 0; half < 2; half++) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)(codes + 4 * SKETCH_GROUP * part + 32 * half));
        const __m256i other = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask), even = _mm256_and_si256(bytes, mask);
        low[half] = _mm256_add_epi16(low[half], _mm256_maddubs_epi16(even, _mm256_set1_epi32(own[2 * part])));
        high[half] = _mm256_add_epi16(high[half], _mm256_maddubs_epi16(other, _mm256_set1_epi32(own[2 * part + 1])));
    }
    UNROLL for (int half = 0; half < 2; half++) {
        const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(low[half], ones), _mm256_madd_epi16(high[half], ones));
        _mm256_storeu_si256((__m256i *)(products + 8 * half), sum);
    }
#else
    for (int i = 0; i < SKETCH_GROUP; i++) products[i] = 0;
    for (int part = 0; part < SKETCH_SIZE / 8; part++, weights += 8)
        for (int at = 0; at < 4 * SKETCH_GROUP; at++, codes++)
            products[at / 4] += (*codes & 0xF) * weights[at % 4] + (*codes >> 4) * weights[at % 4 + 4];
#endif
}

/* The values of a group of rows: their bounds without what all further levels may add. */
INLINE TARGET void NAME(values_of)(
    const uint8_t *group, const sketch_terms_t *own, const float *bounds, float *values
) {
    const uint16_t *stored = (const uint16_t *)(group + SKETCH_GROUP * SKETCH_SIZE / 2) + 2 * SKETCH_GROUP;
    for (int i = 0; i < SKETCH_GROUP; i += WIDTH) {
        const floats tails = NAME(load_bfloats)(stored + i);
        NAME(store_floats)(values + i, NAME(load_floats)(bounds + i) - own->of_tail * tails);
    }
}

/* Add a level to the values of a group of rows, and set their bounds. */
INLINE TARGET void NAME(add_level)(
    const uint8_t *group, const int8_t *weights, const sketch_terms_t *own, float *values, float *bounds
) {
    int32_t products[SKETCH_GROUP];
    float lengths[3 * SKETCH_GROUP];
    const uint16_t *stored = (const uint16_t *)(group + SKETCH_GROUP * SKETCH_SIZE / 2);
    for (int i = 0; i < 3 * SKETCH_GROUP; i += WIDTH) NAME(store_floats)(lengths + i, NAME(load_bfloats)(stored + i));
    NAME(multiply_group)(group, weights, products);
    for (int i = 0; i < SKETCH_GROUP; i++) {
        const float product = own->step * (float)(2 * products[i] - own->offset) + own->spread;
        values[i] += lengths[i] * product + own->of_error * lengths[SKETCH_GROUP + i];
        bounds[i] = values[i] + own->of_tail * lengths[2 * SKETCH_GROUP + i];
    }
}

/* WIDTH norms as floats. */
INLINE TARGET floats NAME(load_norms)(const uint16_t *from) {
    typedef uint32_t numbers __attribute__((vector_size(4 * WIDTH)));
    return (floats)((numbers)NAME(load_bfloats)(from) >> 1);
}

/* Bit i says whether the bound of row at + i is above the limit, times its norm if the score is divided by that. */
INLINE TARGET uint32_t NAME(open_rows)(
    const float *bounds, const uint16_t *norms, int64_t at, int divides, float limit
) {
    uint32_t open = 0;
    UNROLL for (int i = 0; i < SKETCH_GROUP; i += WIDTH) {
        floats limits = (floats){0} + limit;
        if (divides) limits *= NAME(load_norms)(norms + at + i);
        open |= NAME(above)(NAME(load_floats)(bounds + at + i), limits) << i;
    }
    return open;
}

/* Set the bounds of one group of rows by the first level, and add the likely ones. */
INLINE TARGET void NAME(scan_group)(
    const search_t *search, const sketch_block_t *block, const uint8_t *group, const int8_t *weights,
    const sketch_terms_t *terms, const uint16_t *norms, const uint8_t *allowed, float *bounds, int64_t start
) {
    const int64_t last = block->n - start < SKETCH_GROUP ? block->n - start : SKETCH_GROUP;
    float norm[SKETCH_GROUP] = {0};
    for (int i = 0; norms && i < SKETCH_GROUP; i += WIDTH)
        NAME(store_floats)(norm + i, NAME(load_norms)(norms + start + i));
    for (int64_t query = 0; query < search->n_queries; query++) {
        const sketch_terms_t own = terms[query];
        const float least = search->least[query];
        float *bound = bounds + query * block->stride + start, value[SKETCH_GROUP], likely[SKETCH_GROUP];
        if (least == INFINITY) continue;
        for (int i = 0; i < SKETCH_GROUP; i++)
            value[i] = own.base + (own.of_norm + own.of_square * norm[i]) * norm[i];
        NAME(add_level)(group, weights + query * SKETCH_SIZE, &own, value, bound);
        if (allowed || last < SKETCH_GROUP)
            for (int i = 0; i < SKETCH_GROUP; i++)
                if (i >= last || (allowed && !allowed[start + i])) bound[i] = -INFINITY;
        for (int i = 0; i < SKETCH_GROUP; i++) {
            const float between = 0.75f * value[i] + 0.25f * bound[i];
            likely[i] = own.divides ? (norm[i] > 0 ? between / norm[i] : bound[i] < 0 ? bound[i] : 0) : between;
        }
        uint32_t above = NAME(open_rows)(likely, NULL, 0, 0, least);
        for (; above; above &= above - 1) {
            const int i = FIRST_BIT(above);
            if (likely[i] > search->least[query]) add_position(search, block, query, start + i, likely[i]);
        }
    }
}

TARGET static void NAME(scan_sketch)(
    const search_t *search, const sketch_block_t *block, const uint8_t *groups, const int8_t *weights,
    const sketch_terms_t *terms, const uint16_t *norms, const uint8_t *allowed, float *bounds
) {
    enum { STREAMS = 4, AHEAD = 4 };  /* the processor reads several parts at a time faster than one */
    const int64_t n_groups = (block->n + SKETCH_GROUP - 1) / SKETCH_GROUP, each = (n_groups + STREAMS - 1) / STREAMS;
    for (int64_t i = 0; i < each; i++)
        for (int64_t number = i; number < n_groups; number += each) {
            const uint8_t *group = groups + number * SKETCH_GROUP_NBYTES;
            for (int at = 0; at < SKETCH_GROUP_NBYTES; at += 64) FETCH(group + AHEAD * SKETCH_GROUP_NBYTES + at);
            NAME(scan_group)(search, block, group, weights, terms, norms, allowed, bounds, number * SKETCH_GROUP);
        }
}

/* Of a list of groups, add a level to the bounds of their rows; keeps those of which a row is open still. */
INLINE TARGET int NAME(narrow)(
    const uint8_t *before, const uint8_t *groups, int64_t *list, int n, const int8_t *weights,
    const sketch_terms_t *before_own, const sketch_terms_t *own, const uint16_t *norms, float *bounds, float limit
) {
    enum { AHEAD = 4 };
    int left = 0;
    for (int i = 0; i < n; i++) {
        const int64_t group = list[i], at = group * SKETCH_GROUP;
        if (i + AHEAD < n)
            for (int byte = 0; byte < SKETCH_GROUP_NBYTES; byte += 64)
                FETCH(groups + list[i + AHEAD] * SKETCH_GROUP_NBYTES + byte);
        float value[SKETCH_GROUP], bound[SKETCH_GROUP];
        const uint32_t open = NAME(open_rows)(bounds, norms, at, own->divides, limit);
        NAME(values_of)(before + group * SKETCH_GROUP_NBYTES, before_own, bounds + at, value);
        NAME(add_level)(groups + group * SKETCH_GROUP_NBYTES, weights, own, value, bound);
        for (int row = 0; row < SKETCH_GROUP; row++) bounds[at + row] = open >> row & 1 ? bound[row] : -INFINITY;
        list[left] = group;
        left += NAME(open_rows)(bounds, norms, at, own->divides, limit) != 0;
    }
    return left;
}

TARGET static int64_t NAME(choose_sketch)(
    const search_t *search, const sketch_block_t *block, const uint8_t *const *levels, int n_levels,
    const int8_t *weights, const sketch_terms_t *terms, const uint16_t *norms, float *bounds, const float *limits
) {
    const int64_t n_groups = (block->n + SKETCH_GROUP - 1) / SKETCH_GROUP, n_queries = search->n_queries;
    int64_t n_read = 0, list[SKETCH_LIST];
    for (int64_t query = 0; query < n_queries; query++, bounds += block->stride) {
        const float limit = limits[query];
        const int divides = terms[query].divides;
        if (search->least[query] == INFINITY) continue;
        for (int64_t first = 0; first < n_groups; first += SKETCH_LIST) {
            const int64_t last = n_groups - first < SKETCH_LIST ? n_groups : first + SKETCH_LIST;
            int n = 0;
            for (int64_t group = first; group < last; group++) {
                list[n] = group;
                n += NAME(open_rows)(bounds, norms, group * SKETCH_GROUP, divides, limit) != 0;
            }
            for (int level = 1; level < n_levels && n; level++) {
                const int64_t own = level * n_queries + query;
                n_read += n;
                n = NAME(narrow)(
                    levels[level - 1], levels[level], list, n, weights + own * SKETCH_SIZE, terms + own - n_queries,
                    terms + own, norms, bounds, limit);
            }
            for (int i = 0; i < n; i++) {
                const int64_t at = list[i] * SKETCH_GROUP;
                for (uint32_t open = NAME(open_rows)(bounds, norms, at, divides, limit); open; open &= open - 1) {
                    const int row = FIRST_BIT(open);
                    add_position(search, block, query, at + row, bounds[at + row]);
                }
            }
        }
    }
    return n_read;
}
