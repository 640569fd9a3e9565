"""X-R1 and X-R2: log-linear policies. GRPO's weights grow twice as fast as REINFORCE's, and which arm wins is known before training."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.arithmetic.directions import length
from marginlens.losses import Loss
from marginlens.status import Status
from marginlens.theory.attraction import Missing, find_tubes
from marginlens.typing import BoolArray, Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.drawing import misalignment

SEED = 9
SHAPE = (3, 4, 8)  # states, arms, coordinates of a feature
N_STEPS = 20_000  # of plain descent with steps of size 1, so that time is their number
N_DOUBLINGS, PER_DOUBLING = 27, 300  # of the time after that, and the steps that each takes
LAST = 7  # doublings over which the slope at the end is measured
TOLERANCE = 0.02  # of a slope
# A loss, and the reward of a right arm.
ALGORITHMS = {
    "reinforce": (ml.CorrelationLoss(), 1.0),
    "grpo": (ml.ArcsineLoss(), 1.0),
    "rejection": (ml.LogProbability(), 1.0),
}
CONTROLS = {"logistic": (ml.Logistic(), 1.0), "pole_out_of_reach": (ml.ArcsineLoss(), 0.8)}
NAMES = {"reinforce": "REINFORCE", "grpo": "GRPO", "rejection": "rejection sampling"}
LAW = {"reinforce": 1.0, "grpo": 2.0, "rejection": 1.0}

REWARDS = np.ones(1)  # the head that reads off the rewards
STEP = ml.NormalizedGD(0.5)
LENGTHS = (0.05, 0.5, 5.0, 50.0)
MAX_ARMS = 8
N_FIVE, WIDTHS = 5, (2, 3, 4)  # arms and widths of the bandits in which worse arms are counted
MIXTURE = -1  # no arm wins: the end is a finite minimum


class X_R1(Claim):
    labels = ("X Thm 1",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train all bandits with all losses, and measure how fast γ‖θ‖ grows with log t."""
        n_problems = 1000 if effort is Effort.PAPER else 60
        rng = np.random.default_rng(SEED)
        features = rng.standard_normal((n_problems, *SHAPE))
        right = rng.integers(SHAPE[1], size=(n_problems, SHAPE[0]))
        rewards = (np.arange(SHAPE[1]) == right[..., None]).astype(float)
        solution = ml.att_svm(ml.data.bandit(features, rewards), right)
        progress.expect(len(ALGORITHMS) + len(CONTROLS))
        runs, numbers = {}, {}
        for name, (loss, top) in {**ALGORITHMS, **CONTROLS}.items():
            data = ml.data.bandit(features, top * rewards)
            runs[name] = _grown(data, loss, right, further=name in ALGORITHMS)
            progress.advance()
        margins = 1.0 / length(solution.x)
        slopes = {name: margins * run["slope"] for name, run in runs.items()}
        for name, run in runs.items():
            numbers[f"slope_{name}"] = float(np.median(slopes[name][run["right"]]))
        both = runs["reinforce"]["right"] & runs["grpo"]["right"]
        numbers["ratio"] = float(np.median((slopes["grpo"] / slopes["reinforce"])[both]))
        late = {name: margins * runs[name]["late_slope"] for name in ALGORITHMS}
        within = [np.abs(late[name] - LAW[name])[runs[name]["right"]] <= TOLERANCE for name in ALGORITHMS]
        numbers["late_within"] = float(np.mean(np.concatenate(within)))
        apart = [np.median(misalignment(runs[name]["final"], solution.x)[runs[name]["right"]]) for name in ALGORITHMS]
        numbers["misalignment"] = float(max(apart))
        for name in ALGORITHMS:
            run = runs[name]
            numbers[f"plateaus_{name}"] = float(np.mean(~run["right"]))
            numbers[f"proved_{name}"] = float(np.mean(run["proved"][run["right"]]))
        for name in ("reinforce", "grpo"):
            numbers[f"plateau_slope_{name}"] = _on_plateaus(features, rewards, right, runs[name])
        arrays = {"times": runs["grpo"]["times"], "curves": {}}
        for name in ALGORITHMS:
            curves = margins[:, None] * runs[name]["norms"]
            arrays["curves"][name] = np.quantile(curves[runs[name]["right"]], [0.05, 0.5, 0.95], axis=0)
        return Finding(_sentence_of_growth(numbers, n_problems), numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """γ‖θ‖ against time, with the slopes of the law."""
        figure, (axes,) = ml.plotting.figure(width=6.4, height=4.2)
        times, curves = finding.arrays["times"], finding.arrays["curves"]
        looks = {
            "grpo": ("-", ml.plotting.GLOBAL),
            "reinforce": ("-", ml.plotting.LOCAL),
            "rejection": ("--", ml.plotting.INK),
        }
        for name, (dash, colour) in looks.items():
            low, middle, high = curves[name]
            axes.plot(times, middle, ls=dash, color=colour, lw=2.2, label=f"{NAMES[name]}: slope {LAW[name]:g}")
            if name != "rejection":
                axes.fill_between(times, low, high, color=colour, alpha=0.2, lw=0)
        axes.set(xscale="log", xlabel="time (steps of size 1)", ylabel="γ‖θ‖: lead of the right arm in logits")
        axes.set_title("Dividing by the standard deviation doubles the growth of the logits")
        axes.legend(frameon=False, loc="upper left")
        return {"growth": figure}


def _grown(data: ml.TokenDataset, loss: Loss, right: IntArray, *, further: bool) -> dict[str, Any]:
    """Train from zero; of each bandit, whether every state ends at its right arm, and d‖θ‖/d log t after the steps of size 1.

    If a run goes `further`, its steps then grow in proportion to the time so far: still plain descent, at times that steps of size 1
    cannot reach. Also the norms at `times`, the slope over the last doublings of the time, and whether X Theorem 1 proves
    the limit of plain descent from there on.
    """
    early = np.unique(np.geomspace(10, N_STEPS, 20).astype(int))
    keep = ml.Record(early.tolist(), keep=("norm",))
    run = ml.descend(data, loss=loss, optimizer=ml.GradientDescent(1.0), n_steps=N_STEPS, record=keep)
    growth = length(run.resume(1).final) - length(run.final)
    found = {"slope": N_STEPS * growth, "right": np.all(run.selected == right, axis=-1)}
    if not further:
        return found
    times, norms = early.astype(float).tolist(), list(run.saved["norm"].T)
    for k in range(N_DOUBLINGS):
        size = N_STEPS * 2.0**k / PER_DOUBLING
        run = ml.descend(data, loss=loss, optimizer=ml.GradientDescent(size), n_steps=PER_DOUBLING, start=run.final)
        times.append(2.0 * times[-1])
        norms.append(length(run.final))
    tubes = find_tubes(data, data.head(REWARDS), run.final, ml.GradientDescent(1.0), loss)
    return found | {
        "right": np.all(run.selected == right, axis=-1),
        "selected": run.selected,
        "late_slope": (norms[-1] - norms[-1 - LAST]) / (LAST * np.log(2.0)),
        "final": run.final,
        "proved": tubes.missing == Missing.NOTHING,
        "times": np.array(times),
        "norms": np.stack(norms, axis=-1),
    }


def _on_plateaus(features: FloatArray, rewards: FloatArray, right: IntArray, run: dict[str, Any]) -> float:
    """The median slope of the runs that leave states at wrong arms, with the margin of the other states in place of γ."""
    slopes = []
    for j in np.flatnonzero(~run["right"]):
        learned = run["selected"][j] == right[j]
        if learned.any():
            rest = ml.data.bandit(features[j][learned], rewards[j][learned])
            slopes.append(run["late_slope"][j] / length(ml.att_svm(rest, right[j][learned]).x))
    return float(np.median(slopes))


def _sentence_of_growth(numbers: dict[str, float], n_problems: int) -> str:
    slopes = ", ".join(f"{numbers[f'slope_{name}']:.3f}" for name in ALGORITHMS)
    proved = ", ".join(f"{numbers[f'proved_{name}']:.1%}" for name in ALGORITHMS)
    plateaus = ", ".join(f"{numbers[f'plateaus_{name}']:.1%}" for name in ALGORITHMS)
    return (
        f"Over {n_problems:,} bandits $γ‖θ‖$ grows by {slopes} per unit of log t after {N_STEPS:,} steps (medians for REINFORCE, GRPO and "
        f"rejection sampling); GRPO over REINFORCE {numbers['ratio']:.3f}. At time {N_STEPS * 2.0**N_DOUBLINGS:.0e} "
        f"{numbers['late_within']:.1%} of all runs that choose the right arm in every state are within {TOLERANCE:g} of 1, 2 and 1, and "
        f"X Theorem 1 proves the limit of {proved} of them. The other {plateaus} sit on plateaus and leave a state at a wrong arm; with "
        f"the margin of the other states their slopes are {numbers['plateau_slope_reinforce']:.3f} (REINFORCE) and "
        f"{numbers['plateau_slope_grpo']:.3f} (GRPO). Controls: {numbers['slope_logistic']:.3f} with the logistic loss, and "
        f"{numbers['slope_pole_out_of_reach']:.3f} with GRPO's loss if no reward reaches its pole."
    )


class X_R2(Claim):
    labels = ("A Def 2", "X Thm 1", "X Thm 2")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Predict and train random bandits of all sizes, and look for other arms at which training could end."""
        count, of_five, n_steps = (16, 200, 5_000) if effort is Effort.PAPER else (1, 10, 5_000)
        many = [(1, N_FIVE, d) for d in WIDTHS]
        shapes = [(n, K, d) for n in (1, 2) for K in range(2, MAX_ARMS + 1) for d in range(2, K + 1)]
        progress.expect(len(shapes))
        parts = []
        for shape in shapes:
            parts.append(_ends(*shape, of_five if shape in many else count, n_steps))
            progress.advance()
        five = [parts[shapes.index(shape)] for shape in many]
        single = [part for part, shape in zip(parts, shapes, strict=True) if shape[0] == 1]
        numbers = {name: _mean(parts, name) for name in ("proved", "finite", "best_wins")}
        proved = np.array([[part["proved"].sum(), len(part["proved"])] for part in parts])
        at = np.array([d for *_, d in shapes])
        numbers["proved_in_the_plane"] = float(np.divide(*proved[at == 2].sum(axis=0)))
        numbers["wrong"] = float(sum(part["wrong"].sum() for part in parts))
        numbers["compared"] = _mean(parts, "compared")
        for part, d in zip(five, WIDTHS, strict=True):
            numbers[f"worse_{d}"] = float(np.mean(part["worse"][part["realisable"]]))
        numbers["worse"] = _mean(five, "worse", lambda part: part["realisable"])
        numbers["best_wins_beside_rival"] = _mean(single, "best_wins", lambda part: part["settles"] & part["rival"])
        numbers["best_wins_at_all_lengths"] = _mean(
            five, "at_all_lengths", lambda part: part["settles"] & part["rival"]
        )
        unrivalled = [part["settles"] & ~part["rival"] for part in single]
        numbers["unrivalled"] = float(sum(mask.sum() for mask in unrivalled))
        for name in ("worse", "finite"):
            lost = [np.sum(part[name] & mask) for part, mask in zip(single, unrivalled, strict=True)]
            numbers[f"unrivalled_{name}"] = float(sum(lost))
        counts = [
            [int(np.sum(part[name])) for name in ("best_wins", "worse", "finite")] + [int(np.sum(~part["proved"]))]
            for part in parts
        ]
        sizes = {"n": np.array([shape[0] for shape in shapes]), "d": at}
        total = int(proved[:, 1].sum())
        return Finding(
            _sentence_of_arms(numbers, total), numbers, {"counts": np.array(counts), **sizes}, _note(numbers)
        )

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Where bandits end, by the width of the features."""
        figure, panels = ml.plotting.figure(2, width=3.9, height=3.8)
        looks = {
            "best arm": ml.plotting.GLOBAL,
            "a worse arm": ml.plotting.LOCAL,
            "no arm": "0.8",
            "not proved": ml.plotting.INK,
        }
        for axes, n, title in zip(panels, (1, 2), ("one state", "two states: best arm in both"), strict=True):
            widths = np.arange(2, MAX_ARMS + 1)
            of = [
                finding.arrays["counts"][(finding.arrays["n"] == n) & (finding.arrays["d"] == d)].sum(axis=0)
                for d in widths
            ]
            shares = np.array(of) / np.sum(of, axis=1, keepdims=True)
            below = np.zeros(len(widths))
            for share, (label, colour) in zip(shares.T, looks.items(), strict=True):
                axes.bar(widths, share, 0.8, bottom=below, color=colour, label=label)
                below = below + share
            axes.set(xlabel="width d of the features", ylabel="share of bandits", ylim=(0.0, 1.0), title=title)
            axes.grid(visible=False)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return {"ends": figure}


def _mean(parts: list[dict[str, Any]], name: str, where: Any = None) -> float:
    """The share of all bandits, or of those to which a condition applies."""
    chosen = [part[name] if where is None else part[name][where(part)] for part in parts]
    return float(np.mean(np.concatenate(chosen)))


def _ends(n: int, K: int, d: int, count: int, n_steps: int) -> dict[str, BoolArray]:
    """Where training of REINFORCE from zero ends, as masks (count,): predicted, proved, and compared with runs."""
    drawn = np.random.default_rng([SEED, n, K, d]).standard_normal((count, n, K, d + 1))
    data = ml.data.bandit(drawn[..., :d], drawn[..., d])
    loss = ml.CorrelationLoss()
    best: Any = data.optimal(REWARDS)
    run = ml.descend(data, loss=loss, optimizer=STEP, n_steps=n_steps)
    finite, selected, proved, taken = _predicted(data, loss, run.final)
    compared = proved & ~finite & (taken <= n_steps)
    wins = np.all(selected == best, axis=-1)
    status = ml.att_svm(data, best).status
    found = {
        "proved": proved,
        "finite": finite,
        "best_wins": proved & ~finite & wins,
        "worse": proved & ~finite & ~wins,
        "compared": compared | finite,
        "wrong": compared & np.any(run.selected != selected, axis=-1),
        "realisable": np.array([each is Status.OPTIMAL for each in status]),
    }
    found["settles"] = found["realisable"] & proved
    if n == 1:
        arms = range(K)
        local = [ml.token_optimality(data, REWARDS, np.full((count, 1), a)).is_locally_optimal for a in arms]
        found["rival"] = np.any(np.array(local).T & (np.arange(K) != best), axis=-1)
        ends = [
            ml.descend(data, loss=loss, optimizer=ml.NormalizedGD(size), n_steps=n_steps).selected for size in LENGTHS
        ]
        found["at_all_lengths"] = np.all(np.array(ends) == best, axis=(0, -1))
    return found


def _predicted(data: ml.TokenDataset, loss: Loss, last: FloatArray) -> tuple[BoolArray, IntArray, BoolArray, IntArray]:
    """Whether the flow from zero provably ends at a finite minimum that normalised steps circle around; if not, the arms at which
    the steps end, whether that is proved, and after how many steps the proof begins.

    Steps are longer than those of the flow and may end elsewhere: `last` is the last point (count, d) of a run of them.
    """
    of_flow: Any = ml.predict_limit(data, loss=loss, max_problems=1)
    flow = [prediction.outcome for prediction in of_flow]
    points = np.array([outcome.point for outcome in flow])
    is_near = length(last - points) <= 0.5 * length(points) + 2.0 * STEP.size
    finite = np.array([outcome.finite and outcome.proved for outcome in flow]) & is_near
    selected, taken = np.full(data.y.shape, MIXTURE), np.zeros(len(data), dtype=np.int64)
    proved, others = finite.copy(), np.flatnonzero(~finite)
    predictions: Any = []
    if len(others):
        predictions = ml.predict_limit(data[others], loss=loss, optimizer=STEP, max_problems=1)
    for j, prediction in zip(others, predictions, strict=True):
        outcome = prediction.outcome
        selected[j], proved[j], taken[j] = outcome.selected, outcome.proved, outcome.n_steps
    return finite, selected, proved, taken


def _sentence_of_arms(numbers: dict[str, float], total: int) -> str:
    worse = ", ".join(f"{numbers[f'worse_{d}']:.1%}" for d in WIDTHS)
    return (
        f"Of {total:,} bandits the end is proved before training for {numbers['proved']:.1%}, for {numbers['proved_in_the_plane']:.1%} "
        f"in the plane; {numbers['wrong']:.0f} proofs are contradicted by a run. The best arm wins in {numbers['best_wins']:.1%}, and no "
        f"arm in {numbers['finite']:.1%}, as X Theorem 2 proves for the flow. With five arms a worse one provably wins in {worse} of the "
        f"bandits whose best arm could win (d = {', '.join(map(str, WIDTHS))}). Of {numbers['unrivalled']:.0f} bandits with one state "
        f"whose best arm could win and is the only locally optimal one, {numbers['unrivalled_worse']:.0f} end at a worse arm and "
        f"{numbers['unrivalled_finite']:.0f} at none. If another arm is locally optimal, the best one wins in "
        f"{numbers['best_wins_beside_rival']:.1%}."
    )


def _note(numbers: dict[str, float]) -> str:
    return (
        "That no other arm is locally optimal is neither needed nor quite enough for the best arm to win. It is not needed: the best of "
        f"five wins beside another locally optimal arm in {numbers['best_wins_at_all_lengths']:.0%} of the bandits at steps of all lengths "
        f"tried ({', '.join(f'{size:g}' for size in LENGTHS)}). It is not quite enough: training may end at a finite minimum, as "
        "with the five arms on the page about bandits."
    )
