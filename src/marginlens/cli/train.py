"""`marginlens train`: descend on a problem in a file, and hold what was trained against the theory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import marginlens as ml
from marginlens.cli._completions import norm_names, words_of
from marginlens.cli._deferred import errors, np, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import (
    OF_PROBLEM_FILE,
    AsJson,
    DropUnrealizable,
    PlotPlace,
    ProblemFile,
    Quiet,
    TokenProblem,
    numbers,
    read_token_problem,
    refuse_options,
)

if TYPE_CHECKING:
    from rich.console import Console

    from marginlens.data.files import SequenceProblem
    from marginlens.data.tokens import FloatArray
    from marginlens.lab.problem_files import LabProblem
    from marginlens.theory import Prediction

N_STEPS, STEP_SIZE = 1000, 1.0  # of a normalised descent on p unless said otherwise
STEEPEST_STEP_SIZE = 0.05  # of the optimizers in other norms on p
SEQUENCE_STEPS, SEQUENCE_STEP_SIZE = 4000, 0.01  # and on W, as in paper C's experiments
LOSSES = {"logistic": "Logistic", "exponential": "Exponential", "correlation": "CorrelationLoss"}
SEQUENCE_LOSSES = {
    "log": "LogLoss",
    "squared": "SquaredLoss",
    "cross-entropy": "CrossEntropy",
    "squared-probability": "SquaredProbability",
}
OPTIMIZERS = ("ngd", "gd", "sign", "coordinate", "steepest", "muon", "adam", "mirror", "polyak")
OPTIMIZER_WORDS = {
    "NormalizedGD": "ngd",
    "GradientDescent": "gd",
    "SignDescent": "sign",
    "CoordinateDescent": "coordinate",
    "SteepestDescent": "steepest",
    "Adam": "adam",
}  # what files of the lab call them, and the command line
RANDOM = "random"  # a start whose numbers are drawn from the standard normal distribution
ADAM_BETAS = (0.9, 0.999)
_CALLED = {
    "n_steps": "{steps}",
    "size": "{step_size}",
    "step": "{step_size}",
    "rate": "{step_size}",
    "power": "{decay}",
}
NEEDS_NORM = {"steepest": "linf, l3 or, for sequences, spectral", "mirror": "l1.75 or l3"}  # and examples of norms


def train(
    file: ProblemFile,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="How many steps to take.", show_default="1000; 4000 for sequences")
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Length of a step; with --constant the factor of the gradient.",
            show_default="1; 0.01 for sequences",
        ),
    ] = None,
    constant: Annotated[
        bool, typer.Option("--constant", help="Plain gradient descent; its step size is 1/L unless given.")
    ] = False,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="NAME",
            help=f"One of {', '.join(OPTIMIZERS)}.",
            show_default="ngd",
            autocompletion=words_of(*OPTIMIZERS),
        ),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(
            "--norm",
            metavar="NORM",
            help="Norm of steepest steps; lP of mirror descent for its power P.",
            autocompletion=norm_names,
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(metavar="M", help="Momentum of sign, coordinate, steepest and muon, below 1.")
    ] = None,
    eps: Annotated[float | None, typer.Option(metavar="E", help="ε of adam.", show_default="0")] = None,
    decay: Annotated[
        float | None, typer.Option(metavar="A", help="Let step t have the size S·t^-A.", show_default="0")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            autocompletion=words_of(*LOSSES, *SEQUENCE_LOSSES),
            metavar="LOSS",
            help=f"One of {', '.join(LOSSES)}; for sequences one of {', '.join(SEQUENCE_LOSSES)}.",
            show_default="logistic; log",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="0.5,-1",
            help="Where p starts, one number per coordinate; for sequences W row by row; random draws it, with --seed.",
            show_default="zero",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of --start random.", show_default="0")] = None,
    drop: DropUnrealizable = False,
    as_json: AsJson = False,
    plot: PlotPlace = None,
    quiet: Quiet = False,
) -> None:
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
        marginlens train problem.npz --optimizer sign --step-size 0.01 --decay 0.5 --json
        marginlens train sequences.json --drop
    """
    with errors_as_sentences(**OF_PROBLEM_FILE, **_CALLED):
        from marginlens.data.files import holds_sequences

        rule = Rule(optimizer, norm, momentum, eps, decay, constant)
        if start != RANDOM:
            refuse_options("unless --start random is given", seed=seed)
        rng = np.random.default_rng(errors.whole_number(0 if seed is None else seed, "seed", at_least=0))
        if holds_sequences(file):
            refuse_options("for a file of sequences", plot=plot)
            sequences = _rows.read_sequence_problem(file, drop=drop)
            start = _drawn(start, sequences.named.data.d_model**2, rng)
            choices = _sequence_choices(sequences.named.data, steps, step_size, rule, loss, start)
            row = _train_sequences(file, choices, sequences)
            if as_json:
                typer.echo(_rows.as_json(row))
            else:
                _show_sequences(row, choices)
            return
        refuse_options("unless the file holds sequences", drop=drop)
        problem = read_token_problem(file)
        if not isinstance(problem, TokenProblem):
            refuse_options("where the head is trained too", plot=plot)
            from marginlens.cli._joint import show_joint, train_joint

            start = _drawn(start, problem.data.d_key, rng)
            joint = train_joint(file, _joint_run(problem, steps, step_size, rule, loss, start))
            if as_json:
                typer.echo(_rows.as_json(joint))
            else:
                show_joint(joint)
            return
        data, v = problem.data, problem.head
        start = _drawn(start, data.d_key, rng)
        if problem.run is not None:
            steps = problem.run.n_steps if steps is None else steps
            loss = _loss_word(problem.run.loss) if loss is None else loss
            start = ",".join(map(repr, problem.run.start.tolist())) if start is None else start
            rule, step_size = rule.beside(problem.run.optimizer, step_size)
        if plot is not None:
            from marginlens.plotting.files import write_figure
            from marginlens.plotting.plane import check_plot, problem_figure

            check_plot(data, plot)
        choices = _token_choices(data, v, steps, step_size, rule, loss, start)
        run = _descended(data, v, choices, record_path=plot is not None)
        problems = _compared(data, v, choices, run)
        if plot is not None:
            best = _rows.solution_rows(ml.theory.globally_optimal_direction(data.as_batch(), v))
            drawn = [[gmm, row["solution"]] for gmm, row in zip(best, problems, strict=True)]
            write_figure(plot, problem_figure(data, v, drawn, run.saved["x"], choices.loss))
        if as_json:
            facts = {"file": str(file), "size": _rows.size_of(data), "training": choices.to_dict()}
            typer.echo(_rows.as_json({**facts, "problems": problems}))
        else:
            _show(file, data, choices, problems, plot)


