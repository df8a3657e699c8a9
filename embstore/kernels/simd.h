/* Vectors of floats for the targets that a kernel is compiled for.

   Included once per target by targets.h, with TARGET (the attribute of every function), NAME(name) (its name for this
   target) and one of WIDTH_16, WIDTH_8 and WIDTH_4 defined. WIDTH_4 needs no instructions beyond the
   processor's base: the compiler makes SSE2 or NEON of it. */

#undef WIDTH
#ifdef WIDTH_16
#define WIDTH 16
#elif defined(WIDTH_8)
#define WIDTH 8
#else
#define WIDTH 4
#endif

typedef float NAME(floats) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define floats NAME(floats)

TARGET static inline floats NAME(load_floats)(const float *from) {
    return *(const floats *)from;
}

/* WIDTH float16 values, given as their bits, as floats. */
TARGET static inline floats NAME(load_halves)(const uint16_t *from) {
#ifdef WIDTH_16
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(WIDTH_8)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#elif defined(WIDTH_4) && defined(__aarch64__)
    return (floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    float values[WIDTH];
    for (int i = 0; i < WIDTH; i++) values[i] = float_of_half(from[i]);
    return NAME(load_floats)(values);
#endif
}

/* WIDTH bfloat16 values, given as their bits, as floats. */
TARGET static inline floats NAME(load_bfloats)(const uint16_t *from) {
#ifdef WIDTH_16
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
#elif defined(WIDTH_8)
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
#else
    float values[WIDTH];
    for (int i = 0; i < WIDTH; i++) values[i] = float_of_bfloat(from[i]);
    return NAME(load_floats)(values);
#endif
}

/* WIDTH int8 values as floats. */
TARGET static inline floats NAME(load_codes)(const int8_t *from) {
#ifdef WIDTH_16
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(WIDTH_8)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    float values[WIDTH];
    for (int i = 0; i < WIDTH; i++) values[i] = from[i];
    return NAME(load_floats)(values);
#endif
}

TARGET static inline void NAME(store_floats)(float *to, floats values) {
    *(floats *)to = values;
}

TARGET static inline float NAME(sum)(floats values) {
#ifdef WIDTH_16
    return _mm512_reduce_add_ps((__m512)values);
#else
    float parts[WIDTH];
    NAME(store_floats)(parts, values);
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
#endif
}

/* Bit i of the result says whether value i is above the other. */
TARGET static inline uint32_t NAME(above)(floats values, floats others) {
#ifdef WIDTH_16
    return _mm512_cmp_ps_mask((__m512)values, (__m512)others, _CMP_GT_OQ);
#elif defined(WIDTH_8)
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)values, (__m256)others, _CMP_GT_OQ));
#else
    float left[WIDTH], right[WIDTH];
    uint32_t mask = 0;
    NAME(store_floats)(left, values);
    NAME(store_floats)(right, others);
    for (int i = 0; i < WIDTH; i++) mask |= (uint32_t)(left[i] > right[i]) << i;
    return mask;
#endif
}
