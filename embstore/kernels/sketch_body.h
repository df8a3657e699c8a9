/* Sketches: codes of 4 bits in levels of 64 features, multiplied with queries of 16 bits in integers. */

/* The codes of a group of rows, spread to pairs of 16 bits: [32, SKETCH_GROUP]. */
INLINE TARGET void NAME(spread_codes)(const uint8_t *codes, int32_t *pairs) {
    for (int pair = 0; pair < SKETCH_SIZE / 2; pair++, codes += SKETCH_GROUP, pairs += SKETCH_GROUP) {
#ifdef WIDTH_16
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
        const __m512i high = _mm512_slli_epi32(_mm512_and_si512(bytes, _mm512_set1_epi32(0xF0)), 12);
        _mm512_storeu_si512(pairs, _mm512_or_si512(_mm512_and_si512(bytes, _mm512_set1_epi32(0xF)), high));
#else
        for (int i = 0; i < SKETCH_GROUP; i++) pairs[i] = (codes[i] & 0xF) | (int32_t)(codes[i] & 0xF0) << 12;
#endif
    }
}

/* The integer products of a group of rows with a query. */
INLINE TARGET void NAME(multiply_codes)(const int32_t *pairs, const int16_t *weights, int32_t *products) {
#ifdef WIDTH_16
    __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    UNROLL for (int pair = 0; pair < SKETCH_SIZE / 2; pair++) {
        int32_t both;
        memcpy(&both, weights + 2 * pair, 4);
        const __m512i codes = _mm512_loadu_si512(pairs + pair * SKETCH_GROUP);
        sums[pair % 2] = _mm512_add_epi32(sums[pair % 2], _mm512_madd_epi16(codes, _mm512_set1_epi32(both)));
    }
    _mm512_storeu_si512(products, _mm512_add_epi32(sums[0], sums[1]));
#elif defined(WIDTH_8)
    __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int pair = 0; pair < SKETCH_SIZE / 2; pair++) {
        int32_t both;
        memcpy(&both, weights + 2 * pair, 4);
        UNROLL for (int half = 0; half < 2; half++) {
            const __m256i codes = _mm256_loadu_si256((const __m256i *)(pairs + pair * SKETCH_GROUP + 8 * half));
            sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(codes, _mm256_set1_epi32(both)));
        }
    }
    _mm256_storeu_si256((__m256i *)products, sums[0]);
    _mm256_storeu_si256((__m256i *)(products + 8), sums[1]);
#else
    for (int i = 0; i < SKETCH_GROUP; i++) products[i] = 0;
    for (int pair = 0; pair < SKETCH_SIZE / 2; pair++, pairs += SKETCH_GROUP)
        for (int i = 0; i < SKETCH_GROUP; i++)
            products[i] += (pairs[i] & 0xFFFF) * weights[2 * pair] + (pairs[i] >> 16) * weights[2 * pair + 1];
#endif
}

/* The integer product of the codes of one row with a query: byte i holds features i and i + 32. */
INLINE TARGET int32_t NAME(multiply_row)(const uint8_t *codes, const int16_t *weights) {
#if WIDTH >= 8
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)codes), mask = _mm256_set1_epi8(0xF);
    const __m256i halves[2] = {
        _mm256_and_si256(bytes, mask), _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask)};
    __m256i sum = _mm256_setzero_si256();
    UNROLL for (int part = 0; part < 4; part++) {
        const __m256i half = halves[part / 2];
        const __m128i sixteen = part % 2 ? _mm256_extracti128_si256(half, 1) : _mm256_castsi256_si128(half);
        const __m256i own = _mm256_loadu_si256((const __m256i *)(weights + 16 * part));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepu8_epi16(sixteen), own));
    }
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
#else
    int32_t sum = 0;
    for (int i = 0; i < SKETCH_SIZE / 2; i++) {
        sum += (codes[i] & 0xF) * weights[i] + (codes[i] >> 4) * weights[i + SKETCH_SIZE / 2];
    }
    return sum;
#endif
}

TARGET static void NAME(scan_sketch)(
    const search_t *search, const uint8_t *groups, int64_t first, int64_t n, const float *norms, const uint8_t *allowed,
    const int16_t *weights, const sketch_terms_t *terms
) {
    int32_t pairs[SKETCH_SIZE / 2 * SKETCH_GROUP], products[SKETCH_GROUP];
    float rows[3 * SKETCH_GROUP], values[SKETCH_GROUP], bounds[SKETCH_GROUP];
    for (int64_t start = 0; start < n; start += SKETCH_GROUP, groups += SKETCH_GROUP_NBYTES) {
        FETCH(groups + 4 * SKETCH_GROUP_NBYTES);
        NAME(spread_codes)(groups, pairs);
        const uint16_t *lengths = (const uint16_t *)(groups + SKETCH_GROUP * SKETCH_SIZE / 2);
        for (int i = 0; i < 3 * SKETCH_GROUP; i += WIDTH)
            NAME(store_floats)(rows + i, NAME(load_bfloats)(lengths + i));
        const int64_t last = n - start < SKETCH_GROUP ? n - start : SKETCH_GROUP;
        for (int64_t query = 0; query < search->n_queries; query++) {
            const sketch_terms_t own = terms[query];
            const float least = search->least[query];
            if (least == INFINITY) continue;
            NAME(multiply_codes)(pairs, weights + query * SKETCH_SIZE, products);
            int some = 0;
            for (int i = 0; i < SKETCH_GROUP; i++) {
                const float norm = norms[start + i];
                const float product = own.step * (float)(2 * products[i] - own.offset) + own.spread;
                float value = own.base + rows[i] * product + own.of_error * rows[SKETCH_GROUP + i];
                value += (own.of_norm + own.of_square * norm) * norm;
                values[i] = own.divides ? (norm > 0 ? value / norm : 0) : value;
                bounds[i] = values[i] + own.of_tail * rows[2 * SKETCH_GROUP + i];
                some |= bounds[i] > least;
            }
            if (!some) continue;
            for (int64_t i = 0; i < last; i++)
                if (bounds[i] > search->least[query] && (!allowed || allowed[start + i]))
                    add_candidate(search, query, first + start + i, values[i]);
        }
    }
}

TARGET static void NAME(refine_sketch)(
    const search_t *search, const uint8_t *records, const int64_t *places, const int16_t *weights,
    const sketch_terms_t *terms
) {
    for (int64_t query = 0; query < search->n_queries; query++, weights += SKETCH_SIZE) {
        const sketch_terms_t own = terms[query];
        const int64_t at = query * search->capacity, n = search->filled[query];
        float *scores = search->scores + at;
        int64_t *rows = search->rows + at, left = 0;
        for (int64_t i = 0; i < n; i++) {
            if (i + 8 < n) FETCH(records + places[at + i + 8] * SKETCH_ROW_NBYTES);
            const uint8_t *record = records + places[at + i] * SKETCH_ROW_NBYTES;
            uint16_t bits[3];
            memcpy(bits, record + SKETCH_SIZE / 2, 6);
            const float product = own.step * (float)(2 * NAME(multiply_row)(record, weights) - own.offset) + own.spread;
            const float value = scores[i] + float_of_bfloat(bits[0]) * product + own.of_error * float_of_bfloat(bits[1]);
            const int64_t row = rows[i];
            scores[left] = value;
            rows[left] = row;
            left += value + own.of_tail * float_of_bfloat(bits[2]) > 0;
        }
        search->filled[query] = left;
    }
}
