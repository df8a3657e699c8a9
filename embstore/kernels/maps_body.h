/* Statistics of attention maps, for one target; see targets.h. */

#if WIDTH > 1
typedef int32_t NAME(ints) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

/* x log x of values that are not negative, 0 for 0. Of x = 2^n m, m from sqrt(1/2) to sqrt(2), log m is a polynomial of
   m - 1; the error is about 1e-7 of the result. */
TARGET static inline floats NAME(x_log_x)(floats x) {
    const NAME(ints) is_normal = x >= (floats){0} + SMALLEST;
    const NAME(ints) bits = (is_normal & (NAME(ints))x) | (~is_normal & (NAME(ints))((floats){0} + SMALLEST));
    const NAME(ints) power = (bits - 0x3f3504f3) >> 23;
    const floats n = __builtin_convertvector(power, floats);
    const floats f = (floats)(bits - (power << 23)) - 1.0f, square = f * f;
    floats p = (floats){0} + 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    return x * (n * 0.693359375f + (f + ((f * square * p - 0.5f * square) - n * 2.12194440e-4f)));
}
#else
static inline float NAME(x_log_x)(float x) { return x > 0 ? x * logf(x) : 0; }
#endif

/* One map: `buffer` has 4 times as many floats as a row in whole vectors, set to 0. */
TARGET static void NAME(read_map)(const maps_t *maps, int64_t sentence, int64_t head, float *buffer) {
    const int64_t width = maps->width, n = maps->lengths[sentence], padded = (n + WIDTH - 1) / WIDTH * WIDTH;
    const int64_t number = sentence * maps->n_heads + head;
    const float *map = maps->values + number * width * width;
    float *row = buffer, *columns = buffer + padded, *offsets = buffer + 2 * padded;
    memset(buffer, 0, 4 * padded * sizeof(float));
    for (int64_t query = 0; query < n; query++) {
        float *shifted = offsets + n - 1 - query;
        floats total = {0};
        memcpy(row, map + query * width, n * sizeof(float));
        for (int64_t key = 0; key < padded; key += WIDTH) {
            const floats values = NAME(load_floats)(row + key);
            NAME(store_floats)(columns + key, NAME(load_floats)(columns + key) + values);
            NAME(store_floats)(shifted + key, NAME(load_floats)(shifted + key) + values);
            total += NAME(x_log_x)(values);
        }
        maps->entropies[number * width + query] = -NAME(sum)(total);
    }
    memcpy(maps->columns + number * width, columns, n * sizeof(float));
    memcpy(maps->offsets + number * (2 * width - 1) + width - n, offsets, (2 * n - 1) * sizeof(float));
}

TARGET static double NAME(sum_x_log_x)(const float *left, const float *right, int64_t n) {
    floats total = {0};
    float rest = 0;
    int64_t at = 0;
    for (; at + WIDTH <= n; at += WIDTH) {
        floats values = NAME(load_floats)(left + at);
        if (right) values += NAME(load_floats)(right + at);
        total += NAME(x_log_x)(values);
    }
    for (; at < n; at++) {
        const float value = right ? left[at] + right[at] : left[at];
        if (value > 0) rest += value * logf(value);
    }
    return (double)NAME(sum)(total) + rest;
}
