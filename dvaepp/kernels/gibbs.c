/* Half-sweeps of Gibbs sampling: z = 1[u < sigmoid(logit)] in one pass with fused counter-based noise.

   The noise is Philox4x32-10 (Salmon et al., SC 2011): a pure function of a 64-bit key and a 128-bit counter, so a
   number depends on (key, step, chain, unit) alone, never on threads or on how work is cut. Element e = chain * units
   + unit of a step takes output word (e / 16) % 4 of the counter {64-element block, lane, step}. */

#include "fast_exp.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define LANES 16
#define BLOCK (4 * LANES)
#define BUFFER (64 * BLOCK)
#define MIN_PARALLEL 32768 /* for fewer units, waking a second thread costs more than it saves */

typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide __attribute__((vector_size(4 * LANES)));

/* The products of the even 32-bit lanes with a, of 64 bits each. There is an instruction for this, which compilers do
   not find in the plain form. */
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

/* The upper word of the product a * x in every lane; `low` receives the lower word. */
static inline lanes multiply(lanes x, uint32_t a, lanes *low) {
    wide even = multiply_even((wide)x, a), odd = multiply_even((wide)x >> 32, a);
    *low = (lanes)((even & 0xFFFFFFFFu) | (odd << 32));
    return (lanes)((even >> 32) | (odd & 0xFFFFFFFF00000000u));
}

/* Write the random words of elements 64 * block .. 64 * (block + count). */
void dvaepp_words(uint32_t *out, int64_t block, int64_t count, uint64_t key, uint64_t step) {
    lanes lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t b = 0; b < count; b++, out += BLOCK) {
        uint64_t counter = (uint64_t)(block + b) * LANES; /* a multiple of LANES, so that adding a lane never carries */
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

/* The uniform number that belongs to a random word, in the type of the chains. It is below 1, so that a unit of
   probability 1 is always on: the largest words round to 2^31, so the factor is the float just below 2^-31. */
static inline float unit_float(uint32_t word) { return ((float)(int32_t)(word >> 1) + 0.5f) * 0x1.fffffep-32f; }
static inline double unit_double(uint32_t word) { return ((double)word + 0.5) * 0x1p-32; }

/* The next two macros make the functions for one type of chains: training uses float, estimates of log Z use double.

   rule: logit = base + scale[row] * (acc + delta); a null scale means 1
   threshold_rows: z[row, :] = 1[u < sigmoid(logit)] for the given rows

   A double logit is rounded to float only when it is complete: large terms have cancelled by then. */
#define ROWS_OF_THRESHOLDS(REAL)                                                                                        \
    typedef struct {                                                                                                   \
        const REAL *base, *delta, *scale;                                                                              \
        int64_t units;                                                                                                 \
        uint64_t key, step;                                                                                            \
    } rule_##REAL;                                                                                                     \
                                                                                                                       \
    static void threshold_rows_##REAL(const rule_##REAL *rule, const REAL *acc, int64_t acc_stride, REAL *z,           \
                                      int64_t z_stride, int64_t first, int64_t last) {                                 \
        uint32_t words[BUFFER];                                                                                        \
        int64_t units = rule->units, end = last * units;                                                               \
        for (int64_t start = first * units; start < end;) {                                                            \
            int64_t block = start / BLOCK;                                                                             \
            int64_t stop = (block + BUFFER / BLOCK) * BLOCK;                                                           \
            stop = stop < end ? stop : end;                                                                            \
            dvaepp_words(words, block, (stop + BLOCK - 1) / BLOCK - block, rule->key, rule->step);                     \
            const uint32_t *w = words - block * BLOCK;                                                                 \
            for (int64_t e = start; e < stop;) {                                                                       \
                int64_t r = e / units, u = e - r * units;                                                              \
                int64_t n = units - u < stop - e ? units - u : stop - e;                                               \
                const REAL *a = acc + r * acc_stride + u, *b = rule->base + u, *d = rule->delta + u;                   \
                const uint32_t *v = w + e;                                                                             \
                REAL *out = z + r * z_stride + u;                                                                      \
                REAL s = rule->scale ? rule->scale[r] : 1;                                                             \
                for (int64_t i = 0; i < n; i++) {                                                                      \
                    REAL logit = b[i] + s * (a[i] + d[i]);                                                             \
                    out[i] = unit_##REAL(v[i]) * (1 + (REAL)fast_exp(-(float)logit)) < 1 ? 1 : 0;                      \
                }                                                                                                      \
                e += n;                                                                                                \
            }                                                                                                          \
            start = stop;                                                                                              \
        }                                                                                                              \
    }

