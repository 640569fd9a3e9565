"""Certificates of X Theorem 4 as files for Coq: goals about whole numbers that it computes, and about reals that coq-interval closes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from importlib.resources import files
from itertools import combinations, product
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.errors import InputError
from marginlens.losses import CorrelationLoss, Logistic, LogProbability
from marginlens.norms import L1, L2, Frobenius, LInf, MaxRow
from marginlens.typing import FloatArray

if TYPE_CHECKING:
    from marginlens.losses.margin import Loss
    from marginlens.theory.steepest_certificate import SteepestCertificate

MOST_ROWS = 200
SPARE = 1e-12  # relative room of stated bounds, which are computed in doubles
BLUR = Fraction(1e-13)  # bound on the errors of shares that are computed in doubles
LEAST = 1e-20  # room of bounds on errors, which may be far smaller than the precision of an interval
COMPUTED, CLOSED = "Proof. computed. Qed.", "Proof. closed. Qed."  # by tactics of the prelude


def coq_file(proof: SteepestCertificate) -> str:
    """Return the text of a Coq file that proves the conditions of a certificate for which `verify` says yes."""
    return (
        files("marginlens.theory").joinpath("steepest_prelude.v").read_text(encoding="utf-8") + _File(proof).written()
    )


class _Whole:
    """Doubles as whole numbers over one power of two."""

    def __init__(self, values: Iterable[float]) -> None:
        exact = [Fraction(float(value)) for value in values]
        self.scale = max((value.denominator for value in exact), default=1)
        self.numbers = [int(value * self.scale) for value in exact]

    def rows(self, width: int) -> list[list[int]]:
        return [self.numbers[k : k + width] for k in range(0, len(self.numbers), width)]


class _Past(NamedTuple):
    """What momentum costs, as terms of goals: J + q d_0, J in the limit, and κ as a number and as a term."""

    lost: str
    lost_in_limit: str
    error: Fraction
    error_words: str


class _File:
    """The parts of a file, and the exact numbers from which its bounds are computed."""

    def __init__(self, proof: SteepestCertificate) -> None:
        norm = proof.steepest_in
        if not isinstance(norm, L1 | L2 | LInf | Frobenius | MaxRow):
            raise InputError(
                "certificate", "one in the ℓ1, ℓ2, ℓ∞, Frobenius or max-row norm, which whole numbers bound", repr(norm)
            )
        if type(proof.loss) is LogProbability:
            raise InputError("certificate", "one for another loss", type(proof.loss).__name__)
        self.proof = proof
        self.lines: list[str] = []
        data, d = proof.data, proof.data.d_key
        real = [(i, t) for i in range(data.n_inputs) for t in range(int(data.lengths[i]))]
        where = {token: k for k, token in enumerate(real)}
        at = tuple(np.array(real).T)
        self.keys, self.tokens, self.head = _Whole(data.K[at].ravel()), _Whole(data.X[at].ravel()), _Whole(proof.head)
        keys, tokens = self.keys.rows(d), self.tokens.rows(data.d_model)
        score = [int(data.y[i]) * _dot(row, self.head.numbers) for (i, _), row in zip(real, tokens, strict=True)]
        chosen = proof.selected.tolist()
        moves = [
            i
            for i, n in enumerate(data.lengths.tolist())
            if len({score[where[i, t]] for t in range(n)}) > 1
            and any(keys[where[i, t]] != keys[where[i, 0]] for t in range(n))
        ]
        self.inputs = moves
        self.rows = [(i, t) for i, t in real if i in moves and t != chosen[i]]
        if len(self.rows) > MOST_ROWS:
            raise InputError("certificate", f"one of at most {MOST_ROWS} rows", str(len(self.rows)))
        self.places = [(where[i, chosen[i]], where[i, t]) for i, t in self.rows]
        self.a = [_minus(keys[s], keys[t]) for s, t in self.places]
        self.delta = [score[s] - score[t] for s, t in self.places]
        self.score = {i: score[where[i, chosen[i]]] for i in moves}
        named = {tuple(token) for token in proof.leading.tolist()}
        self.leading = [r for r, token in enumerate(self.rows) if token in named]
        self.others = [r for r, token in enumerate(self.rows) if token not in named]

    # ---- the norm, in whole numbers

    def dual(self, x: Sequence[int]) -> int:
        """Bound ‖x‖_* by a whole number, as `dual` in the file does."""
        norm, sizes = self.proof.steepest_in, [abs(entry) for entry in x]
        if isinstance(norm, L1 | LInf):
            return sum(sizes) if isinstance(norm, LInf) else max(sizes)
        if isinstance(norm, MaxRow):
            width = self.proof.shape[-1]
            return sum(_root(_dot(row, row)) for row in (x[k : k + width] for k in range(0, len(x), width)))
        return _root(_dot(x, x))

    def value(self, x: Sequence[int]) -> int:
        """Bound ‖x‖ by a whole number."""
        norm, sizes = self.proof.steepest_in, [abs(entry) for entry in x]
        return max(sizes) if isinstance(norm, LInf) else sum(sizes) if isinstance(norm, L1) else _root(_dot(x, x))

    def _norms(self) -> tuple[str, str]:
        """Return what `size` and `dual` are called in the prelude."""
        norm, shape = self.proof.steepest_in, self.proof.shape
        if isinstance(norm, MaxRow):
            size = f"{len(self.proof.point) // shape[-1]} {shape[-1]}"
            return f"longest_row {size}", f"all_rows {size}"
        if isinstance(norm, L1 | LInf):
            return ("greatest", "absolute") if isinstance(norm, LInf) else ("absolute", "greatest")
        return "euclidean", "euclidean"

    # ---- lines of the file

    def define(self, name: str, value: str) -> None:
        self.lines.append(f"Definition {name} := {value}.")

    def computed(self, name: str, left: str, right: str = "true") -> None:
        """State what Coq computes."""
        self.lines.append(f"Lemma {name} : {left} = {right}. {COMPUTED}")

    def bounded(self, name: str, statement: str) -> None:
        """State what coq-interval closes."""
        self.lines.append(f"Lemma {name} : ({statement})%R. {CLOSED}")

    def remark(self, text: str) -> None:
        self.lines.append(f"\n(* {text} *)")

    def written(self) -> str:
        """Write the lemmas: about exact numbers first, then every bound of the proof in its order."""
        size, dual = self._norms()
        self.define("size", size)
        self.define("dual", dual)
        self._exact()
        self._along_the_way()
        return "\n".join(self.lines) + "\n"

    def _exact(self) -> None:
        """Rows, sizes, both bounds on γ, and how other rows compare with leading ones, Eqs (3) and (6)."""
        proof, d, scale = self.proof, self.proof.data.d_key, self.keys.scale
        self.remark("Setting")
        self.define("keys", _list(map(_list, self.keys.rows(d))))
        self.define("tokens", _list(map(_list, self.tokens.rows(proof.data.d_model))))
        self.define("head", _list(self.head.numbers))
        self.define("places", _list(f"({s}, {t})%nat" for s, t in self.places))
        self.define("signs", _list(int(proof.data.y[i]) for i, _ in self.rows))
        self.define("a", "rows keys places")
        self.define("apart", "rows tokens places")
        self.define("gaps", "products head apart")
        self.define("delta", "signed signs gaps")
        self.define("score", "scored tokens head")
        self.computed("delta_is", "delta", _list(self.delta))
        for i in self.inputs:
            place = next(s for (j, _), (s, _) in zip(self.rows, self.places, strict=True) if j == i)
            self.computed(f"score_{i}", f"{int(proof.data.y[i])} * score {place}%nat", str(self.score[i]))
        self.define("leading", f"pick {_list(f'{r}%nat' for r in self.leading)} a []")
        self.define("others", f"pick {_list(f'{r}%nat' for r in self.others)} a []")
        point = _Whole(proof.point)
        self.at = [_dot(row, point.numbers) for row in self.a]
        self.at_scale = scale * point.scale
        self.define("point", _list(point.numbers))
        self.computed("at_point", "products point a", _list(self.at))
        self.remark("Eq. (3)")
        witness, leads = _Whole(proof.witness), [self.a[r] for r in self.leading]
        low = min(_dot(row, witness.numbers) for row in leads)
        self.gamma = Fraction(low, scale * witness.scale)
        self.define("witness", _list(witness.numbers))
        self.computed("witness_fits", f"size witness <=? {witness.scale}")
        self.define("lead", "products witness leading")
        self.computed("witness_leads", f"at_least {low} lead")
        pi, high = _Whole(proof.weights), Fraction(proof.high)
        self.define("pi", _list(pi.numbers))
        self.define("average", "mean pi leading")
        self.computed("pi_total", "total pi", str(sum(pi.numbers)))
        self.computed(
            "margin_high", f"dual average * {high.denominator} <=? {high.numerator * scale * sum(pi.numbers)}"
        )
        longest = max(self.dual(row) for row in leads)
        widest = max((self.dual(_minus(r, s)) for r, s in combinations(leads, 2)), default=0)
        self.longest, self.widest = Fraction(longest, scale), Fraction(widest, scale)
        self.define("sizes", "map dual leading")
        self.computed("longest", f"at_most {longest} sizes")
        self.define("differences", "pairs leading")
        self.define("distances", "map dual differences")
        self.computed("widest", f"at_most {widest} distances")
        self._compared(leads)

    def _compared(self, leads: list[list[int]]) -> None:
        """Other rows as sums of leading ones, Eq. (6), what is left of them, and their sizes."""
        proof, scale = self.proof, self.keys.scale
        mu = _Whole(proof.multipliers.ravel())
        rows = mu.rows(len(leads)) if self.others else []
        means = [_mean(weights, leads) for weights in rows]
        rests = [
            self.dual(_minus([mu.scale * entry for entry in self.a[r]], mean))
            for r, mean in zip(self.others, means, strict=True)
        ]
        near = [self.at[r] for r in self.leading]
        behind = [_dot(weights, near) - mu.scale * self.at[r] for r, weights in zip(self.others, rows, strict=True)]
        sizes = [self.dual(self.a[r]) for r in self.others]
        self.mu = [[Fraction(w, mu.scale) for w in weights] for weights in rows]
        self.rest = [Fraction(size, scale * mu.scale) for size in rests]
        self.behind = [Fraction(number, mu.scale * self.at_scale) for number in behind]
        self.size = [Fraction(size, scale) for size in sizes]
        if not self.others:
            return
        self.remark("Eq. (6)")
        self.define("mu", _list(map(_list, rows)))
        self.define("sums", "means mu leading")
        self.define("leftover", f"rests {mu.scale} others sums")
        self.define("rest_sizes", "map dual leftover")
        self.computed("rest", f"below {_list(rests)} rest_sizes")
        self.define("other_sizes", "map dual others")
        self.computed("sizes_of_others", f"below {_list(sizes)} other_sizes")
        self.define("near", "products point leading")
        self.define("far", "products point others")
        self.define("ahead", "weighted mu near")
        self.computed("behind", f"lags {mu.scale} ahead far", _list(behind))

    def _along_the_way(self) -> None:
        """Potential, comparisons, saturation and the theorem, Eqs (2), (7), (9) to (12)."""
        proof, loss = self.proof, self.proof.loss
        delta = [Fraction(number, self.tokens.scale * self.head.scale) for number in self.delta]
        x = [Fraction(number, self.at_scale) for number in self.at]
        rho, steep = Fraction(proof.tolerance), 0 if type(loss) is CorrelationLoss else 1
        low, high = {}, {}
        self.remark("Slopes")
        for i in self.inputs:
            n, score = proof.data.n_inputs, Fraction(self.score[i], self.tokens.scale * self.head.scale)
            words, slope = _slope(loss, score)
            low[i], high[i] = Fraction(slope / n * (1.0 - SPARE)), _up(slope / n)
            self.bounded(f"slope_{i}", f"{_real(low[i])} <= {words} / {n} <= {_real(high[i])}")
        self.remark("Eqs (2) and (7)")
        terms = [(high[self.rows[r][0]] * delta[r], x[r]) for r in self.leading]
        spread = self.longest * rho
        self.least = [(low[self.rows[r][0]] * delta[r], x[r]) for r in self.leading]
        F = _up(sum(float(c) * np.exp(-float(y)) for c, y in terms) * np.exp(float(spread)))
        summed = " + ".join(f"{_real(c)} * exp (- {_real(y)})" for c, y in terms)
        ball = f"exp ({_real(self.longest)} * {_real(rho)})"
        self.bounded("potential", f"({summed}) * {ball} <= {_real(F)}")
        phi: dict[int, Fraction] = {}
        logs = []
        for r in self.leading:
            limit = low[self.rows[r][0]] * delta[r]
            phi[r] = _up(float(F / limit))
            logs.append(_above(np.log(float(phi[r]))))
            self.bounded(f"phi_{r}", f"{_real(F)} / {_real(limit)} <= {_real(phi[r])}")
            self.bounded(f"log_{r}", f"ln {_real(phi[r])} <= {_real(logs[-1])}")
        for r, mu, rest, behind in zip(self.others, self.mu, self.rest, self.behind, strict=True):
            exponent = behind + rest * rho + sum(w * log for w, log in zip(mu, logs, strict=True))
            phi[r] = _up(np.exp(float(exponent)))
            products = "".join(f" + {_real(w)} * {_real(log)}" for w, log in zip(mu, logs, strict=True))
            words = f"{_real(behind)} + {_real(rest)} * {_real(rho)}{products}"
            self.bounded(f"phi_{r}", f"exp ({words}) <= {_real(phi[r])}")
        zeta, omega = self._saturated(delta, phi, high, F, steep)
        past = self._remembered()
        nu = max(_up(float(zeta * self.longest + omega)), past.error)
        self.remark("Eqs (10) to (12)")
        self.bounded("errors", f"{_real(zeta)} * {_real(self.longest)} + {_real(omega)} <= {_real(nu)}")
        if past.error > 0:
            self.bounded("errors_of_memory", f"{past.error_words} <= {_real(nu)}")
        self._theorem(nu, past)

    def _saturated(
        self, delta: list[Fraction], phi: dict[int, Fraction], high: dict[int, Fraction], F: Fraction, steep: int
    ) -> tuple[Fraction, Fraction]:
        """Saturation: bounds on ζ of Eq. (9) and ω of Eq. (10)."""
        self.remark("Eqs (9) and (10)")
        eps: dict[int, Fraction] = {}
        plus: dict[int, Fraction] = {}
        minus: dict[int, Fraction] = {}
        for i in self.inputs:
            own = [r for r, (j, _) in enumerate(self.rows) if j == i]
            eps[i] = _up(float(sum(phi[r] for r in own)))
            zero = Fraction(0)
            plus[i], minus[i] = max([zero, *(delta[r] for r in own)]), max([zero, *(-delta[r] for r in own)])
            self.bounded(f"epsilon_{i}", f"{' + '.join(_real(phi[r]) for r in own)} <= {_real(eps[i])} < 1")
        errors = {}
        for r in self.leading:
            e, up, down = (each[self.rows[r][0]] for each in (eps, plus, minus))
            grown, fall = float(e * (steep * up + down / delta[r])), float(e * steep * down)
            lost = f"{_real(e)} * {_real(up)} / {_real(delta[r])}"
            self.bounded(f"forward_{r}", f"{lost} < 1")
            more = f"exp ({_real(e)} * ({steep} * {_real(up)} + {_real(down)} / {_real(delta[r])})) - 1"
            less = f"1 - (1 - {_real(e)}) * (1 - {lost}) * exp (- ({_real(e)} * {steep} * {_real(down)}))"
            size = max(np.expm1(grown), -np.expm1(np.log1p(-float(e)) + np.log1p(-float(e * up / delta[r])) - fall))
            errors[r] = (more, less, size)
        zeta = _above(max(size for *_, size in errors.values()))
        for r, (more, less, _) in errors.items():
            self.bounded(f"more_{r}", f"{more} <= {_real(zeta)}")
            self.bounded(f"less_{r}", f"{less} <= {_real(zeta)}")
        words, value = [], 0.0
        for r, size in zip(self.others, self.size, strict=True):
            i = self.rows[r][0]
            e, up, most = eps[i], plus[i], max(plus[i], minus[i])
            factor = high[i] * (abs(delta[r]) + e * most) * size * phi[r] / F
            value += float(factor) * np.exp(float(steep * e * up))
            slope = f"{_real(high[i])} * exp ({steep} * {_real(e)} * {_real(up)})"
            differences = f"({_real(abs(delta[r]))} + {_real(e)} * {_real(most)})"
            words.append(f"{slope} * {differences} * {_real(size)} * {_real(phi[r])} / {_real(F)}")
        omega = _above(value)
        self.bounded("omega", f"{' + '.join(words) or '0'} <= {_real(omega)}")
        return zeta, omega

    def _theorem(self, nu: Fraction, past: _Past) -> None:
        """Eqs (11), (12), (14) and (19)."""
        proof = self.proof
        g, h, limit, low = (Fraction(value) for value in (proof.rate, proof.longest, proof.limit, proof.low))
        for r, mu, rest in zip(self.others, self.mu, self.rest, strict=True):
            self.bounded(f"outrun_{r}", f"{_real(rest)} < ({' + '.join(map(_real, mu))} - 1) * {_real(g)}")
        square = f"{_real(self.widest)} ^ 2 / 8"
        if len(proof.turns):
            self._turns(nu)
        else:
            lost = f"2 * {_real(nu)} + {past.lost} + {_real(h)} * {square}"
            self.bounded("rate", f"{_real(g)} + {lost} <= {_real(self.gamma)}")
        if not len(proof.turns) or limit == 0:
            self.bounded(
                "low", f"{_real(low)} + {past.lost_in_limit} + {_real(limit)} * {square} <= {_real(self.gamma)}"
            )

    def _remembered(self) -> _Past:
        """With memory: J + q d_0, J in the limit, and κ, Eqs (16) to (19)."""
        proof = self.proof
        if proof.momentum == 0.0:
            return _Past("0", "0", Fraction(0), "0")
        self.remark("Eqs (16) to (19)")
        beta, rho, lost = Fraction(proof.momentum), Fraction(proof.tolerance), []
        for name, length in (("in_limit", Fraction(proof.limit)), ("now", Fraction(proof.longest))):
            growth = f"exp ({_real(length)} * {_real(self.longest)})"
            b = _up(float(beta) * np.exp(float(length * self.longest)))
            self.bounded(f"forgets_{name}", f"{_real(beta)} * {growth} <= {_real(b)} < 1")
            lost.append(f"{_real(b)} / (1 - {_real(b)}) * {_real(length)} * {_real(self.widest)} ^ 2 / 4")
        past, memory, scale = _Whole(proof.remembered), _Whole(proof.memory), self.keys.scale
        self.define("memory", _list(memory.numbers))
        S = sum(past.numbers)
        if S == 0:
            self.computed("no_memory", "forallb (Z.eqb 0) memory")
            return _Past(lost[1], lost[0], Fraction(0), "0")
        leads = [self.a[r] for r in self.leading]
        mean = _mean(past.numbers, leads)
        self.define("past", _list(past.numbers))
        away = self.dual(
            _minus([entry * past.scale * scale for entry in memory.numbers], [entry * memory.scale for entry in mean])
        )
        self.define("recalled", "mean past leading")
        self.define("memory_rest", f"between {past.scale * scale} memory {memory.scale} recalled")
        self.computed("memory_total", "total past", str(S))
        self.computed("memory_error", f"dual memory_rest <=? {away}")
        rests = Fraction(away, memory.scale * scale * S)
        # The shares of rows at the point are exponentials, so they are stated as doubles with a bound on their error.
        floats = np.array([float(c) * np.exp(-float(y)) for c, y in self.least])
        shares = _Whole(floats / floats.sum())
        here = _mean(shares.numbers, leads)
        least = Fraction(floats.sum() * (1.0 - SPARE))
        summed = " + ".join(f"{_real(c)} * exp (- {_real(y)})" for c, y in self.least)
        self.bounded("least", f"{_real(least)} <= {summed}")
        for r, (c, y), share in zip(self.leading, self.least, shares.numbers, strict=True):
            term = f"{_real(c)} * exp (- {_real(y)}) / ({summed})"
            self.bounded(f"share_{r}", f"Rabs ({term} - {_real(Fraction(share, shares.scale))}) <= {_real(BLUR)}")
        apart = self.dual(_minus([entry * shares.scale for entry in mean], [entry * S for entry in here]))
        self.define("shares", _list(shares.numbers))
        self.define("present", "mean shares leading")
        self.define("memory_way", f"between {shares.scale} recalled {S} present")
        self.computed("memory_away", f"dual memory_way <=? {apart}")
        growth, spread = (f"exp ({_real(length)} * {_real(self.longest)})" for length in (Fraction(proof.longest), rho))
        size = Fraction(S, past.scale)
        sigma = _up(float(size) / float(least) * np.exp(float(self.longest * rho)))
        self.bounded("memory_ratio", f"{_real(size)} / {_real(least)} * {spread} <= {_real(sigma)}")
        self.bounded("memory_size", f"{_real(sigma)} * (1 - {_real(b)}) <= {growth}")
        ratio = f"{_real(beta)} * {_real(sigma)}"
        blur = f"{len(leads)} * {_real(BLUR)} * {_real(self.longest)} + {_real(self.widest)} ^ 2 * {_real(rho)} / 4"
        d_0 = f"({_real(Fraction(apart, shares.scale * scale * S))} + {blur})"
        return _Past(
            f"{lost[1]} + {ratio} / (1 + {ratio}) * {d_0}",
            lost[0],
            _up(float(rests + rho * self.longest)),
            f"{_real(rests)} + {_real(rho)} * {_real(self.longest)}",
        )

    def _turns(self, nu: Fraction) -> None:
        """A sharper step, Eq. (14), at every vertex."""
        proof, d, scale = self.proof, self.proof.data.d_key, self.keys.scale
        self.remark("Eq. (14)")
        cross = [[sign * int(j == k) for j in range(d)] for sign in (1, -1) for k in range(d)]
        corners = cross if isinstance(proof.steepest_in, L1) else [list(signs) for signs in product((1, -1), repeat=d)]
        g, h, low = Fraction(proof.rate), Fraction(proof.longest), Fraction(proof.low)
        for j, (corner, numbers) in enumerate(zip(corners, proof.turns, strict=True)):
            kappa, z = Fraction(float(numbers[0])), _Whole(numbers[1:])
            leads = [_dot(self.a[r], corner) for r in self.leading]
            pulls = [_dot(self.a[r], z.numbers) for r in self.leading]
            size = self.value(z.numbers)
            self.computed(f"corner_{j}", f"map (dot {_list(corner)}) leading", _list(leads))
            self.computed(f"pull_{j}", f"map (dot {_list(z.numbers)}) leading", _list(pulls))
            self.computed(f"size_{j}", f"size {_list(z.numbers)}", str(size))
            slope = kappa + Fraction(size, z.scale)
            for r, lead, pull in zip(self.leading, leads, pulls, strict=True):
                x, y = _real(Fraction(lead, scale)), _real(Fraction(pull, scale * z.scale))
                rest = f"{_real(slope)} * {x} - {y} - {_real(kappa)} * {_real(self.gamma)}"
                left = f"exp (- ({_real(h)} * {x})) + {rest}"
                errors = f"2 * {_real(nu)} * {_real(slope)}"
                self.bounded(f"turn_{j}_{r}", f"{left} + {errors} <= exp (- ({_real(g)} * {_real(h)}))")
                if proof.limit > 0.0:
                    self.bounded(f"turn_low_{j}_{r}", f"{left} <= exp (- ({_real(low)} * {_real(h)}))")


def _slope(loss: Loss, score: Fraction) -> tuple[str, float]:
    """Return the slope -ℓ' at a margin, as a term of a goal and in doubles."""
    with np.errstate(over="ignore"):
        if type(loss) is CorrelationLoss:
            return "1", 1.0
        if type(loss) is Logistic:
            return f"1 / (1 + exp {_real(score)})", float(1.0 / (1.0 + np.exp(float(score))))
        return f"exp (- {_real(score)})", float(np.exp(-float(score)))


def _dot(x: Sequence[int], y: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(x, y, strict=True))


def _minus(x: Sequence[int], y: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(x, y, strict=True)]


def _mean(weights: Sequence[int], rows: Sequence[Sequence[int]]) -> list[int]:
    return [_dot(weights, column) for column in zip(*rows, strict=True)]


def _root(square: int) -> int:
    """Return the square root, rounded up."""
    return 0 if square == 0 else isqrt(square - 1) + 1


def _list(entries: Iterable[Any]) -> str:
    return f"[{'; '.join(map(str, entries))}]"


def _real(value: Fraction | int) -> str:
    number = Fraction(value)
    return f"({number.numerator})" if number.denominator == 1 else f"({number.numerator} / {number.denominator})"


def _up(value: FloatArray | float) -> Fraction:
    """Return a double above a number of at least 0 that is known up to rounding."""
    return Fraction(float(value) * (1.0 + SPARE))


def _above(value: FloatArray | float) -> Fraction:
    """Return a double above a number of any sign, or of an error that may be tiny."""
    return Fraction(float(value) + SPARE * abs(float(value)) + LEAST)
