"""X-R4: how many pairs of query and document a linear adapter can rank first, with a proof for every problem."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

import marginlens as ml
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress

SEED = 4
PROBLEMS = {4: 40, 6: 40, 8: 40, 12: 8, 16: 3}  # by the width of the embeddings
RATIOS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5)  # pairs for each coordinate
BITS = 8  # binary digits of the embeddings after the point, so that rows have no rounding
EXACT_WIDTH = 4  # up to which contradictions are solved in fractions
MANY = 8  # pairs for each coordinate in the controls


class _Answer(NamedTuple):
    feasible: bool
    proved: bool
    triplets: int


class X_R4(Claim):
    labels = ("A ATT-SVM", "D W-SVM")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Find the number of pairs up to which random ones can be ranked first, and compare pairs that are linear images."""
        widths = tuple(PROBLEMS) if effort is Effort.PAPER else (4, 6, 8)
        progress.expect(len(widths) * len(RATIOS))
        numbers: dict[str, float] = {}
        answers: list[_Answer] = []
        counts, border = [], []
        for width in widths:
            n_problems = PROBLEMS[width] if effort is Effort.PAPER else 6
            successes = []
            for ratio in RATIOS:
                found = [_random(round(ratio * width), width, k) for k in range(n_problems)]
                answers += found
                successes.append(sum(answer.feasible for answer in found))
                progress.advance()
            counts.append((successes, n_problems))
            border.append(_crossing(np.array(successes) / n_problems))
            numbers[f"pairs_per_coordinate_{width}"] = border[-1]
        numbers["proved"] = float(np.mean([answer.proved for answer in answers]))
        numbers["exponent"] = float(np.polyfit(np.log(widths), np.log(border), 1)[0]) + 1.0
        images = [_images(width, shuffled) for shuffled in (False, True) for width in widths[:3]]
        numbers["images"] = float(np.mean([answer.feasible for answer in images[: len(images) // 2]]))
        numbers["shuffled_images"] = float(np.mean([answer.feasible for answer in images[len(images) // 2 :]]))
        triplets = [answer.triplets for answer in answers if not answer.feasible]
        measured = _sentence(numbers, dict(zip(widths, border, strict=True)), len(answers), max(triplets))
        return Finding(measured, numbers, {"widths": widths, "counts": counts})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The share of problems in which some adapter ranks all positive documents first, over the number of pairs."""
        figure, (axes,) = ml.plotting.figure(width=6.4, height=3.8)
        shades = np.linspace(0.3, 1.0, len(finding.arrays["widths"]))
        for width, shade, (successes, n) in zip(
            finding.arrays["widths"], shades, finding.arrays["counts"], strict=True
        ):
            shares = np.array(successes) / n
            axes.plot(RATIOS, shares, "o-", color=ml.plotting.LOCAL, alpha=shade, ms=4)
            axes.annotate(f"d = {width}", (_crossing(shares), 0.5), (5, 4), textcoords="offset points")
        axes.set(
            xlabel="pairs for each coordinate, n/d", ylabel="share of problems with an adapter", ylim=(-0.03, 1.05)
        )
        axes.set_title("Wider adapters rank more pairs for each coordinate")
        return {"capacity": figure}


def _random(n: int, width: int, k: int) -> _Answer:
    """Decide a problem with independent queries and documents, in which all other documents are negatives."""
    rng = np.random.default_rng([SEED, n, width, k])
    queries, documents = _rounded(rng.standard_normal((2, n, width)))
    return _decide(queries, documents, np.arange(n))


def _images(width: int, shuffled: bool) -> _Answer:
    """Decide a problem of many pairs whose documents are a linear image of the queries, or of queries in another order."""
    n, rng = MANY * width, np.random.default_rng([SEED, width])
    queries = rng.standard_normal((n, width))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    documents = queries @ rng.standard_normal((width, width))
    return _decide(queries, documents, rng.permutation(n) if shuffled else np.arange(n))


def _rounded(array: FloatArray) -> FloatArray:
    return np.round(array * 2.0**BITS) / 2.0**BITS


def _decide(queries: FloatArray, documents: FloatArray, positives: IntArray) -> _Answer:
    """Whether some adapter ranks the positives first, whether that is proved, and by how many triplets if none does."""
    risk = ml.risk.contrastive(queries, documents, positives)
    solution = ml.att_svm(risk.data, positives, query=queries)
    if solution.status is ml.Status.OPTIMAL:
        logits = queries @ solution.x @ documents.T
        others = np.where(np.arange(len(documents)) == positives[:, None], -np.inf, logits)
        lead = logits[np.arange(len(queries)), positives] - others.max(axis=1)
        return _Answer(True, bool(solution.is_verified() and lead.min() > 0.5), 0)
    query, above, below = solution.contradiction.pairs.T
    rows = queries[query][:, :, None] * (documents[above] - documents[below])[:, None, :]
    is_proved = queries.shape[1] > EXACT_WIDTH or _cancels(rows.reshape(len(rows), -1))
    return _Answer(False, is_proved and solution.status is ml.Status.INFEASIBLE, len(query))


def _cancels(rows: FloatArray) -> bool:
    """Whether positive weights make the sum of rows zero, which is solved for without rounding."""
    columns = [[Fraction(value) for value in column] for column in rows.T.tolist()]
    done: list[list[Fraction]] = []
    for k in range(len(rows) - 1):
        pivot = next((column for column in columns if column[k]), None)
        if pivot is None:
            return False
        columns = [column for column in columns if column is not pivot]
        unit = [value / pivot[k] for value in pivot]
        columns, done = ([_less(column, unit, k) for column in part] for part in (columns, done))
        done.append(unit)
    # The last weight is one, and column k now says that weight k plus its last entry is zero.
    return not any(map(any, columns)) and all(column[-1] < 0 for column in done)


def _less(column: list[Fraction], unit: list[Fraction], k: int) -> list[Fraction]:
    return [value - column[k] * other for value, other in zip(column, unit, strict=True)]


def _crossing(shares: FloatArray) -> float:
    """The ratio at which the share falls through one half, between two of the ratios."""
    after = int(np.argmax(shares < 0.5))
    if after == 0:
        return float("nan")
    fall = (shares[after - 1] - 0.5) / (shares[after - 1] - shares[after])
    return float(RATIOS[after - 1] + fall * (RATIOS[after] - RATIOS[after - 1]))


def _sentence(numbers: dict[str, float], border: dict[int, float], count: int, triplets: int) -> str:
    listed = ", ".join(f"{ratio:.2f} d for d = {width}" for width, ratio in border.items())
    return (
        f"Half of the random problems can be ranked up to n = {listed} pairs, which is about d to the power {numbers['exponent']:.2f}. "
        f"Of {count:,} problems {numbers['proved']:.1%} are decided with a verified proof, and a contradiction takes at most {triplets} "
        f"triplets. If documents are linear images of the queries, {numbers['images']:.0%} of the problems with {MANY} d pairs can be "
        f"ranked, and {numbers['shuffled_images']:.0%} after their positives are shuffled."
    )
