/* Threshold a block of units in one pass: z = 1[u < sigmoid(logit)] with fused counter-based noise.

   The noise is Philox4x32-10 (Salmon et al., SC 2011): a pure function of a 64-bit key and a 128-bit counter, so a
   number depends on (key, step, chain, unit) alone, never on threads or on how work is cut. Element e = chain * units
   + unit of a step takes output word (e / 16) % 4 of the counter {64-element block, lane, step}. */

#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define LANES 16
#define BLOCK (4 * LANES)
#define BUFFER (64 * BLOCK)
#define MIN_PARALLEL 32768 /* below, waking a second thread costs more than it saves */

typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide __attribute__((vector_size(4 * LANES)));

/* Products of the even 32-bit lanes, 64 bits each. Compilers miss the instruction behind the plain form. */
static inline wide multiply_even(wide x, uint32_t a) {
#if defined(__AVX512F__)
    return (wide)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(a));
#elif defined(__AVX2__)
    __m256i half[2], factor = _mm256_set1_epi64x(a);
    memcpy(half, &x, sizeof x);
    half[0] = _mm256_mul_epu32(half[0], factor);
    half[1] = _mm256_mul_epu32(half[1], factor);
    memcpy(&x, half, sizeof x);
    return x;
#else
    return (x & 0xFFFFFFFFu) * a;
#endif
}

/* High and low words of a * x in every lane. */
static inline lanes multiply(lanes x, uint32_t a, lanes *low) {
    wide even = multiply_even((wide)x, a), odd = multiply_even((wide)x >> 32, a);
    *low = (lanes)((even & 0xFFFFFFFFu) | (odd << 32));
    return (lanes)((even >> 32) | (odd & 0xFFFFFFFF00000000u));
}

/* Random words for elements 64 * block .. 64 * (block + count). */
void dvaepp_words(uint32_t *out, int64_t block, int64_t count, uint64_t key, uint64_t step) {
    lanes lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t b = 0; b < count; b++, out += BLOCK) {
        uint64_t counter = (uint64_t)(block + b) * LANES; /* a multiple of LANES: adding a lane never carries */
        lanes c0 = lane + (uint32_t)counter, c1 = (lanes){0} + (uint32_t)(counter >> 32);
        lanes c2 = (lanes){0} + (uint32_t)step, c3 = (lanes){0} + (uint32_t)(step >> 32);
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) {
            lanes low0, low1;
            lanes high0 = multiply(c0, 0xD2511F53u, &low0), high1 = multiply(c2, 0xCD9E8D57u, &low1);
            c0 = high1 ^ c1 ^ k0;
            c1 = low1;
            c2 = high0 ^ c3 ^ k1;
            c3 = low0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        memcpy(out, &c0, sizeof c0);
        memcpy(out + LANES, &c1, sizeof c1);
        memcpy(out + 2 * LANES, &c2, sizeof c2);
        memcpy(out + 3 * LANES, &c3, sizeof c3);
    }
}

/* e^x to about 2 ulp, for |x| <= 87; branch-free so that it vectorises. */
static inline float fast_exp(float x) {
    x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
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
    p = p * r * r + r + 1.0f;
    int32_t scale = (bits - 0x4B400000 + 127) << 23;
    float s;
    memcpy(&s, &scale, 4);
    return p * s;
}

static inline float unit(uint32_t word) { return ((float)(int32_t)(word >> 1) + 0.5f) * 0x1p-31f; }

/* z[row, :] = 1[u < sigmoid(base + scale[row] * (acc[row, :] + delta))]; a null scale means 1. */
void dvaepp_threshold(const float *acc, int64_t acc_stride, const float *base, const float *delta, const float *scale,
                      float *z, int64_t z_stride, int64_t rows, int64_t units, uint64_t key, uint64_t step,
                      int threads) {
    int64_t chunk = BUFFER / units > 1 ? BUFFER / units - 1 : 1; /* rows whose words fit the buffer */
    int64_t chunks = (rows + chunk - 1) / chunk;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * units >= MIN_PARALLEL)
    for (int64_t t = 0; t < chunks; t++) {
        uint32_t words[BUFFER + BLOCK];
        int64_t first = t * chunk, last = first + chunk < rows ? first + chunk : rows;
        for (int64_t row = first; row < last; row += chunk) {
            int64_t element = row * units, end = last * units;
            /* a row wider than the buffer is taken in pieces */
            for (int64_t start = element; start < end;) {
                int64_t block = start / BLOCK;
                int64_t stop = (block + BUFFER / BLOCK) * BLOCK;
                stop = stop < end ? stop : end;
                dvaepp_words(words, block, (stop + BLOCK - 1) / BLOCK - block, key, step);
                const uint32_t *w = words - block * BLOCK;
                for (int64_t e = start; e < stop;) {
                    int64_t r = e / units, u = e - r * units;
                    int64_t n = units - u < stop - e ? units - u : stop - e;
                    const float *a = acc + r * acc_stride + u, *b = base + u, *d = delta + u;
                    const uint32_t *v = w + e;
                    float *out = z + r * z_stride + u;
                    float s = scale ? scale[r] : 1.0f;
                    for (int64_t i = 0; i < n; i++) {
                        float logit = b[i] + s * (a[i] + d[i]);
                        out[i] = unit(v[i]) * (1.0f + fast_exp(-logit)) < 1.0f ? 1.0f : 0.0f;
                    }
                    e += n;
                }
                start = stop;
            }
        }
    }
}
