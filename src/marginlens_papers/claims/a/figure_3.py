"""A Fig 3, Thms 5 and 6: trained together, head and attention go to max-margin directions, and only support vectors need a margin."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, figure_3a, figure_3b
from marginlens.directions import correlation
from marginlens.dynamics import Record, descend, joint_path
from marginlens.optimizers import Blockwise, NormalizedGD
from marginlens.risk import JointRisk
from marginlens.svm import relaxed_svm
from marginlens.theory import predict_limit
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-F3"
LABELS = ("A Fig 3(a)", "A Fig 3(b)", "A Fig 3(c)", "A Thm 5", "A Thm 6", "A Eq. (10)")
TITLE = "Head and attention trained together: tokens need a margin only where the head has support vectors"
STATEMENT = (
    "When v and p are trained together, v converges in direction to the max-margin classifier of the selected tokens. p converges to the "
    "max-margin direction p^mm that selects them if all of them are support vectors of v, and otherwise to p^relax, which keeps a margin "
    "for the support vectors and merely selects the other tokens. Softmax and logistic probabilities tend to one."
)
PROTOCOL = (
    "W = I, Y = (1, -1, 1); each input has the tokens (0, 0) and (1, 1), (1, -1), (.5, 1) in (a), with (.5, 1.5) for the last in (b). "
    "Start p = (0, -1), v = (-1, 0); NGD with step .1 for each, 100,000 steps. The tokens are those with the largest label margin, the "
    "support set is read off the head's SVM, and Assumption C is checked, all by computation. The joint path is followed to R = 10,000 "
    "with r = 2R; in (b) also with r = R, r = R/2 and r = 10. The wrong direction is the one that the other panel's support set gives."
)
PAPER_VALUE = (
    "v^mm has direction (0, 1) in both; p^relax = p^mm in (a) and not in (b); both probabilities of (c) reach 1. Worked out by hand from "
    "(ATT-SVM) and (10), not printed there: (a) p^mm = (4/3, 1/3); (b) p^relax = (1, 0), p^mm = (1.25, .25)"
)
BY_HAND = {
    "a": {"p_mm": (4 / 3, 1 / 3), "p_relax": (4 / 3, 1 / 3), "v_mm": (0.0, 1.0)},
    "b": {"p_mm": (1.25, 0.25), "p_relax": (1.0, 0.0), "v_mm": (0.0, 1.0)},
}
EXPECTED = {
    **{
        f"{way}_corr_{part}_{panel}": Bound(low=0.999) for way in ("descent", "path") for part in "pv" for panel in "ab"
    },
    **{f"{way}_lead_{panel}": Bound(low=1e-3) for way in ("descent", "path") for panel in "ab"},
    "smallest_corr_from_step_1000": Bound(low=0.999),
    "support_vectors_a": Bound(3, 3),
    "support_vectors_b": Bound(2, 2),
    "thm_5_applies_a": Bound(1, 1),
    "thm_5_applies_b": Bound(0, 0),
    "thm_6_applies_b": Bound(1, 1),
    "distance_from_vectors_by_hand": Bound(high=1e-9),
    "largest_probability": Bound(low=0.999),
    "probability_of_optimal_tokens": Bound(low=0.999),
    "logistic_probability": Bound(low=0.999),
    "probabilities_agree_from_step": Bound(high=100),
    "largest_path_residual": Bound(high=1e-8),
    "fixed_head_corr_p_mm": Bound(low=0.999),
}
START = ((-1.0, 0.0), (0.0, -1.0))
STEP, FIXED_HEAD = 0.1, 10.0
WINDOW: plotting.Window = ((-1.9, 6.9), (-2.5, 5.3))
FloatArray = npt.NDArray[np.float64]


def compute(effort: Effort, progress: Progress) -> Finding:
    """Predict both panels from the data, then let descent and the joint path go there."""
    n_steps = 100_000 if effort is Effort.PAPER else 10_000
    R = np.geomspace(1.0, 1e4, 13) if effort is Effort.PAPER else np.geomspace(1.0, 1e3, 4)
    progress.expect(7)
    panels = {"a": _panel(figure_3a(), n_steps, progress), "b": _panel(figure_3b(), n_steps, progress)}
    for name, other in (("a", "b"), ("b", "a")):
        at = panels[name]
        at["wrong"] = relaxed_svm(at["data"], at["selected"], panels[other]["support"]).x
        at["path"] = joint_path(at["data"], 2.0 * R, R, restarts=8)
        progress.advance()
    growths = {"r = R": R, "r = R/2": 0.5 * R, f"r = {FIXED_HEAD:g}": np.full_like(R, FIXED_HEAD)}
    orders = {}
    for label, r in growths.items():
        orders[label] = joint_path(panels["b"]["data"], r, R, restarts=8).p  # (n_radii, 2)
        progress.advance()
    numbers = _numbers(panels, orders)
    plain = {name: {key: one[key] for key in one if key not in ("data", "prediction")} for name, one in panels.items()}
    orders = {"r = 2R": panels["b"]["path"].p, **orders}
    return Finding(_words(numbers, n_steps), numbers, {**plain, "R": R, "orders": orders}, _note(numbers))


def _numbers(panels: dict[str, dict[str, Any]], orders: dict[str, FloatArray]) -> dict[str, float]:
    """Everything that the bounds ask for, and what the words need."""
    numbers: dict[str, float] = {}
    late = panels["a"]["steps"] >= 1000
    off = []
    for name, at in panels.items():
        ends = {"descent": (at["p"][-1], at["v"][-1]), "path": (at["path"].p[-1], at["path"].v[-1])}
        for way, (p, v) in ends.items():
            numbers[f"{way}_corr_p_{name}"] = float(correlation(p, at["p_relax"]))
            numbers[f"{way}_corr_v_{name}"] = float(correlation(v, at["v_mm"]))
            numbers[f"{way}_lead_{name}"] = float(correlation(p, at["p_relax"]) - correlation(p, at["wrong"]))
        numbers[f"support_vectors_{name}"] = float(at["support"].sum())
        for verdict in at["prediction"].verdicts:
            numbers[f"thm_{verdict.citation[-1]}_applies_{name}"] = float(verdict.applies)
        numbers[f"nu_{name}"] = float(at["prediction"].verdicts[-1].conditions[-1].numbers["proved_nu"])
        off += [plotting.misalignment(at[part][late], at[goal]) for part, goal in (("p", "p_relax"), ("v", "v_mm"))]
    b = panels["b"]
    fixed, equal, slow = (orders[label][-1] for label in (f"r = {FIXED_HEAD:g}", "r = R", "r = R/2"))
    return numbers | {
        "smallest_corr_from_step_1000": float(1.0 - np.max(off)),
        "distance_from_vectors_by_hand": _distance(panels),
        "largest_probability": float(panels["a"]["largest"][-1]),
        "probability_of_optimal_tokens": float(panels["a"]["optimal"][-1]),
        "first_largest_probability": float(panels["a"]["largest"][0]),
        "first_probability_of_optimal_tokens": float(panels["a"]["optimal"][0]),
        "probabilities_agree_from_step": _agree_from(panels["a"]),
        "logistic_probability": float(panels["a"]["logistic"][-1]),
        "largest_path_residual": float(np.max([at["path"].kkt_residual() for at in panels.values()])),
        "fixed_head_corr_p_mm": float(correlation(fixed, b["p_mm"])),
        "equal_growth_corr_p_relax": float(correlation(equal, b["p_relax"])),
        "slow_head_corr_p_relax": float(correlation(slow, b["p_relax"])),
        "growth_needed_b": float(b["prediction"].growth),
    }


def _words(numbers: dict[str, float], n_steps: int) -> str:
    close = {name: _near_one(value) for name, value in numbers.items() if "_corr_" in name}
    return (
        f"Support sets of {numbers['support_vectors_a']:.0f} and {numbers['support_vectors_b']:.0f} inputs. After {n_steps:,} steps p has "
        f"correlation {close['descent_corr_p_a']} (a) and {close['descent_corr_p_b']} (b) with the right direction, ahead of the wrong one "
        f"by {numbers['descent_lead_a']:.3f} and {numbers['descent_lead_b']:.3f}, and v has {close['descent_corr_v_a']} and "
        f"{close['descent_corr_v_b']} with v^mm; from step 1,000 on none is below {numbers['smallest_corr_from_step_1000']:.6f}. At the "
        f"end of the path p has {close['path_corr_p_a']} and {close['path_corr_p_b']}. Assumption C holds with ν ≥ {numbers['nu_a']:.3f} "
        f"in (a); in (b) it fails, but holds over the support set with ν ≥ {numbers['nu_b']:.3f}."
    )


def _near_one(value: float) -> str:
    return f"1 - {1.0 - value:.0e}" if value < 1.0 else "1"


def _agree_from(panel: dict[str, Any]) -> float:
    """The step from which on every input's largest probability is that of its optimal token."""
    differ = np.flatnonzero(panel["largest"] != panel["optimal"])
    return float(panel["steps"][differ[-1] + 1]) if differ.size else 0.0