class Rule(NamedTuple):
    """The optimizer as the command line names it: its options, None where not given, and whether --constant was."""

    name: str | None
    norm: str | None
    momentum: float | None
    eps: float | None
    decay: float | None
    constant: bool
    betas: tuple[float, float] | None = None

    def beside(self, given: Any, size: float | None) -> tuple[Rule, float | None]:
        """The rule and the step size with what a file gives where the command line does not; another optimizer's settings are no part."""
        if self.name is not None or self.constant:
            return self, size
        from marginlens.lab.problem_files import optimizer_json

        entries = optimizer_json(given)
        norm = f"l{entries['p']!r}".removesuffix(".0") if "p" in entries else None
        found = Rule(
            OPTIMIZER_WORDS[entries["name"]],
            self.norm or norm,
            (entries.get("momentum") or None) if self.momentum is None else self.momentum,
            entries.get("eps") if self.eps is None else self.eps,
            (entries.get("decay") or None) if self.decay is None else self.decay,
            constant=False,
            betas=tuple(entries["betas"]) if "betas" in entries else None,
        )
        return found, entries["size"] if size is None else size

    @property
    def is_plain(self) -> bool:
        """Whether steps are those of plain gradient descent."""
        return self.constant or self.name == "gd"

    def of_size(self, size: float, *, of_matrix: bool) -> ml.Optimizer:
        """The optimizer with steps of this size, of a matrix W or of a vector p."""
        name = "ngd" if self.name is None else self.name.lower()
        if name not in OPTIMIZERS:
            raise errors.reject("optimizer", f"one of {', '.join(OPTIMIZERS)}", repr(self.name))
        if self.constant:
            refuse_options("beside --constant, which is plain gradient descent", optimizer=self.name)
            name = "gd"
        if name == "muon" and not of_matrix:
            expected = "one for a vector p where the file holds no sequences"
            remedy = "Muon steps along the singular vectors of a matrix, which W of sequences is."
            raise errors.reject("optimizer", expected, repr(self.name), remedy)
        if name in NEEDS_NORM and self.norm is None:
            raise errors.reject("norm", f"given for the optimizer {name}, such as {NEEDS_NORM[name]}", "none")
        if name not in NEEDS_NORM:
            refuse_options(f"for the optimizer {name}, which has no norm to choose", norm=self.norm)
        if name not in ("sign", "coordinate", "steepest", "muon"):
            refuse_options(f"for the optimizer {name}", momentum=self.momentum)
        if name != "adam":
            refuse_options(f"for the optimizer {name}", eps=self.eps)
        if name in ("ngd", "gd", "polyak"):
            refuse_options(f"for the optimizer {name}", decay=self.decay)
        if self.decay is not None and not 0.0 <= self.decay <= 1.0:
            remedy = "Steps that fall faster than 1/t add up to a finite length, so that no direction is reached."
            raise errors.reject("decay", "a number from 0 to 1", f"{self.decay:g}", remedy if self.decay > 1.0 else "")
        schedule = size if self.decay is None else ml.optimizers.PowerDecay(size, self.decay)
        momentum: dict[str, Any] = {} if self.momentum is None else {"momentum": self.momentum}
        if name == "steepest":
            return ml.SteepestDescent(ml.norms.norm_named(str(self.norm)), schedule, **momentum)
        if name == "mirror":
            return ml.MirrorDescent(_power(str(self.norm)), schedule, normalized=True)
        made: dict[str, Callable[[], ml.Optimizer]] = {
            "ngd": lambda: ml.NormalizedGD(size),
            "gd": lambda: ml.GradientDescent(size),
            "polyak": lambda: ml.PolyakStep(size),
            "sign": lambda: ml.SignDescent(schedule, **momentum),
            "coordinate": lambda: ml.CoordinateDescent(schedule, **momentum),
            "muon": lambda: ml.Muon(schedule, **momentum),
            "adam": lambda: ml.Adam(schedule, self.betas or ADAM_BETAS, 0.0 if self.eps is None else self.eps),
        }
        return made[name]()


