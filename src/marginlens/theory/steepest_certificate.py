"""Certificates of descent in any norm: the tokens that it selects for ever, and a bracket for its margin in the limit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from marginlens.errors import InputError
from marginlens.norms import Norm
from marginlens.norms.choice import norm_name, norm_named
from marginlens.papers import implements
from marginlens.runtime.files import as_path, write_whole
from marginlens.theory.any_norm_conditions import KNOWN_NORMS, steepest_conditions
from marginlens.theory.certificate import Proof, are_indices, is_array, is_number
from marginlens.theory.checks import TheoremVerdict
from marginlens.theory.steepest_coq import coq_file
from marginlens.typing import FloatArray, IntArray
from marginlens.words import Fact

MATRIX_NORMS = ("Spectral", "Nuclear", "MaxRow", "Frobenius")


@dataclass(frozen=True, repr=False, eq=False)
class SteepestCertificate(Proof):
    r"""A proof that steepest descent in a norm selects the tokens `selected` for ever, from `point` on.

    .. math:: \text{low} \le \liminf_t \min_r \frac{a_r \cdot p_t}{\|p_t\|}, \qquad
        \limsup_t \min_r \frac{a_r \cdot p_t}{\|p_t\|} \le \text{high}

    It holds for steps of any lengths up to `longest` that add up to infinity, and the lengths tend to at most `limit`. The proof
    is in docs/proofs/any_norm.md.

    Attributes:
        data, head, loss: the problem. Training W with queries is the problem whose keys are the products of queries and tokens.

        point: (d_key,) where the proof begins; it holds for every point within `tolerance` of it in the norm.

        selected: (n_inputs,) the tokens.

        steepest_in: the norm in which steps are steepest.

        shape: the shape of the weights in that norm, (d_key,) or that of a matrix with as many entries.

        longest: a bound h on the length of every step from the point on.

        limit: a bound on the length of steps in the limit: h for constant steps, 0 for steps that tend to zero.

        leading: (n_leading, 2) input and token of each leading row.

        witness: (d_key,) a point of norm at most 1 whose margin bounds γ from below.

        weights: (n_leading,) of leading rows, whose mean bounds γ from above.

        multipliers: (n_others, n_leading) μ of Eq. (6), which compares the other rows with leading ones.

        turns: (n_vertices, 1 + d_key) κ and z of Eq. (14) for each vertex of the unit ball, or none if Eq. (4) suffices. The order
            of vertices is that of `VertexSteps`.

        momentum: β, 0 without momentum.

        memory: (d_key,) the running sum of -∇L before the first step from the point.

        remembered: (n_leading,) weights of leading rows whose sum is about that memory.

        rate: g, by which the logarithm of the potential falls per unit of length.

        low, high: the bracket for the margin in the norm in the limit.

    `verify()` checks it again from the data alone, `save` and docs/proofs/check.py do so with fractions, and `to_coq` writes its
    conditions for Coq. `to_frame()` has one row per condition.
    """

    selected: IntArray
    steepest_in: Norm
    shape: tuple[int, ...]
    longest: float
    limit: float
    leading: IntArray
    witness: FloatArray
    weights: FloatArray
    multipliers: FloatArray
    turns: FloatArray
    momentum: float
    memory: FloatArray
    remembered: FloatArray
    rate: float
    low: float
    high: float
    format = "marginlens-steepest-2"
    steps = ("norm", "shape")
    not_negative = ("tolerance", "limit", "momentum")
    positive = ("longest", "rate", "high")
    quantities = "selects {selected}, margin=[{low:.4g}, {high:.4g}], norm={norm:.4g}"

    def requirements(self) -> Iterator[tuple[str, bool, Fact]]:
        """Return the theorem's requirements of each field, as for every proof."""
        yield from super().requirements()
        data, shape = self.data, self.shape
        known = type(self.steepest_in) in KNOWN_NORMS
        power = getattr(self.steepest_in, "p", 2.0)
        known = known and is_number(power) and power > 1.0
        yield "steepest_in", known, Fact("field.norm", {"norms": [kind.__name__ for kind in KNOWN_NORMS]})
        whole = type(shape) is tuple and all(type(size) is int and size > 0 for size in shape)
        fits = whole and prod(shape) == data.d_key and len(shape) in (1, 2)
        is_matrix = type(self.steepest_in).__name__ in MATRIX_NORMS[:3]
        yield "shape", fits and not (is_matrix and len(shape) == 1), Fact("field.shape", {"size": data.d_key})
        yield "limit", self.limit <= self.longest, Fact("field.at_most", {"other": "longest"})
        yield "low", is_number(self.low), Fact("field.finite")
        selected, leading = self.selected, self.leading
        yield "selected", are_indices(selected, (data.n_inputs,), data.lengths), Fact("field.selection")
        pairs, below = (max(1, np.size(leading) // 2), 2), np.array([data.n_inputs, data.n_tokens])
        yield "leading", are_indices(leading, pairs, below), Fact("field.tokens")
        i, t = leading.T
        yield "leading", bool((t < data.lengths[i]).all() and (t != selected[i]).all()), Fact("field.not_selected")
        in_order = bool((np.diff(i * data.n_tokens + t) > 0).all())
        yield "leading", in_order, Fact("field.in_order")
        count = len(leading)
        yield "witness", is_array(self.witness, (data.d_key,)), Fact("field.vector", {"size": data.d_key})
        weights = self.weights
        some = is_array(weights, (count,)) and bool((weights >= 0.0).all() and (weights > 0.0).any())
        yield "weights", some, Fact("field.weights", {"size": count})
        rows = np.shape(self.multipliers)[:1]
        comparable = is_array(self.multipliers, (*rows, count)) and bool((self.multipliers >= 0.0).all())
        yield "multipliers", comparable, Fact("field.columns", {"columns": count})
        corners = np.shape(self.turns)[:1]
        in_columns = is_array(self.turns, (*corners, 1 + data.d_key)) and bool((self.turns[:, 0] >= 0.0).all())
        yield "turns", in_columns, Fact("field.turns", {"columns": 1 + data.d_key})
        yield "turns", not corners[0] or self.momentum == 0.0, Fact("field.no_turns")
        yield "momentum", self.momentum < 1.0, Fact("field.below_one")
        yield "memory", is_array(self.memory, (data.d_key,)), Fact("field.vector", {"size": data.d_key})
        past = is_array(self.remembered, (count,)) and bool((self.remembered >= 0.0).all())
        yield "remembered", past, Fact("field.shares", {"size": count})

    def _arrays_of_steps(self) -> dict[str, Any]:
        return {"norm": np.array(norm_name(self.steepest_in)), "shape": np.array(self.shape)}

    @classmethod
    def _read_steps(cls, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {"steepest_in": norm_named(str(arrays["norm"])), "shape": tuple(arrays["shape"].tolist())}

    def to_coq(self, path: str | os.PathLike[str]) -> None:
        """Write a file whose goals `coqc` closes with the library coq-interval: every condition, computed from the data.

        Coq computes sums of products in whole numbers, and coq-interval bounds exponentials and logarithms. This covers the ℓ1,
        ℓ2, ℓ∞, Frobenius and max-row norm and up to 200 rows.

        Args:
            path: a file whose name is letters, digits and underscores, and ends with .v.

        Raises:
            InputError: if `verify` does not confirm the certificate, or if its norm or its size is not covered.
        """
        place = as_path(path, "path", "the path of a file that ends with .v")
        if place.suffix != ".v" or not place.stem.isidentifier():
            raise InputError(
                "path", "a file whose name is letters, digits and underscores, and ends with .v", str(path)
            )
        if not self.verify().applies:
            raise InputError("certificate", "one that verify() confirms", "one that it does not confirm")
        write_whole(place, coq_file(self).encode(), "path")

    @implements("X", "Thm 4")
    def verify(self) -> TheoremVerdict:
        """Recompute every inequality of the proof from the data, in exact products and intervals.

        It shares no code with the search. Every field is checked: if the theorem does not allow a number of the certificate, or
        the data do not confirm it, the verdict has a condition that fails.
        """
        refused = self.refused()
        checks = refused or tuple(steepest_conditions(self))
        return TheoremVerdict("X Thm 4", checks, Fact("steepest.unproved" if refused else "steepest.proved"))
