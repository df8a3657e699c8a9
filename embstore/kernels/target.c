/* Which of the compiled versions of a kernel the processor can run. */

#include "kernels.h"

static int chosen = -1;

static int best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                 && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 ? 1 + avx512 : 0;
#else
    return 0;
#endif
}

int target(void) {
    if (chosen < 0) chosen = best();
    return chosen;
}

int limit_target(int most) {
    chosen = best();
    if (chosen > most) chosen = most;
    return chosen;
}
