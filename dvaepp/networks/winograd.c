/* Convolutions by themselves, as winograd.py calls them. */

#include "winograd.h"

int dvaepp_convolve(const job *j, int threads) {
    size s = sizes(j, 0);
    return by_groups(j->groups, forward_shared(&s), forward_own(&s), threads, forward_group, j);
}

int dvaepp_convolve_backward(const job *j, int threads) {
    size s = sizes(j, 1);
    int64_t shared = backward_shared(&s, team_of(j->groups, threads));
    return by_groups(j->groups, shared, backward_own(&s), threads, backward_group, j);
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
        int64_t first = cut(j->rows, 2, member, team), last = cut(j->rows, 2, member + 1, team);
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
        int64_t first = cut(j->rows, 2, member, team), last = cut(j->rows, 2, member + 1, team);
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
        int64_t first = cut(j->rows, 2, member, team), last = cut(j->rows, 2, member + 1, team);
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
        int64_t first = cut(j->rows, 2, member, team), last = cut(j->rows, 2, member + 1, team);
        if (j->dx) out_of_dV(j, 0, first, last, 0, j->inputs, moved(dv, first * tiles, 0));
        first = cut(j->inputs, LANES, member, team), last = cut(j->inputs, LANES, member + 1, team);
        for (int64_t g = 0; j->dw && g < j->groups; g++) {
            job own = kernel(w, g);
            out_of_dU(&own, first, last, moved(du, first, g * j->outputs), j->dw[g]);
        }
    }
    return 1;
}
