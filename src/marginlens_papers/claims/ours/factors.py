"""X N3: which margin the factors of W reach under gradient descent, Muon and sign descent."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data import sphere_queries
from marginlens.optimizers import Blockwise
from marginlens.optimizers.schedules import PowerDecay
from marginlens.risk.matrix import FactorRisk
from marginlens.theory.bias_table import ON_FACTORS
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Run
from marginlens_papers.claims.drawing import heat_map, level
from marginlens_papers.claims.ours.sign_factors import sign_factor_margin

SEED = 31
SIZES = (6, 8, 10)  # n, T, d
START = 0.1  # largest entry of the factors at the start
SIGN_SIZE = 0.3  # first step of sign descent, over the root of the width, so that W grows alike at every width
# Steps fall like t^-POWER. The factors grow like t^(1 - POWER), so that at 1/2 each step divides the gradient of W by the same factor and
# alignment levels off, at .94 with width 1; beyond 1/2 it goes on.
POWER = 0.6
SIGN_STEPS, STEPS = 30_000, 5000  # of sign descent, and of the others
PROBLEMS = 16
WINDOW = 0.2  # share of the steps before a look over which residual attention is averaged
N_IN_WINDOW = 40
STATIONARY = 0.95  # alignment from which on the conditions of a stationary point count as met
KNOWN: dict[str, ml.Norm] = {
    "ℓ1": ml.L1(),
    "ℓ∞": ml.LInf(),
    "Frobenius": ml.Frobenius(),
    "nuclear": ml.Nuclear(),
    "spectral": ml.Spectral(),
}
OTHERS: dict[str, ml.Optimizer] = {
    "normalised GD": Blockwise(ml.SteepestDescent(ml.Frobenius(), PowerDecay(0.5, 0.5))),
    "spectral": Blockwise(ml.SteepestDescent(ml.Spectral(), PowerDecay(0.5, 0.5))),
}


class X_N3(Claim):
    labels = ("X N3",)
    as_stated = {
        "largest_known_share_of_sign": Bound(high=0.95),
        "mean_nuclear_share_of_gd": Bound(low=0.9),
        "mean_spectral_share_of_spectral": Bound(low=0.85),
        "least_median_alignment": Bound(low=STATIONARY),
    }
    runs = (
        Run(ON_FACTORS, ml.SignDescent(PowerDecay(SIGN_SIZE, POWER)), widths=(1, 20)),
        *(Run(ON_FACTORS, rule, widths=(10, 10)) for rule in OTHERS.values()),
    )

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train the factors by all three, and compare the runs with the margins of W, the bound and its conditions."""
        paper = effort is Effort.PAPER
        n_problems, n_sign_steps, n_steps = (PROBLEMS, SIGN_STEPS, STEPS) if paper else (3, 2400, 1200)
        widths = (1, 2, 5, 10, 20) if paper else (1, 10)
        rng = np.random.default_rng(SEED)
        data, v, queries = sphere_queries(n_problems, *SIZES, rng)
        of_p = ml.AttentionRisk(data, v)
        sign: list[dict[str, Any]] = []
        margins: dict[tuple[int, ...], Any] = {}
        for width in progress.each(widths, more=2):
            risk = FactorRisk(of_p, queries, width)
            start = rng.uniform(-START, START, (n_problems, *risk.shape))
            rule = ml.SignDescent(PowerDecay(SIGN_SIZE / np.sqrt(width), POWER))
            sign.append({"width": width, **_sign_run(risk, rule, start, n_sign_steps, margins)})
        risk = FactorRisk(of_p, queries, 10)
        start = rng.uniform(-START, START, (n_problems, *risk.shape))
        shares = {}
        for name, optimizer in OTHERS.items():
            run = ml.descend(risk, optimizer=optimizer, n_steps=n_steps, start=start)
            shares[name] = _shares(risk, run.final, run.selected)
            progress.advance()
        shares["sign"] = next(run["shares"] for run in sign if run["width"] == 10)
        numbers = _numbers(sign, shares)
        return Finding(_sentence(numbers, sign), numbers, {"sign": sign, "shares": shares}, note=_note(numbers))

    # ---- figures

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Alignment and share of the bound over the steps, by width; and the table of shares of every margin."""
        return {"sign": _draw_sign(finding), "table": _draw_table(finding)}


def _note(numbers: dict[str, float]) -> str:
    """How far the conditions are from being satisfied, if they are not."""
    least = numbers["least_median_alignment"]
    if least >= STATIONARY:
        return ""
    return (
        f"The runs head for a stationary point, but have not reached it when they end. Alignment is {least:.3f} in the median at the "
        f"width where it is least (met from {STATIONARY:g} on), and grows with the steps. That it goes to one is a reading of the trend."
    )


def _sign_run(
    risk: FactorRisk, optimizer: ml.Optimizer, start: FloatArray, n_steps: int, margins: dict[tuple[int, ...], Any]
) -> dict[str, Any]:
    """One width: misalignment with the conditions and share of the bound at a few steps, and the shares of the known margins that W has.

    `margins` keeps the bounds of problems with their selections, which do not depend on the width.
    """
    looks = np.unique(np.geomspace(n_steps // 20, n_steps, 6).astype(np.int64))
    windows = [np.unique(np.linspace((1.0 - WINDOW) * k, k, N_IN_WINDOW).astype(np.int64)) for k in looks]
    steps = np.unique(np.concatenate(windows))
    run = ml.descend(risk, optimizer=optimizer, n_steps=n_steps, start=start, record=ml.Record(steps.tolist()))
    points = run.saved["x"]  # (n_problems, n_saved, 2 d, width)
    W = risk.matrix(points)
    of_W = risk.of_p.as_matrix(risk.query)
    slopes = np.stack([_scaled(-of_W.gradient(W[:, k]).direction()) for k in range(len(steps))], axis=1)
    rows = [of_W[j].margin_rows(run.selected[j]).rows for j in range(len(risk))]
    chosen = [(j, *selected.tolist()) for j, selected in enumerate(run.selected)]
    margins |= {key: sign_factor_margin(row) for key, row in zip(chosen, rows, strict=True) if key not in margins}
    bounds = [margins[key] for key in chosen]
    alignment, share = np.empty((2, len(risk), len(looks)))
    for k, (look, window) in enumerate(zip(looks, windows, strict=True)):
        at = int(np.searchsorted(steps, look))
        mean = np.mean(slopes[:, np.searchsorted(steps, window)], axis=1)
        alignment[:, k] = _alignment(mean, *risk.split(points[:, at]))
        largest = np.max(np.abs(points[:, at]), axis=(1, 2))
        smallest = np.array([np.min(np.einsum("rqd,qd->r", row, w)) for row, w in zip(rows, W[:, at], strict=True)])
        share[:, k] = smallest / (risk.width * largest**2) / [bound.upper for bound in bounds]
    return {
        "looks": looks,
        "alignment": alignment,
        "share": share,
        "gap": max(bound.gap for bound in bounds),
        "shares": _shares(risk, run.final, run.selected),
    }


def _scaled(G: FloatArray) -> FloatArray:
    return G / np.sum(np.abs(G), axis=(-2, -1), keepdims=True)


def _alignment(G: FloatArray, Q: FloatArray, K: FloatArray) -> FloatArray:
    """The smaller of ⟨G K, Q⟩/(|Q|∞ ‖G K‖₁) and ⟨Gᵀ Q, K⟩/(|K|∞ ‖Gᵀ Q‖₁), (n_problems,): one if the conditions hold."""

    def of(slope: FloatArray, factor: FloatArray) -> FloatArray:
        product = np.sum(slope * factor, axis=(1, 2))
        return product / np.max(np.abs(factor), axis=(1, 2)) / np.sum(np.abs(slope), axis=(1, 2))

    return np.minimum(of(G @ K, Q), of(np.swapaxes(G, 1, 2) @ Q, K))


def _shares(risk: FactorRisk, points: FloatArray, selected: IntArray) -> FloatArray:
    """The share of every known norm's best margin that W = Q Kᵀ has, (n_problems, n_norms)."""
    W = risk.matrix(points)
    columns = []
    for norm in KNOWN.values():
        solution = ml.att_svm(risk.of_p.data, selected, norm=norm, query=risk.query)
        margins = np.min(np.einsum("brk,bk->br", solution.rows, W.reshape(len(W), -1)), axis=-1)
        columns.append(margins / np.array([norm.value(w) for w in W]) / solution.margin)
    return np.stack(columns, axis=-1)