/* The first row that is given has the number `origin` among all chains, and the noise of a row depends on its number.
   The pointers are therefore moved back by `origin` rows, so that a row's number is also its index. A chunk is the
   number of rows whose random words fit one buffer. */
#define THRESHOLD(REAL)                                                                                                 \
    void dvaepp_threshold_##REAL(const REAL *acc, int64_t acc_stride, const REAL *base, const REAL *delta,             \
                                 const REAL *scale, REAL *z, int64_t z_stride, int64_t rows, int64_t units,            \
                                 int64_t origin, uint64_t key, uint64_t step, int threads) {                           \
        rule_##REAL rule = {base, delta, scale ? scale - origin : 0, units, key, step};                                \
        acc -= origin * acc_stride;                                                                                    \
        z -= origin * z_stride;                                                                                        \
        int64_t chunk = BUFFER / units > 1 ? BUFFER / units - 1 : 1;                                                   \
        int64_t chunks = (rows + chunk - 1) / chunk;                                                                   \
        _Pragma("omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * units >= MIN_PARALLEL)") \
        for (int64_t t = 0; t < chunks; t++)                                                                           \
            threshold_rows_##REAL(&rule, acc, acc_stride, z, z_stride, origin + t * chunk,                             \
                                  origin + (t * chunk + chunk < rows ? t * chunk + chunk : rows));                     \
    }

ROWS_OF_THRESHOLDS(float)
ROWS_OF_THRESHOLDS(double)
THRESHOLD(float)
THRESHOLD(double)

/* Whole sweeps of an RBM. Its units are binary, so the product z @ W is a sum of rows of W, and the rows of three units
   have only eight sums: with these in a table a third of the additions of a matrix product remain, and no
   multiplication. A strip of 16 columns of the table stays in the nearest cache while every chain reads it. Chains
   never meet, so each thread takes its own through all sweeps. */

#define COLUMNS LANES
#define SUMS 8
#define MAX_GROUPS 86
#define TILE 8 /* chains that are summed at once, so that none waits for its previous addition to finish */

typedef float strip __attribute__((vector_size(4 * COLUMNS)));

typedef struct {
    int64_t sources, targets, groups, strips; /* group g holds the source units g, g + groups, g + 2 groups */
    strip *sums;                              /* [strips][groups][SUMS] */
    const float *bias;
} table;

static int64_t over(int64_t n, int64_t d) { return (n + d - 1) / d; }

/* W(source i, target j) = weight[i * source_stride + j * target_stride] */
static int build(table *t, const float *weight, int64_t source_stride, int64_t target_stride, const float *bias,
                 int64_t sources, int64_t targets) {
    *t = (table){sources, targets, over(sources, 3), over(targets, COLUMNS), 0, bias};
    t->sums = aligned_alloc(sizeof(strip), t->strips * t->groups * SUMS * sizeof(strip));
    if (!t->sums) return 0;
    for (int64_t c = 0; c < t->strips; c++)
        for (int64_t g = 0; g < t->groups; g++) {
            float row[3][COLUMNS] = {{0}}, *sums = (float *)&t->sums[(c * t->groups + g) * SUMS];
            int64_t n = targets - c * COLUMNS < COLUMNS ? targets - c * COLUMNS : COLUMNS;
            for (int k = 0; k < 3 && g + k * t->groups < sources; k++) {
                const float *w = weight + (g + k * t->groups) * source_stride + c * COLUMNS * target_stride;
                for (int64_t j = 0; j < n; j++) row[k][j] = w[j * target_stride];
            }
            for (int s = 0; s < SUMS; s++)
                for (int j = 0; j < COLUMNS; j++)
                    sums[s * COLUMNS + j] = (s & 1) * row[0][j] + (s >> 1 & 1) * row[1][j] + (s >> 2) * row[2][j];
        }
    return 1;
}

/* For every chain and every group of three units, find which of the eight sums its units select, as a distance in bytes
   from the first sum of the group: at[tile][group][chain of the tile]. */
static void offsets(const table *t, const float *z, uint16_t *at, int64_t chains) {
    uint16_t row[TILE][MAX_GROUPS];
    int64_t groups = t->groups;
    for (int64_t c = 0; c < chains; c += TILE, at += TILE * groups) {
        for (int k = 0; k < TILE; k++, z += 3 * groups)
            for (int64_t g = 0; g < groups; g++)
                row[k][g] = sizeof(strip) * (uint16_t)(int32_t)(z[g] + 2.0f * z[g + groups] + 4.0f * z[g + 2 * groups]);
        for (int64_t g = 0; g < groups; g++)
            for (int k = 0; k < TILE; k++) at[g * TILE + k] = row[k][g];
    }
}

