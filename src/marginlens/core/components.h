// Strong components of a graph, and their order along its arcs.
#pragma once
#include "arithmetic.h"
#include "arena.h"

class StrongComponents {
    const int64_t n_nodes;
    int64_t *starts, *targets, *next, *index, *low, *path, *members, depth = 0, n_waiting = 0, counter = 0;

    void enter(int64_t node) {
        index[node] = low[node] = counter++;
        next[node] = starts[node];
        path[depth++] = node;
        members[n_nodes - ++n_waiting] = node;  // those without a component yet are at the end
    }

  public:
    int64_t *component, count = 0;  // arcs lead to smaller numbers

    StrongComponents(Arena &arena, int64_t n_nodes, int64_t n_arcs) : n_nodes(n_nodes) {
        starts = arena.integers(n_nodes + 1), targets = arena.integers(n_arcs), next = arena.integers(n_nodes + 1);
        index = arena.integers(n_nodes), low = arena.integers(n_nodes), path = arena.integers(n_nodes);
        members = arena.integers(n_nodes), component = arena.integers(n_nodes);
    }

    // By Tarjan's method.
    void find(const int64_t *heads, const int64_t *tails, int64_t n_arcs) {
        depth = n_waiting = counter = count = 0;
        for (int64_t k = 0; k <= n_nodes; k++) starts[k] = 0;
        for (int64_t e = 0; e < n_arcs; e++) starts[heads[e] + 1]++;
        for (int64_t k = 0; k < n_nodes; k++) {
            starts[k + 1] += starts[k];
            next[k] = starts[k];
            index[k] = component[k] = -1;
        }
        for (int64_t e = 0; e < n_arcs; e++) targets[next[heads[e]]++] = tails[e];
        int64_t n_members = 0;
        for (int64_t root = 0; root < n_nodes; root++) {
            if (index[root] < 0) enter(root);
            while (depth > 0) {
                const int64_t node = path[depth - 1];
                if (next[node] < starts[node + 1]) {
                    const int64_t tail = targets[next[node]++];
                    if (index[tail] < 0) enter(tail);
                    else if (component[tail] < 0) low[node] = smaller(low[node], index[tail]);
                    continue;
                }
                if (--depth > 0) low[path[depth - 1]] = smaller(low[path[depth - 1]], low[node]);
                if (low[node] < index[node]) continue;
                for (bool is_last = false; !is_last;) {
                    const int64_t member = members[n_nodes - n_waiting--];
                    is_last = member == node;
                    component[member] = count;
                    members[n_members++] = member;
                }
                count++;
            }
        }
    }

    // Number the components of each graph, of which graph[k] is that of node k, by the longest chain of arcs above them, then by their smallest
    // node; ranks and levels are of nodes.
    void rank(const int64_t *graph, int64_t *ranks, int64_t *levels) {
        int64_t *level = low, *first = index, *bucket = starts, *number = next;  // by component, but for buckets, which are by level
        for (int64_t c = 0; c < count; c++) level[c] = 0, first[c] = -1;
        for (int64_t k = n_nodes - 1; k >= 0; k--) {  // all arcs into a component come from those with larger numbers
            const int64_t node = members[k], own = component[node];
            for (int64_t at = starts[node]; at < starts[node + 1]; at++) {
                const int64_t lower = component[targets[at]];
                if (lower != own) level[lower] = larger(level[lower], level[own] + 1);
            }
        }
        for (int64_t k = 0; k <= count; k++) bucket[k] = 0;
        for (int64_t c = 0; c < count; c++) bucket[level[c] + 1]++;
        for (int64_t k = 0; k < count; k++) bucket[k + 1] += bucket[k];
        for (int64_t node = 0; node < n_nodes; node++) {
            const int64_t c = component[node];
            if (first[c] < 0) path[bucket[level[c]]++] = c, first[c] = node;
        }
        for (int64_t k = 0; k < n_nodes; k++) members[k] = 0;  // how many of each graph have a number
        for (int64_t k = 0; k < count; k++) number[path[k]] = members[graph[first[path[k]]]]++;
        for (int64_t node = 0; node < n_nodes; node++) ranks[node] = number[component[node]], levels[node] = level[component[node]];
    }
};
