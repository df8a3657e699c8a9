/* Compiles the kernels of the file BODY for every target that the compiler knows, and chooses among them by the
   processor that runs: define BODY, include this file, and call CHOOSE(name)(...). */

#include <math.h>
#include <string.h>

#include "kernels.h"

#ifndef __GNUC__
#error "GCC or Clang is needed; without the extension numpy does the work"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_X86_TARGETS
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* The value of a float16 given as bits, exactly, also for subnormal numbers. */
static inline float float_of_half(uint16_t half) {
    union { uint32_t bits; float value; } number, special;
    number.bits = ((uint32_t)(half & 0x8000) << 16) | ((uint32_t)(half & 0x7FFF) << 13);
    special.bits = number.bits | 0x7F800000u;  /* infinite, or NaN */
    return (half & 0x7C00) == 0x7C00 ? special.value : number.value * 0x1p112f;
}

static inline float float_of_bfloat(uint16_t bits) {
    union { uint32_t bits; float value; } number;
    number.bits = (uint32_t)bits << 16;
    return number.value;
}

#define JOIN_(name, suffix) name##_##suffix
#define JOIN(name, suffix) JOIN_(name, suffix)

#define TARGET
#define NAME(name) JOIN(name, plain)
#define WIDTH_4
#include "simd.h"
#include BODY
#undef floats
#undef WIDTH_4
#undef NAME
#undef TARGET

#ifdef HAS_X86_TARGETS

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define NAME(name) JOIN(name, avx2)
#define WIDTH_8
#include "simd.h"
#include BODY
#undef floats
#undef WIDTH_8
#undef NAME
#undef TARGET

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define NAME(name) JOIN(name, avx512)
#define WIDTH_16
#include "simd.h"
#include BODY
#undef floats
#undef WIDTH_16
#undef NAME
#undef TARGET

#define CHOOSE(name) (target() == 2 ? name##_avx512 : target() == 1 ? name##_avx2 : name##_plain)
#else
#define CHOOSE(name) name##_plain
#endif