def _power(name: str) -> float:
    """P of a norm lP; mirror descent has no other."""
    found = ml.norms.norm_named(name)
    power = 2.0 if type(found) is ml.L2 else getattr(found, "power", None)
    if power is None or not 1.0 < power < np.inf:
        raise errors.reject("norm", "lP with a number P above 1 for mirror descent", repr(name))
    return float(power)


@dataclass(frozen=True)
class Choices:
    """How to train, as objects."""

    n_steps: int
    optimizer: Any
    loss_name: str
    loss: Any
    start: FloatArray

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


def _drawn(start: str | None, size: int, rng: np.random.Generator) -> str | None:
    """The start as it would have been typed where it is to be drawn."""
    return ",".join(map(repr, rng.standard_normal(size).tolist())) if start == RANDOM else start


def _loss(word: str | None, names: dict[str, str], kind: str = "") -> tuple[str, Any]:
    """The name of a loss, the first unless given, and the loss."""
    name = next(iter(names)) if word is None else word.lower()
    if name not in names:
        raise errors.reject("loss", f"one of {', '.join(names)}{kind}", repr(word))
    return name, getattr(ml.nexttoken if names is SEQUENCE_LOSSES else ml, names[name])()


def _loss_word(loss: Any) -> str:
    """What the command line calls a loss of a file."""
    return next(word for word, name in LOSSES.items() if name == type(loss).__name__)