/* Compute acc = z @ W for a multiple of TILE chains, by adding up the selected sums. */
static void fields(const table *t, const uint16_t *at, float *acc, int64_t chains) {
    int64_t groups = t->groups, width = t->strips * COLUMNS;
    for (int64_t c = 0; c < t->strips; c++)
        for (int64_t r = 0; r < chains; r += TILE) {
            strip sum[TILE] = {{0}};
            const uint16_t *o = at + r * groups;
            const char *entry = (const char *)(t->sums + c * groups * SUMS);
            for (int64_t g = 0; g < groups; g++, o += TILE, entry += SUMS * sizeof(strip))
                for (int k = 0; k < TILE; k += 4) { /* loads limit the speed, so that four offsets are loaded at once */
                    uint64_t four = o[k] | (uint64_t)o[k + 1] << 16 | (uint64_t)o[k + 2] << 32 | (uint64_t)o[k + 3] << 48;
                    for (int i = 0; i < 4; i++)
                        sum[k + i] += *(const strip *)(entry + (four >> 16 * i & 0xFFFF));
                }
            for (int k = 0; k < TILE; k++) memcpy(acc + (r + k) * width + c * COLUMNS, &sum[k], sizeof(strip));
        }
}

static void copy_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_stride, from + r * from_stride, n * sizeof(float));
}

/* Take the chains first .. first + chains through all sweeps. tables[s] gives the fields on side s. Returns 0 if memory
   is short. */
static int sweep_chains(const table tables[2], float *const z[2], int64_t first, int64_t chains, int64_t sweeps,
                        uint64_t key, uint64_t step, const float *zeros) {
    int64_t padded = over(chains, TILE) * TILE, stride[2], width[2];
    for (int s = 0; s < 2; s++) stride[s] = 3 * tables[1 - s].groups, width[s] = tables[s].strips * COLUMNS;
    float *side[2] = {calloc(padded * stride[0], sizeof(float)), calloc(padded * stride[1], sizeof(float))};
    int64_t widest = width[0] > width[1] ? width[0] : width[1], groups = stride[0] > stride[1] ? stride[0] : stride[1];
    float *acc = malloc(padded * widest * sizeof(float));
    uint16_t *at = malloc(padded * groups / 3 * sizeof(uint16_t));
    int fine = side[0] && side[1] && acc && at;
    if (fine) {
        copy_rows(side[0], stride[0], z[0] + first * tables[0].targets, tables[0].targets, chains, tables[0].targets);
        for (int64_t half = 0; half < 2 * sweeps; half++) {
            int s = 1 - half % 2; /* side 1 is drawn first, given side 0 */
            const table *t = &tables[s];
            rule_float rule = {t->bias, zeros, 0, t->targets, key, step + half};
            offsets(t, side[1 - s], at, padded);
            fields(t, at, acc, padded);
            /* rows are counted from the first chain of all: the noise of a chain is its own */
            threshold_rows_float(&rule, acc - first * width[s], width[s], side[s] - first * stride[s], stride[s], first,
                                 first + chains);
        }
        for (int s = 0; s < 2; s++)
            copy_rows(z[s] + first * tables[s].targets, tables[s].targets, side[s], stride[s], chains,
                      tables[s].targets);
    }
    free(side[0]), free(side[1]), free(acc), free(at);
    return fine;
}

/* left (chains, num_left) and right (chains, num_right) in place; weight (num_left, num_right). Half-sweeps take the
   steps `step`, `step` + 1, ...; the chains are number `origin`, `origin` + 1, ... of all. Returns 0, and leaves the
   chains in doubt, if memory is short. */
int dvaepp_sweeps(float *left, float *right, const float *weight, const float *bias_left, const float *bias_right,
                  int64_t chains, int64_t num_left, int64_t num_right, int64_t sweeps, int64_t origin, uint64_t key,
                  uint64_t step, int threads) {
    table tables[2] = {{0}};
    float *const z[2] = {left - origin * num_left, right - origin * num_right};
    int64_t end = origin + chains;
    float *zeros = calloc(num_left > num_right ? num_left : num_right, sizeof(float));
    int fine = zeros && build(&tables[0], weight, 1, num_right, bias_left, num_right, num_left) &&
               build(&tables[1], weight, num_right, 1, bias_right, num_left, num_right);
    int64_t share = over(over(chains, threads), TILE) * TILE;
    if (fine) {
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(&& : fine) if (threads > 1)
        for (int64_t first = origin; first < end; first += share)
            fine = fine && sweep_chains(tables, z, first, first + share < end ? share : end - first, sweeps, key, step,
                                        zeros);
    }
    free(tables[0].sums), free(tables[1].sums), free(zeros);
    return fine;
}
