"""`marginlens train`: descent on a problem in a file, compared with the theory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli.options import (
    LISTED_NORMS,
    AsJson,
    Details,
    DropUnrealizable,
    PlotFile,
    ProblemFile,
    Quiet,
    numbers,
    read_sequence_problem,
    read_token_problem,
    refuse_options,
    vector,
    words_of,
)
from marginlens.cli.output import Output
from marginlens.cli.predict import problem_line, selection_kind, sequence_answer
from marginlens.errors import InputError, positive_number, whole_number
from marginlens.names import LOSSES, NEXT_TOKEN_LOSSES, OPTIMIZERS, kebab
from marginlens.words import Fact, text

if TYPE_CHECKING:
    import numpy as np

    from marginlens.data.files import SequenceProblem
    from marginlens.lab.problem_files import LabProblem
    from marginlens.theory import Outcome, Prediction, TokenOptimality
    from marginlens.typing import BoolArray, FloatArray

# Steps and step size of a normalised descent on p.
N_STEPS, STEP_SIZE = 1000, 1.0
# Step size of the optimizers in other norms on p.
STEEPEST_STEP_SIZE = 0.05
# Steps and step size on W, as in paper C's experiments.
SEQUENCE_STEPS, SEQUENCE_STEP_SIZE = 4000, 0.01
# Options of each optimizer.
TAKES: dict[str, set[str]] = {
    "normalized-gd": set(),
    "gradient-descent": set(),
    "sign-descent": {"momentum", "decay"},
    "coordinate-descent": {"momentum", "decay"},
    "steepest-descent": {"norm", "momentum", "decay"},
    "muon": {"momentum", "decay"},
    "adam": {"eps", "decay"},
    "mirror-descent": {"norm", "decay"},
}
# Optimizers that need a norm, with examples of norms.
NEEDS_NORM = {
    "steepest-descent": "l-inf, l3 or spectral",
    "mirror-descent": "l1.75 or l3",
}
# A start drawn from the standard normal distribution.
RANDOM = "random"
ADAM_BETAS = (0.9, 0.999)
# The Euclidean optimizers; the first is the default.
EUCLIDEAN = ("normalized-gd", "gradient-descent")
# Following a run until its end is proved may take far longer than the run itself. After this computing time, which does not depend
# on what else the machine does, theorems alone predict the end.
PREDICTION_SECONDS = 20.0
# A winner with more attention than this has more than all other tokens together.
WINNING = 0.5
# Distance from a finite minimum, relative to its norm, and total variation between next-token probabilities, that count as agreement.
NEAR_MINIMUM_RTOL = 0.01
SAME_PROBABILITIES = 0.1
optimizer_names = words_of(*OPTIMIZERS.names)
loss_names = words_of(*LOSSES.names, *NEXT_TOKEN_LOSSES.names)
norm_names = words_of(*LISTED_NORMS)

# ---- the options

Steps = Annotated[int | None, typer.Option(help="Number of steps: 1000 by default, 4000 for sequences.")]
StepSize = Annotated[
    float | None,
    typer.Option(
        help="Length of a step, or with --constant the factor of the gradient; by default 1, for sequences 0.01."
    ),
]
Constant = Annotated[bool, typer.Option("--constant", help="Plain gradient descent, with steps 1/L by default.")]
OptimizerName = Annotated[
    str | None, typer.Option(help=f"Optimizer: {', '.join(OPTIMIZERS.names)}.", autocompletion=optimizer_names)
]
StepNorm = Annotated[
    str | None,
    typer.Option(
        help="Norm of steepest descent, such as l-inf; lP gives the power of mirror descent.", autocompletion=norm_names
    ),
]
Momentum = Annotated[float | None, typer.Option(help="Momentum of the optimizer, below 1; 0 by default.")]
Eps = Annotated[float | None, typer.Option(help="ε of Adam, 0 by default.")]
Decay = Annotated[float | None, typer.Option(help="Power A of steps that shrink as S·t^-A, 0 by default.")]
LossName = Annotated[
    str | None,
    typer.Option(
        help=f"Loss: {', '.join(LOSSES.names)}; for sequences {', '.join(NEXT_TOKEN_LOSSES.names)}.",
        autocompletion=loss_names,
    ),
]
TrainingStart = Annotated[
    str | None, typer.Option(help="Start of p, or of W row by row, such as 0.5,-1; or random. Zero by default.")
]
Seed = Annotated[int | None, typer.Option(help="Seed for --start random, 0 by default.")]


def train(
    file: ProblemFile,
    steps: Steps = None,
    step_size: StepSize = None,
    constant: Constant = False,
    optimizer: OptimizerName = None,
    norm: StepNorm = None,
    momentum: Momentum = None,
    eps: Eps = None,
    decay: Decay = None,
    loss: LossName = None,
    start: TrainingStart = None,
    seed: Seed = None,
    details: Details = False,
    drop: DropUnrealizable = False,
    plot: PlotFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train attention weights, and say whether they end as predicted.

    Steps are normalised (all have the same length) unless --constant or --optimizer is given. With --optimizer, --details gives
    the margin in the norm of the optimizer. A problem saved by the lab has its own steps, optimizer, loss and start; command-line
    options override them. A file of sequences is a next-token problem: W is trained and compared with its Graph-SVM, its cyclic
    correction and its automaton.

    \b
    Examples:
      marginlens train problem.npz
      marginlens train problem.npz --steps 10000 --step-size 0.1 --start 0.5,-1 --plot path.pdf
      marginlens train problem.npz --start random --seed 3
      marginlens train problem.npz --constant --loss exponential
      marginlens train problem.npz --optimizer sign-descent --step-size 0.01 --decay 0.5 --json
      marginlens train sequences.json --drop
    """
    from marginlens.data.files import holds_sequences

    output = Output(as_json, quiet)
    request = Request(steps, step_size, constant, optimizer, norm, momentum, eps, decay, loss, start)
    rng = request.generator(seed)
    if holds_sequences(file):
        refuse_options("for a file of sequences", plot=plot)
        sequences = read_sequence_problem(file, drop=drop)
        training = request.training(sequences.named.data, rng)
        output.show(*_train_sequences(file, sequences, training, output, details=details))
        return
    refuse_options("unless the file holds sequences", drop=drop)
    data, v, run = read_token_problem(file)
    if v is None:
        refuse_options("if the head is trained too", plot=plot)
        assert run is not None
        output.show(*_train_joint(file, _joint_run(run, request, rng), output, details=details))
        return
    if plot is not None:
        from marginlens.plotting.plane import check_plot

        check_plot(data, plot)
    training = request.training(data, rng, v, run)
    answer, lines = _train_tokens(data, v, training, plot, output, details=details)
    output.show(answer, [*lines, *([f"{file}: {data!r}"] if details else [])], [plot])


