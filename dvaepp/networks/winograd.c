/* Convolutions by themselves, as winograd.py calls them. */

#include "winograd.h"

/* All threads on one group after another, where groups are fewer than threads; else each thread on its own groups. */
static int groups(const job *j, const size *s, int64_t shared, int64_t own, int threads, int backward) {
    int together = j->groups < threads;
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
    return groups(j, &s, forward_shared(&s), forward_own(&s), threads, 0);
}

int dvaepp_convolve_backward(const job *j, int threads) {
    size s = sizes(j, 1);
    return groups(j, &s, backward_shared(&s, j->groups < threads ? threads : 1), backward_own(&s), threads, 1);
}

/* Where products are large, the library's are the fastest: then only what is around them is done here, in four calls.
   Kernels stand side by side as groups do, each with its own outputs and, where it is narrower, with zeros for the inputs
   that it lacks. Inputs and the outputs of a kernel are whole vectors. */
typedef struct {
    job j; /* x_group = 0, y_group = outputs of a kernel */
    /* (points, rows, inputs), (points, inputs, all outputs), ...; the first three, which are written here, have a vector
       more than a point fills (see sizes), the products' results do not */
    float *v, *u, *dm, *m, *dv, *du;
    const int64_t *w_inputs, *w_outputs; /* of every kernel: its inputs, and floats from output to output */
} wide;

static field lines(float *at, int64_t rows, int64_t channels, int64_t apart) {
    return (field){at, rows * channels + apart, LANES, channels};
}

static field moved(field f, int64_t row, int64_t channel) {
    f.at += row * f.row + channel;
    return f;
}

static job kernel(const wide *w, int64_t g) {
    job j = w->j;
    j.inputs = w->w_inputs[g];
    j.w_output = w->w_outputs[g];
    return j;
}

/* e, V and U */
int dvaepp_wide_in(const wide *w, int threads) {
    const job *j = &w->j;
    int64_t tiles = j->side * j->side;
    field v = lines(w->v, j->rows * tiles, j->inputs, LANES);
    field u = lines(w->u, j->inputs, j->groups * j->outputs, LANES);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        int64_t first = cut(j->rows, 4, member, team), last = cut(j->rows, 4, member + 1, team);
        activate(j, 0, first, last);
        into_V(j, 0, first, last, moved(v, first * tiles, 0));
        first = cut(j->inputs, LANES, member, team), last = cut(j->inputs, LANES, member + 1, team);
        for (int64_t g = 0; g < j->groups; g++) {
            job own = kernel(w, g);
            into_U(&own, g, 0, first, last, moved(u, 0, g * j->outputs));
        }
    }
    return 1;
}

/* y out of M */
int dvaepp_wide_out(const wide *w, int threads) {
    const job *j = &w->j;
    int64_t tiles = j->side * j->side;
    field m = lines(w->m, j->rows * tiles, j->groups * j->outputs, 0);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        int64_t first = cut(j->rows, 4, member, team), last = cut(j->rows, 4, member + 1, team);
        for (int64_t g = 0; g < j->groups; g++)
            out_of_M(j, g, first, last, 0, j->outputs, moved(m, first * tiles, g * j->outputs));
    }
    return 1;
}

/* dM and the gradients of biases */
int dvaepp_wide_backward_in(const wide *w, int threads) {
    const job *j = &w->j;
    int64_t tiles = j->side * j->side, all = j->groups * j->outputs;
    field dm = lines(w->dm, j->rows * tiles, all, LANES);
    float *sums = calloc(threads * all, 4);
    if (!sums) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        int64_t first = cut(j->rows, 4, member, team), last = cut(j->rows, 4, member + 1, team);
        for (int64_t g = 0; g < j->groups; g++) {
            int64_t at = g * j->outputs;
            into_dM(j, g, first, last, moved(dm, first * tiles, at), sums + member * all + at);
        }
    }
    for (int64_t g = 0; j->dbias && g < j->groups; g++)
        for (int64_t o = 0; o < j->outputs; o++) {
            float total = 0;
            for (int t = 0; t < threads; t++) total += sums[t * all + g * j->outputs + o];
            j->dbias[g][o] = total;
        }
    free(sums);
    return 1;
}

/* dx out of dV, dw out of dU */
int dvaepp_wide_backward_out(const wide *w, int threads) {
    const job *j = &w->j;
    int64_t tiles = j->side * j->side;
    field dv = lines(w->dv, j->rows * tiles, j->inputs, 0), du = lines(w->du, j->inputs, j->groups * j->outputs, 0);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        int64_t first = cut(j->rows, 4, member, team), last = cut(j->rows, 4, member + 1, team);
        if (j->dx) out_of_dV(j, 0, first, last, 0, j->inputs, moved(dv, first * tiles, 0));
        first = cut(j->inputs, LANES, member, team), last = cut(j->inputs, LANES, member + 1, team);
        for (int64_t g = 0; j->dw && g < j->groups; g++) {
            job own = kernel(w, g);
            out_of_dU(&own, first, last, moved(du, first, g * j->outputs), j->dw[g]);
        }
    }
    return 1;
}