def _note(numbers: dict[str, float]) -> str:
    return (
        "The curve of (c) is called the probability of optimal tokens in the text, whose formula is the mean of max_t S(K_i p)_t; the "
        "authors' "
        "code plots the optimal tokens'. Both are shown: they begin at "
        f"{numbers['first_largest_probability']:.3f} and {numbers['first_probability_of_optimal_tokens']:.3f}, and are the same from step "
        f"{numbers['probabilities_agree_from_step']:.0f} on. "
        "Theorem 6 leaves open how r and R grow together, and it matters. In (b) the path goes to p^relax when r ≥ "
        f"{numbers['growth_needed_b']:.3g} R, which descent with equal steps just meets. With r = R/2 it stays between (correlation "
        f"{numbers['slow_head_corr_p_relax']:.4f} with p^relax), and with r = {FIXED_HEAD:g} and R growing alone it went to p^mm here "
        f"(correlation {numbers['fixed_head_corr_p_mm']:.6f}): input 3 weighs e^(-r/2) less than the support vectors, an advantage that is "
        "used up once R is large."
    )


def _panel(data: TokenDataset, n_steps: int, progress: Progress) -> dict[str, Any]:
    """The prediction for one dataset, and the run with what the figures need of it."""
    prediction = predict_limit(data)
    record = Record(plotting.steps_to_keep(n_steps, dense=1000), keep=("x", "attention", "margin"))
    risk = JointRisk(data)
    run = descend(risk, optimizer=Blockwise(NormalizedGD(STEP)), n_steps=n_steps, start=START, record=record)
    progress.advance()
    iterates = risk.split(run.saved["x"])
    best = run.saved["attention"][:, np.arange(data.n_inputs), prediction.selected]
    return {
        "data": data,
        "prediction": prediction,
        "keys": data.K,
        "selected": prediction.selected,
        "support": prediction.support,
        "p_mm": prediction.p_mm.x,
        "p_relax": prediction.p_relax.x,
        "v_mm": prediction.v_direction,
        "steps": run.saved.steps,
        "p": iterates.p,
        "v": iterates.v,
        "largest": run.saved["attention"].max(axis=-1).mean(axis=-1),
        "optimal": best.mean(axis=-1),
        "logistic": (1.0 / (1.0 + np.exp(-run.saved["margin"]))).mean(axis=-1),
    }


