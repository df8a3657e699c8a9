/* Maximum spanning arborescences of dense graphs, by Chu and Liu's and Edmonds' algorithm in n^2 steps. */

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "kernels.h"

/* A graph that is contracted in place. A slot is a row and a column of the matrices; it holds a node, of the words or of
   a cycle of nodes, and after its cycle became a node, nothing: then its column is -infinity. An edge is
   dependant * n + head. */
typedef struct {
    int32_t n;
    double *weights;   /* [n, n], of the edge from the column to the row; what replacing the chosen edge costs is taken off */
    int32_t *edges;    /* [n, n], the edge between words that it stands for */
    double *best;      /* [n], of the edge that is chosen for a slot */
    int32_t *node;     /* [n], in the slot */
    int32_t *from;     /* [n], the slot from which the chosen edge comes */
    int32_t *state;    /* [n], of a slot: the walk that reached it, or DONE */
    int32_t *into;     /* [n], the slot into which a slot was contracted, itself where it was not */
    int32_t *parent;   /* [2n], the node of the cycle that a node is part of, -1 for none */
    int32_t *edge;     /* [2n], the chosen edge of a node */
} graph;

enum { NEW = -1, DONE = -2 };

static int32_t slot_of(const graph *g, int32_t slot) {
    while (g->into[slot] != slot) slot = g->into[slot];
    return slot;
}

/* Choose the heaviest edge into a slot. */
static void choose_edge(graph *g, int32_t slot) {
    const double *row = g->weights + (int64_t)slot * g->n;
    double best = -INFINITY;
    int32_t from = -1;
    for (int32_t u = 0; u < g->n; u++)
        if (row[u] > best) {
            best = row[u];
            from = u;
        }
    g->best[slot] = best;
    g->from[slot] = from;
    g->edge[g->node[slot]] = from < 0 ? -1 : g->edges[(int64_t)slot * g->n + from];
}

/* Make a node of the cycle through a slot, in that slot. */
static void contract(graph *g, int32_t slot, int32_t node) {
    int32_t n = g->n;
    double *row = g->weights + (int64_t)slot * n;
    int32_t *row_edges = g->edges + (int64_t)slot * n;
    g->parent[g->node[slot]] = node;
    for (int32_t u = 0; u < n; u++) row[u] -= g->best[slot];
    for (int32_t other = slot_of(g, g->from[slot]); other != slot;) {
        const double *other_row = g->weights + (int64_t)other * n;
        const int32_t *other_edges = g->edges + (int64_t)other * n;
        int32_t next = slot_of(g, g->from[other]);
        for (int32_t u = 0; u < n; u++) {
            double weight = other_row[u] - g->best[other];
            if (weight > row[u]) {
                row[u] = weight;
                row_edges[u] = other_edges[u];
            }
        }
        for (int32_t v = 0; v < n; v++) {
            double *column = g->weights + (int64_t)v * n;
            if (column[other] > column[slot]) {
                column[slot] = column[other];
                g->edges[(int64_t)v * n + slot] = g->edges[(int64_t)v * n + other];
            }
            column[other] = -INFINITY;
        }
        g->parent[g->node[other]] = node;
        g->into[other] = slot;
        other = next;
    }
    row[slot] = -INFINITY;
    g->node[slot] = node;
}

/* Words of `given` are `stride` weights apart, those of `heads` `step` words. */
static void arborescence(const float *given, int64_t stride, int32_t root, int32_t *heads, int64_t step, graph *g) {
    int32_t n = g->n, n_nodes = n;
    for (int32_t v = 0; v < n; v++) {
        double *row = g->weights + (int64_t)v * n;
        for (int32_t u = 0; u < n; u++) {
            float weight = given[v * stride + u];
            row[u] = fabsf(weight) <= FLT_MAX ? weight : 0;
            g->edges[(int64_t)v * n + u] = v * n + u;
        }
        row[v] = -INFINITY;
        g->node[v] = g->into[v] = v;
        g->state[v] = NEW;
        g->parent[v] = -1;
    }
    g->state[root] = DONE;
    for (int32_t start = 0; start < n; start++) {
        int32_t slot = slot_of(g, start);
        while (g->state[slot] == NEW) {  /* against the chosen edges, to the root or what is connected with it */
            choose_edge(g, slot);
            g->state[slot] = start;
            int32_t before = slot_of(g, g->from[slot]);
            if (g->state[before] == start) {
                g->parent[n_nodes] = -1;
                contract(g, before, n_nodes++);
                g->state[before] = NEW;
            }
            slot = before;
        }
        for (slot = slot_of(g, start); g->state[slot] == start; slot = slot_of(g, g->from[slot])) g->state[slot] = DONE;
    }
    for (int32_t node = n_nodes - 1; node >= n; node--) {  /* the edge into a cycle replaces one; the others remain */
        int32_t inside = g->edge[node] / n;
        while (g->parent[inside] != node) inside = g->parent[inside];
        g->edge[inside] = g->edge[node];
    }
    for (int32_t v = 0; v < n; v++) heads[v * step] = v == root ? -1 : g->edge[v] % n;
}

int64_t find_arborescences(
    const float *weights, int64_t n_sentences, int64_t n_heads, int64_t width, const int64_t *sizes,
    const int64_t *roots, int32_t *heads
) {
    int64_t largest = 0;
    for (int64_t i = 0; i < n_sentences; i++)
        if (roots[i] >= 0 && sizes[i] > largest) largest = sizes[i];
    if (!largest) return 0;
    size_t n = (size_t)largest;
    double *numbers = malloc((n * n + n) * sizeof(double));
    int32_t *whole = malloc((n * n + 8 * n) * sizeof(int32_t));
    if (numbers && whole) {
        graph g = {0, numbers, whole, numbers + n * n, whole + n * n, whole + n * n + n, whole + n * n + 2 * n,
                   whole + n * n + 3 * n, whole + n * n + 4 * n, whole + n * n + 6 * n};
        for (int64_t i = 0; i < n_sentences; i++) {
            g.n = (int32_t)sizes[i];
            for (int64_t head = 0; head < n_heads && roots[i] >= 0; head++)
                arborescence(weights + (i * width * n_heads + head) * width, n_heads * width, (int32_t)roots[i],
                             heads + i * width * n_heads + head, n_heads, &g);
        }
    }
    int failed = !numbers || !whole;
    free(numbers);
    free(whole);
    return failed ? -1 : 0;
}