def _joint_run(
    run: LabProblem, steps: int | None, size: float | None, rule: Rule, loss_word: str | None, start: str | None
) -> LabProblem:
    """The run of a file in which the head is trained too, with what the command line changes."""
    from marginlens.lab.problem_files import optimizer_json

    refuse_options(
        "where the head is trained too", norm=rule.norm, momentum=rule.momentum, eps=rule.eps, decay=rule.decay
    )
    word = "gd" if rule.constant else rule.name
    given = optimizer_json(run.optimizer, trains_head=True)
    name = OPTIMIZER_WORDS[given["name"]] if word is None else word.lower()
    if name not in ("ngd", "gd"):
        raise errors.reject("optimizer", "ngd or gd where the head is trained too", repr(rule.name))
    length = given["size"] if size is None else errors.positive_number(size, "step_size")
    return replace(
        run,
        n_steps=run.n_steps if steps is None else errors.whole_number(steps, "steps", at_least=1),
        optimizer=ml.GradientDescent(length) if name == "gd" else ml.optimizers.Blockwise(ml.NormalizedGD(length)),
        loss=run.loss if loss_word is None else _loss(loss_word, LOSSES)[1],
        start=run.start if start is None else numbers(start, "start", run.data.d_key),
    )


def _token_choices(
    data: ml.TokenDataset,
    v: FloatArray,
    steps: int | None,
    size: float | None,
    rule: Rule,
    loss_name: str | None,
    start: str | None,
) -> Choices:
    """How to train p; a constant step is 1/L_p unless given."""
    n_steps = errors.whole_number(N_STEPS if steps is None else steps, "steps", at_least=1)
    name, loss = _loss(loss_name, LOSSES)
    begin = (
        np.zeros(data.d_key)
        if start is None
        else np.array(data.as_batch().point(numbers(start, "start", data.d_key), "start")[0])
    )
    if size is not None:
        errors.positive_number(size, "step_size")
    elif rule.is_plain:
        largest = float(
            np.min(ml.theory.smoothness(data, v, loss).largest_step)
        )  # what the theorems allow for every problem
        if largest == 0.0:
            raise errors.reject("step_size", "given for keys so large that 1/L_p is below the range of numbers", "none")
        size = largest if np.isfinite(largest) else STEP_SIZE
    default = STEP_SIZE if rule.name in (None, "ngd", "gd", "polyak") else STEEPEST_STEP_SIZE
    optimizer = rule.of_size(default if size is None else size, of_matrix=False)
    return Choices(n_steps, optimizer, name, loss, begin)


def _sequence_choices(
    data: ml.SequenceDataset,
    steps: int | None,
    size: float | None,
    rule: Rule,
    loss_name: str | None,
    start: str | None,
) -> Choices:
    """How to train W; a constant step is 1/L unless given."""
    n_steps = errors.whole_number(SEQUENCE_STEPS if steps is None else steps, "steps", at_least=1)
    name, loss = _loss(loss_name, SEQUENCE_LOSSES, " for sequences")
    if size is not None:
        errors.positive_number(size, "step_size")
    elif rule.is_plain:
        size = 1.0 / ml.NextTokenRisk(data).smoothness()
    begin = np.zeros((data.d_model, data.d_model))
    if start is not None:
        entries = np.array(numbers(start, "start", begin.size))
        begin = data.weights(entries.reshape(begin.shape), "start")
    optimizer = rule.of_size(SEQUENCE_STEP_SIZE if size is None else size, of_matrix=True)
    return Choices(n_steps, optimizer, name, loss, begin)


# ---- token selection


def _descended(data: ml.TokenDataset, v: FloatArray, choices: Choices, *, record_path: bool) -> ml.Trajectory:
    """The finished run of every problem, with the iterates where its path is to be drawn."""
    record = None
    if record_path:
        from marginlens.plotting import recorded_steps

        record = ml.Record(recorded_steps(choices.n_steps))
    with terminal.Bars() as bars:
        return ml.descend(
            data.as_batch(),
            v,
            loss=choices.loss,
            optimizer=choices.optimizer,
            n_steps=choices.n_steps,
            start=choices.start,
            record=record,
            progress=bars.bar("Training"),
        )


