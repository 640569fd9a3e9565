"""`marginlens train`: descent on a problem in a file, compared with the theory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli.options import (
    LISTED_NORMS,
    AsJson,
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
from marginlens.cli.solve import selection_kind, sequence_answer
from marginlens.errors import InputError, positive_number, whole_number
from marginlens.names import LOSSES, NEXT_TOKEN_LOSSES, OPTIMIZERS, kebab
from marginlens.words import Fact, text

if TYPE_CHECKING:
    import numpy as np

    from marginlens.data.files import SequenceProblem
    from marginlens.lab.problem_files import LabProblem
    from marginlens.theory import Prediction, TokenOptimality
    from marginlens.typing import FloatArray

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
Momentum = Annotated[float | None, typer.Option(help="Momentum of steepest descent in any norm, below 1.")]
Eps = Annotated[float | None, typer.Option(help="ε of Adam, 0 by default.")]
Decay = Annotated[float | None, typer.Option(help="Power A of decreasing steps S·t^-A, 0 by default.")]
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
Seed = Annotated[int | None, typer.Option(help="Random seed of --start random, 0 by default.")]


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
    drop: DropUnrealizable = False,
    plot: PlotFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train attention weights and compare them with the theory.

    Steps are normalised (all have the same length) unless --constant or --optimizer is given. With --optimizer, the margin is
    reported in the norm of the optimizer. A problem saved by the lab has its own steps, optimizer, loss and start; command-line
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
        output.show(*_train_sequences(file, sequences, request.training(sequences.named.data, rng), output))
        return
    refuse_options("unless the file holds sequences", drop=drop)
    data, v, run = read_token_problem(file)
    if v is None:
        refuse_options("if the head is trained too", plot=plot)
        assert run is not None
        output.show(*_train_joint(file, _joint_run(run, request, rng), output))
        return
    if plot is not None:
        from marginlens.plotting.plane import check_plot

        check_plot(data, plot)
    training = request.training(data, rng, v, run)
    answer, lines = _train_tokens(data, v, training, plot, output)
    output.show(answer, [f"{file}: {data!r}", _sentence(training), *lines], [plot])


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


def _sentence(training: dict[str, Any]) -> str:
    settings, start = _settings(training), training["start"]
    begin = "zero" if not start.any() else "the given W" if start.ndim == 2 else vector(start)
    return text("cli.train.settings", **{**settings, "start": begin})


# ---- token selection


def _train_tokens(
    data: ml.TokenDataset, v: FloatArray, training: dict[str, Any], plot: Path | None, output: Output
) -> tuple[dict[str, Any], list[str]]:
    """Train p on the problems of a file, and compare each run with its ATT-SVM and its prediction."""
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
    return answer, _batch_lines(compared) if data.is_batch else compared[0].lines


def _compared(
    batch: ml.TokenDataset, v: FloatArray, trained: ml.Trajectory, training: dict[str, Any], output: Output
) -> list[Compared]:
    """Compare each run with the ATT-SVM of the tokens that it selects, and with its prediction."""
    compared, is_euclidean = [], isinstance(training["optimizer"], ml.NormalizedGD | ml.GradientDescent)
    asked = {name: training[name] for name in ("loss", "start", "optimizer")}
    with output.stage("Predicting") as bar:
        for j, head in enumerate(batch.head(v)):
            # The trained tokens are the only candidate that matters, so others are not listed.
            prediction = ml.predict_limit(batch[j], head, **asked, max_problems=1)
            optimality = ml.token_optimality(batch[j], head, trained[j].selected)
            margin = None if is_euclidean else _norm_margin(trained[j], training["optimizer"])
            compared.append(Compared(trained[j], optimality, prediction, margin))
            bar(j + 1, len(batch))
    return compared


def _batch_lines(compared: list[Compared]) -> list[str]:
    """Return one line for each problem of a batch, and their cosines together."""
    import numpy as np

    lines = [f"problem {j}: {one.summary}" for j, one in enumerate(compared)]
    cosines = np.array([one.correlation for one in compared])
    if np.isfinite(cosines).any():
        lines.append(text("cli.train.batch", mean=float(np.nanmean(cosines)), smallest=float(np.nanmin(cosines))))
    return lines


@dataclass(frozen=True)
class Compared:
    """One run, compared with the ATT-SVM of the tokens that it selects and with its prediction."""

    run: ml.Trajectory
    optimality: TokenOptimality
    prediction: Prediction
    norm_margin: dict[str, Any] | None

    @property
    def correlation(self) -> float:
        """The cosine with the ATT-SVM of the selected tokens."""
        return float(ml.correlation(self.run.final, self.optimality.direction))

    @property
    def drawn(self) -> dict[str, Any]:
        """The direction of the selected tokens, for figures."""
        kind, tokens = selection_kind(self.optimality), self.run.selected
        return {"kind": kind, "selected": tokens, "direction": self.optimality.direction}

    @property
    def agreement(self) -> Fact:
        """The agreement of training and theory."""
        prediction = self.prediction
        for limit, code in (
            (prediction.direction, "cli.train.agreement.certain"),
            (prediction.observed, "cli.train.agreement.observed"),
        ):
            if limit is not None and (cosine := ml.correlation(self.run.final, limit)) == cosine:
                return Fact(code, {"certain": prediction.certain, "cosine": float(cosine)})
        if self.optimality.solution.status is ml.Status.TRIVIAL:
            return Fact("cli.train.agreement.nothing_to_select")
        if not self.optimality.is_feasible:
            return Fact("cli.train.agreement.no_selection")
        if self.correlation != self.correlation:
            return Fact("cli.train.agreement.no_direction")
        return Fact("cli.train.agreement.uncertain", {"cosine": self.correlation})

    @property
    def summary(self) -> str:
        """The line for this run in a batch."""
        return f"{self.run!r}, {self.optimality!r}, cosine {self.correlation:.6f}. {self.agreement}"

    @property
    def lines(self) -> list[str]:
        """The comparison in full."""
        solution, margin = self.optimality.solution, self.norm_margin
        lines = [f"{self.run!r}. {self.run.status.sentence}", f"{self.optimality!r}. {solution.status.sentence}"]
        # The correlation is not nan.
        if self.correlation == self.correlation:
            lines.append(text("cli.train.cosine", cosine=self.correlation))
        if margin is not None and margin["share"] is not None:
            shares = {"share": margin["share"], "proved": margin["proved_share"]}
            lines.append(text("cli.train.share", norm=margin["norm"], **shares))
        lines += [str(self.agreement), str(self.prediction.why), *([] if margin is None else [margin["account"]])]
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


def _train_joint(file: Path, problem: LabProblem, output: Output) -> tuple[dict[str, Any], list[str]]:
    """Train head and attention together, and compare them with the directions of A Theorems 5 and 6."""
    risk: Any = problem.risk
    prediction = ml.predict(risk)
    steps: dict[str, Any] = {"n_steps": problem.n_steps, "start": problem.first_point}
    with output.stage("Training") as bar:
        run = ml.descend(risk, optimizer=problem.optimizer, **steps, progress=bar)
    head, p = risk.split(run.final)
    details = prediction.details
    cosines = {
        "head": ml.correlation(head, details.v_direction),
        "relaxed": ml.correlation(p, details.p_relax.direction),
        "strict": ml.correlation(p, details.p_mm.direction),
    }
    settings = {"steps": problem.n_steps, "optimizer": repr(problem.optimizer), "start": problem.start}
    results = {"run": run.to_dict(), "prediction": prediction.to_dict()}
    answer = {"training": settings, **results, "head": head, "p": p, "cosines": cosines}
    compared = text("cli.train.joint", **cosines)
    return answer, [f"{file}: {problem!r}", f"{run!r}. {run.status.sentence}", compared, str(prediction.why)]


# ---- next tokens


def _train_sequences(
    file: Path, problem: SequenceProblem, training: dict[str, Any], output: Output
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
    if mix.status is ml.Status.FINITE:
        compared["cyclic_distance"] = float(np.linalg.norm(mix.subspace.project(W) - mix.x))
    if priority.status.ok and mix.status.ok and problem.head is None and isinstance(loss, ml.LogLoss):
        automaton = ml.NextTokenAutomaton(data.E, prediction.details.graphs, priority, mix, data)
        distance = automaton.total_variation(data, W)
        compared["limit_risk"] = ml.nexttoken.limit_risk(data)
        compared["total_variation"] = float(distance.mean())
        compared["largest_total_variation"] = float(distance.max())
    row, lines = sequence_answer(file, problem, prediction)
    measures = [Fact(f"cli.train.measure.{name}", {"value": value}) for name, value in compared.items()]
    lines += [_sentence(training), f"{run!r}. {run.status.sentence}", text("cli.train.next_tokens", measures=measures)]
    if len(compared) == 1:
        lines.append(text("cli.train.nothing_to_compare"))
    # Conditions of C Thm 3, or of what follows from its Eq. (17).
    failing = [
        [condition.name for condition in theorem.failed]
        for theorem in prediction.verdicts
        if theorem.citation.startswith("C Thm 3")
    ]
    if isinstance(training["optimizer"], ml.NormalizedGD) and ["step size"] in failing:
        lines.append(text("cli.train.try_constant", case="next_tokens"))
    return {"training": _settings(training), "run": run.to_dict(), "trained": compared, "prediction": row}, lines
