"""`marginlens train`: descend on a problem in a file, and compare what was trained with the theory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli.options import (
    LISTED_NORMS,
    PROBLEM_ARGUMENTS,
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
from marginlens.errors import calling, positive_number, reject, whole_number
from marginlens.names import LOSSES, NEXT_TOKEN_LOSSES, OPTIMIZERS, kebab

if TYPE_CHECKING:
    import numpy as np

    from marginlens.data.files import SequenceProblem
    from marginlens.lab.problem_files import LabProblem
    from marginlens.theory import Prediction, TokenOptimality

N_STEPS, STEP_SIZE = 1000, 1.0  # of a normalised descent on p
STEEPEST_STEP_SIZE = 0.05  # of the optimizers in other norms on p
SEQUENCE_STEPS, SEQUENCE_STEP_SIZE = 4000, 0.01  # on W, as in paper C's experiments
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
NEEDS_NORM = {  # with examples of norms
    "steepest-descent": "l-inf, l3 or, for sequences, spectral",
    "mirror-descent": "l1.75 or l3",
}
RANDOM = "random"  # a start drawn from the standard normal distribution
ADAM_BETAS = (0.9, 0.999)
EUCLIDEAN = ("normalized-gd", "gradient-descent")  # the first is the default
ARGUMENTS = {"n_steps": "steps", "power": "decay", **dict.fromkeys(("size", "step", "rate"), "step_size")}


@calling(**PROBLEM_ARGUMENTS, **ARGUMENTS)
def train(
    file: ProblemFile,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Number of steps.", show_default="1000; 4000 for sequences")
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
        bool, typer.Option("--constant", help="Plain gradient descent, with the step size 1/L unless given.")
    ] = False,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Optimizer: {', '.join(OPTIMIZERS.names)}.",
            show_default="normalized-gd",
            autocompletion=words_of(*OPTIMIZERS.names),
        ),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(
            metavar="NORM",
            help="Norm of steepest steps; lP for the power P of mirror descent.",
            autocompletion=words_of(*LISTED_NORMS),
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(metavar="M", help="Momentum of steepest descent in any norm, below 1.")
    ] = None,
    eps: Annotated[float | None, typer.Option(metavar="E", help="ε of Adam.", show_default="0")] = None,
    decay: Annotated[
        float | None, typer.Option(metavar="A", help="Power of falling steps S·t^-A.", show_default="0")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="LOSS",
            help=f"Loss: {', '.join(LOSSES.names)}; for sequences {', '.join(NEXT_TOKEN_LOSSES.names)}.",
            show_default="logistic; log-loss",
            autocompletion=words_of(*LOSSES.names, *NEXT_TOKEN_LOSSES.names),
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="0.5,-1",
            help="Start of p, one number per coordinate; of W row by row for sequences; or random.",
            show_default="zero",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed of --start random.", show_default="0")
    ] = None,
    drop: DropUnrealizable = False,
    plot: PlotFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train the attention weights, and compare where they went with the max-margin theory.

    Steps are normalised (every step has the same length) unless --constant or --optimizer is given; then the margin is reported in the
    norm that the optimizer heads for. A problem that the lab saved has its own steps, optimizer, loss and start; command-line options
    override them. A file of sequences is a next-token problem: W is trained and compared with its Graph-SVM, its cyclic correction and
    its automaton.

    \b
    Examples:
      marginlens train problem.npz
      marginlens train problem.npz --steps 10000 --step-size 0.1 --start 0.5,-1 --plot path.pdf
      marginlens train problem.npz --start random --seed 3
      marginlens train problem.npz --constant --loss exponential
      marginlens train problem.npz --optimizer sign-descent --step-size 0.01 --decay 0.5 --json
      marginlens train sequences.json --drop
    """
    import numpy as np

    from marginlens.data.files import holds_sequences

    output = Output(as_json, quiet)
    request = Request(steps, step_size, constant, optimizer, norm, momentum, eps, decay, loss, start)
    if start != RANDOM:
        refuse_options("unless --start random is given", seed=seed)
    rng = np.random.default_rng(whole_number(0 if seed is None else seed, "seed", at_least=0))
    if holds_sequences(file):
        refuse_options("for a file of sequences", plot=plot)
        sequences = read_sequence_problem(file, drop=drop)
        output.show(*_train_sequences(file, sequences, request.training(sequences.named.data, rng), output))
        return
    refuse_options("unless the file holds sequences", drop=drop)
    data, v, run = read_token_problem(file)
    if v is None:
        refuse_options("where the head is trained too", plot=plot)
        assert run is not None
        output.show(*_train_joint(file, _joint_run(run, request, rng), output))
        return
    record = None
    if plot is not None:
        from marginlens.plotting import recorded_steps
        from marginlens.plotting.plane import check_plot

        check_plot(data, plot)
    training = request.training(data, rng, v, run)
    if plot is not None:
        record = ml.Record(recorded_steps(training.n_steps))
    batch = data.as_batch()
    with output.stage("Training") as bar:
        trained = ml.descend(batch, v, **training.arguments, record=record, progress=bar)
    compared = []
    with output.stage("Predicting") as bar:
        for j, head in enumerate(batch.head(v)):
            compared.append(Compared.of(batch[j], head, training, trained[j]))
            bar(j + 1, len(batch))
    if plot is not None:
        from marginlens.plotting.files import write_figure
        from marginlens.plotting.plane import problem_figure

        gmm = ml.theory.globally_optimal_direction(batch, v)
        drawn = [
            [{"kind": "GMM", "selected": gmm.selected[j], "direction": gmm.direction[j]}, one.drawn]
            for j, one in enumerate(compared)
        ]
        write_figure(plot, problem_figure(data, v, drawn, trained.saved["x"], training.loss))
    answer = {"training": training.to_dict(), "problems": [one.to_dict() for one in compared]}
    lines = [f"{file}: {data!r}", str(training)]
    if data.is_batch:
        lines += [f"problem {j}: {one.summary}" for j, one in enumerate(compared)]
        cosines = np.array([one.correlation for one in compared])
        if np.isfinite(cosines).any():
            lines.append(f"Cosine with the ATT-SVM: mean {np.nanmean(cosines):.6f}, smallest {np.nanmin(cosines):.6f}.")
    else:
        lines += compared[0].lines
    output.show(answer, lines, [plot])