def _distance(panels: dict[str, dict[str, Any]]) -> float:
    """The largest distance of the solvers' vectors from those worked out by hand."""
    pairs = [(panels[name][part], vector) for name, given in BY_HAND.items() for part, vector in given.items()]
    return float(np.max([np.linalg.norm(found - np.array(expected)) for found, expected in pairs]))


# ---- figures


def draw(finding: Finding) -> dict[str, Figure]:
    """Both panels in the plane; probabilities and distances over the steps; how the growth of r decides in (b)."""
    at = finding.arrays
    fig, axes = plotting.figure(2, width=5.5, height=6.2)
    titles = ("(a) all three are support vectors", "(b) input 3 is not a support vector")
    for ax, name, title in zip(axes, "ab", titles, strict=True):
        _draw_plane(ax, at[name], title)
    fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncol=3)
    return {"planes": fig, "curves": _draw_curves(at), "growth": _draw_growth(at)}


def _draw_plane(ax: Axes, at: Any, title: str) -> None:
    plotting.ray(ax, at["v_mm"], 20.0, color=plotting.INK, label="$v^{mm}$")
    plotting.ray(ax, at["p_relax"], 20.0, color=plotting.GLOBAL, label="$p^{relax}$, in (a) also $p^{mm}$")
    if not np.allclose(at["p_relax"], at["p_mm"]):
        plotting.ray(ax, at["p_mm"], 20.0, color=plotting.NEITHER, label="$p^{mm}$ in (b)")
    for part, colour, offset in (("v", plotting.INK, (-11, 0)), ("p", plotting.GLOBAL, (-9, -9))):
        path = plotting.until_it_leaves(at[part], WINDOW)
        plotting.arrowed_path(ax, path, color=colour, linewidth=1.8, label=f"${part}$ by descent")
        plotting.starts(ax, path[0])
        plotting.note_at(ax, f"${part}(0)$", path[0], offset, ha="right")
    chosen = np.arange(at["keys"].shape[1]) == at["selected"][:, None]
    plotting.scatter_tokens(ax, at["keys"], chosen.astype(float))
    shared: dict[str, Any] = {"s": 70.0, "color": plotting.PATH, "edgecolor": "white", "linewidth": 0.8}
    ax.scatter(0.0, 0.0, zorder=8, label="the other token of all three", **shared)
    for i, key in enumerate(at["keys"][np.arange(len(chosen)), at["selected"]]):
        plotting.note_at(ax, plotting.point(*key), key, ((11, 0), (9, -12), (-3, 15))[i])
        look: dict[str, Any] = {"marker": "*", "s": 200, "color": plotting.INPUTS[i], "edgecolor": "white"}
        ax.scatter([], [], label=f"optimal token of input {i + 1}", **look)
    ax.set(xlim=WINDOW[0], ylim=WINDOW[1], aspect="equal", title=title)
    ax.set(xlabel="first coordinate of p, v and the tokens", ylabel="second coordinate")


