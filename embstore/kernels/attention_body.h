/* Attention within one sentence and head, for one target; see targets.h. */

#define QUERIES 4  /* that are multiplied together */

#if WIDTH > 1
typedef int32_t NAME(ints) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

/* e to the power of values from LOWEST to 0: 2^n times a polynomial of the rest. */
TARGET static inline floats NAME(exponential)(floats x) {
    const floats shift = (floats){0} + 0x1.8p23f, shifted = x * 0x1.715476p0f + shift, n = shifted - shift;
    const floats r = (x - n * 0x1.63p-1f) + n * 0x1.bd0106p-13f;
    floats p = (floats){0} + 0x1.6c16c2p-10f;
    p = p * r + 0x1.111112p-7f;
    p = p * r + 0x1.555556p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (floats)((NAME(ints))p + ((NAME(ints))shifted << 23));
}

TARGET static inline floats NAME(choose)(NAME(ints) mask, floats yes, floats no) {
    return (floats)((mask & (NAME(ints))yes) | (~mask & (NAME(ints))no));
}

TARGET static inline floats NAME(larger)(floats one, floats other) {
    return NAME(choose)((NAME(ints))(one > other), one, other);
}

/* The values whose numbers, from `at` on, are in [first, last), and `other` for the rest. */
TARGET static inline floats NAME(inside)(floats values, int64_t at, int64_t first, int64_t last, float other) {
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const NAME(ints) number = *(const NAME(ints) *)lanes + (int32_t)at;
    return NAME(choose)((number >= (int32_t)first) & (number < (int32_t)last), values, (floats){0} + other);
}
#else
static inline float NAME(exponential)(float x) { return expf(x); }
static inline float NAME(larger)(float one, float other) { return one > other ? one : other; }
static inline float NAME(inside)(float value, int64_t at, int64_t first, int64_t last, float other) {
    return at >= first && at < last ? value : other;
}
#endif

TARGET static inline float NAME(top)(floats values) {
#ifdef WIDTH_16
    return _mm512_reduce_max_ps((__m512)values);
#else
    float parts[WIDTH];
    NAME(store_floats)(parts, values);
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) parts[i] = parts[i] > parts[i + half] ? parts[i] : parts[i + half];
    return parts[0];
#endif
}

/* out[i][0..size) = the sum over j of left[i][j] * right[j][0..size), for QUERIES rows i; size a multiple of WIDTH. */
TARGET static void NAME(multiply)(
    const float *const *left, int64_t n, const float *right, int64_t stride, int64_t size, float *const *out
) {
    int64_t at = 0;
    for (; at + 2 * WIDTH <= size; at += 2 * WIDTH) {
        floats sums[QUERIES][2] = {{(floats){0}}};
        for (int64_t j = 0; j < n; j++) {
            const floats one = NAME(load_floats)(right + j * stride + at);
            const floats other = NAME(load_floats)(right + j * stride + at + WIDTH);
            UNROLL for (int i = 0; i < QUERIES; i++) {
                sums[i][0] += left[i][j] * one;
                sums[i][1] += left[i][j] * other;
            }
        }
        UNROLL for (int i = 0; i < QUERIES; i++) {
            NAME(store_floats)(out[i] + at, sums[i][0]);
            NAME(store_floats)(out[i] + at + WIDTH, sums[i][1]);
        }
    }
    for (; at < size; at += WIDTH) {
        floats sums[QUERIES] = {(floats){0}};
        for (int64_t j = 0; j < n; j++) {
            const floats one = NAME(load_floats)(right + j * stride + at);
            UNROLL for (int i = 0; i < QUERIES; i++) sums[i] += left[i][j] * one;
        }
        UNROLL for (int i = 0; i < QUERIES; i++) NAME(store_floats)(out[i] + at, sums[i]);
    }
}

/* Replace scores [first, last) by e to the power of them less their largest, all others by 0; returns their sum. */
TARGET static float NAME(soften)(float *scores, int64_t first, int64_t last, int64_t n, float scale) {
    floats largest = (floats){0} - INFINITY, total = (floats){0};
    for (int64_t j = 0; j < n; j += WIDTH)
        largest = NAME(larger)(NAME(inside)(NAME(load_floats)(scores + j), j, first, last, -INFINITY), largest);
    const float top = NAME(top)(largest);
    for (int64_t j = 0; j < n; j += WIDTH) {
        const floats score = (NAME(load_floats)(scores + j) - top) * scale;
        const floats power = NAME(exponential)(NAME(larger)(score, (floats){0} + LOWEST));
        const floats weight = NAME(inside)(power, j, first, last, 0);
        NAME(store_floats)(scores + j, weight);
        total += weight;
    }
    return NAME(sum)(total);
}

/* The `n` positions from `start` on, in one head; `buffer` is large enough, see `attend`. */
TARGET static void NAME(attend_head)(
    const attention_t *attention, int64_t start, int64_t n, int64_t head, float *buffer
) {
    const int64_t size = attention->size, group = head / attention->n_groups;
    const int64_t panel = n > WIDTH ? 2 * WIDTH : WIDTH, padded = (n + panel - 1) / panel * panel;
    const float *queries = attention->queries + start * attention->query_step + head * attention->query_head;
    const float *keys = attention->keys + start * attention->key_step + group * attention->key_head;
    const float *values = attention->values + start * attention->value_step + group * attention->value_head;
    /* The keys in panels of columns, [panel, feature, key], whatever beyond the last; QUERIES rows of scores; and as
       many results. */
    float *panels = buffer, *block = buffer + size * padded, *results = block + QUERIES * padded;
    for (int64_t j = 0; j < n; j++) {
        float *column = panels + j / panel * panel * size + j % panel;
        const float *key = keys + j * attention->key_step;
        for (int64_t f = 0; f < size; f++) column[f * panel] = key[f];
    }
    for (int64_t at = 0; at < n; at += QUERIES) {
        const float *left[QUERIES], *weights[QUERIES];
        float *scores[QUERIES], *result[QUERIES];
        float totals[QUERIES];
        for (int i = 0; i < QUERIES; i++) {
            const int64_t query = at + i < n ? at + i : n - 1;
            left[i] = queries + query * attention->query_step;
            weights[i] = scores[i] = block + i * padded;
            result[i] = results + i * size;
        }
        for (int64_t j = 0; j < padded; j += panel) {
            float *part[QUERIES];
            for (int i = 0; i < QUERIES; i++) part[i] = scores[i] + j;
            NAME(multiply)(left, size, panels + j * size, panel, panel, part);
        }
        for (int i = 0; i < QUERIES; i++) {
            const int64_t query = at + i < n ? at + i : n - 1;
            const int64_t first = attention->before < 0 || query < attention->before ? 0 : query - attention->before;
            const int64_t beyond = attention->after < 0 ? n : query + attention->after + 1;
            totals[i] = NAME(soften)(scores[i], first, beyond < n ? beyond : n, n, attention->scale);
        }
        NAME(multiply)(weights, n, values, attention->value_step, size, result);
        for (int i = 0; i < QUERIES && at + i < n; i++) {
            float *out = attention->out + ((start + at + i) * attention->n_heads + head) * size;
            for (int64_t f = 0; f < size; f++) out[f] = result[i][f] / totals[i];
        }
    }
}

#undef QUERIES
