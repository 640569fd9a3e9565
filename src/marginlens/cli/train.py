"""`marginlens train`: descend on a problem in a file, and hold what was trained against the theory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import marginlens as ml
from marginlens.cli._deferred import errors, np, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import (
    LISTED_NORMS,
    OF_PROBLEM_FILE,
    DropUnrealizable,
    PlotPlace,
    ProblemFile,
    TokenProblem,
    flag,
    numbers,
    option,
    read_token_problem,
    refuse_options,
)
from marginlens.names import LOSSES, NEXT_TOKEN_LOSSES, OPTIMIZERS, kebab

if TYPE_CHECKING:
    from marginlens.data.files import SequenceProblem
    from marginlens.data.tokens import FloatArray
    from marginlens.lab.problem_files import LabProblem
    from marginlens.theory import Prediction

N_STEPS, STEP_SIZE = 1000, 1.0  # of a normalised descent on p unless said otherwise
STEEPEST_STEP_SIZE = 0.05  # of the optimizers in other norms on p
SEQUENCE_STEPS, SEQUENCE_STEP_SIZE = 4000, 0.01  # and on W, as in paper C's experiments
TAKES: dict[str, set[str]] = {  # options of each optimizer
    "normalized-gd": set(),
    "gradient-descent": set(),
    "sign-descent": {"momentum", "decay"},
    "coordinate-descent": {"momentum", "decay"},
    "steepest-descent": {"norm", "momentum", "decay"},
    "muon": {"momentum", "decay"},
    "adam": {"eps", "decay"},
    "mirror-descent": {"norm", "decay"},
}
NEEDS_NORM = {  # and examples of norms
    "steepest-descent": "l-inf, l3 or, for sequences, spectral",
    "mirror-descent": "l1.75 or l3",
}
RANDOM = "random"  # a start whose numbers are drawn from the standard normal distribution
ADAM_BETAS = (0.9, 0.999)
EUCLIDEAN = ("normalized-gd", "gradient-descent")  # the first unless another is given
_CALLED: dict[str, Any] = {
    "n_steps": "{steps}",
    "size": "{step_size}",
    "step": "{step_size}",
    "rate": "{step_size}",
    "power": "{decay}",
}


# ---- what is asked for


@dataclass(frozen=True)
class Request:
    """How to train, as the command line says it: None where it does not, and whether --constant was given."""

    steps: Annotated[int | None, option("N", "How many steps to take.", "1000; 4000 for sequences")] = None
    step_size: Annotated[
        float | None,
        option("S", "Length of a step; with --constant the factor of the gradient.", "1; 0.01 for sequences"),
    ] = None
    constant: Annotated[bool, flag("--constant", "Plain gradient descent; its step size is 1/L unless given.")] = False
    optimizer: Annotated[
        str | None,
        option("NAME", f"One of {', '.join(OPTIMIZERS.names)}.", "normalized-gd", words=OPTIMIZERS.names),
    ] = None
    norm: Annotated[
        str | None, option("NORM", "Norm of steepest steps; lP of mirror descent for its power P.", words=LISTED_NORMS)
    ] = None
    momentum: Annotated[float | None, option("M", "Momentum of steepest descent in any norm, below 1.")] = None
    eps: Annotated[float | None, option("E", "ε of Adam.", "0")] = None
    decay: Annotated[float | None, option("A", "Let step t have the size S·t^-A.", "0")] = None
    loss: Annotated[
        str | None,
        option(
            "LOSS",
            f"One of {', '.join(LOSSES.names)}; for sequences one of {', '.join(NEXT_TOKEN_LOSSES.names)}.",
            "logistic; log-loss",
            words=(*LOSSES.names, *NEXT_TOKEN_LOSSES.names),
        ),
    ] = None
    start: Annotated[
        str | None,
        option(
            "0.5,-1",
            "Where p starts, one number per coordinate; for sequences W row by row; random draws it, with --seed.",
            "zero",
        ),
    ] = None
    betas: tuple[float, float] | None = None

    def beside(self, run: LabProblem) -> Request:
        """The request with what a file says of the optimizer where the command line does not; another one has settings of its own."""
        from marginlens.lab.problem_files import optimizer_json

        entries = optimizer_json(run.optimizer, trains_head=run.trains_head)
        given: dict[str, Any] = {"step_size": entries["size"]} if run.trains_head else {}
        if self.optimizer is None and not self.constant:
            given = {name: entries.get(name) or None for name in ("momentum", "decay")}
            given |= {
                "optimizer": OPTIMIZERS.name(entries["name"]),
                "eps": entries.get("eps"),
                "step_size": entries["size"],
            }
            given["norm"] = f"l{entries['p']!r}".removesuffix(".0") if "p" in entries else None
            given["betas"] = tuple(entries["betas"]) if "betas" in entries else None
        return replace(self, **{name: value for name, value in given.items() if getattr(self, name) is None})

    def choices(
        self,
        data: ml.TokenDataset | ml.SequenceDataset,
        rng: np.random.Generator,
        v: Any = None,
        run: LabProblem | None = None,
    ) -> Choices:
        """How to train p, or W of sequences: as asked for, else as the file says in `run`; a constant step is 1/L unless given."""
        asked, of_matrix = self if run is None else self.beside(run), isinstance(data, ml.SequenceDataset)
        n_steps = (SEQUENCE_STEPS if of_matrix else N_STEPS) if run is None else run.n_steps
        n_steps = errors.whole_number(n_steps if self.steps is None else self.steps, "steps", at_least=1)
        loss = _loss(self.loss, of_matrix) if run is None or self.loss is not None else run.loss
        size = None if asked.step_size is None else errors.positive_number(asked.step_size, "step_size")
        is_plain = size is None and (asked.constant or asked.optimizer_name == "gradient-descent")
        if isinstance(data, ml.SequenceDataset):
            typed = self.point(data.d_model**2, rng)
            start: FloatArray = data.weights(np.reshape(typed, (data.d_model, data.d_model)), "start")
            usual = SEQUENCE_STEP_SIZE
            if is_plain:
                size = 1.0 / ml.NextTokenRisk(data).smoothness()
        else:
            typed = self.point(data.d_key, rng) if run is None or self.start is not None else run.start
            start = np.array(data.as_batch().point(typed, "start")[0])
            usual = STEP_SIZE if asked.optimizer_name in EUCLIDEAN else STEEPEST_STEP_SIZE
            if is_plain:  # what the theorems allow for every problem
                size = float(np.min(ml.theory.smoothness(data, v, loss).largest_step))
            if size == 0.0:
                expected = "given for keys so large that 1/L_p is below the range of numbers"
                raise errors.reject("step_size", expected, "none")
        size = usual if size is None or not np.isfinite(size) else size
        return Choices(n_steps, asked.of_size(size, of_matrix=of_matrix), loss, start)

    def point(self, size: int, rng: np.random.Generator) -> Any:
        """Where to start, (size,): the numbers that were typed, random ones, or zeros."""
        if self.start == RANDOM:
            return rng.standard_normal(size)
        return np.zeros(size) if self.start is None else numbers(self.start, "start", size)

    def of_size(self, size: float, *, of_matrix: bool) -> ml.Optimizer:
        """The optimizer with steps of this size, of a matrix W or of a vector p."""
        name = self.optimizer_name
        if self.constant:
            refuse_options("beside --constant, which is plain gradient descent", optimizer=self.optimizer)
            name = "gradient-descent"
        if name == "muon" and not of_matrix:
            expected = "one for a vector p where the file holds no sequences"
            remedy = "Muon steps along the singular vectors of a matrix, which W of sequences is."
            raise errors.reject("optimizer", expected, repr(self.optimizer), remedy)
        if name in NEEDS_NORM and self.norm is None:
            raise errors.reject("norm", f"given for the optimizer {name}, such as {NEEDS_NORM[name]}", "none")
        others = {"norm": self.norm, "momentum": self.momentum, "eps": self.eps, "decay": self.decay}
        refuse_options(f"for the optimizer {name}", **{each: others[each] for each in others.keys() - TAKES[name]})
        if self.decay is not None and not 0.0 <= self.decay <= 1.0:
            remedy = "Steps that fall faster than 1/t add up to a finite length, so that no direction is reached."
            raise errors.reject("decay", "a number from 0 to 1", f"{self.decay:g}", remedy if self.decay > 1.0 else "")
        steps = size if self.decay is None else ml.optimizers.PowerDecay(size, self.decay)
        options: dict[str, Any] = {} if self.momentum is None else {"momentum": self.momentum}
        if name == "adam":
            options = {"betas": self.betas or ADAM_BETAS, "eps": self.eps or 0.0}
        from marginlens.optimizers.choice import optimizer_named

        return optimizer_named(name, steps, self.norm, **options)

    @property
    def optimizer_name(self) -> str:
        """The name of the optimizer, the first of all unless given."""
        return EUCLIDEAN[0] if self.optimizer is None else OPTIMIZERS.name(self.optimizer)


# ---- the command


@command(**OF_PROBLEM_FILE, **_CALLED)
def train(
    file: ProblemFile,
    asked: Request,
    seed: Annotated[int | None, option("N", "Of --start random.", "0")] = None,
    drop: DropUnrealizable = False,
    plot: PlotPlace = None,
) -> Answer:
    """Train the attention weights, and compare where they went with the max-margin theory.

    Steps are normalised (every step has the same length) unless --constant or --optimizer is given; then the margin is reported in the
    norm that the optimizer heads for. A problem that the lab saved has its own steps, optimizer, loss and start; what is given in the
    command line goes before them. A file of sequences is a next-token problem: W is
    trained and compared with its Graph-SVM, its cyclic correction and its automaton.

    Examples:
        marginlens train problem.npz
        marginlens train problem.npz --steps 10000 --step-size 0.1 --start 0.5,-1 --plot path.pdf
        marginlens train problem.npz --start random --seed 3
        marginlens train problem.npz --constant --loss exponential
        marginlens train problem.npz --optimizer sign-descent --step-size 0.01 --decay 0.5 --json
        marginlens train sequences.json --drop
    """
    from marginlens.data.files import holds_sequences

    if asked.start != RANDOM:
        refuse_options("unless --start random is given", seed=seed)
    rng = np.random.default_rng(errors.whole_number(0 if seed is None else seed, "seed", at_least=0))
    if holds_sequences(file):
        refuse_options("for a file of sequences", plot=plot)
        sequences = _rows.read_sequence_problem(file, drop=drop)
        choices = asked.choices(sequences.named.data, rng)
        row = _train_sequences(file, sequences, choices)
        return Answer(row, _sequence_text(row, choices))
    refuse_options("unless the file holds sequences", drop=drop)
    problem = read_token_problem(file)
    if not isinstance(problem, TokenProblem):
        refuse_options("where the head is trained too", plot=plot)
        row = _rows.train_joint(file, _joint_run(problem, asked, rng))
        return Answer(row, _rows.joint_text(row))
    data, v = problem.data, problem.head
    if plot is not None:
        from marginlens.plotting.files import write_figure
        from marginlens.plotting.plane import check_plot, problem_figure

        check_plot(data, plot)
    choices = asked.choices(data, rng, v, problem.run)
    run = _descended(data, v, choices, record_path=plot is not None)
    problems = _compared(data, v, choices, run)
    if plot is not None:
        best = _rows.solution_rows(ml.theory.globally_optimal_direction(data.as_batch(), v))
        drawn = [[gmm, row["solution"]] for gmm, row in zip(best, problems, strict=True)]
        write_figure(plot, problem_figure(data, v, drawn, run.saved["x"], choices.loss))
    found = {"file": str(file), "size": _rows.size_of(data), "training": choices.to_dict(), "problems": problems}
    return Answer(found, _text(found, choices, data.is_batch), [plot])


def _loss(word: str | None, of_sequences: bool) -> Any:
    """The loss of a word, the first unless given."""
    losses = NEXT_TOKEN_LOSSES if of_sequences else LOSSES
    return losses.class_named(losses.names[0] if word is None else word)()


def _joint_run(run: LabProblem, asked: Request, rng: np.random.Generator) -> LabProblem:
    """The run of a file in which the head is trained too, with what the command line changes."""
    others = {name: getattr(asked, name) for name in ("norm", "momentum", "eps", "decay")}
    refuse_options("where the head is trained too", **others)
    if asked.optimizer_name not in EUCLIDEAN:
        expected = f"{' or '.join(EUCLIDEAN)} where the head is trained too"
        raise errors.reject("optimizer", expected, repr(asked.optimizer))
    choices = asked.choices(run.data, rng, run=run)
    optimizer = ml.optimizers.Blockwise(choices.optimizer) if choices.normalized else choices.optimizer
    return replace(run, **{**choices.run, "optimizer": optimizer})


@dataclass(frozen=True)
class Choices:
    """How to train, as objects."""

    n_steps: int
    optimizer: Any
    loss: Any
    start: FloatArray

    @property
    def run(self) -> dict[str, Any]:
        """The choices as `descend` takes them."""
        return {"loss": self.loss, "optimizer": self.optimizer, "n_steps": self.n_steps, "start": self.start}

    @property
    def loss_name(self) -> str:
        """The name of the loss."""
        return kebab(type(self.loss).__name__)

    @property
    def normalized(self) -> bool:
        """Whether every step has the same length."""
        return isinstance(self.optimizer, ml.NormalizedGD)

    def to_dict(self) -> dict[str, Any]:
        """The choices as plain values."""
        step: dict[str, Any] = {"step": "normalised" if self.normalized else "constant"}
        step["step_size"] = getattr(self.optimizer, "size", None)
        if not self.is_euclidean:
            step = {"optimizer": repr(self.optimizer)}
        start = "zero" if self.start.ndim == 2 and not self.start.any() else self.start
        return {"steps": self.n_steps, **step, "loss": self.loss_name, "start": start}

    @property
    def is_euclidean(self) -> bool:
        """Whether steps are those of gradient descent, plain or normalised."""
        return isinstance(self.optimizer, ml.NormalizedGD | ml.GradientDescent)

    def __str__(self) -> str:
        given = "the given W" if self.start.ndim == 2 else _rows.vector(self.start)
        begin = given if self.start.any() else "zero"
        if not self.is_euclidean:
            return (
                f"{terminal.counted(self.n_steps, 'step')} of {self.optimizer!r}, {self.loss_name} loss, from {begin}"
            )
        kind, rest = ("normalised step", "of length") if self.normalized else ("step", "of plain gradient descent, η =")
        return f"{terminal.counted(self.n_steps, kind)} {rest} {self.optimizer.size:.4g}, {self.loss_name} loss, from {begin}"


# ---- token selection


def _descended(data: ml.TokenDataset, v: FloatArray, choices: Choices, *, record_path: bool) -> ml.Trajectory:
    """The finished run of every problem, with the iterates where its path is to be drawn."""
    record = None
    if record_path:
        from marginlens.plotting import recorded_steps

        record = ml.Record(recorded_steps(choices.n_steps))
    with terminal.stage("Training") as bar:
        return ml.descend(data.as_batch(), v, **choices.run, record=record, progress=bar)


def _compared(data: ml.TokenDataset, v: FloatArray, choices: Choices, run: ml.Trajectory) -> list[dict[str, Any]]:
    """One row per problem: where training went, the ATT-SVM of what it selected, and what was predicted."""
    from marginlens.arithmetic.directions import unit

    batch = data.as_batch()
    solutions = _rows.solution_rows(ml.token_optimality(batch, v, run.selected))
    predictions = _predicted(batch, batch.head(v), choices)
    weight = np.take_along_axis(run.attention, run.selected[..., None], axis=-1)[..., 0]  # (batch, n_inputs)
    rows = []
    for j, (solution, prediction) in enumerate(zip(solutions, predictions, strict=True)):
        final = run.final[j]
        cosines = Cosines(
            ml.correlation(final, solution["direction"]),
            None if prediction.direction is None else ml.correlation(final, prediction.direction),
            None if prediction.observed is None else ml.correlation(final, prediction.observed),
        )
        advice = "With --constant the steps are those of the theorem, and the limit is certain; it is then approached far more slowly."
        rows.append(
            {
                "problem": j,
                "direction": unit(final),
                "norm": run.norm[j],
                "selected": run.selected[j],
                "probabilities": weight[j],
                "smallest_probability": weight[j].min(),
                "status": run.status[j].name,
                "steps_taken": run.steps_taken[j],
                "solution": solution,
                "correlation": cosines.reached,
                "angle": ml.angle(final, solution["direction"]),
                "prediction": _rows.prediction_row(prediction),
                "correlation_with_prediction": cosines.certain,
                "correlation_with_observed": cosines.observed,
                "agreement": _agreement(solution, cosines, run.status[j], prediction.certain),
                "advice": advice if prediction.observed is not None and prediction.direction is None else "",
                **({} if choices.is_euclidean else {"norm_margin": _norm_margin(batch[j], run[j], choices)}),
            }
        )
    return rows


def _norm_margin(data: ml.TokenDataset, run: ml.Trajectory, choices: Choices) -> dict[str, Any]:
    """What the run has of the largest margin in the norm of its optimizer, and what it proves of that by itself."""
    bias = ml.theory.implicit_bias(choices.optimizer, run.risk, selected=run.selected)
    row: dict[str, Any] = {"account": str(bias or ""), "norm": None, "share": None, "proved_share": None}
    if bias is None or bias.solution is None or bias.solution.status is not ml.Status.OPTIMAL:
        return row
    rows, norm = run.risk.margin_rows(run.selected).rows, bias.solution.norm
    margin = float(np.min(rows @ run.final)) / norm.value(run.final) if run.norm > 0.0 else 0.0
    share, proved = margin * bias.solution.bracket().upper, margin * run.bracket(norm).lower
    return {**row, "norm": repr(norm), "share": max(share, 0.0), "proved_share": max(proved, 0.0)}


def _predicted(batch: ml.TokenDataset, head: FloatArray, choices: Choices) -> list[Prediction]:
    """The prediction for each problem; the trained tokens are the only candidate that matters, so none is enumerated."""
    options: dict[str, Any] = {"loss": choices.loss, "start": choices.start, "optimizer": choices.optimizer}
    predictions = []
    with terminal.stage("Predicting") as bar:
        for j in range(len(batch)):
            predictions.append(ml.predict_limit(batch[j], head[j], **options, max_problems=1))
            bar(j + 1, len(batch))
    return predictions


class Cosines(NamedTuple):
    """Of the trained direction with the ATT-SVM of what it selects, with a limit that is certain and with one that was observed."""

    reached: float
    certain: float | None
    observed: float | None


def _agreement(solution: dict[str, Any], cosines: Cosines, status: ml.Status, since: str) -> str:
    """How training and theory compare, in one sentence; `since` when the limit is certain, in words."""
    reached, certain, observed = cosines
    if solution["status"] == "TRIVIAL":
        return "No input has two tokens, so there is nothing to select."
    if certain is not None and not np.isnan(certain):
        return f"The limit is certain {since}, and the trained direction has cosine {certain:.6f} with it."
    if observed is not None and not np.isnan(observed):
        return f"The trained direction has cosine {observed:.6f} with the limit that is observed, not proved, for such steps."
    if solution["kind"] == "none":
        return "The softmax prefers no single token of every input, so there is no direction to compare with."
    if np.isnan(reached) and status is ml.Status.NON_FINITE:
        return "The first step left what numbers can hold, so there is no direction to compare with; a smaller step size helps."
    if np.isnan(reached):
        return "The weights never left zero, so there is no direction to compare with."
    if solution["kind"] in ("GMM", "LMM"):
        which = "the GMM" if solution["kind"] == "GMM" else "an LMM"
        return (
            "No theorem makes the limit of this run certain; it selects the tokens of "
            f"{which}, and has cosine {reached:.6f} with its direction."
        )
    return (
        "The selected tokens do not outscore their neighbours, so no theorem has their direction as a limit: "
        "the run ends at a finite minimum, or later changes tokens."
    )


# ---- next tokens


def _train_sequences(file: Path, problem: SequenceProblem, choices: Choices) -> dict[str, Any]:
    """Descend on the sequences of a file, and put the trained W beside what paper C predicts."""
    data = problem.named.data
    with terminal.Bars() as bars:
        run = ml.descend(data, head=problem.head, **choices.run, progress=bars.bar("Training"))
        bars.bar("Predicting")
        prediction = ml.predict_limit(data, head=problem.head, loss=choices.loss, optimizer=choices.optimizer)
    row = _rows.sequence_row(file, problem, prediction)
    trained = _compared_sequences(problem, choices, run, prediction)
    return {**row, "training": choices.to_dict(), "trained": trained}


def _compared_sequences(
    problem: SequenceProblem, choices: Choices, run: ml.Trajectory, prediction: Prediction
) -> dict[str, Any]:
    """The trained W beside W^mm, W^cyc and the automaton, each where there is one."""
    from marginlens.cli._rows import MAX_MATRIX

    data, W, details = problem.named.data, run.final, prediction.details
    targets, priority, mix = details.targets, details.priority, details.mix
    is_target = data.tokens == np.repeat(targets, data.lengths)
    on_target = np.add.reduceat(np.where(is_target, data.attention(W), 0.0), data.offsets[:-1])[targets >= 0]
    row: dict[str, Any] = {
        "status": run.status.name,
        "steps_taken": int(run.steps_taken),
        "norm": float(run.norm),
        "W": W if data.d_model <= MAX_MATRIX else None,
        "risk": ml.NextTokenRisk(data, head=problem.head, loss=choices.loss).value(W),
        "limit_risk": None,
        "selected_share": float(np.mean(on_target > 0.5)),
        "smallest_attention": float(on_target.min()),
        "correlation": None,
        "cyclic_distance": None,
        "cyclic_norm": None,
        "total_variation": None,
    }
    if priority.status is ml.Status.OPTIMAL and run.norm > 0.0:
        row["correlation"] = float(ml.correlation(W, priority.x, axes=2))
    if mix.status is ml.Status.FINITE:
        row["cyclic_distance"] = float(np.linalg.norm(mix.subspace.project(W) - mix.x))
        row["cyclic_norm"] = float(np.linalg.norm(mix.x))
    has_automaton = priority.status.ok and mix.status.ok
    if has_automaton and problem.head is None and isinstance(choices.loss, ml.LogLoss):
        row["limit_risk"] = ml.nexttoken.limit_risk(data)
        distance = ml.NextTokenAutomaton(data.E, details.graphs, priority, mix, data).total_variation(data, W)
        row["total_variation"] = {"mean": float(distance.mean()), "largest": float(distance.max())}
    return row


# ---- the terminal

_TRAINED = (
    "direction={direction:vector}, norm={norm:number}, selects={selected:selection}, probability={probability}, "
    "ended={self:ending}"
)
_MARGIN = (
    "direction={direction:vector}, margin={margin:number}, these tokens are={kind}, score gap={score_gap:number}, "
    "status={meaning} ({self:residual}), cosine={cosine}"
)
_COLUMNS = (
    "selects={selected:selection}, kind={solution.kind}, norm={norm:number}, probability={smallest_probability:number}, "
    "cosine={correlation:.6f}, score gap={solution.score_gap:number}, residual={solution:residual}"
)


def _text(found: dict[str, Any], choices: Choices, is_batch: bool) -> Iterator[Any]:
    problems = found["problems"]
    yield f"{found['file']}: {found['size']}"
    yield str(choices)
    if not is_batch:
        yield from _problem_text(problems[0])
        return
    yield terminal.rows_table("Training beside the ATT-SVM of what it selects", [_cells(row) for row in problems])
    cosines = np.array([row["correlation"] for row in problems])
    if np.isfinite(cosines).any():
        yield f"Cosine with the ATT-SVM: mean {np.nanmean(cosines):.6f}, smallest {np.nanmin(cosines):.6f}."


def _problem_text(row: dict[str, Any]) -> Iterator[Any]:
    solution = row["solution"]
    probability = f"at least {_near_one(row['smallest_probability'])} for every selected token"
    yield terminal.facts_table("Trained", _rows.cells({**row, "probability": probability}, _TRAINED))
    kinds = {"GMM": "globally optimal (GMM)", "LMM": "locally optimal (LMM)", "neither": "not locally optimal"}
    tied = ", tied with a neighbour" if solution["kind"] == "GMM" and solution["score_gap"] == 0.0 else ""
    cosine = f"{row['correlation']:.8f} with the trained direction, an angle of {row['angle']:.2e}"
    words = {
        "kind": kinds.get(solution["kind"], "selected by no direction") + tied,
        "meaning": ml.Status[solution["status"]].value,
        "cosine": None if np.isnan(row["correlation"]) else cosine,
    }
    yield terminal.facts_table("The ATT-SVM of what it selects", _rows.cells({**solution, **words}, _MARGIN))
    of_norm = row.get("norm_margin")
    if of_norm is not None:
        if of_norm["share"] is not None:
            proved = f"at least {of_norm['proved_share']:.4f} of it by the run's own residual attention"
            share = f"It has {of_norm['share']:.4f} of the largest margin in {of_norm['norm']}, {proved}."
            yield terminal.bold(share)
        yield of_norm["account"]
    yield terminal.bold(row["agreement"])
    yield row["prediction"]["why"]
    if row["advice"]:
        yield row["advice"]


def _near_one(probability: float) -> str:
    """A probability, by its distance from one where six digits would call it one."""
    distance = 1.0 - probability
    if distance >= 1e-6:
        return f"{probability:.6g}"
    return f"1 - {distance:.1e}" if distance > 0.0 else "1, to rounding,"


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """One problem of a batch, as a row of the table."""
    margin = row.get("norm_margin") or {"share": None}
    certain, observed = row["correlation_with_prediction"], row["correlation_with_observed"]
    uncertain = "no" if observed is None else f"observed: {observed:.6f}"
    return {
        "problem": row["problem"],
        **_rows.cells(row, _COLUMNS),
        "certain": uncertain if certain is None else f"{row['prediction']['certain']}: {certain:.6f}",
        **({} if margin["share"] is None else {"share": f"{margin['share']:.4f} in {margin['norm']}"}),
        **({} if row["status"] == "COMPLETED" else {"ended": row["status"].lower().replace("_", "-")}),
    }


def _sequence_text(row: dict[str, Any], choices: Choices) -> Iterator[Any]:
    trained = row["trained"]
    yield from _rows.sequence_text(row)
    yield str(choices)
    limit = "" if trained["limit_risk"] is None else f", {trained['limit_risk']:.6g} in the limit"
    share = f"more than half on the label in {trained['selected_share']:.1%} of the sequences, "
    least = f"at least {_rows.number(trained['smallest_attention'])} on every label"
    words = {**trained, "limit": limit, "attention": share + least}
    columns = "norm={norm:number}, risk={risk:number}{limit}, attention={attention}, ended={self:ending}"
    yield terminal.facts_table("Trained", _rows.cells(words, columns))
    beside: dict[str, str] = {}
    if trained["correlation"] is not None:
        beside["cosine with W^mm"] = f"{trained['correlation']:.6f}"
    if trained["cyclic_distance"] is not None:
        distance, norm = (_rows.number(trained[name]) for name in ("cyclic_distance", "cyclic_norm"))
        beside["distance from W^cyc in S_cyc"] = f"{distance}, where W^cyc has norm {norm}"
    if trained["total_variation"] is not None:
        mean, largest = (_rows.number(trained["total_variation"][name]) for name in ("mean", "largest"))
        beside["total variation to the automaton"] = f"{mean} on average, at most {largest}"
    nothing = "There is no W^mm, W^cyc or automaton to compare with."
    yield terminal.facts_table("Beside the prediction", beside) if beside else nothing
    yield terminal.bold(row["prediction"]["why"])
    failing = [  # of C Thm 3, or of what follows of it from Eq. (17)
        [condition.name for condition in theorem.failed]
        for theorem in row["prediction"]["theorems"]
        if theorem.citation.startswith("C Thm 3")
    ]
    if choices.normalized and ["step size"] in failing:
        certain = "the steps are those of C Thm 3, and the limit is certain; it is approached far more slowly."
        yield f"With --constant {certain}"