def _numbers(sign: list[dict[str, Any]], shares: dict[str, FloatArray]) -> dict[str, float]:
    numbers: dict[str, float] = {"largest_gap_of_bound": max(run["gap"] for run in sign)}
    ratios = []
    for run in sign:
        alignment = np.median(run["alignment"], axis=0)
        numbers[f"mean_alignment_width_{run['width']}"] = float(np.mean(run["alignment"][:, -1]))
        numbers[f"median_alignment_width_{run['width']}"] = float(alignment[-1])
        numbers[f"mean_share_of_bound_width_{run['width']}"] = float(np.mean(run["share"][:, -1]))
        ratios.append(float((1.0 - alignment[-1]) / (1.0 - alignment[0])))
    numbers["least_median_alignment"] = min(numbers[f"median_alignment_width_{run['width']}"] for run in sign)
    numbers["largest_deficit_ratio"] = max(ratios)
    wide = numbers[f"mean_share_of_bound_width_{sign[-1]['width']}"]
    numbers["share_gained_from_narrow_to_wide"] = wide - numbers[f"mean_share_of_bound_width_{sign[0]['width']}"]
    mean = {name: dict(zip(KNOWN, np.mean(values, axis=0).tolist(), strict=True)) for name, values in shares.items()}
    numbers["largest_known_share_of_sign"] = max(mean["sign"].values())
    ten = numbers["mean_share_of_bound_width_10"]
    numbers["lead_over_known_norms"] = ten - numbers["largest_known_share_of_sign"]
    numbers["mean_nuclear_share_of_gd"] = mean["normalised GD"]["nuclear"]
    numbers["mean_spectral_share_of_spectral"] = mean["spectral"]["spectral"]
    return numbers