# ---- what is asked for


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
        v: Any = None,
        run: LabProblem | None = None,
    ) -> Training:
        """How to train p, or W of sequences: as asked for, else as the file says in `run`."""
        import numpy as np

        asked, of_matrix = self if run is None else self.with_file_defaults(run), isinstance(data, ml.SequenceDataset)
        n_steps = (SEQUENCE_STEPS if of_matrix else N_STEPS) if run is None else run.n_steps
        n_steps = whole_number(n_steps if self.steps is None else self.steps, "steps", at_least=1)
        loss = _loss(self.loss, of_matrix) if run is None or self.loss is not None else run.loss
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
            if is_plain:  # what the theorems allow for every problem
                size = float(np.min(ml.theory.smoothness(data, v, loss).largest_step))
            if size == 0.0:
                raise reject("step_size", "given for keys so large that 1/L_p is below the range of numbers", "none")
        size = default if size is None or not np.isfinite(size) else size
        return Training(n_steps, asked.optimizer_of_size(size, of_matrix=of_matrix), loss, start)

    def point(self, size: int, rng: np.random.Generator) -> Any:
        """The start (size,): the numbers given, random ones, or zeros."""
        if self.start == RANDOM:
            return rng.standard_normal(size)
        return [0.0] * size if self.start is None else numbers(self.start, "start", size)

    def optimizer_of_size(self, size: float, *, of_matrix: bool) -> ml.Optimizer:
        """The optimizer with steps of this size, of a matrix W or of a vector p."""
        name = self.optimizer_name
        if self.constant:
            refuse_options("beside --constant, which is plain gradient descent", optimizer=self.optimizer)
            name = "gradient-descent"
        if name == "muon" and not of_matrix:
            expected = "one for a vector p where the file holds no sequences"
            remedy = "Muon steps along the singular vectors of a matrix, which W of sequences is."
            raise reject("optimizer", expected, repr(self.optimizer), remedy)
        if name in NEEDS_NORM and self.norm is None:
            raise reject("norm", f"given for the optimizer {name}, such as {NEEDS_NORM[name]}", "none")
        others = {"norm": self.norm, "momentum": self.momentum, "eps": self.eps, "decay": self.decay}
        refuse_options(f"for the optimizer {name}", **{each: others[each] for each in others.keys() - TAKES[name]})
        if self.decay is not None and not 0.0 <= self.decay <= 1.0:
            remedy = "Steps that fall faster than 1/t add up to a finite length, so that no direction is reached."
            raise reject("decay", "a number from 0 to 1", f"{self.decay:g}", remedy if self.decay > 1.0 else "")
        step = size if self.decay is None else ml.optimizers.PowerDecay(size, self.decay)
        options: dict[str, Any] = {} if self.momentum is None else {"momentum": self.momentum}
        if name == "adam":
            options = {"betas": self.betas or ADAM_BETAS, "eps": self.eps or 0.0}
        from marginlens.optimizers.choice import optimizer_named

        return optimizer_named(name, step, self.norm, **options)