def _draw_curves(at: Any) -> Figure:
    fig, (left, right) = plotting.figure(2, width=5.4, height=4.2)
    steps, early = at["a"]["steps"], at["a"]["steps"] <= 200
    left.plot(
        steps[early], at["a"]["largest"][early], color=plotting.GLOBAL, label="softmax, largest (paper's formula)"
    )
    look: dict[str, Any] = {"color": plotting.LOCAL, "ls": ":", "lw": 2.2}
    left.plot(steps[early], at["a"]["optimal"][early], **look, label="softmax, optimal tokens (authors' code)")
    left.plot(steps[early], at["a"]["logistic"][early], color=plotting.INK, ls="--", label="logistic, output")
    left.set(xlabel="step", ylabel="mean probability over inputs", ylim=(0.0, 1.05), title="(c) probabilities in (a)")
    left.legend(loc="lower right")
    for name, style, limit in (("a", "-", "p^{mm}"), ("b", "--", "p^{relax}")):
        one = at[name]
        for part, goal, colour in (("p", "p_relax", plotting.GLOBAL), ("v", "v_mm", plotting.INK)):
            gap = plotting.misalignment(one[part][1:], one[goal])
            label = f"({name}) ${part}$ from ${limit if part == 'p' else 'v^{mm}'}$"
            right.loglog(steps[1:], np.where(gap > 1e-16, gap, np.nan), color=colour, ls=style, label=label)
    right.set(xlabel="step", ylabel="1 − correlation", title="Directions settle and do not drift")
    right.legend(loc="lower left")
    return fig


def _draw_growth(at: Any) -> Figure:
    fig, (ax,) = plotting.figure(1, width=7.0, height=4.4)
    orders = at["orders"]
    for colour, marker, (name, points) in zip(plotting.shades(len(orders)), "osD^", orders.items(), strict=True):
        degrees = np.degrees(np.arctan2(points[:, 1], points[:, 0]))
        ax.semilogx(at["R"], degrees, color=colour, marker=marker, ms=5, label=name)
    for goal, colour, name in (("p_relax", plotting.GLOBAL, "$p^{relax}$"), ("p_mm", plotting.NEITHER, "$p^{mm}$")):
        height = float(np.degrees(np.arctan2(at["b"][goal][1], at["b"][goal][0])))
        ax.axhline(height, color=colour, ls=(0, (5, 3)), lw=1.8, zorder=1)
        plotting.note_at(ax, name, (at["R"][-1], height), (8, 0))
    ax.set(xlabel="R, the limit on ‖p‖", ylabel="direction of p in degrees")
    ax.set_title("(b): the limit depends on how fast r, the limit on ‖v‖, grows")
    ax.legend(loc="upper right", title="path with")
    return fig
