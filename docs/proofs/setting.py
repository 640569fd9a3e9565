"""What every proof begins with: the numbers of a file as fractions, the rows of its problem, and conditions that may fail."""

from fractions import Fraction
from math import isfinite

from enclosures import Real


class NotProved(Exception):
    """A condition that may fail."""


def fail(condition):
    """End with the first condition that may fail."""
    raise NotProved(condition)


def need(condition, small, large, strictly=False):
    """Go on if small ≤ large, or small < large, for all numbers between the ends of both."""
    small, large = (x if isinstance(x, Real) else Real(Fraction(x)) for x in (small, large))
    if not (small < large if strictly else small <= large):
        least, most = (float(min(max(x, -(10**300)), 10**300)) for x in (small.high, large.low))
        fail(f"{condition}: {least:.6g} is not {'below' if strictly else 'at most'} {most:.6g}")


def total(values):
    """The sum."""
    return sum(values, Fraction(0))


def dot(x, y):
    """The inner product."""
    return total(a * b for a, b in zip(x, y, strict=True))


def largest(values):
    """The largest upper end; 0 for none."""
    return max((x.high if isinstance(x, Real) else x for x in values), default=Fraction(0))


def numbers(proof, name, *shape, least=None):
    """A number or nested lists of numbers of the file: exactly the doubles that they are, all of them at least `least`."""

    def exact(value, shape):
        if shape:
            if type(value) is not list or len(value) != shape[0]:
                fail(f"{name} has the shape that belongs to the other numbers of the file")
            return [exact(entry, shape[1:]) for entry in value]
        if type(value) not in (int, float) or not isfinite(value) or (least is not None and value < least):
            fail(f"{name} is made of finite numbers" + (f" of at least {least}" if least is not None else ""))
        return Fraction(value)

    return exact(proof[name], shape)


def positive(proof, name):
    """A number of the file that has to be above 0."""
    need(f"{name} is above 0", 0, number := numbers(proof, name), strictly=True)
    return number


def tokens(proof, name, *shape, below):
    """Whole numbers of the file from 0 on: (n,) or (n, k), each column below these numbers."""
    values = numbers(proof, name, *shape, least=0)
    rows = values if len(shape) > 1 else [[value] for value in values]
    for j, row in enumerate(rows):
        for value, bound in zip(row, below if len(shape) > 1 else below[j : j + 1], strict=True):
            if value.denominator != 1 or value >= bound:
                fail(f"{name} names tokens that are there")
    return [tuple(map(int, row)) if len(shape) > 1 else int(row[0]) for row in rows]


class Problem:
    """Keys k_it, scores γ_it and offsets b_it of the logits of n inputs without padding, and -ℓ' of the loss."""

    def __init__(self, proof):
        X, y, head = proof["X"], proof["y"], proof["head"]
        self.n, most, width, depth = len(X), len(X[0]), len(head), len(proof["K"][0][0])
        X, K = numbers(proof, "X", self.n, most, width), numbers(proof, "K", self.n, most, depth)
        y, head = numbers(proof, "y", self.n), numbers(proof, "head", width)
        lengths = [most] * self.n
        if "lengths" in proof:
            lengths = tokens(proof, "lengths", self.n, below=[most + 1] * self.n)
        if min(lengths) < 1 or any(abs(label) != 1 for label in y):
            fail("every input has a token, and labels are 1 or -1")
        if proof["loss"] not in ("logistic", "exponential", "correlation-loss", "log-probability", "arcsine-loss"):
            fail("the loss is logistic, exponential, correlation-loss, log-probability or arcsine-loss")
        self.loss, self.depth, self.lengths = proof["loss"], depth, lengths
        self.keys = [keys[:count] for keys, count in zip(K, lengths, strict=True)]
        self.offsets = [[Fraction(0)] * count for count in lengths]
        if "logit_offsets" in proof:
            every = numbers(proof, "logit_offsets", self.n, most)
            self.offsets = [row[:count] for row, count in zip(every, lengths, strict=True)]
        self.scores = [
            [label * dot(token, head) for token in every[:count]]
            for every, count, label in zip(X, lengths, y, strict=True)
        ]

    def without_offsets(self):
        """The problem itself, which must not add offsets to its logits."""
        if any(map(any, self.offsets)):
            fail("the theorem is about logits without offsets")
        return self

    def slope(self, margin):
        """-ℓ' at a margin."""
        if self.loss == "log-probability":
            need("selected tokens score above 0", 0, margin, strictly=True)
            return 1 / (margin + Real(Fraction(0)))
        if self.loss == "arcsine-loss":  # the slope is infinite at 1
            if margin != 1:
                fail("selected tokens score 1")
            return Real(Fraction(1))
        if self.loss == "logistic":
            return 1 / (1 + (margin + Real(Fraction(0))).exp())
        return (-margin + Real(Fraction(0))).exp() if self.loss == "exponential" else Real(Fraction(1))

    def steepness(self, row, eps, plus):
        """Λ, which bounds the slope of log(-ℓ') for margins of the row's input from γ_α - εΔ⁺ on."""
        if self.loss == "log-probability":
            need("the slope of the loss stays finite", 0, row.score - eps * plus, strictly=True)
            return 1 / (row.score - eps * plus)
        return 0 if self.loss == "correlation-loss" else 1

    def rows(self, selected):
        """The rows of a selection, only of inputs whose output depends on the weights."""
        for i, (keys, scores) in enumerate(zip(self.keys, self.scores, strict=True)):
            if len(set(scores)) < 2 or all(key == keys[0] for key in keys):
                continue
            top, c = keys[selected[i]], self.slope(scores[selected[i]]) / self.n
            for t, key in enumerate(keys):
                if t != selected[i]:
                    a = [x - y for x, y in zip(top, key, strict=True)]
                    lead = self.offsets[i][selected[i]] - self.offsets[i][t]
                    yield Row(i, t, a, scores[selected[i]], scores[selected[i]] - scores[t], c, lead)


class Row:
    """A row r = (i, t): a_r, the score γ_α, Δ_r, c = c_i^∞, and the lead b_α - b_t that offsets give the logit."""

    def __init__(self, i, t, a, score, delta, c, lead):
        self.i, self.token, self.a, self.score, self.delta, self.c, self.lead = i, (i, t), a, score, delta, c, lead


def bounds_of_inputs(rows, phi):
    """ε_i as the sum of φ_r, Δ_i^+ and Δ_i^- by input, from bounds φ_r ≥ 0 by token."""
    own = {row.i: [other for other in rows if other.i == row.i] for row in rows}
    return {
        i: (
            total(phi[row.token] for row in rows),
            max(0, *(row.delta for row in rows)),
            max(0, *(-row.delta for row in rows)),
        )
        for i, rows in own.items()
    }
