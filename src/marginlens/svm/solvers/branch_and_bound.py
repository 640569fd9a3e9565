"""Branch and bound over alternatives: the shortest vector when each group of constraints may be met in one of several ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any

import numpy as np

from marginlens.svm.solution import Status
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.typing import BoolArray, FloatArray, IntArray

# Two norms count as equally short up to this relative difference.
SAME_NORM_RTOL = 1e-9
# A point counts as inside a halfspace if it misses it by no more than this share of its norm.
INSIDE_RTOL = 1e-9
# Partial choices extended together.
_NODES_PER_ROUND = 256
# Entries of the constraint matrices that one batch of problems may hold.
_MAX_BATCH_ENTRIES = 4_000_000


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Groups of alternatives: x must satisfy `rows[i, a] @ x >= lower[i, a]` for some allowed a, in every group i.

    Attributes:
        rows: (n_groups, n_ways, n_rows, d); groups smaller than the largest are padded by zero rows with lower 0.

        lower: (n_groups, n_ways, n_rows), each 0 or 1.

        allowed: (n_groups, n_ways) whether group i has an alternative a that any x can satisfy.
    """

    rows: FloatArray
    lower: FloatArray
    allowed: BoolArray

    def solve(self, choices: IntArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Find the shortest x of each partial choice (n_choices, n_groups), -1 for groups without a choice.

        Returns:
            x (n_choices, d), their norms (inf if no x exists), and whether rounding left the question open.
        """
        d = self.rows.shape[-1]
        x, norm = np.zeros((len(choices), d)), np.zeros(len(choices))
        unverified = np.zeros(len(choices), dtype=np.bool_)
        depth = np.sum(choices >= 0, axis=1)
        for k in np.unique(depth[depth > 0]):
            same = np.flatnonzero(depth == k)
            size = max(1, _MAX_BATCH_ENTRIES // (int(k) * self.rows.shape[2] * d))
            for part in np.split(same, range(size, len(same), size)):
                _, group = np.nonzero(choices[part] >= 0)
                way = choices[part][choices[part] >= 0]
                solution = least_distance(
                    self.rows[group, way].reshape(len(part), -1, d), self.lower[group, way].reshape(len(part), -1)
                )
                x[part] = solution.x
                norm[part] = np.nan_to_num(np.linalg.norm(solution.x, axis=-1), nan=np.inf)
                unverified[part] = [status is Status.INACCURATE for status in solution.status]
        return x, norm, unverified

    def shortfall(self, x: FloatArray) -> FloatArray:
        """Bound the distance of each point x (n_points, d) from each alternative below: (n_points, n_groups, n_ways), inf if
        not allowed.
        """
        miss = self.lower - np.einsum("iabd,nd->niab", self.rows, x)
        size = np.linalg.norm(self.rows, axis=-1)
        distance = np.max(np.maximum(miss, 0.0) / np.where(size > 0.0, size, 1.0), axis=-1)
        return np.where(self.allowed, distance, np.inf)

    @property
    def n_choices(self) -> int:
        """The number of complete choices."""
        return prod(int(count) for count in self.allowed.sum(axis=1))


@dataclass(frozen=True, eq=False)
class Planes:
    r"""One halfspace around each alternative, and a bound on how far one step can serve the halfspaces of different groups.

    Alternative a of group i lies in :math:`u_{ia}^\top x \ge h_{ia}`, the plane through its point nearest to zero. A step that enters
    one such halfspace per group, each at a distance e_i, has a squared length of at least :math:`\sum_i e_i^2 / \kappa`, where κ is
    the largest eigenvalue of the Gram matrix of all u without the products inside a group: any choice has a submatrix of it.

    Attributes:
        normal: (n_groups, n_ways, d) unit vectors u, zero if an alternative is not allowed.

        height: (n_groups, n_ways) h, inf if not allowed.

        spread: κ >= 1.
    """

    normal: FloatArray
    height: FloatArray
    spread: float

    @classmethod
    def around(cls, nearest: FloatArray, allowed: BoolArray) -> Planes:
        """Make the halfspaces from the nearest point (n_groups, n_ways, d) of each alternative."""
        norm = np.linalg.norm(nearest, axis=-1)
        normal = np.where(allowed[..., None], nearest / np.where(norm > 0.0, norm, 1.0)[..., None], 0.0)
        flat = normal.reshape(-1, normal.shape[-1])
        group = np.repeat(np.arange(len(normal)), normal.shape[1])
        gram = np.where((group[:, None] == group) & ~np.eye(len(group), dtype=np.bool_), 0.0, flat @ flat.T)
        return cls(normal, np.where(allowed, norm, np.inf), max(1.0, float(np.linalg.eigvalsh(gram)[-1])))

    def bound(self, choices: IntArray, x: FloatArray, norm: FloatArray) -> FloatArray:
        """Bound below the norm of every completion of partial choices whose shortest vectors are x, (n_choices,)."""
        missing = np.maximum(self.height - np.einsum("iad,nd->nia", self.normal, x), 0.0).min(axis=-1)
        return np.sqrt(norm**2 + np.sum(np.where(choices < 0, missing, 0.0) ** 2, axis=-1) / self.spread)


@dataclass(order=True)
class _Node:
    """A partial choice, its shortest vector x, and a lower bound on the norm of its completions; ordered by urgency."""

    urgency: tuple[float, float]
    choice: IntArray = field(compare=False)
    x: FloatArray = field(compare=False)
    norm: float = field(compare=False)
    bound: float = field(compare=False)


class SearchTree:
    """The open nodes of a search, and an account of the closed ones.

    Attributes:
        open: partial choices that are still open; none once the search is complete.

        best: the norm of the shortest vector found, inf if there is none.

        guess: the first vector found.

        runner_up: the smallest bound among the choices discarded as too long.

        explored: the number of convex problems solved.

        n_covered: complete choices accounted for by a point or by a bound.
    """

    def __init__(self, problem: Alternatives) -> None:
        n_groups, n_ways, _, d = problem.rows.shape
        self.best, self.runner_up, self.unverified_bound, self.explored, self.n_covered = np.inf, np.inf, np.inf, 0, 0
        # Points that meet every group as they are, with their norms.
        self.leaves: list[tuple[float, FloatArray]] = []
        self.guess: FloatArray = np.empty(0)
        self.open: list[_Node] = []
        group, way = np.nonzero(problem.allowed)
        single = np.full((len(group), n_groups), -1, dtype=np.int64)
        single[np.arange(len(group)), group] = way
        self.problem = problem
        x, norm, unverified = self.solve(single)
        allowed, nearest = np.array(problem.allowed), np.zeros((n_groups, n_ways, d))
        allowed[group, way] = np.isfinite(norm) | unverified
        nearest[group, way] = np.where((np.isfinite(norm) & ~unverified)[:, None], x, 0.0)
        self.problem = Alternatives(problem.rows, problem.lower, allowed)
        self.planes = Planes.around(nearest, allowed)
        self.ways = [int(count) for count in allowed.sum(axis=1)]
        self.n_covered = problem.n_choices - self.problem.n_choices
        if all(self.ways):
            self.add(np.full((1, n_groups), -1, dtype=np.int64), np.zeros((1, d)), np.zeros(1))

    @property
    def ceiling(self) -> float:
        return self.best * (1.0 + SAME_NORM_RTOL)

    @property
    def points(self) -> FloatArray:
        """The shortest vectors (n_points, d), one per leaf of the tree, so some may coincide; or only the first guess."""
        points = [x for _, x in self.leaves]
        if not points and np.isfinite(self.best):
            points = [self.guess]
        return np.array(points).reshape(-1, self.problem.rows.shape[-1])

    @property
    def lower_bound(self) -> float:
        """A lower bound on the norm of every vector that meets all groups."""
        return min([self.best, self.unverified_bound, *(node.bound for node in self.open)])

    def solve(self, choices: IntArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        self.explored += len(choices)
        return self.problem.solve(choices)

    def add(self, choices: IntArray, x: FloatArray, norm: FloatArray) -> None:
        """Add nodes as open, unless their bound closes them at once."""
        bound = self.planes.bound(choices, x, norm)
        late = bound > self.ceiling
        self.close(choices[late], bound[late])
        for k in np.flatnonzero(~late):
            node = _Node((0.0, 0.0), choices[k].copy(), x[k].copy(), float(norm[k]), float(bound[k]))
            heappush(self.open, self.ranked(node))

    def ranked(self, node: _Node) -> _Node:
        """Sort nodes: lowest bound first; deepest first as long as nothing feasible is known."""
        depth = 0.0 if np.isfinite(self.best) else -float(np.sum(node.choice >= 0))
        node.urgency = (depth, node.bound)
        return node

    def update_best(self, norm: float) -> None:
        """Record that a feasible vector of this norm is known."""
        first, self.best = not np.isfinite(self.best), min(self.best, norm)
        # Points that were met before a shorter one was.
        longer = [length for length, _ in self.leaves if length > self.ceiling]
        self.leaves = [leaf for leaf in self.leaves if leaf[0] <= self.ceiling]
        self.runner_up = min([self.runner_up, *longer])
        if first and np.isfinite(norm):
            self.open = [self.ranked(node) for node in self.open]
            heapify(self.open)

    def take(self) -> list[_Node]:
        """Take the most promising open nodes."""
        taken = [heappop(self.open) for _ in range(min(_NODES_PER_ROUND, len(self.open)))]
        late = [node for node in taken if node.bound > self.ceiling]
        if late:
            self.close(np.array([node.choice for node in late]), np.array([node.bound for node in late]))
        return [node for node in taken if node.bound <= self.ceiling]

    def close(self, choices: IntArray, bound: FloatArray) -> None:
        """Discard nodes whose bound exceeds the best norm."""
        self.n_covered += self.weight(choices)
        self.runner_up = min(self.runner_up, float(np.min(bound, initial=np.inf)))

    def weight(self, choices: IntArray) -> int:
        """Count the complete choices that partial ones represent together."""
        return sum(prod(w for w, free in zip(self.ways, node, strict=True) if free) for node in (choices < 0).tolist())


def branch_and_bound(problem: Alternatives, max_problems: int) -> SearchTree:
    """Find all shortest vectors of a problem with alternatives, by solving at most about `max_problems` convex problems.

    A partial choice of alternatives has a unique shortest vector, and no completion has a shorter one. If that vector already
    meets every other group, it is the only vector of that norm among all completions; otherwise the completions are split by
    the alternatives of the group that it misses by most. A part whose bound exceeds the best norm is closed.
    """
    tree = SearchTree(problem)
    if tree.open:
        best, tree.guess = _first_guess(tree, max_problems)
        tree.update_best(best)
    while tree.open and tree.explored < max_problems:
        nodes = tree.take()
        if not nodes:
            continue
        choices, x = np.array([node.choice for node in nodes]), np.array([node.x for node in nodes])
        norm = np.array([node.norm for node in nodes])
        distance = tree.problem.shortfall(x)
        missing = np.where(choices < 0, distance.min(axis=-1), -np.inf)
        inside = missing.max(axis=1) <= INSIDE_RTOL * norm
        for k in np.flatnonzero(inside):
            tree.leaves.append((float(norm[k]), x[k]))
            tree.update_best(float(norm[k]))
        tree.n_covered += tree.weight(choices[inside])
        _extend(tree, choices[~inside], norm[~inside], distance[~inside], np.argmax(missing[~inside], axis=1))
    return tree


def _extend(tree: SearchTree, choices: IntArray, norm: FloatArray, distance: FloatArray, group: IntArray) -> None:
    """Open the children of nodes that split at `group`, unless a bound closes them."""
    node, way = np.nonzero(tree.problem.allowed[group])
    children = choices[node]
    children[np.arange(len(node)), group[node]] = way
    # What lies beyond a projection is at a right angle to it.
    reach = np.hypot(norm[node], distance[node, group[node], way])
    far = reach > tree.ceiling
    tree.close(children[far], reach[far])
    children, parent = children[~far], norm[node[~far]]
    x, length, unverified = tree.solve(children)
    tree.unverified_bound = min(tree.unverified_bound, float(np.min(parent[unverified], initial=np.inf)))
    infeasible = np.isinf(length) & ~unverified
    tree.close(children[infeasible], length[infeasible])
    solved = ~unverified & ~infeasible
    tree.add(children[solved], x[solved], length[solved])


def _first_guess(tree: SearchTree, max_problems: int) -> tuple[float, Any]:
    """Find a short vector to begin with: choose greedily, then exchange single alternatives as long as that shortens it."""
    problem = tree.problem
    choice, x = np.full(len(problem.rows), -1, dtype=np.int64), np.zeros(problem.rows.shape[-1])
    while (choice < 0).any():
        distance = np.where((choice < 0)[:, None], problem.shortfall(x[None])[0], np.inf)
        group = int(np.argmax(np.where(choice < 0, distance.min(axis=1), -np.inf)))
        ways = np.flatnonzero(problem.allowed[group])
        best, choice, x = _best_exchange(tree, choice, [(group, int(way)) for way in ways])
        if not np.isfinite(best) or tree.explored >= max_problems:
            return np.inf, x
    every = [(int(i), int(a)) for i, a in np.argwhere(problem.allowed)]
    while tree.explored < max_problems:
        shorter, other, at = _best_exchange(tree, choice, every)
        if shorter >= best * (1.0 - SAME_NORM_RTOL):
            break
        best, choice, x = shorter, other, at
    return best, x


def _best_exchange(
    tree: SearchTree, choice: IntArray, moves: list[tuple[int, int]]
) -> tuple[float, IntArray, FloatArray]:
    """Find the shortest vector after one of the moves (group, way), with its choice."""
    choices = np.repeat(choice[None], len(moves), axis=0)
    group, way = np.array(moves).T
    choices[np.arange(len(moves)), group] = way
    x, norm, unverified = tree.solve(choices)
    norm = np.where(unverified, np.inf, norm)
    k = int(np.argmin(norm))
    return float(norm[k]), choices[k], x[k]
