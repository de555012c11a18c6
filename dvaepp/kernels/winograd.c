/* Convolutions that stand alone, for winograd.py. */

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
