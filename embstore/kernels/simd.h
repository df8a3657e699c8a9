/* Vectors of floats for the targets that a kernel is compiled for.

   Included once per target by targets.h, with TARGET (the attribute of every function), NAME(name) (its name for this
   target) and one of WIDTH_16, WIDTH_8 and WIDTH_1 defined. */

#undef WIDTH
#ifdef WIDTH_16
#define WIDTH 16
#elif defined(WIDTH_8)
#define WIDTH 8
#else
#define WIDTH 1
#endif

#if WIDTH > 1
typedef float NAME(floats) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#else
typedef float NAME(floats);
#endif
#define floats NAME(floats)

/* WIDTH float16 values, given as their bits, as floats. */
TARGET static inline floats NAME(load_halves)(const uint16_t *from) {
#ifdef WIDTH_16
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(WIDTH_8)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    return float_of_half(*from);
#endif
}

TARGET static inline floats NAME(load_floats)(const float *from) {
    return *(const floats *)from;
}

TARGET static inline float NAME(sum)(floats values) {
#if WIDTH > 1
    float total = 0;
    for (int i = 0; i < WIDTH; i++) total += values[i];
    return total;
#else
    return values;
#endif
}
