#include <stdint.h>
#include <string.h>

/* Split e^x = s (1 + p) into a power of two s and the number p that is returned. There is no branch, so that a compiler
   can compute several at once. */
static inline float exp_parts(float x, float *s) {
    float n = x * 1.44269504f + 12582912.0f; /* round to an integer in the low bits */
    int32_t bits;
    memcpy(&bits, &n, 4);
    n -= 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    int32_t scale = (bits - 0x4B400000 + 127) << 23;
    memcpy(s, &scale, 4);
    return p * r * r + r;
}

/* e^x to about 2 ulp, for |x| <= 87. */
static inline float fast_exp(float x) {
    float s, p = exp_parts(x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x, &s);
    return (p + 1.0f) * s;
}

/* e^x - 1 for x <= 0, to a few ulp, without cancellation near zero. NaN stays NaN. */
static inline float fast_expm1(float x) {
    float s, p = exp_parts(x < -87.0f ? -87.0f : x, &s);
    return p * s + (s - 1.0f);
}
