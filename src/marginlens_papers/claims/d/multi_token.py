"""D's attention that keeps several tokens: finite part and direction of W, by exact gradients and by those that cancel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import marginlens as ml
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing

SEED = 13
N_INPUTS, N_TOKENS = 3, 4
STEP = 0.1
EPSILON = float(np.finfo(np.float64).eps)  # what the authors add to the norm of the gradient
SELECTED_ABOVE, DROPPED_BELOW = (
    1e-3,
    1e-6,
)  # attention of a selected token, and of one that is not, in the authors' code

SMOOTH_WIDTH = 8
SMOOTH_OUTSIDE = 0.01  # attention outside the sets, below which a run under the smooth head ends on them

FARTHER_RTOL = 0.01  # of a distance, from which on one run counts as farther than another


class Problems(NamedTuple):
    """A batch: tokens (batch, n, T, d), labels, queries (batch, n, d), the matrix V of the head (batch, d, d), starts (batch, d, d)."""

    X: FloatArray
    y: FloatArray
    queries: FloatArray
    V: FloatArray
    start: FloatArray


class D_3(Claim):
    labels = ("D Fig (multi-token)", "D SVMeq")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train all problems of every dimension twice and split their W into its parts."""
        paper = effort is Effort.PAPER
        dimensions, n_problems, n_steps = ((4, 6, 8, 10), 100, 2000) if paper else ((4,), 24, 1500)
        rows = [_measure(_problems(d, n_problems), n_steps) for d in progress.each(list(dimensions))]
        numbers = _numbers(dimensions, rows) | _smooth(n_problems, 20_000 if paper else 5_000)
        arrays = {"dimensions": dimensions, "rows": rows}
        return Finding(_sentence(numbers), numbers, arrays, note=_note(numbers))

    # ---- figures

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The distance over the steps, and against the largest dropped attention, both ways."""
        return {"distance": _draw_distances(finding), "dropped": _draw_dropped(finding)}


def _problems(d: int, n_problems: int) -> Problems:
    rng = np.random.default_rng([SEED, d])

    def on_sphere(*shape: int) -> FloatArray:
        points = rng.standard_normal(shape)
        return points / np.linalg.norm(points, axis=-1, keepdims=True)

    V = rng.standard_normal((n_problems, d, d))
    y = rng.choice([-1.0, 1.0], (n_problems, N_INPUTS))
    y[(y > 0.0).all(axis=-1), 0] = -1.0
    return Problems(
        on_sphere(n_problems, N_INPUTS, N_TOKENS, d),
        y,
        on_sphere(n_problems, N_INPUTS, d),
        V / np.linalg.norm(V, axis=(1, 2), keepdims=True),
        rng.uniform(-1.0, 1.0, (n_problems, d, d)) / np.sqrt(d),
    )


def _attention(problems: Problems, W: FloatArray) -> FloatArray:
    logits = np.einsum("bitd,bid->bit", problems.X, problems.queries @ W)
    s = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(s / np.sum(s, axis=-1, keepdims=True))


def _cancelling(problems: Problems, steps: IntArray) -> FloatArray:
    """Iterates W at these steps, (batch, n_saved, d, d), by the gradient in float64 as a framework computes it."""
    X, y, queries, V, W = problems
    wanted, saved = set(steps.tolist()), []
    for step in range(int(steps[-1]) + 1):
        if step in wanted:
            saved.append(W)
        s = _attention(problems, W)
        features = np.einsum("bit,bitd->bid", s, X) @ V
        output = np.sum(np.maximum(features, 0.0), axis=-1)
        scores = np.einsum("bitd,bid->bit", X, (features > 0.0) @ np.swapaxes(V, 1, 2))
        weights = s * (scores - np.sum(s * scores, axis=-1, keepdims=True))
        weights *= (-y / (1.0 + np.exp(y * output)) / N_INPUTS)[..., None]
        gradient = np.swapaxes(queries, 1, 2) @ np.einsum("bit,bitd->bid", weights, X)
        W = W - STEP * gradient / (np.linalg.norm(gradient, axis=(1, 2), keepdims=True) + EPSILON)
    return np.stack(saved, axis=1)


def _exact(problems: Problems, steps: IntArray) -> FloatArray:
    """The iterates by the exact gradient."""
    import torch

    V = torch.tensor(problems.V)

    def head(features: Any) -> Any:
        by_problem = features.reshape(len(V), -1, V.shape[1])
        return torch.relu(torch.bmm(by_problem, V)).sum(-1).reshape(-1)

    risk = ml.AttentionRisk(ml.TokenDataset(problems.X, problems.y), head).as_matrix(problems.queries)
    run = ml.descend(
        risk,
        optimizer=ml.NormalizedGD(STEP),
        n_steps=int(steps[-1]),
        start=problems.start,
        record=ml.Record(steps.tolist()),
    )
    return np.asarray(run.saved["x"])


def _measure(problems: Problems, n_steps: int) -> dict[str, Any]:
    """Distances (n_problems, n_saved) both ways, nan if a run does not pass, and the largest dropped attention (n_problems,)."""
    steps = np.unique(np.geomspace(20, n_steps, 16).astype(np.int64))
    found: dict[str, Any] = {"steps": steps}
    for way, train in (("cancelling", _cancelling), ("exact", _exact)):
        points = train(problems, steps)
        found[f"kept_{way}"] = _attention(problems, points[:, -1]) > SELECTED_ABOVE
        found[way] = np.full(points.shape[:2], np.nan)
        found[f"log_dropped_{way}"] = np.full(len(points), np.nan)
        for j in range(len(points)):
            found[way][j], found[f"log_dropped_{way}"][j] = _distances(problems, j, points[j])
    return found


def _distances(problems: Problems, j: int, points: FloatArray) -> tuple[Any, float]:
    """1 - cosine of each W (n_saved, d, d) with W^fin + R W^dir, and log10 of the largest dropped attention; nan if it does not pass."""
    nothing = np.full(len(points), np.nan), np.nan
    one = Problems(*(part[j : j + 1] for part in problems))
    s = _attention(one, points[-1:])[0]
    dropped = s <= SELECTED_ABOVE
    if not dropped.any() or (dropped & (s > DROPPED_BELOW)).any():
        return nothing
    sets = [np.flatnonzero(~row).tolist() for row in dropped]
    try:
        limit = ml.svm.mixture_svm(ml.TokenDataset(one.X[0], one.y[0]), sets, s, query=one.queries[0])
    except ml.InputError:
        return nothing
    if limit.status is not ml.Status.OPTIMAL:
        return nothing
    direction = limit.x.ravel()
    flat = points.reshape(len(points), -1)
    R = (flat - limit.finite.ravel()) @ direction / (direction @ direction)
    logits = np.einsum("itd,id->it", one.X[0], one.queries[0] @ points[-1])
    log_s = logits - np.max(logits, axis=-1, keepdims=True)
    largest = float(np.max(log_s[dropped])) / np.log(10.0)
    return drawing.misalignment(flat, limit.finite.ravel() + R[:, None] * direction), largest


def _numbers(dimensions: tuple[int, ...], rows: list[dict[str, Any]]) -> dict[str, float]:
    twice = [~np.isnan(row["cancelling"][:, -1]) & ~np.isnan(row["exact"][:, -1]) for row in rows]
    ratios = np.concatenate(
        [row["exact"][both, -1] / row["cancelling"][both, -1] for row, both in zip(rows, twice, strict=True)]
    )
    numbers: dict[str, float] = {
        "n_passed_twice": float(len(ratios)),
        "share_passed": float(np.mean(np.concatenate([~np.isnan(row["cancelling"][:, -1]) for row in rows]))),
        "median_ratio_exact_to_cancelling": float(np.median(ratios)) if len(ratios) else np.inf,
        "least_ratio_exact_to_cancelling": float(np.min(ratios, initial=np.inf)),
        "share_no_farther": float(np.mean(ratios <= 1.0 + FARTHER_RTOL)) if len(ratios) else 0.0,
    }
    same = [
        np.all(row["kept_exact"] == row["kept_cancelling"], axis=(1, 2))[both]
        for row, both in zip(rows, twice, strict=True)
    ]
    farther = ratios > 1.0 + FARTHER_RTOL
    numbers["n_farther"] = float(np.sum(farther))
    numbers["n_farther_with_other_tokens"] = float(np.sum(farther & ~np.concatenate(same)))
    for way in ("cancelling", "exact"):
        logs = np.concatenate([row[f"log_dropped_{way}"] for row in rows])
        numbers[f"smallest_log10_dropped_{way}"] = float(np.min(logs[~np.isnan(logs)], initial=np.inf))
    for d, row, both in zip(dimensions, rows, twice, strict=True):
        numbers[f"n_passed_twice_d{d}"] = float(np.sum(both))
        if both.any():
            numbers[f"mean_distance_cancelling_d{d}"] = float(np.mean(row["cancelling"][both, -1]))
            numbers[f"mean_distance_exact_d{d}"] = float(np.mean(row["exact"][both, -1]))
    return numbers


def _smooth(n_problems: int, n_steps: int) -> dict[str, float]:
    """Plain descent on p under ψ(z) = 1 - 4 z_0² - z_1, which is largest at a mixture of tokens 0 and 1 of the first two inputs."""
    rng = np.random.default_rng([SEED, 0])
    K = rng.standard_normal((n_problems, 3, 4, SMOOTH_WIDTH))
    shares = rng.uniform(0.2, 0.8, (n_problems, 2))
    X = np.zeros((n_problems, 3, 4, 2))
    X[..., 1] = rng.uniform(0.5, 1.0, X.shape[:-1])
    X[:, :2, :2, 1], X[:, 2, 0, 1] = 0.0, 0.0  # tokens outside the sets hurt
    X[:, :2, 0, 0], X[:, :2, 1, 0] = 1.0 - shares, -shares
    weights = np.zeros(X.shape[:-1])
    weights[:, :2, 0], weights[:, :2, 1], weights[:, 2, 0] = shares, 1.0 - shares, 1.0
    p = np.zeros((n_problems, SMOOTH_WIDTH))
    for _ in range(n_steps):
        logits = np.matmul(K.reshape(n_problems, -1, SMOOTH_WIDTH), p[:, :, None]).reshape(weights.shape)
        s = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
        s /= np.sum(s, axis=-1, keepdims=True)
        z = np.sum(s[..., None] * X, axis=-2)
        slope = -1.0 / (1.0 + np.exp(1.0 - 4.0 * z[..., 0] ** 2 - z[..., 1])) / 3.0
        scores = -8.0 * z[..., :1] * X[..., 0] - X[..., 1]
        pull = slope[..., None] * s * (scores - np.sum(s * scores, axis=-1, keepdims=True))
        p -= np.matmul(pull.reshape(n_problems, 1, -1), K.reshape(n_problems, -1, SMOOTH_WIDTH))[:, 0]
    ends = np.all(np.sum(np.where(weights > 0.0, s, 0.0), axis=-1) > 1.0 - SMOOTH_OUTSIDE, axis=-1)
    found = []
    for j in np.flatnonzero(ends):
        data = ml.TokenDataset(X[j], np.ones(3), K=K[j])
        limit = ml.svm.mixture_svm(data, [[0, 1], [0, 1], [0]], weights[j])
        single = ml.att_svm(data, np.argmax(weights[j], axis=-1))
        of_single = float(ml.correlation(p[j], single.x)) if single.status is ml.Status.OPTIMAL else np.nan
        found.append(
            (limit.correlation(p[j]), limit.finite_error(p[j]), float(np.linalg.norm(limit.finite)), of_single)
        )
    along, error, finite, of_single = np.array(found).T
    return {
        "smooth_share": float(np.mean(ends)),
        "smooth_correlation": float(np.mean(along)),
        "smooth_finite_error": float(np.median(error / finite)),
        "smooth_correlation_with_single_tokens": float(np.nanmean(of_single)),
    }


def _sentence(numbers: dict[str, float]) -> str:
    return (
        f"{numbers['share_passed']:.0%} of the problems pass, {numbers['n_passed_twice']:.0f} both ways. At d = 4 the distance to "
        f"$W^fin$ + R $W^dir$ ends at {numbers['mean_distance_cancelling_d4']:.4f} by the gradient that cancels and at "
        f"{numbers['mean_distance_exact_d4']:.4f} by the exact one; over all the median ratio is "
        f"{numbers['median_ratio_exact_to_cancelling']:.2f}, the least "
        f"{numbers['least_ratio_exact_to_cancelling']:.2g}. Dropped attention "
        f"falls to 1e{numbers['smallest_log10_dropped_cancelling']:.0f} at most by the one, to "
        f"1e{numbers['smallest_log10_dropped_exact']:.0f} by the other. Under the smooth head "
        f"{numbers['smooth_share']:.0%} of the runs end on the sets; the mean cosine of their growing part with $p^dir$ is "
        f"{numbers['smooth_correlation']:.3f}, that of p with the direction that "
        f"selects the heaviest tokens {numbers['smooth_correlation_with_single_tokens']:.2f}."
    )


def _note(numbers: dict[str, float]) -> str:
    return (
        f"Most runs do not pass ({1.0 - numbers['share_passed']:.0%}): they are stuck at kinks of the head or end in a finite W with "
        f"either gradient. If both pass, {numbers['share_no_farther']:.0%} of the exact runs are at least as close; of the "
        f"{numbers['n_farther']:.0f} others {numbers['n_farther_with_other_tokens']:.0f} have gone on to keep other tokens."
    )


# ---- figures


def _draw_distances(finding: Finding) -> Figure:
    fig, (ax,) = ml.plotting.figure(1, width=6.6, height=4.3)
    styles = {"cancelling": "--", "exact": "-"}
    for colour, d, row in zip(
        ml.plotting.shades(4), finding.arrays["dimensions"], finding.arrays["rows"], strict=False
    ):
        both = ~np.isnan(row["cancelling"][:, -1]) & ~np.isnan(row["exact"][:, -1])
        for way, dash in styles.items():
            if both.any():
                ax.loglog(row["steps"], np.median(row[way][both], axis=0), dash, color=colour, label=f"d = {d}, {way}")
    ax.set(
        xlabel="step",
        ylabel=r"1 − cosine with $W^{\rm fin} + R\,W^{\rm dir}$ (median)",
        title="Runs that pass both ways",
    )
    ax.legend()
    return fig


def _draw_dropped(finding: Finding) -> Figure:
    fig, (ax,) = ml.plotting.figure(1, width=6.6, height=4.3)
    for way, marker, colour in (("cancelling", "s", ml.plotting.PATH), ("exact", "o", ml.plotting.GLOBAL)):
        x = np.concatenate([row[f"log_dropped_{way}"] for row in finding.arrays["rows"]])
        y = np.concatenate([row[way][:, -1] for row in finding.arrays["rows"]])
        ax.semilogy(x, y, marker, color=colour, ms=5, alpha=0.7, label=f"{way} gradient")
    ax.axvline(-16.0, color=ml.plotting.INK, ls=":", lw=1.2)
    ax.set(
        xlabel=r"$\log_{10}$ of the largest dropped attention (line: $10^{-16}$)",
        ylabel=r"1 − cosine with $W^{\rm fin} + R\,W^{\rm dir}$ at the end",
    )
    ax.legend()
    return fig
