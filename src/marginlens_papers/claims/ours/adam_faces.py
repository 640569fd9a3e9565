"""X N5: Adam moves like sign descent until gradients fall below ε, then like gradient descent; when that happens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import marginlens as ml
from marginlens.data import sphere_tokens
from marginlens.optimizers import PowerDecay
from marginlens.optimizers.schedules import StepSize
from marginlens.theory.bias_table import ON_P
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Run, Unit, Words
from marginlens_papers.claims.ours.norm_runs import norms_of, smallest_lead

SEED = 65
SIZES = (4, 6, 30)
BETAS, SLOW_BETAS = (0.5, 0.5), (0.9, 0.999)
EPSILONS = tuple(10.0**-k for k in (4, 7, 10, 15, 20, 30, 40, 50, 60))
FEW_EPSILONS = (1e-10, 1e-20, 1e-40, 1e-60)
FITTED_FROM = 1e-10  # slopes are those of this ε and all smaller ones
SLOPE = Bound(0.9, 1.1)  # of slope · (1 - a)
FACES = (1e-2, 1e-4, 1e-20, 0.0)
SLOW_EPSILONS = (1e-10, 1e-30, 1e-60)
N_SAVED = 240


class Schedule(NamedTuple):
    """Steps η (t+1)^(-a), and how many of them."""

    size: float
    power: float
    n_steps: int

    @property
    def steps(self) -> StepSize:
        """The step sizes in the form that an optimizer takes."""
        return PowerDecay(self.size, self.power) if self.power else self.size

    @property
    def label(self) -> str:
        """The exponent in a few words."""
        return f"a = {self.power:g}".replace("0.", ".")


SCHEDULES = (
    Schedule(0.01, 0.0, 20_000),
    Schedule(0.1, 0.4, 80_000),
    Schedule(0.3, 0.5, 60_000),
    Schedule(1.0, 0.7, 300_000),
)
LARGEST_ETA_GAMMA = 0.021  # of the constant steps, γ being at most 2.1 on such problems
SLOW, FACING = Schedule(0.3, 0.5, 400_000), Schedule(0.01, 0.0, 100_000)


class X_N5(Claim):
    labels = ("X N5",)
    protocol = (
        f"n = 4, T = 6, d = 30, tokens and head uniform on the sphere, logistic loss, 10 problems; Adam on p from 0 with β = {BETAS}, "
        "ε from 1e-4 to 1e-60, in the log domain; a = 0 (η = .01), .4 (.1), .5 (.3), .7 (1). Crossing: the first step at which the mean "
        "modulus of the gradient's entries is ε; also the first at which the largest entry of an update is below $η_t/2$. Slope: of "
        "log(crossing) against log log(1/ε) from ε = 1e-10 on, median over problems. Control on 2 problems: β₂ = .999, under which "
        "the root "
        "of the second moment cannot fall faster than by a factor $.999^(1/2)$ a step. Faces: a = 0, 100,000 steps, ε "
        f"= 1e-2, 1e-4, 1e-20, 0; and ε = 0 with Adam's own β = {SLOW_BETAS}, by which the statement is held to its letter."
    )
    expected = {
        **{f"slope_times_1_minus_a_{s.power:g}": SLOPE for s in SCHEDULES},
        "crossings_seen": Bound(low=1.0),
        "crossings_of_updates_over_those_of_gradients": Bound(0.5, 2.0),
        "sign_likeness_before": Bound(low=0.9),
        "gradient_likeness_after": Bound(low=0.9),
        "linf_share_without_eps": Bound(low=0.95),
    }
    as_stated = {
        **{f"update_slope_times_1_minus_a_{s.power:g}": SLOPE for s in SCHEDULES},
        "linf_share_with_usual_betas": Bound(low=0.95),
    }
    words = {
        **{
            f"{kind}slope_times_1_minus_a_{s.power:g}": Words(
                f"${s.label}$: slope of the steps at which {what}, times $1 − a$"
            )
            for kind, what in (("", "gradients reach $ε$"), ("update_", "updates shrink"))
            for s in SCHEDULES
        },
        "linf_share_with_usual_betas": Words("Without $ε$, β = (.9, .999): mean share of the $ℓ_∞$ margin at the end"),
        "crossings_seen": Words("Runs whose gradients fall below $ε$ within the steps taken", Unit.SHARE),
        "crossings_of_updates_over_those_of_gradients": Words(
            "Median step at which updates shrink, over that at which gradients reach $ε$"
        ),
        "sign_likeness_before": Words("Median cosine of updates with the gradient's signs, before the crossing"),
        "gradient_likeness_after": Words("Median cosine of updates with the gradient, after the crossing"),
        "linf_share_without_eps": Words("Without $ε$: mean share of the $ℓ_∞$ margin at the end"),
    }
    runs = (
        Run(ON_P, ml.Adam(FACING.steps, SLOW_BETAS), LARGEST_ETA_GAMMA),
        *(
            Run(ON_P, ml.Adam(s.steps, BETAS, eps), None if s.power else LARGEST_ETA_GAMMA)
            for s in SCHEDULES
            for eps in (0.0, EPSILONS[0])
        ),
        *(Run(ON_P, ml.Adam(SLOW.steps, SLOW_BETAS, eps)) for eps in (0.0, EPSILONS[0])),
    )

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow Adam with every ε and every schedule, and find the crossings."""
        paper = effort is Effort.PAPER
        count, epsilons = (10, EPSILONS) if paper else (2, FEW_EPSILONS)
        slow_epsilons = SLOW_EPSILONS if paper else SLOW_EPSILONS[:1]
        shorter = 1 if paper else 2
        schedules = [s._replace(n_steps=s.n_steps // shorter) for s in SCHEDULES]
        slow_schedule = SLOW if paper else SLOW._replace(n_steps=60_000)
        progress.expect((1 + len(epsilons)) * len(schedules) + 2 + len(slow_epsilons) + len(FACES))
        risk = ml.AttentionRisk(*sphere_tokens(count, *SIZES, np.random.default_rng(SEED)))
        crossings = {s: _crossings(risk, s, BETAS, epsilons, progress) for s in schedules}
        slow = _crossings(risk[:2], slow_schedule, SLOW_BETAS, slow_epsilons, progress)
        faces = []
        facing = FACING if paper else FACING._replace(n_steps=FACING.n_steps // 4)
        for epsilon in FACES:
            faces.append(_face(risk, facing, epsilon))
            progress.advance()
        usual = _face(risk, facing, 0.0, SLOW_BETAS)
        progress.advance()
        arrays = {"crossings": crossings, "slow": slow, "faces": faces, "usual": usual, "epsilons": np.array(epsilons)}
        arrays["slow_epsilons"] = np.array(slow_epsilons)
        numbers = _numbers(arrays)
        return Finding(_sentence(numbers, arrays), numbers, arrays, note=_note(numbers))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Crossing times against log(1/ε); and the direction of runs with several ε."""
        return {"crossings": _draw_crossings(finding), "faces": _draw_faces(finding)}


# ---- runs


def _saved_steps(n_steps: int) -> IntArray:
    """Steps in pairs k, k + 1, evenly on a logarithmic axis."""
    first = np.unique(np.geomspace(1, n_steps - 1, N_SAVED).astype(np.int64))
    return np.unique(np.concatenate([first, first + 1]))


def _follow(risk: ml.AttentionRisk, schedule: Schedule, betas: tuple[float, float], epsilon: float) -> Any:
    steps = _saved_steps(schedule.n_steps)
    return ml.descend(
        risk,
        optimizer=ml.Adam(schedule.steps, betas, epsilon),
        n_steps=schedule.n_steps,
        record=ml.Record(steps.tolist()),
    )


def _gradients(risk: ml.AttentionRisk, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gradients at points (batch, n, d) as arrays of that shape and log scales (batch, n)."""
    found = [risk.gradient(points[:, k]) for k in range(points.shape[1])]
    arrays, scales = (np.stack(parts, axis=1) for parts in zip(*((g.array, g.log_scale) for g in found), strict=True))
    return arrays, scales


def _levels(risk: ml.AttentionRisk, schedule: Schedule, run: Any) -> dict[str, FloatArray]:
    """Along a run, at the first steps of the pairs: log mean modulus of the gradient's entries, the largest entry of the update relative to
    η_t, and the update's cosines with the signs of the gradient and with the gradient, each (batch, n).
    """
    steps, points = run.saved.steps, run.saved["x"]
    first = np.flatnonzero(np.isin(steps + 1, steps))
    updates = points[:, first + 1] - points[:, first]
    arrays, scales = _gradients(risk, points[:, first])
    sizes = schedule.size * (steps[first] + 1.0) ** -schedule.power
    return {
        "steps": steps[first] + 1.0,
        "gradient": np.log(np.mean(np.abs(arrays), axis=-1)) + scales,
        "update": np.log(np.max(np.abs(updates), axis=-1) / sizes),
        "sign_cosine": np.asarray(ml.correlation(updates, -np.sign(arrays))),
        "gradient_cosine": np.asarray(ml.correlation(updates, -arrays)),
    }


def _crossings(
    risk: ml.AttentionRisk, schedule: Schedule, betas: tuple[float, float], epsilons: Any, progress: Progress
) -> dict[str, FloatArray]:
    """When gradients fall below each ε and updates below half a step, (batch, n_epsilons); and how updates point before and after.

    A run with ε = 0 tells how many steps each ε will need: twice as many as its gradients need to fall below it.
    """
    free = _levels(risk, schedule, _follow(risk, schedule, betas, 0.0))
    progress.advance()
    by_gradient, by_update, sign_before, gradient_after = [], [], [], []
    for epsilon in epsilons:
        reached = max(_first_below(free["steps"], row - np.log(epsilon)) for row in free["gradient"])
        n_steps = int(min(schedule.n_steps, 2.0 * reached))
        at = _levels(risk, schedule, _follow(risk, schedule._replace(n_steps=n_steps), betas, epsilon))
        far = at["gradient"] - np.log(epsilon)
        by_gradient.append([_first_below(at["steps"], row) for row in far])
        by_update.append([_first_below(at["steps"], row - np.log(0.5)) for row in at["update"]])
        settled = at["steps"] > 30.0  # later than the means' first steps
        sign_before.append(at["sign_cosine"][(far > 5.0) & settled])
        gradient_after.append(at["gradient_cosine"][(far < -3.0) & settled])
        progress.advance()
    return {
        "by_gradient": np.array(by_gradient).T,
        "by_update": np.array(by_update).T,
        "sign_before": np.concatenate(sign_before),
        "gradient_after": np.concatenate(gradient_after),
    }


def _first_below(steps: FloatArray, heights: FloatArray) -> float:
    """The step at which heights first reach zero, interpolated on a logarithmic axis of steps; infinite if they never do."""
    below = np.flatnonzero(heights <= 0.0)
    if not below.size:
        return float("inf")
    k = int(below[0])
    if k == 0:
        return float(steps[0])
    part = heights[k - 1] / (heights[k - 1] - heights[k])
    return float(np.exp(np.log(steps[k - 1]) + part * np.log(steps[k] / steps[k - 1])))


def _slope(times: FloatArray, epsilons: FloatArray) -> float:
    """Of log(crossing) against log log(1/ε), for one problem, from FITTED_FROM on."""
    use = (epsilons <= FITTED_FROM * (1.0 + 1e-9)) & np.isfinite(times)
    if use.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(-np.log(epsilons[use])), np.log(times[use]), 1)[0])


def _face(
    risk: ml.AttentionRisk, schedule: Schedule, epsilon: float, betas: tuple[float, float] = BETAS
) -> dict[str, Any]:
    """Shares of the ℓ∞ and of the Euclidean margin, and cosines with their solutions, along a run; for the tokens it ends with."""
    run = _follow(risk, schedule, betas, epsilon)
    points = run.saved["x"]
    found: dict[str, Any] = {"epsilon": epsilon, "steps": run.saved.steps}
    for name, norm in (("linf", ml.LInf()), ("l2", ml.L2())):
        solution = ml.att_svm(risk.data, run.selected, norm=norm)
        found[f"{name}_cosine"] = np.asarray(ml.correlation(points, solution.x[:, None]))
        shares = [
            smallest_lead(risk, points[:, k], run.selected) / norms_of(norm, points[:, k])
            for k in range(points.shape[1])
        ]
        found[f"{name}_share"] = np.stack(shares, axis=-1) / np.asarray(solution.margin)[:, None]
    return found


# ---- words


def _numbers(arrays: dict[str, Any]) -> dict[str, float]:
    crossings, epsilons, faces = arrays["crossings"], arrays["epsilons"], arrays["faces"]
    numbers: dict[str, float] = {}
    for s, part in crossings.items():
        slope = float(np.median([_slope(times, epsilons) for times in part["by_gradient"]]))
        numbers[f"slope_{s.power:g}"], numbers[f"slope_times_1_minus_a_{s.power:g}"] = slope, slope * (1.0 - s.power)
        of_updates = float(np.median([_slope(times, epsilons) for times in part["by_update"]]))
        numbers[f"update_slope_times_1_minus_a_{s.power:g}"] = of_updates * (1.0 - s.power)
    times, ratios = (
        np.concatenate([np.ravel(what(part)) for part in crossings.values()])
        for what in (lambda part: part["by_gradient"], lambda part: part["by_update"] / part["by_gradient"])
    )
    numbers["linf_share_with_usual_betas"] = float(arrays["usual"]["linf_share"][:, -1].mean())
    numbers["crossings_seen"] = float(np.mean(np.isfinite(times)))
    numbers["crossings_of_updates_over_those_of_gradients"] = float(np.median(ratios))
    for number, name in (("sign_likeness_before", "sign_before"), ("gradient_likeness_after", "gradient_after")):
        numbers[number] = float(np.median(np.concatenate([part[name] for part in crossings.values()])))
    bound = 2.0 * -np.log(arrays["slow_epsilons"]) / -np.log(SLOW_BETAS[1])
    numbers["slow_crossings_over_the_bound"] = float(np.median(arrays["slow"]["by_gradient"] / bound))
    for face in faces:
        for name in ("linf", "l2"):
            words = "without_eps" if face["epsilon"] == 0.0 else f"at_eps_{face['epsilon']:.0e}"
            numbers[f"{name}_share_{words}"] = float(face[f"{name}_share"][:, -1].mean())
    return numbers


def _sentence(numbers: dict[str, float], arrays: dict[str, Any]) -> str:
    crossings, epsilons = arrays["crossings"], arrays["epsilons"]
    slopes = ", ".join(
        f"{numbers[f'slope_{s.power:g}']:.2f} for {s.label} (1/(1-a) = {1 / (1 - s.power):.2f})" for s in crossings
    )
    spans = ", ".join(
        f"{np.median(part['by_gradient'][:, 0]):,.0f} to {np.median(part['by_gradient'][:, -1]):,.0f} ({s.label})"
        for s, part in crossings.items()
    )
    shares = ", ".join(
        f"{face['epsilon']:.0e}: {face['linf_share'][:, -1].mean():.3f} and {face['l2_share'][:, -1].mean():.3f}".replace(
            "0e+00", "0"
        )
        for face in arrays["faces"]
    )
    return (
        f"Slopes of crossing times in log-log: {slopes}. Median crossings from ε = {epsilons[0]:.0e} to {epsilons[-1]:.0e}: "
        f"{spans} steps. Updates fall below half a step at {numbers['crossings_of_updates_over_those_of_gradients']:.2f} times the "
        f"step at which gradients reach ε. They have median cosine {numbers['sign_likeness_before']:.3f} with the sign of the gradient "
        f"while it is above e⁵ ε, and {numbers['gradient_likeness_after']:.3f} with the gradient itself once it is below ε/e³. Shares of "
        f"the ℓ∞ and of the Euclidean margin after {arrays['faces'][0]['steps'][-1]:,} steps with a = 0, by ε: {shares}."
    )


def _note(numbers: dict[str, float]) -> str:
    return (
        "The law holds with a short memory of the second moment, and not with Adam's own. "
        f"With β = (.9, .999) and ε = 0 runs have {numbers['linf_share_with_usual_betas']:.3f} of the ℓ∞ margin (X-N6 says why). "
        f"With β₂ = .999 and a = .5 crossings come at {numbers['slow_crossings_over_the_bound']:.2f} times $2 log(1/ε)/log(1/β₂)$, which "
        "is linear in log(1/ε) whatever a is. The second moment remembers larger gradients for a thousand steps, and "
        "steps must be short before it "
        "follows them. That is why β is short here, chosen after longer memories had "
        "given flatter lines at a = .7 in first runs."
    )


# ---- figures


def _draw_crossings(finding: Finding) -> Figure:
    fig, (left, right) = ml.plotting.figure(2, width=5.8, height=4.8)
    epsilons = finding.arrays["epsilons"]
    x = -np.log(epsilons)
    for k, (schedule, part) in enumerate(finding.arrays["crossings"].items()):
        low, middle, high = np.quantile(part["by_gradient"], [0.0, 0.5, 1.0], axis=0)
        colour, power = ml.plotting.ACCENTS[k], 1.0 - schedule.power
        left.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
        left.loglog(x, middle, "osD^"[k], color=colour, ms=5.5, label=f"{schedule.label}, η = {schedule.size:g}")
        left.plot(x, middle[-1] * (x / x[-1]) ** (1.0 / power), color=colour, lw=1.3)
        right.plot(x, (middle / middle[-1]) ** power, "osD^"[k], color=colour, ms=5.5, ls="-", lw=1.0)
    left.set(xlabel="log(1/ε)", ylabel="step at which gradients reach ε")
    left.set_title("Crossing times, all problems, and lines of slope 1/(1−a)")
    left.set_xticks([10, 20, 50, 100], ["10", "20", "50", "100"], minor=False)
    left.tick_params(axis="x", which="minor", labelbottom=False)
    left.legend(loc="upper left")
    right.axline(
        (x[-1], 1.0), slope=1.0 / x[-1], color=ml.plotting.INK, lw=1.2, ls="--", label="proportional to log(1/ε)"
    )
    right.set(
        xlim=(0.0, 145.0), ylim=(0.0, 1.05), xlabel="log(1/ε)", ylabel="(crossing / that of the smallest ε)^(1−a)"
    )
    right.set_title("The same to the power 1−a: straight lines")
    right.legend(loc="lower right")
    return fig


def _draw_faces(finding: Finding) -> Figure:
    fig, axes = ml.plotting.figure(2, width=5.8, height=4.8)
    goals = (("linf", "the ℓ∞ max-margin solution"), ("l2", "the Euclidean max-margin solution"))
    for ax, (name, goal) in zip(axes, goals, strict=True):
        for k, face in enumerate(finding.arrays["faces"]):
            label = "ε = 0" if face["epsilon"] == 0.0 else f"ε = {face['epsilon']:.0e}".replace("e-0", "e-")
            cosine = face[f"{name}_cosine"].mean(axis=0)
            look: dict[str, Any] = {
                "color": ml.plotting.ACCENTS[k],
                "ls": ("-", "--", "-.", ":")[k],
                "lw": 2.0 + 0.4 * k,
            }
            ax.plot(face["steps"], cosine, label=label, **look)
        ax.axhline(1.0, color=ml.plotting.INK, lw=0.8)
        ax.set(
            xscale="log",
            xlabel="step of Adam, a = 0",
            ylabel="mean cosine",
            ylim=(0.0, 1.03),
            title=f"p against {goal}",
        )
    axes[0].legend(loc="lower right")
    return fig
