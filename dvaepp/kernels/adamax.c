/* A step of AdaMax over flat buffers in one pass. adamax.py has the formulas and the same step in torch. */

#include <math.h>
#include <omp.h>
#include <stdint.h>

typedef struct {
    float *theta, *m, *u;
    const float *const *g; /* the gradient of each tensor; a null pointer stands for zeros */
    const int64_t *first;  /* where in the buffers each tensor begins, and at last where the buffers end */
    int64_t tensors;
    float rate, beta1, beta2, epsilon, weight_decay;
} job;

static void update(const job *j, const float *restrict g, int64_t begin, int64_t end) {
    float *restrict theta = j->theta, *restrict m = j->m, *restrict u = j->u;
    float rate = j->rate, keep = 1 - j->beta1, fade = j->beta2, epsilon = j->epsilon, decay = j->weight_decay;
    for (int64_t i = begin; i < end; i++) {
        float slope = (g ? g[i - begin] : 0.0f) + decay * theta[i];
        float size = fabsf(slope) + epsilon, old = fade * u[i];
        m[i] += keep * (slope - m[i]);
        u[i] = old > size ? old : size;
        theta[i] += rate * m[i] / u[i];
    }
}

/* Each thread takes the next piece that no other has taken. Pieces fixed beforehand would let all threads wait for the
   slowest core, and cores that other programs use as well are not equally fast. */
#define PIECES 32

int dvaepp_adamax(const job *j, int threads) {
    int64_t all = j->first[j->tensors];
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t piece = 0; piece < PIECES; piece++) {
        int64_t begin = all * piece / PIECES, end = all * (piece + 1) / PIECES;
        for (int64_t t = 0; t < j->tensors; t++) {
            int64_t first = j->first[t], from = first > begin ? first : begin;
            int64_t to = j->first[t + 1] < end ? j->first[t + 1] : end;
            if (from < to) update(j, j->g[t] ? j->g[t] + (from - first) : 0, from, to);
        }
    }
    return 1;
}