def _compared(data: ml.TokenDataset, v: FloatArray, choices: Choices, run: ml.Trajectory) -> list[dict[str, Any]]:
    """One row per problem: where training went, the ATT-SVM of what it selected, and what was predicted."""
    from marginlens.directions import unit

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
                "agreement": _agreement(solution, cosines, run.status[j]),
                "advice": advice if prediction.observed is not None and choices.normalized else "",
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
    with terminal.Bars() as bars:
        bar = bars.bar("Predicting")
        for j in range(len(batch)):
            predictions.append(ml.predict_limit(batch[j], head[j], **options, max_problems=1))
            bar(j + 1, len(batch))
    return predictions


class Cosines(NamedTuple):
    """Of the trained direction with the ATT-SVM of what it selects, with a limit that is certain and with one that was observed."""

    reached: float
    certain: float | None
    observed: float | None


def _agreement(solution: dict[str, Any], cosines: Cosines, status: ml.Status) -> str:
    """How training and theory compare, in one sentence."""
    reached, certain, observed = cosines
    if solution["status"] == "TRIVIAL":
        return "No input has two tokens, so there is nothing to select."
    if certain is not None and not np.isnan(certain):
        return f"The limit is certain, and the trained direction has cosine {certain:.6f} with it."
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


def _train_sequences(file: Path, choices: Choices, problem: SequenceProblem) -> dict[str, Any]:
    """Descend on the sequences of a file, and put the trained W beside what paper C predicts."""
    data = problem.named.data
    options: dict[str, Any] = {"head": problem.head, "loss": choices.loss, "optimizer": choices.optimizer}
    with terminal.Bars() as bars:
        run = ml.descend(data, n_steps=choices.n_steps, start=choices.start, progress=bars.bar("Training"), **options)
        bars.bar("Predicting")
        prediction = ml.predict_limit(data, **options)
    row = _rows.sequence_row(file, problem, prediction)
    return {**row, "training": choices.to_dict(), "trained": _compared_sequences(problem, choices, run, prediction)}


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


def _show(
    file: Path, data: ml.TokenDataset, choices: Choices, problems: list[dict[str, Any]], plot: Path | None
) -> None:
    out = terminal.console()
    out.print(f"{file}: {_rows.size_of(data)}", markup=False)
    out.print(str(choices), markup=False)
    if data.is_batch:
        out.print(terminal.rows_table("Training beside the ATT-SVM of what it selects", _cells(problems)))
        cosines = np.array([row["correlation"] for row in problems])
        if np.isfinite(cosines).any():
            out.print(f"Cosine with the ATT-SVM: mean {np.nanmean(cosines):.6f}, smallest {np.nanmin(cosines):.6f}.")
    else:
        _show_problem(out, problems[0])
    if plot is not None:
        out.print(f"Written to {plot}", markup=False)


def _show_problem(out: Console, row: dict[str, Any]) -> None:
    solution = row["solution"]
    trained = {
        "direction": _rows.vector(row["direction"]),
        "norm": _rows.number(row["norm"]),
        "selects": _rows.selection(row["selected"]),
        "probability": f"at least {_near_one(row['smallest_probability'])} for every selected token",
        "ended": f"{ml.Status[row['status']].value} ({terminal.counted(row['steps_taken'], 'step')})",
    }
    out.print(terminal.facts_table("Trained", trained))
    kinds = {"GMM": "globally optimal (GMM)", "LMM": "locally optimal (LMM)", "neither": "not locally optimal"}
    tied = ", tied with a neighbour" if solution["kind"] == "GMM" and solution["score_gap"] == 0.0 else ""
    cosine = f"{row['correlation']:.8f} with the trained direction, an angle of {row['angle']:.2e}"
    margin = {
        "direction": _rows.vector(solution["direction"]),
        "margin": _rows.number(solution["margin"]),
        "these tokens are": kinds.get(solution["kind"], "selected by no direction") + tied,
        "score gap": _rows.number(solution["score_gap"]),
        "status": f"{ml.Status[solution['status']].value} ({_rows.residual(solution)})",
        "cosine": "–" if np.isnan(row["correlation"]) else cosine,
    }
    out.print(terminal.facts_table("The ATT-SVM of what it selects", margin))
    if "norm_margin" in row:
        of_norm = row["norm_margin"]
        if of_norm["share"] is not None:
            proved = f"at least {of_norm['proved_share']:.4f} of it by the run's own residual attention"
            out.print(
                f"It has {of_norm['share']:.4f} of the largest margin in {of_norm['norm']}, {proved}.",
                style="bold",
                markup=False,
            )
        out.print(of_norm["account"], markup=False)
    out.print(row["agreement"], style="bold")
    out.print(row["prediction"]["why"], markup=False)
    if row["advice"]:
        out.print(row["advice"], markup=False)


