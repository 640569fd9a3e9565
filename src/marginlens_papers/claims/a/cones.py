"""A Fig 2 and Thm 3: the cone around a locally optimal direction, and descent that starts in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp

import marginlens as ml
from marginlens.arithmetic.directions import unit
from marginlens.data import cone_example, figure_1b, sphere_tokens
from marginlens.theory import BasinCone, in_cone, sample_cone, smoothness
from marginlens.theory.bias_table import ON_P
from marginlens.typing import Axes, Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Run
from marginlens_papers.claims import drawing
from marginlens_papers.claims.a.theorem_2 import log_excess
from marginlens_papers.claims.drawing import level

SEED = 2
CONE_GROWTH, FAR, LEGS = 10.0, 1000.0, 200
NEARER, NEAR = 0.01, 1e-3  # the shares of μ, and of 1, to which 1 - correlation must fall
WIDENINGS = (3, 10, 30, 100, 300, 1000, 3000)


class A_F2(Claim):
    labels = ("A Fig 2", "A Thm 3", "A Eq. (7)", "A Eq. (8)", "A Eq. (32)", "A Eq. (46)")
    runs = (Run(ON_P, ml.NormalizedGD()),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Descend from inside every cone, then from wider and wider ones."""
        problems, starts = (60, 24) if effort is Effort.PAPER else (8, 14)
        factors = WIDENINGS if effort is Effort.PAPER else WIDENINGS[::3]
        at_radius, at_proven, slopes, widest, cones, before = [], [], [], [], [], []
        for j in progress.each(range(problems)):
            rng = np.random.default_rng([SEED, j])
            data, v, cone = _problem(rng)
            points = cone.sample(starts, rng)
            slopes.append(-ml.AttentionRisk(data.repeat(starts), v).gradient(points).array @ unit(cone.p))
            at_radius.append(_follow(data, v, cone, cone.mu, points))
            at_proven.append(_follow(data, v, cone, cone.mu, cone.sample(starts, rng, cone.proven_radius)))
            before.append(_misalignment(points, cone))
            widest.append(_widest(data, v, cone, factors, starts, rng) if j % 2 == 0 else np.nan)
            cones.append(cone)
        left, stays = (np.concatenate([found[k] for found in at_radius]) for k in (0, 1))
        far_left, far_stays = (np.concatenate([found[k] for found in at_proven]) for k in (0, 1))
        mu, factor = np.array([cone.mu for cone in cones]), np.array(widest)
        widened = np.isfinite(factor)
        width = np.repeat(mu, starts)
        first = np.concatenate(before)
        fall = np.where(np.isfinite(left), left / first, np.inf)
        on_the_boundary = first > 0.99 * width
        lonely = sum(not cone.every_input_has_neighbours for cone in cones)
        numbers = {
            "share_of_starts_that_converge": float(np.mean(_converged(left, width))),
            "share_converged_before_the_first_step": float(np.mean(_converged(first, width))),
            "share_that_stay": float(np.mean(stays)),
            "share_that_converge_from_proven_radius": float(np.mean(_converged(far_left, width))),
            "share_that_stay_from_proven_radius": float(np.mean(far_stays)),
            "starts_without_descent_towards_it": float(np.sum(~(np.concatenate(slopes) > 0))),
            "starts": float(left.size),
            "problems": float(problems),
            "starts_on_the_boundary": float(np.sum(on_the_boundary)),
            "largest_remainder_from_the_boundary": float(np.max(fall[on_the_boundary])),
            "median_remainder_from_the_boundary": float(np.median(fall[on_the_boundary])),
            "smallest_final_corr": float(1.0 - left.max()),
            "median_mu": float(np.median(mu)),
            "median_largest_mu": float(np.median(np.minimum(mu * factor, 2.0)[widened])),
            "median_widening": float(np.median(factor[widened])),
        }
        measured = (
            f"{int(np.sum(_converged(left, width)))} of {left.size} starts in {problems} problems converge; for the "
            f"{on_the_boundary.sum()} on the boundary of their cone 1 - correlation falls to a median "
            f"{np.median(fall[on_the_boundary]):.0e} and at most {np.max(fall[on_the_boundary]):.0e} of what it was (smallest final "
            f"correlation {1.0 - left.max():.6f}); {numbers['starts_without_descent_towards_it']:.0f} have no slope "
            "towards $p^mm$. μ has "
            f"median {np.median(mu):.1e} (an angle of {np.degrees(np.arccos(1 - np.median(mu))):.1f}°); cones wider by a median factor "
            f"of {numbers['median_widening']:.0f} ({np.nanmin(factor):.0f} to {np.nanmax(factor):.0f}) still work, up to a median μ of "
            f"{numbers['median_largest_mu']:.2f}."
        )
        ratio = np.median([cone.proven_radius / cone.radius for cone in cones])
        note = (
            f"Eq. (46) leaves a constant open. With the smallest allowed one {100 * np.mean(_converged(left, width)):g}% of the starts "
            f"converge, but {100 * np.mean(~stays):.1f}% leave the cone for a while; from the radius that we prove without "
            f"open constants (a median {ratio:.0f} × larger) none leaves. {lonely} of the problems have an input without neighbours, "
            "which the paper's proof passes over and our radius includes."
        )
        return Finding(measured, numbers, {"mu": mu, "factor": factor, "planar": _planar()}, note=note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The cone to scale in the plane with paths from everywhere, and how much wider it could be."""
        fig, (left, right) = ml.plotting.figure(2, width=4.6, height=5.0)
        _draw_plane(left, finding.arrays["planar"])
        mu, factor = finding.arrays["mu"], finding.arrays["factor"]
        narrow, wide = _half_angle(mu), _half_angle(np.minimum(mu * factor, 2.0))
        right.loglog(narrow, wide, "o", ms=5, color=ml.plotting.LOCAL, alpha=0.75, label="one problem")
        ends = np.array([0.8 * narrow.min(), 1.3 * narrow.max()])
        right.plot(ends, ends, color=ml.plotting.INK, ls="--", lw=1.2, label="the theorem's cone itself")
        level(right, 180.0, "180°: starts in every direction", dash=":")
        right.set(xlabel="half-angle of the theorem's cone", ylabel="half-angle of the widest cone that works")
        right.set(ylim=(0.8 * ends[0], 400.0), title="Wider cones work, too")
        for axis in (right.xaxis, right.yaxis):
            axis.set_major_formatter("{x:g}°")
        for ax in (left, right):
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
        return {"cone": fig}


def _problem(rng: np.random.Generator) -> tuple[ml.TokenDataset, Any, BasinCone]:
    """A random problem and the cone of one of its locally optimal directions."""
    while True:
        n, T, d = int(rng.integers(1, 5)), int(rng.integers(2, 6)), int(rng.integers(2, 7))
        batch, heads = sphere_tokens(1, n, T, d, rng)
        data, v = batch[0], heads[0]
        optima = ml.locally_optimal_directions(data, v)
        if len(optima.selections):
            return data, v, ml.basin_cone(data, v, optima.selections[int(rng.integers(len(optima.selections)))])


def _misalignment(points: Any, cone: BasinCone) -> Any:
    """1 - correlation of points (n, d_key) with the axis of the cone."""
    return drawing.misalignment(points, cone.p)


def _half_angle(mu: FloatArray) -> FloatArray:
    """The degrees between the axis of a cone of width mu and its boundary, on which the correlation with the axis is 1 - mu."""
    return np.degrees(2.0 * np.arcsin(np.sqrt(0.5 * mu)))


def _converged(left: Any, mu: Any) -> Any:
    """Whether 1 - correlation has fallen to a hundredth of the width of the cone that the start came from, and to .001."""
    return left <= np.minimum(NEARER * mu, NEAR)


def _follow(data: ml.TokenDataset, v: Any, cone: BasinCone, mu: float, points: Any) -> tuple[Any, Any]:
    """Follow descent by arc length from starts in the cone of width mu: 1 - correlation at the end, and whether each stayed inside.

    It is infinite for a run that ends with other tokens. Steps are a tenth of the cone's width at the currently smallest norm, a
    third after that, and shorter at the end: normalised steps cross the limit back and forth by up to half their length.
    """
    many, iterate = data.repeat(len(points)), points
    stays = np.ones(len(points), dtype=bool)
    first = float(np.min(np.linalg.norm(points, axis=-1)))
    width = min(float(np.sqrt(2 * mu)), 1.0)
    same = stays.copy()
    in_a_leg = float(np.clip(3.0 / width, 150.0, 3000.0))  # steps of a late leg, in which the norm about doubles
    stride = 30 * round(in_a_leg / 30.0)

    def walk(fineness: float) -> None:
        nonlocal iterate, stays, same
        step = ml.NormalizedGD(float(np.min(np.linalg.norm(iterate, axis=-1))) * width / fineness)
        run = ml.descend(many, v, optimizer=step, n_steps=stride, start=iterate, record=ml.Record(stride // 10))
        stays = stays & np.all(in_cone(run.saved["x"], cone.p, mu), axis=-1)
        iterate, same = run.final, np.all(run.selected == cone.optimality.selected, axis=-1)

    for _ in range(LEGS):
        grown = float(np.min(np.linalg.norm(iterate, axis=-1))) / first
        lost = not np.all(same)
        if grown > CONE_GROWTH and (lost or np.all(_converged(_misalignment(iterate, cone), 0.5 * mu))):
            break
        if grown > FAR:
            break
        walk(3.0 if 2.0 < grown < 2.0 * CONE_GROWTH else 10.0)
    walk(30.0)
    walk(200.0)
    return np.where(same, _misalignment(iterate, cone), np.inf), stays


def _widest(
    data: ml.TokenDataset, v: Any, cone: BasinCone, factors: tuple[int, ...], starts: int, rng: np.random.Generator
) -> float:
    """The largest of the factors by which the cone can be widened with every sampled start still converging to p^mm."""
    best = 1.0
    for factor in factors:
        mu = min(cone.mu * factor, 2.0)
        left, _ = _follow(data, v, cone, mu, sample_cone(cone.p, mu, cone.radius, starts, rng))
        if not np.all(_converged(left, mu)):
            break
        best = mu / cone.mu
        if mu == 2.0:
            break
    return best


def _planar() -> dict[str, Any]:
    """A problem in the plane: its tokens, its locally optimal direction with its cone, and paths from inside and outside it."""
    data, v = cone_example()
    cone = ml.basin_cone(data, v, [0])
    other = ml.locally_optimal_directions(data, v)
    angles = np.radians([-178, -150, -120, -80, -40, 0, 40, 80, 120, 150, 165])
    border = np.arccos(1 - cone.mu)
    angles = np.concatenate([angles, [-border, border]]) + np.arctan2(cone.p[1], cone.p[0])
    points = cone.radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    step = ml.NormalizedGD(cone.radius / 40)
    run = ml.descend(data.repeat(len(points)), v, optimizer=step, n_steps=150, start=points, record=ml.Record(1))
    return {
        "keys": data.K[0],
        "scores": data.scores(v)[0],
        "p": cone.p,
        "mu": cone.mu,
        "radius": cone.radius,
        "directions": other.directions,
        "is_global": other.is_global,
        "paths": run.saved["x"],
    }


def _draw_plane(ax: Axes, planar: dict[str, Any]) -> None:
    radius, axis = planar["radius"], np.arctan2(planar["p"][1], planar["p"][0])
    reach, border = 3.0 * radius, np.arccos(1 - planar["mu"])
    sweep = axis + np.linspace(-border, border, 60)
    outer = np.stack([np.cos(sweep), np.sin(sweep)])
    wedge = np.concatenate([radius * outer, 2 * reach * outer[:, ::-1]], axis=1)
    ax.fill(*wedge, color=ml.plotting.LOCAL, alpha=0.25, lw=0, zorder=1, label="the theorem's cone")
    circle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(radius * np.cos(circle), radius * np.sin(circle), color=ml.plotting.INK, lw=1, ls=":", zorder=1)
    for direction, is_global in zip(planar["directions"], planar["is_global"], strict=True):
        colour, name = (ml.plotting.GLOBAL, "best") if is_global else (ml.plotting.LOCAL, "local")
        ml.plotting.ray(ax, direction, 2 * reach, color=colour, label=f"{name} max-margin direction")
    goal = planar["directions"][~planar["is_global"]][0]
    for path in planar["paths"]:
        ours = ml.correlation(path[-1], goal) > 0.9
        ml.plotting.arrowed_path(
            ax, path, color=ml.plotting.LOCAL if ours else ml.plotting.GLOBAL, arrows=2, linewidth=1.2
        )
    ax.plot(*planar["paths"][:, 0].T, "o", ms=5, mfc="white", mec=ml.plotting.INK, zorder=5, label="starts")
    ax.set(xlim=(-reach, reach), ylim=(-0.85 * reach, 0.85 * reach), aspect="equal", xlabel="p₁", ylabel="p₂")
    ax.set_title("A cone to scale, and paths")


LOGITS = 18.0  # the largest margin at R at which plain steps move p by more than its last digits
GROWTH = 30.0


class A_T3(Claim):
    labels = ("A Thm 3", "A Lemma 6", "A Eq. (6)", "A Eq. (46)")
    runs = (Run(ON_P, ml.GradientDescent(1.0)),)  # of size 1/L_p

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Take plain steps and follow the flow from inside every cone; then start outside one."""
        n_steps, n_problems, n_starts = (1_000_000, 8, 6) if effort is Effort.PAPER else (20_000, 2, 3)
        progress.expect(n_problems + 1)
        found: list[dict[str, Any]] = []
        seed = 0
        while len(found) < n_problems:
            rng = np.random.default_rng([SEED, seed])
            data, v, cone = _problem(rng)
            seed += 1
            if cone.radius * cone.theta <= LOGITS:
                found.append(_from_inside(data, v, cone, cone.sample(n_starts, rng), n_steps))
                progress.advance()
        width = np.repeat([result["mu"] for result in found], n_starts)
        left, first = (np.concatenate([flow[name] for flow in found]) for name in ("left", "first"))
        numbers = {
            "rises_of_the_risk": float(sum(flow["rises"] for flow in found)),
            "falls_of_the_norm": float(sum(flow["falls"] for flow in found)),
            "share_with_the_same_tokens": float(np.mean(np.concatenate([result["same"] for result in found]))),
            "largest_angle_to_the_flow": float(max(flow["apart"] for flow in found)),
            "smallest_move": float(min(result["move"] for result in found)),
            "share_of_flows_that_converge": float(np.mean(_converged(left, width))),
            "share_converged_before_the_first_step": float(np.mean(_converged(first, width))),
            "largest_remainder": float(np.max(left / width)),
            "largest_log10_time": float(max(np.max(result["log_time"][:, -1]) for result in found) / np.log(10.0)),
            "outside_corr": _outside(),
        }
        progress.advance()
        measured = (
            f"{n_problems} cones × {n_starts} starts. In {n_steps:,} plain steps of $1/L_p$: {numbers['rises_of_the_risk']:.0f} rises of "
            f"the risk, {numbers['falls_of_the_norm']:.0f} falls of the norm; they move p by {numbers['smallest_move']:.0e} or more, "
            f"within {numbers['largest_angle_to_the_flow']:.0e} radians of the flow's way. Of the flows, "
            f"{100 * numbers['share_of_flows_that_converge']:.0f}% converge: 1 - correlation ends at {numbers['largest_remainder']:.0e} "
            f"μ or below, after up to $10^{numbers['largest_log10_time']:.0f}$ units of time. From outside the cone the correlation ends "
            f"at {numbers['outside_corr']:.3f}."
        )
        return Finding(measured, numbers, {"found": found})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The distance of the direction from the axis relative to μ along every flow, over the logarithm of the time."""
        fig, (ax,) = ml.plotting.figure(1, width=7.0, height=4.2)
        found = finding.arrays["found"]
        for colour, result in zip(ml.plotting.shades(len(found)), found, strict=True):
            for gap, log_time in zip(result["curve_gap"], result["log_time"], strict=True):
                ax.loglog(log_time[1:] / np.log(10.0), np.maximum(gap[1:], 1e-12), color=colour, lw=1.2)
        level(ax, NEARER, "a hundredth of μ", side="right")
        ax.set(xlabel="log₁₀ of the time along the flow", ylabel="(1 − correlation) / μ")
        ax.set_title("The direction converges, in exponential time")
        return {"flow": fig}


def _from_inside(data: ml.TokenDataset, v: Any, cone: BasinCone, start: FloatArray, n_steps: int) -> dict[str, Any]:
    eta = float(smoothness(data, v).largest_step)
    many = data.repeat(len(start))
    chosen = cone.optimality.selected
    nearest = cone.radius * unit(start)  # plain steps from the smallest norm, at which they are longest
    record = ml.Record(sorted({round(float(step)) for step in np.geomspace(n_steps / 100, n_steps, 30)}))
    run = ml.descend(many, v, optimizer=ml.GradientDescent(eta), n_steps=n_steps, start=nearest, record=record)
    points = run.saved["x"]
    far = ml.UntilNorm(GROWTH * float(np.max(np.linalg.norm(start, axis=-1))))
    flow = ml.flow(many, v, until=far, start=start, record=_stops(start))
    curve = np.concatenate([flow.saved["x"], flow.final[:, None]], axis=1)
    return {
        "mu": cone.mu,
        "rises": int(np.sum(np.diff(log_excess(data, v, points, chosen), axis=1) >= 0.0)),
        "falls": int(np.sum(np.diff(np.linalg.norm(points, axis=-1), axis=1) <= 0.0)),
        "same": np.all(run.selected == chosen, axis=-1) & np.all(flow.selected == chosen, axis=-1),
        "move": float(np.min(np.linalg.norm(run.final - nearest, axis=-1))),
        "apart": _apart(data, v, nearest, run.final),
        "first": drawing.misalignment(start, cone.p),
        "left": drawing.misalignment(flow.final, cone.p),
        "curve_gap": drawing.misalignment(curve, cone.p) / cone.mu,
        "log_time": _log_time(data, v, curve),
    }


def _stops(start: FloatArray) -> ml.Record:
    """About forty arc lengths at which a flow is kept."""
    longest = GROWTH * float(np.max(np.linalg.norm(start, axis=-1)))
    return ml.Record(sorted({0, *(round(float(step)) for step in np.geomspace(1.0, max(longest / 2.0, 2.0), 40))}))


def _apart(data: ml.TokenDataset, v: Any, start: FloatArray, final: FloatArray) -> float:
    """The largest angle between the displacements of plain descent and of the flow over the same length."""
    worst = 0.0
    for begin, way in zip(start, final - start, strict=True):
        until = ml.UntilLength(float(np.linalg.norm(way)))
        flow = ml.flow(data, v, until=until, start=begin, rtol=1e-10)
        worst = max(worst, float(ml.angle(flow.final - begin, way)))
    return worst


def _log_time(data: ml.TokenDataset, v: Any, curve: FloatArray) -> FloatArray:
    """log ∫ ds/‖∇L‖ up to each point of the curves (n_runs, n_kept, d_key), by the smaller gradient of each piece's ends."""
    flat = curve.reshape(-1, curve.shape[-1])
    log_norm = ml.AttentionRisk(data.repeat(len(flat)), v).gradient(flat).log_norm.reshape(curve.shape[:-1])
    with np.errstate(divide="ignore"):
        pieces = np.log(np.linalg.norm(np.diff(curve, axis=1), axis=-1)) - np.minimum(log_norm[:, 1:], log_norm[:, :-1])
    total = [logsumexp(pieces[:, : k + 1], axis=1) for k in range(pieces.shape[1])]
    return np.stack([np.full(len(curve), -np.inf), *total], axis=1)


def _outside() -> float:
    """On Figure 1(b), the correlation with the local direction where the flow from the best one ends, at the local one's R and beyond."""
    data, v = figure_1b()
    cone, other = ml.basin_cone(data, v, [1]), ml.basin_cone(data, v, [0])
    flow = ml.flow(data, v, until=ml.UntilNorm(GROWTH * cone.radius), start=cone.radius * unit(other.p))
    return float(1.0 - drawing.misalignment(flow.final, cone.p))
