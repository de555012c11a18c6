/* Convolutions by themselves, as winograd.py calls them. */

#include "winograd.h"

/* All threads on one group after another, where groups are fewer than threads; else each thread on its own groups. */
static int groups(const job *j, const size *s, int64_t shared, int64_t own, int threads, int backward) {
    int together = j->groups < threads;
    shared += s->outputs * (together ? threads : 1);
    int64_t copies = together ? 1 : threads;
    float *memory = scratch(4 * (copies * shared + threads * own));
    if (!memory) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        float *mine = memory + copies * shared + member * own, *ours = memory + (together ? 0 : member * shared);
        for (int64_t g = together ? 0 : member; g < j->groups; g += together ? 1 : team) {
            if (backward)
                backward_group(j, s, g, ours, mine, together ? member : 0, together ? team : 1);
            else
                forward_group(j, s, g, ours, mine, together ? member : 0, together ? team : 1);
        }
    }
    return 1;
}

int dvaepp_convolve(const job *j, int threads) {
    size s = sizes(j, 0);
    return groups(j, &s, POINTS * s.u, POINTS * (s.v + s.m), threads, 0);
}

int dvaepp_convolve_backward(const job *j, int threads) {
    size s = sizes(j, 1);
    return groups(j, &s, POINTS * (s.u + s.all_v + s.all_m), POINTS * most(s.m, s.du), threads, 1);
}