def _near_one(probability: float) -> str:
    """A probability, by its distance from one where six digits would call it one."""
    distance = 1.0 - probability
    if distance >= 1e-6:
        return f"{probability:.6g}"
    return f"1 - {distance:.1e}" if distance > 0.0 else "1, to rounding,"


def _cells(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for row in problems:
        solution, certain, observed = (
            row["solution"],
            row["correlation_with_prediction"],
            row["correlation_with_observed"],
        )
        cells = {
            "problem": row["problem"],
            "selects": _rows.selection(row["selected"]),
            "kind": solution["kind"],
            "norm": _rows.number(row["norm"]),
            "probability": _rows.number(row["smallest_probability"]),
            "cosine": "–" if np.isnan(row["correlation"]) else f"{row['correlation']:.6f}",
            "score gap": _rows.number(solution["score_gap"]),
            "residual": _rows.residual(solution),
            "certain": f"yes: {certain:.6f}"
            if certain is not None
            else ("no" if observed is None else f"observed: {observed:.6f}"),
        }
        if row.get("norm_margin", {}).get("share") is not None:
            cells["share"] = f"{row['norm_margin']['share']:.4f} in {row['norm_margin']['norm']}"
        if any(other["status"] != "COMPLETED" for other in problems):
            cells["ended"] = row["status"].lower().replace("_", "-")
        rows.append(cells)
    return rows


def _show_sequences(row: dict[str, Any], choices: Choices) -> None:
    out, trained = terminal.console(), row["trained"]
    _rows.show_sequence_problem(out, row)
    out.print(str(choices), markup=False)
    limit = "" if trained["limit_risk"] is None else f", {trained['limit_risk']:.6g} in the limit"
    facts = {
        "norm": _rows.number(trained["norm"]),
        "risk": f"{_rows.number(trained['risk'])}{limit}",
        "attention": f"more than half on the label in {trained['selected_share']:.1%} of the sequences, "
        f"at least {_rows.number(trained['smallest_attention'])} on every label",
        "ended": f"{ml.Status[trained['status']].value} ({terminal.counted(trained['steps_taken'], 'step')})",
    }
    out.print(terminal.facts_table("Trained", facts))
    beside: dict[str, str] = {}
    if trained["correlation"] is not None:
        beside["cosine with W^mm"] = f"{trained['correlation']:.6f}"
    if trained["cyclic_distance"] is not None:
        beside["distance from W^cyc in S_cyc"] = (
            f"{_rows.number(trained['cyclic_distance'])}, where W^cyc has norm {_rows.number(trained['cyclic_norm'])}"
        )
    if trained["total_variation"] is not None:
        mean, largest = (_rows.number(trained["total_variation"][name]) for name in ("mean", "largest"))
        beside["total variation to the automaton"] = f"{mean} on average, at most {largest}"
    if beside:
        out.print(terminal.facts_table("Beside the prediction", beside))
    else:
        out.print("There is no W^mm, W^cyc or automaton to compare with.", markup=False)
    out.print(row["prediction"]["why"], markup=False, style="bold")
    failing = [  # of C Thm 3, or of what follows of it from Eq. (17)
        [condition["name"] for condition in theorem["conditions"] if not condition["holds"]]
        for theorem in row["prediction"]["theorems"]
        if theorem["label"].startswith("C Thm 3")
    ]
    if choices.normalized and ["step size"] in failing:
        out.print(
            "With --constant the steps are those of C Thm 3, and the limit is certain; it is approached far more slowly.",
            markup=False,
        )