# ---- how to train


@dataclass(frozen=True)
class Request:
    """The options of the command line; None if not given."""

    steps: int | None
    step_size: float | None
    constant: bool
    optimizer: str | None
    norm: str | None
    momentum: float | None
    eps: float | None
    decay: float | None
    loss: str | None
    start: str | None
    betas: tuple[float, float] | None = None

    def generator(self, seed: int | None) -> np.random.Generator:
        """Return the generator of a random start; a seed with any other start is an error."""
        import numpy as np

        if self.start != RANDOM:
            refuse_options("unless --start random is given", seed=seed)
        return np.random.default_rng(whole_number(0 if seed is None else seed, "seed", at_least=0))

    @property
    def optimizer_name(self) -> str:
        """The name of the optimizer, or the default."""
        return EUCLIDEAN[0] if self.optimizer is None else OPTIMIZERS.name(self.optimizer)

    def with_file_defaults(self, run: LabProblem) -> Request:
        """Fill options that are not given from the file; only those that do not depend on the optimizer if another one is chosen."""
        from marginlens.lab.problem_files import optimizer_json

        entries = optimizer_json(run.optimizer, trains_head=run.trains_head)
        defaults: dict[str, Any] = {"step_size": entries["size"]} if run.trains_head else {}
        if self.optimizer is None and not self.constant:
            defaults = {name: entries.get(name) or None for name in ("momentum", "decay")}
            defaults |= {"optimizer": OPTIMIZERS.name(entries["name"]), "eps": entries.get("eps")}
            defaults["step_size"] = entries["size"]
            defaults["norm"] = f"l{entries['p']!r}".removesuffix(".0") if "p" in entries else None
            defaults["betas"] = tuple(entries["betas"]) if "betas" in entries else None
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def training(
        self,
        data: ml.TokenDataset | ml.SequenceDataset,
        rng: np.random.Generator,
        v: FloatArray | None = None,
        run: LabProblem | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of `descend` on p, or on W for sequences, from the command line or else from the file's `run`."""
        import numpy as np

        asked, of_matrix = self if run is None else self.with_file_defaults(run), isinstance(data, ml.SequenceDataset)
        n_steps = (SEQUENCE_STEPS if of_matrix else N_STEPS) if run is None else run.n_steps
        n_steps = whole_number(n_steps if self.steps is None else self.steps, "steps", at_least=1)
        losses = NEXT_TOKEN_LOSSES if of_matrix else LOSSES
        loss = losses.class_named(self.loss or losses.names[0])() if run is None or self.loss else run.loss
        size = None if asked.step_size is None else positive_number(asked.step_size, "step_size")
        is_plain = size is None and (asked.constant or asked.optimizer_name == "gradient-descent")
        if isinstance(data, ml.SequenceDataset):
            typed = self.point(data.d_model**2, rng)
            start = data.weights(np.reshape(typed, (data.d_model, data.d_model)), "start")
            default = SEQUENCE_STEP_SIZE
            if is_plain:
                size = 1.0 / ml.NextTokenRisk(data).smoothness()
        else:
            typed = self.point(data.d_key, rng) if run is None or self.start is not None else run.start
            start = np.array(data.as_batch().point(typed, "start")[0])
            default = STEP_SIZE if asked.optimizer_name in EUCLIDEAN else STEEPEST_STEP_SIZE
            # What the theorems allow for every problem.
            if is_plain and v is not None:
                size = float(np.min(ml.theory.smoothness(data, v, loss).largest_step))
            if size == 0.0:
                raise InputError(
                    "step_size", "given for keys so large that 1/L_p is below the range of numbers", "none"
                )
        size = default if size is None or not np.isfinite(size) else size
        optimizer = asked.optimizer_of_size(size, of_matrix=of_matrix)
        return {"loss": loss, "optimizer": optimizer, "n_steps": n_steps, "start": start}

    def point(self, size: int, rng: np.random.Generator) -> Any:
        """Return the start (size,): the numbers given, random ones, or zeros."""
        if self.start == RANDOM:
            return rng.standard_normal(size)
        return [0.0] * size if self.start is None else numbers(self.start, "start", size)

    def optimizer_of_size(self, size: float, *, of_matrix: bool) -> ml.Optimizer:
        """Return the optimizer with steps of this size, of a matrix W or of a vector p."""
        name = self.optimizer_name
        if self.constant:
            refuse_options("with --constant, which is plain gradient descent", optimizer=self.optimizer)
            name = "gradient-descent"
        if name == "muon" and not of_matrix:
            raise InputError(
                "optimizer",
                "one for a vector p unless the file holds sequences",
                repr(self.optimizer),
                "Muon steps along the singular vectors of a matrix, such as W of sequences.",
            )
        if name in NEEDS_NORM and self.norm is None:
            raise InputError("norm", f"given for the optimizer {name}, such as {NEEDS_NORM[name]}", "none")
        others = {"norm": self.norm, "momentum": self.momentum, "eps": self.eps, "decay": self.decay}
        refuse_options(f"for the optimizer {name}", **{each: others[each] for each in others.keys() - TAKES[name]})
        if self.decay is not None and not 0.0 <= self.decay <= 1.0:
            raise InputError(
                "decay",
                "a number from 0 to 1",
                f"{self.decay:g}",
                "Steps that fall faster than 1/t add up to a finite length, so no direction is reached.",
            )
        step = size if self.decay is None else ml.optimizers.PowerDecay(size, self.decay)
        options: dict[str, Any] = {} if self.momentum is None else {"momentum": self.momentum}
        if name == "adam":
            options = {"betas": self.betas or ADAM_BETAS, "eps": self.eps or 0.0}
        from marginlens.optimizers.choice import optimizer_named

        return optimizer_named(name, step, self.norm, **options)


def _settings(training: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `descend` as plain values."""
    names = {"optimizer": repr(training["optimizer"]), "loss": kebab(type(training["loss"]).__name__)}
    return {"steps": training["n_steps"], **names, "start": training["start"]}


def _steps_taken(run: ml.Trajectory, training: dict[str, Any]) -> str:
    """Say how many steps a run took, from where, and why it stopped if it stopped early."""
    settings, start = _settings(training), training["start"]
    begin = "zero" if not start.any() else "the given W" if start.ndim == 2 else vector(start)
    numbers = {**settings, "start": begin, "taken": int(run.steps_taken), "reason": run.status.sentence}
    numbers["loss"] = settings["loss"].removesuffix("-loss")
    numbers["case"] = "default" if run.status is ml.Status.COMPLETED else "early"
    return text("cli.train.steps", **numbers)


# ---- token selection


def _train_tokens(
    data: ml.TokenDataset, v: FloatArray, training: dict[str, Any], plot: Path | None, output: Output, *, details: bool
) -> tuple[dict[str, Any], list[str]]:
    """Train p on the problems of a file, and compare each run with its prediction and the margin problem of its tokens."""
    batch, record = data.as_batch(), None
    if plot is not None:
        from marginlens.plotting import recorded_steps

        record = ml.Record(recorded_steps(training["n_steps"]))
    with output.stage("Training") as bar:
        trained = ml.descend(batch, v, **training, record=record, progress=bar)
    compared = _compared(batch, v, trained, training, output)
    if plot is not None:
        from marginlens.plotting.files import write_figure
        from marginlens.plotting.plane import problem_figure

        best = ml.theory.globally_optimal_direction(batch, v)
        drawn = [
            [{"kind": "GMM", "selected": best.selected[j], "direction": best.direction[j]}, one.drawn]
            for j, one in enumerate(compared)
        ]
        write_figure(plot, problem_figure(data, v, drawn, trained.saved["x"], training["loss"]))
    answer = {"training": _settings(training), "problems": [one.to_dict() for one in compared]}
    if not data.is_batch:
        (one,) = compared
        lines = [str(one.prediction.answer), _steps_taken(one.run, training), str(one.agreement)]
        return answer, [*lines, *(one.details if details else [])]
    return answer, _batch_lines(compared, training, details=details)


def _batch_lines(compared: list[Compared], training: dict[str, Any], *, details: bool) -> list[str]:
    """Return one line for each problem of a batch, and how many of them agree."""
    lines = []
    for j, one in enumerate(compared):
        stopped = [] if one.run.status is ml.Status.COMPLETED else [_steps_taken(one.run, training)]
        lines.append(" ".join([problem_line(j, one.prediction), *stopped, str(one.agreement)]))
        lines += one.details if details else []
    if all(one.run.status is ml.Status.COMPLETED for one in compared):
        lines.append(_steps_taken(compared[0].run, training))
    same = [one.agreement.code for one in compared].count(AS_PREDICTED)
    return [*lines, text("cli.train.batch", same=same, count=len(compared))]


def _compared(
    batch: ml.TokenDataset, v: FloatArray, trained: ml.Trajectory, training: dict[str, Any], output: Output
) -> list[Compared]:
    """Compare each run with its prediction, and with the margin problem of the tokens that it selects."""
    compared, is_euclidean = [], isinstance(training["optimizer"], ml.NormalizedGD | ml.GradientDescent)
    asked = {name: training[name] for name in ("loss", "optimizer")}
    starts = batch.point(training["start"])
    end = process_time() + PREDICTION_SECONDS
    with output.stage("Predicting") as bar:
        for j, head in enumerate(batch.head(v)):
            # Time that one problem leaves over is shared by those after it.
            limit = (end - process_time()) / (len(batch) - j)
            prediction = _predicted(batch[j], head, limit, start=starts[j], **asked)
            optimality = ml.token_optimality(batch[j], head, trained[j].selected)
            margin = None if is_euclidean else _norm_margin(trained[j], training["optimizer"])
            compared.append(Compared(batch[j], trained[j], optimality, prediction, margin))
            bar(j + 1, len(batch))
    return compared


def _predicted(data: ml.TokenDataset, head: FloatArray, seconds: float, **asked: Any) -> Prediction:
    """Predict the end of a run, from theorems alone if it cannot be found in this time."""
    end = process_time() + seconds

    def check(done: int, total: int) -> None:
        if process_time() > end:
            raise TimeoutError

    # The tokens that training selects are the only candidates that matter, so others are not listed.
    try:
        prediction: Prediction = ml.predict_limit(data, head, **asked, max_problems=1, progress=check)
    except TimeoutError:
        unfollowed: Prediction = ml.predict_limit(data, head, **asked, max_problems=1, prove=False)
        return replace(unfollowed, not_followed=Fact("cli.train.too_long", {"seconds": PREDICTION_SECONDS}))
    return prediction


AS_PREDICTED = "cli.train.agreement.as_predicted"


def agreement(run: ml.Trajectory, prediction: Prediction, data: ml.TokenDataset, inputs: BoolArray) -> Fact:
    """State whether a run ends as predicted, or how far it is from there.

    Args:
        run: the run.

        prediction: the prediction from the same start, for the same steps.

        data: the problem.

        inputs: (n_inputs,) the inputs whose output depends on p; the others select nothing.
    """
    import numpy as np

    outcome, limit = prediction.outcome, prediction.direction
    limit = prediction.observed if limit is None else limit
    selected = None if limit is None else ml.theory.directional_margin(data, limit).selected
    looked_at: dict[str, Any] = {"steps": 0, "by_flow": False}
    if outcome is not None:
        if outcome.constant:
            return Fact("cli.train.agreement.nothing_to_select")
        looked_at = {"steps": outcome.n_steps, "by_flow": outcome.by_flow}
        if outcome.finite and outcome.is_repeatable:
            return _at_minimum(run, outcome)
        is_known = outcome.is_repeatable and (outcome.settled or outcome.direction is not None)
        selected, limit = (outcome.selected, outcome.direction) if is_known else (None, None)
    if not np.any(run.final):
        return Fact("cli.train.agreement.no_direction")
    taken, rows = int(run.steps_taken), np.arange(len(inputs))
    numbers: dict[str, Any] = {"taken": taken, "count": int(inputs.sum())}
    if selected is None:
        reason = prediction.not_followed
        numbers |= {"reason": reason, "case": "unfollowed" if reason else "default"}
        numbers["attention"] = float(np.min(run.attention.max(axis=-1)[inputs], initial=1.0))
        return Fact("cli.train.agreement.undecided", numbers)
    numbers |= {"attention": float(np.min(run.attention[rows, selected][inputs], initial=1.0)), **looked_at}
    if numbers["attention"] > WINNING:
        angle = None if limit is None else float(np.degrees(ml.angle(run.final, limit)))
        return Fact(AS_PREDICTED, {**numbers, "angle": angle, "case": "tokens" if angle is None else "default"})
    is_short = taken < looked_at["steps"] and not looked_at["by_flow"]
    if is_short or looked_at["by_flow"] or np.array_equal(run.selected[inputs], selected[inputs]):
        return Fact("cli.train.agreement.not_yet", {**numbers, "case": "short" if is_short else "default"})
    return Fact("cli.train.agreement.differs", numbers)


def _at_minimum(run: ml.Trajectory, outcome: Outcome) -> Fact:
    """State how far a run is from the finite minimum at which it is predicted to end."""
    import numpy as np

    distance, optimizer = float(np.linalg.norm(run.final - outcome.point)), outcome.optimizer
    # Steps of one length circle around a minimum.
    around = optimizer.size if isinstance(optimizer, ml.NormalizedGD) else 0.0
    is_there = distance <= max(NEAR_MINIMUM_RTOL * outcome.norm, around)
    code = AS_PREDICTED if is_there else "cli.train.agreement.not_yet"
    return Fact(code, {"taken": int(run.steps_taken), "distance": distance, "norm": outcome.norm, "case": "minimum"})


@dataclass(frozen=True)
class Compared:
    """One run, compared with its prediction and with the margin problem of the tokens that it selects."""

    data: ml.TokenDataset
    run: ml.Trajectory
    optimality: TokenOptimality
    prediction: Prediction
    norm_margin: dict[str, Any] | None

    @property
    def correlation(self) -> float:
        """The cosine with the max-margin direction of the selected tokens."""
        return float(ml.correlation(self.run.final, self.optimality.direction))

    @property
    def drawn(self) -> dict[str, Any]:
        """The direction of the selected tokens, for figures."""
        kind, tokens = selection_kind(self.optimality), self.run.selected
        return {"kind": kind, "selected": tokens, "direction": self.optimality.direction}

    @property
    def agreement(self) -> Fact:
        """Whether the run ends as predicted."""
        return agreement(self.run, self.prediction, self.data, self.prediction.details.dependent)

    @property
    def details(self) -> list[str]:
        """The comparison in full."""
        import numpy as np

        solution, margin = self.optimality.solution, self.norm_margin
        lines = [repr(self.run), f"{self.optimality!r}. {solution.status.sentence}"]
        # The correlation is not nan.
        if self.correlation == self.correlation:
            angle = float(np.degrees(ml.angle(self.run.final, self.optimality.direction)))
            lines.append(text("cli.train.angle", angle=angle))
        if margin is not None and margin["share"] is not None:
            shares = {"share": margin["share"], "proved": margin["proved_share"]}
            lines.append(text("cli.train.share", norm=margin["norm"], **shares))
        lines += [str(self.prediction.why), *([] if margin is None else [margin["account"]])]
        if self.prediction.observed is not None and self.prediction.direction is None:
            lines.append(text("cli.train.try_constant"))
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the results by name."""
        results = {"run": self.run, "optimality": self.optimality, "prediction": self.prediction}
        numbers = {
            "correlation": self.correlation,
            "agreement": self.agreement.to_dict(),
            "norm_margin": self.norm_margin,
        }
        return {name: result.to_dict() for name, result in results.items()} | numbers


def _norm_margin(run: ml.Trajectory, optimizer: ml.Optimizer) -> dict[str, Any]:
    """Return the share of the largest margin that the run has in the norm of its optimizer, and the share that it proves by itself."""
    bias = ml.theory.implicit_bias(optimizer, run.risk, selected=run.selected)
    row: dict[str, Any] = {"account": str(bias or ""), "norm": None, "share": None, "proved_share": None}
    if bias is None or bias.solution is None or bias.solution.status is not ml.Status.OPTIMAL:
        return row
    norm, largest = bias.solution.norm, bias.solution.bracket().upper
    rows = run.risk.margin_rows(run.selected).rows
    margin = float((rows @ run.final).min()) / norm.value(run.final) if run.norm > 0.0 else 0.0
    proved = max(margin * run.bracket(norm).lower, 0.0)
    return {**row, "norm": repr(norm), "share": max(margin * largest, 0.0), "proved_share": proved}


# ---- head and attention together


def _joint_run(run: LabProblem, request: Request, rng: np.random.Generator) -> LabProblem:
    """Return the run of a file in which the head is trained too, with changes from the command line."""
    others = {name: getattr(request, name) for name in ("norm", "momentum", "eps", "decay")}
    refuse_options("if the head is trained too", **others)
    if request.optimizer_name not in EUCLIDEAN:
        raise InputError("optimizer", f"{' or '.join(EUCLIDEAN)} if the head is trained too", repr(request.optimizer))
    training = request.training(run.data, rng, run=run)
    if isinstance(training["optimizer"], ml.NormalizedGD):
        training["optimizer"] = ml.optimizers.Blockwise(training["optimizer"])
    return replace(run, **training)


def _train_joint(file: Path, problem: LabProblem, output: Output, *, details: bool) -> tuple[dict[str, Any], list[str]]:
    """Train head and attention together, and compare them with the directions of A Theorems 5 and 6."""
    import numpy as np

    risk: Any = problem.risk
    prediction = ml.predict(risk)
    training: dict[str, Any] = {"n_steps": problem.n_steps, "start": problem.first_point}
    with output.stage("Training") as bar:
        run = ml.descend(risk, optimizer=problem.optimizer, **training, progress=bar)
    head, p = risk.split(run.final)
    limits = prediction.details
    compared = {
        "head": (head, limits.v_direction),
        "relaxed": (p, limits.p_relax.direction),
        "strict": (p, limits.p_mm.direction),
    }
    cosines = {name: ml.correlation(*pair) for name, pair in compared.items()}
    angles = {name: float(np.degrees(ml.angle(*pair))) for name, pair in compared.items()}
    training |= {"optimizer": problem.optimizer, "loss": problem.loss, "start": problem.start}
    settings = {"steps": problem.n_steps, "optimizer": repr(problem.optimizer), "start": problem.start}
    results = {"run": run.to_dict(), "prediction": prediction.to_dict()}
    answer = {"training": settings, **results, "head": head, "p": p, "cosines": cosines}
    lines = [str(prediction.answer), _steps_taken(run, training), text("cli.train.joint", **angles)]
    return answer, [*lines, *([repr(run), str(prediction.why), f"{file}: {problem!r}"] if details else [])]


# ---- next tokens


def _train_sequences(
    file: Path, problem: SequenceProblem, training: dict[str, Any], output: Output, *, details: bool
) -> tuple[dict[str, Any], list[str]]:
    """Train W on the sequences of a file, and compare it with W^mm, W^cyc and the automaton if they exist."""
    import numpy as np

    data, loss = problem.named.data, training["loss"]
    with output.stage("Training") as bar:
        run = ml.descend(data, head=problem.head, **training, progress=bar)
    with output.stage("Predicting"):
        prediction = ml.predict_limit(data, head=problem.head, loss=loss, optimizer=training["optimizer"])
    W, priority, mix = run.final, prediction.details.priority, prediction.details.mix
    compared: dict[str, Any] = {"risk": ml.NextTokenRisk(data, head=problem.head, loss=loss).value(W)}
    if priority.status is ml.Status.OPTIMAL and run.norm > 0.0:
        compared["correlation"] = float(ml.correlation(W, priority.x, axes=2))
        compared["angle"] = float(np.degrees(ml.angle(W, priority.x, axes=2)))
    if mix.status is ml.Status.FINITE:
        compared["cyclic_distance"] = float(np.linalg.norm(mix.subspace.project(W) - mix.x))
    if priority.status.ok and mix.status.ok and problem.head is None and isinstance(loss, ml.LogLoss):
        automaton = ml.NextTokenAutomaton(data.E, prediction.details.graphs, priority, mix, data)
        distance = automaton.total_variation(data, W)
        compared["limit_risk"] = ml.nexttoken.limit_risk(data)
        compared["total_variation"] = float(distance.mean())
        compared["largest_total_variation"] = float(distance.max())
    agreed = _sequence_agreement(compared)
    row, lines = sequence_answer(file, problem, prediction, details=details)
    lines += [_steps_taken(run, training), str(agreed)]
    if details:
        measures = [
            Fact(f"cli.train.measure.{name}", {"value": value})
            for name, value in compared.items()
            if name != "correlation"
        ]
        lines += [repr(run), text("cli.train.next_tokens", measures=measures)]
    # Conditions of C Thm 3, or of what follows from its Eq. (17).
    failing = [
        [condition.name for condition in theorem.failed]
        for theorem in prediction.verdicts
        if theorem.citation.startswith("C Thm 3")
    ]
    if details and isinstance(training["optimizer"], ml.NormalizedGD) and ["step size"] in failing:
        lines.append(text("cli.train.try_constant", case="next_tokens"))
    results = {"run": run.to_dict(), "trained": compared, "agreement": agreed.to_dict(), "prediction": row}
    return {"training": _settings(training), **results}, lines


def _sequence_agreement(compared: dict[str, Any]) -> Fact:
    """State how far the trained next-token probabilities are from the automaton's, or W from W^mm."""
    distance, angle = compared.get("largest_total_variation"), compared.get("angle")
    if distance is None:
        code = "undecided" if angle is not None else "nothing_to_compare"
        return Fact(
            f"cli.train.agreement.{code}", {"case": "next_tokens"} | ({"angle": angle} if angle is not None else {})
        )
    code = AS_PREDICTED if distance <= SAME_PROBABILITIES else "cli.train.agreement.not_yet"
    case = "probabilities" if angle is None else "next_tokens"
    return Fact(code, {"distance": distance, "angle": angle, "case": case})