def _sentence(numbers: dict[str, float], sign: list[dict[str, Any]]) -> str:
    widths = [run["width"] for run in sign]
    bound = ", ".join(f"{numbers[f'mean_share_of_bound_width_{w}']:.2f}" for w in widths)
    alignment = ", ".join(f"{numbers[f'mean_alignment_width_{w}']:.3f}" for w in widths)
    return (
        f"Sign descent on factors of width {', '.join(map(str, widths))} has {bound} of the certified best margin, and meets its "
        f"conditions to {alignment} in the mean (medians at least {numbers['least_median_alignment']:.3f}); "
        f"what is missing from one there falls to at most {numbers['largest_deficit_ratio']:.2f} of what it "
        f"was at a twentieth of the steps. Of no known norm's margin it has more than {numbers['largest_known_share_of_sign']:.2f}. "
        f"Normalised descent has {numbers['mean_nuclear_share_of_gd']:.3f} of the nuclear margin, spectral steps "
        f"{numbers['mean_spectral_share_of_spectral']:.3f} of the spectral one."
    )


# ---- figures


def _draw_sign(finding: Finding) -> Figure:
    from matplotlib.ticker import LogLocator, ScalarFormatter

    fig, (left, right) = ml.plotting.figure(2, width=5.2, height=4.2)
    runs = finding.arrays["sign"]
    for colour, run in zip(ml.plotting.shades(len(runs)), runs, strict=True):
        label = f"width {run['width']}"
        left.loglog(run["looks"], 1.0 - np.median(run["alignment"], axis=0), "o-", color=colour, label=label)
        right.semilogx(run["looks"], np.mean(run["share"], axis=0), "o-", color=colour, label=label)
    left.set(
        xlabel="step",
        ylabel="1 − median alignment with the conditions",
        title="Sign descent on the factors: stationarity",
    )
    right.set(
        xlabel="step",
        ylabel="margin / certified best margin",
        title="Share of the best over all widths",
        ylim=(0, 1.05),
    )
    level(right, 1.0, "no factors of any width do better")
    for ax in (left, right):
        ax.set_xticks(runs[0]["looks"], [f"{look:,}" for look in runs[0]["looks"]])
        ax.minorticks_off()
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter(ScalarFormatter())
    left.legend(loc="lower left")
    return fig


def _draw_table(finding: Finding) -> Figure:
    fig, (ax,) = ml.plotting.figure(1, width=6.6, height=3.2)
    shares = finding.arrays["shares"]
    means = np.array([np.mean(values, axis=0) for values in shares.values()])
    heat_map(ax, means, list(shares), list(KNOWN), ".3f")
    ax.set(xlabel="share of the best margin of W in the norm", ylabel="on the factors", title="Width 10")
    return fig
