/* Vectors as wide as the machine's, in plain C. */

#if defined(__AVX__)
#include <immintrin.h>
#endif

/* Lanes of a vector; tiles and vectors of output channels whose sums are held in registers. */
#if defined(__AVX512F__)
#define LANES 16
#define N_TILES 12
#define N_VECTORS 2
#define N_INPUTS 8
#elif defined(__AVX__)
#define LANES 8
#define N_TILES 6
#define N_VECTORS 2
#define N_INPUTS 4
#elif defined(__aarch64__)
#define LANES 4
#define N_TILES 6
#define N_VECTORS 4
#define N_INPUTS 4
#else
#define LANES 4
#define N_TILES 6
#define N_VECTORS 2
#define N_INPUTS 4
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec load(const float *at) { return *(const vec *)at; }
INLINE void store(float *at, vec value) { *(vec *)at = value; }
INLINE vec zeros(void) { return (vec){0}; }

INLINE vec pick(mask which, vec a, vec b) {
    return (vec)((which & (mask)a) | (~which & (mask)b));
}

/* The larger number; a NaN in `a` is kept. */
INLINE vec larger(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)b, (__m512)a);
#elif defined(__AVX__)
    return (vec)_mm256_max_ps((__m256)b, (__m256)a);
#else
    return pick(b > a, b, a);
#endif
}

INLINE float sum_lanes(vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#endif
    float parts[LANES];
    store(parts, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int k = 0; k < width; k++) parts[k] += parts[k + width];
    return parts[0];
}
