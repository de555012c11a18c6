/* Convolutions that stand alone, for winograd.py, and the transforms around the library's large products, for wide.py.
   */

#include "winograd.h"

static void forward_group(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    (void)shared;
    const job *j = what;
    convolve_rows(j, g, own_rows(j->rows, member, team), own_rows(j->rows, member + 1, team), own);
}

int dvaepp_convolve(const job *j, int threads) {
    size s = sizes(j, 0);
    return by_groups(j->groups, 0, forward_room(&s), threads, forward_group, j);
}

static int64_t copy_of(const job *j) { return padded(9 * j->inputs * j->outputs) + padded(j->outputs); }

/* In `shared` each thread but the first has room for its own gradients of the parameters. */
static void backward_group(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    const job *j = what;
    int64_t weights = 9 * j->inputs * j->outputs, copy = copy_of(j);
    float *dw = j->dw ? j->dw[g] : 0, *dbias = j->dbias ? j->dbias[g] : 0;
    float *mine = shared + most(member - 1, 0) * copy, *biases = mine + padded(weights);
    convolve_rows_backward(j, g, own_rows(j->rows, member, team), own_rows(j->rows, member + 1, team),
                           dw && member ? mine : dw, dbias && member ? biases : dbias, own);
    wait_for(team);
    add_copies(dw, shared, copy, weights, member, team);
    add_copies(dbias, shared + padded(weights), copy, j->outputs, member, team);
    wait_for(team); /* the copies may be overwritten, by the next group, only when all threads have read them */
}

int dvaepp_convolve_backward(const job *j, int threads) {
    size s = sizes(j, 1);
    int64_t copies = copy_of(j) * (team_of(j->groups, threads) - 1);
    return by_groups(j->groups, copies, padded(backward_room(&s)), threads, backward_group, j);
}

/* Large matrix products are fastest in the library. For these only the transforms before and after the products are
   done here, in four calls: two forward, two backward. Several kernels may read the same input; they stand side by side
   as if they were groups. A kernel that reads fewer inputs than the widest one has zeros in place of those it lacks.
   The numbers of inputs and of outputs are multiples of a vector's length. */
typedef struct {
    job j; /* x_group = 0, y_group = outputs of a kernel */
    /* V and dV are (points, rows, inputs), U and dU (points, inputs, all outputs), M and dM (points, rows, all outputs).
       V, U and dM, which are written here, have a gap of one vector between points, for the reason that `sizes` gives;
       M, dV and dU are results of the library's products and have none. */
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

/* How many of `all` rows or inputs a thread takes at a time. With several threads, each takes n and then the next n
   that are free, because cores that other programs use as well are not equally fast. A single thread takes all at once.
   Sums over rows are different: there the rows of each thread are fixed beforehand, so that the result does not depend
   on which thread was faster. */
static int64_t some(int64_t all, int64_t n, int threads) { return threads > 1 ? n : all; }

#define ROWS 8
#define INPUTS (2 * LANES)

typedef struct {
    int64_t g, first, last;
} part;

static int64_t parts_of_each(const job *j, int threads) {
    int64_t n = some(j->inputs, INPUTS, threads);
    return (j->inputs + n - 1) / n;
}

static part part_of(const job *j, int64_t index, int threads) {
    int64_t each = parts_of_each(j, threads), n = some(j->inputs, INPUTS, threads), first = index % each * n;
    return (part){index / each, first, least(first + n, j->inputs)};
}

/* e, V and U */
int dvaepp_wide_in(const wide *w, int threads) {
    const job *j = &w->j;
    int64_t tiles = j->side * j->side, rows = some(j->rows, ROWS, threads);
    int64_t parts = j->groups * parts_of_each(j, threads);
    field v = lines(w->v, j->rows * tiles, j->inputs, LANES);
    field u = lines(w->u, j->inputs, j->groups * j->outputs, LANES);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(dynamic) nowait
        for (int64_t first = 0; first < j->rows; first += rows) {
            int64_t last = least(first + rows, j->rows);
            activate(j, 0, first, last);
            into_V(j, 0, first, last, moved(v, first * tiles, 0));
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < parts; i++) {
            part p = part_of(j, i, threads);
            job own = kernel(w, p.g);
            into_U(&own, p.g, 0, p.first, p.last, moved(u, 0, p.g * j->outputs));
        }
    }
    return 1;
}

/* y out of M */
int dvaepp_wide_out(const wide *w, int threads) {
    const job *j = &w->j;
    int64_t tiles = j->side * j->side, rows = some(j->rows, ROWS, threads);
    field m = lines(w->m, j->rows * tiles, j->groups * j->outputs, 0);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < j->rows; first += rows)
        for (int64_t g = 0; g < j->groups; g++) {
            int64_t last = least(first + rows, j->rows);
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
        int64_t first = own_rows(j->rows, member, team), last = own_rows(j->rows, member + 1, team);
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
    int64_t tiles = j->side * j->side, rows = some(j->rows, ROWS, threads);
    int64_t parts = j->dw ? j->groups * parts_of_each(j, threads) : 0;
    field dv = lines(w->dv, j->rows * tiles, j->inputs, 0), du = lines(w->du, j->inputs, j->groups * j->outputs, 0);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(dynamic) nowait
        for (int64_t first = 0; first < (j->dx ? j->rows : 0); first += rows)
            out_of_dV(j, 0, first, least(first + rows, j->rows), 0, j->inputs, moved(dv, first * tiles, 0));
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < parts; i++) {
            part p = part_of(j, i, threads);
            job own = kernel(w, p.g);
            out_of_dU(&own, p.first, p.last, moved(du, p.first, p.g * j->outputs), j->dw[p.g]);
        }
    }
    return 1;
}