def _loss(word: str | None, of_sequences: bool) -> Any:
    """The loss of a word, or the default."""
    losses = NEXT_TOKEN_LOSSES if of_sequences else LOSSES
    return losses.class_named(losses.names[0] if word is None else word)()


@dataclass(frozen=True)
class Training:
    """How to train, as objects."""

    n_steps: int
    optimizer: Any
    loss: Any
    start: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `descend`."""
        return {"loss": self.loss, "optimizer": self.optimizer, "n_steps": self.n_steps, "start": self.start}

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        start = "zero" if self.start.ndim == 2 and not self.start.any() else self.start
        optimizer = {"optimizer": repr(self.optimizer), "loss": kebab(type(self.loss).__name__)}
        return {"steps": self.n_steps, **optimizer, "start": start}

    def __str__(self) -> str:
        start = "the given W" if self.start.ndim == 2 else vector(self.start)
        start = start if self.start.any() else "zero"
        return f"{self.n_steps:,} steps of {self.optimizer!r}, {kebab(type(self.loss).__name__)} loss, from {start}"


# ---- token selection


@dataclass(frozen=True)
class Compared:
    """One run beside the ATT-SVM of the tokens that it selects, and beside its prediction."""

    run: ml.Trajectory
    optimality: TokenOptimality
    prediction: Prediction
    norm_margin: dict[str, Any] | None

    @classmethod
    def of(cls, data: ml.TokenDataset, v: Any, training: Training, run: ml.Trajectory) -> Compared:
        """Solve the ATT-SVM and predict. The trained tokens are the only candidate that matters, so others are not listed."""
        asked = {"loss": training.loss, "start": training.start, "optimizer": training.optimizer}
        prediction = ml.predict_limit(data, v, **asked, max_problems=1)
        is_euclidean = isinstance(training.optimizer, ml.NormalizedGD | ml.GradientDescent)
        margin = None if is_euclidean else _norm_margin(run, training.optimizer)
        return cls(run, ml.token_optimality(data, v, run.selected), prediction, margin)

    @property
    def correlation(self) -> float:
        """The cosine with the ATT-SVM of the selected tokens."""
        return float(ml.correlation(self.run.final, self.optimality.direction))

    @property
    def drawn(self) -> dict[str, Any]:
        """The direction of the selected tokens, as figures take it."""
        kind, tokens = selection_kind(self.optimality), self.run.selected
        return {"kind": kind, "selected": tokens, "direction": self.optimality.direction}

    @property
    def summary(self) -> str:
        """One line of a batch."""
        share = "" if self.norm_margin is None or self.norm_margin["share"] is None else self._share
        return f"{self.run!r}, {self.optimality!r}, cosine {self.correlation:.6f}. {self.agreement} {share}".rstrip()

    @property
    def lines(self) -> list[str]:
        """The comparison in full."""
        lines = [f"{self.run!r}. {self.run.status.value}", str(self.optimality), self.optimality.solution.status.value]
        cosine, angle = self.correlation, ml.angle(self.run.final, self.optimality.direction)
        if cosine == cosine:  # not nan
            lines.append(f"Its direction has cosine {cosine:.8f} with the trained one, an angle of {angle:.2e}.")
        if self.norm_margin is not None:
            lines += [self._share] if self.norm_margin["share"] is not None else []
            lines.append(self.norm_margin["account"])
        lines += [self.agreement, self.prediction.why]
        if self.prediction.observed is not None and self.prediction.direction is None:
            lines.append(
                "With --constant the steps are those of the theorem, and the limit is certain; it is then approached far more slowly."
            )
        return lines

    @property
    def _share(self) -> str:
        assert self.norm_margin is not None
        share, proved, norm = (self.norm_margin[name] for name in ("share", "proved_share", "norm"))
        proof = f"at least {proved:.4f} of it by the run's own residual attention"
        return f"It has {share:.4f} of the largest margin in {norm}, {proof}."

    @property
    def agreement(self) -> str:
        """How training and theory compare, in one sentence."""
        prediction, optimality, cosine = self.prediction, self.optimality, self.correlation
        if optimality.solution.status is ml.Status.TRIVIAL:
            return "No input has two tokens, so there is nothing to select."
        for limit, certain in ((prediction.direction, True), (prediction.observed, False)):
            other = float("nan") if limit is None else ml.correlation(self.run.final, limit)
            if other == other and certain:
                return f"The limit is certain {prediction.certain}, and the trained direction has cosine {other:.6f} with it."
            if other == other:
                return f"The trained direction has cosine {other:.6f} with the limit that is observed, not proved, for such steps."
        kind = selection_kind(optimality)
        if kind == "none":
            return "The softmax prefers no single token of every input, so there is no direction to compare with."
        if cosine != cosine and self.run.status is ml.Status.NON_FINITE:
            return "The first step left what numbers can hold, so there is no direction to compare with; a smaller step size helps."
        if cosine != cosine:
            return "The weights never left zero, so there is no direction to compare with."
        if kind == "neither":
            return (
                "The selected tokens do not outscore their neighbours, so no theorem has their direction as a limit: "
                "the run ends at a finite minimum, or later changes tokens."
            )
        which = "the GMM" if kind == "GMM" else "an LMM"
        return (
            f"No theorem makes the limit of this run certain; it selects the tokens of {which}, and has cosine {cosine:.6f} with its "
            "direction."
        )

    def to_dict(self) -> dict[str, Any]:
        """The results by name."""
        numbers = {"run": self.run, "optimality": self.optimality, "prediction": self.prediction}
        return {
            **{name: result.to_dict() for name, result in numbers.items()},
            "correlation": self.correlation,
            "agreement": self.agreement,
            **({} if self.norm_margin is None else {"norm_margin": self.norm_margin}),
        }


def _norm_margin(run: ml.Trajectory, optimizer: Any) -> dict[str, Any]:
    """The share that the run has of the largest margin in the norm of its optimizer, and the share that it proves by itself."""
    import numpy as np

    bias = ml.theory.implicit_bias(optimizer, run.risk, selected=run.selected)
    row: dict[str, Any] = {"account": str(bias or ""), "norm": None, "share": None, "proved_share": None}
    if bias is None or bias.solution is None or bias.solution.status is not ml.Status.OPTIMAL:
        return row
    rows, norm = run.risk.margin_rows(run.selected).rows, bias.solution.norm
    margin = float(np.min(rows @ run.final)) / norm.value(run.final) if run.norm > 0.0 else 0.0
    share, proved = margin * bias.solution.bracket().upper, margin * run.bracket(norm).lower
    return {**row, "norm": repr(norm), "share": max(share, 0.0), "proved_share": max(proved, 0.0)}


# ---- head and attention together


def _joint_run(run: LabProblem, request: Request, rng: np.random.Generator) -> LabProblem:
    """The run of a file in which the head is trained too, with what the command line changes."""
    others = {name: getattr(request, name) for name in ("norm", "momentum", "eps", "decay")}
    refuse_options("where the head is trained too", **others)
    if request.optimizer_name not in EUCLIDEAN:
        raise reject("optimizer", f"{' or '.join(EUCLIDEAN)} where the head is trained too", repr(request.optimizer))
    training = request.training(run.data, rng, run=run)
    is_normalized = isinstance(training.optimizer, ml.NormalizedGD)
    optimizer = ml.optimizers.Blockwise(training.optimizer) if is_normalized else training.optimizer
    return replace(run, **{**training.arguments, "optimizer": optimizer})


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
        "head with v^mm": ml.correlation(head, details.v_direction),
        "p with p^relax": ml.correlation(p, details.p_relax.direction),
        "p with p^mm": ml.correlation(p, details.p_mm.direction),
    }
    answer = {
        "training": {"steps": problem.n_steps, "optimizer": repr(problem.optimizer), "start": problem.start},
        "run": run.to_dict(),
        "head": head,
        "p": p,
        "cosines": cosines,
        "prediction": prediction.to_dict(),
    }
    listed = ", ".join(f"{name} {cosine:.8f}" for name, cosine in cosines.items())
    return answer, [f"{file}: {problem!r}", f"{run!r}. {run.status.value}", f"Cosines: {listed}.", prediction.why]


# ---- next tokens


def _train_sequences(
    file: Path, problem: SequenceProblem, training: Training, output: Output
) -> tuple[dict[str, Any], list[str]]:
    """Train W on the sequences of a file, and compare it with W^mm, W^cyc and the automaton if they exist."""
    import numpy as np

    data = problem.named.data
    with output.stage("Training") as bar:
        run = ml.descend(data, head=problem.head, **training.arguments, progress=bar)
    with output.stage("Predicting"):
        prediction = ml.predict_limit(data, head=problem.head, loss=training.loss, optimizer=training.optimizer)
    W, (priority, mix) = run.final, (prediction.details.priority, prediction.details.mix)
    compared: dict[str, Any] = {"risk": ml.NextTokenRisk(data, head=problem.head, loss=training.loss).value(W)}
    if priority.status is ml.Status.OPTIMAL and run.norm > 0.0:
        compared["correlation"] = float(ml.correlation(W, priority.x, axes=2))
    if mix.status is ml.Status.FINITE:
        compared["cyclic_distance"] = float(np.linalg.norm(mix.subspace.project(W) - mix.x))
    has_automaton = priority.status.ok and mix.status.ok
    if has_automaton and problem.head is None and isinstance(training.loss, ml.LogLoss):
        compared["limit_risk"] = ml.nexttoken.limit_risk(data)
        graphs = prediction.details.graphs
        distance = ml.NextTokenAutomaton(data.E, graphs, priority, mix, data).total_variation(data, W)
        compared |= {"total_variation": float(distance.mean()), "largest_total_variation": float(distance.max())}
    row, lines = sequence_answer(file, problem, prediction)
    sentences = {
        "risk": "risk",
        "limit_risk": "its limit",
        "correlation": "cosine with W^mm",
        "cyclic_distance": "distance from W^cyc in S_cyc",
        "total_variation": "mean total variation to the automaton",
        "largest_total_variation": "the largest",
    }
    listed = ", ".join(f"{sentences[name]} {compared[name]:.6g}" for name in sentences if name in compared)
    lines += [str(training), f"{run!r}. {run.status.value}", f"{listed[0].upper()}{listed[1:]}."]
    if len(compared) == 1:
        lines.append("There is no W^mm, W^cyc or automaton to compare with.")
    failing = [  # of C Thm 3, or of what follows of it from Eq. (17)
        [condition.name for condition in theorem.failed]
        for theorem in prediction.verdicts
        if theorem.citation.startswith("C Thm 3")
    ]
    if isinstance(training.optimizer, ml.NormalizedGD) and ["step size"] in failing:
        lines.append(
            "With --constant the steps are those of C Thm 3, and the limit is certain; it is approached far more slowly."
        )
    return {"training": training.to_dict(), "run": run.to_dict(), "trained": compared, "prediction": row}, lines
