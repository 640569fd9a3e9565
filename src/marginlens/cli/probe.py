"""`marginlens probe`: the selections of a model's attention heads on a user's inputs, as text, a page and JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marginlens.cli.options import DEVICES, TYPED_AS, AsJson, Quiet, refuse_options, words_of
from marginlens.cli.output import Output
from marginlens.errors import InputError, rename_arguments, whole_number
from marginlens.words import Fact

if TYPE_CHECKING:
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.models.inputs import Inputs
    from marginlens.probe.models.loading import LoadedModel
    from marginlens.probe.result import CheckpointCurves, ProbeResult, ProbeSettings
    from marginlens.runtime.progress import ProgressCallback

FOLDER = Path("probe-report")
PAGE = "index.html"

# ---- the options

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_PATH",
        help="Folder that save_pretrained wrote, minilm for the packaged all-MiniLM-L6-v2, or the .parquet file of a monitored run.",
    ),
]
TextFile = Annotated[Path | None, typer.Option(help="Text with one input per line; built-in sentences by default.")]
Images = Annotated[Path | None, typer.Option(help="Images: .npz, .npy, .png or .jpg, or a folder of them.")]
PageFolder = Annotated[Path | None, typer.Option(help="Folder of the page: probe-report, or none with --json.")]
MaxMargin = Annotated[
    bool | None, typer.Option(help="Measure how max-margin each head is: the slowest part, off with --checkpoints.")
]
Limit = Annotated[int | None, typer.Option(help="Number of inputs to use, from the first on.")]
Queries = Annotated[int, typer.Option(help="Number of queries of each input in the max-margin part.")]
ProbeSeed = Annotated[int, typer.Option(help="Seed for queries and baselines.")]
Offset = Annotated[int | None, typer.Option(help="Offset of query and key for W with rotary positions.")]
Device = Annotated[
    str, typer.Option(help=f"Device of the model: {', '.join(DEVICES)}.", autocompletion=words_of(*DEVICES))
]
Checkpoints = Annotated[bool, typer.Option("--checkpoints", help="Draw curves over checkpoints in a folder.")]
Against = Annotated[str | None, typer.Option(help="Model to compare with, on the same inputs.")]
TrustPickle = Annotated[bool, typer.Option("--trust-pickle", help="Load pickled weights, which can run code.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the model from the Hugging Face Hub.")]


def probe(
    model: Model,
    text: TextFile = None,
    images: Images = None,
    out: PageFolder = None,
    max_margin: MaxMargin = None,
    limit: Limit = None,
    queries: Queries = 1,
    seed: ProbeSeed = 0,
    offset: Offset = None,
    device: Device = "cpu",
    checkpoints: Checkpoints = False,
    against: Against = None,
    trust_pickle: TrustPickle = False,
    download: Download = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what the attention heads of a model select.

    Report how sparsely heads attend, what they select, and with which margin. The page shows a heat map over layers and heads
    for every measure; choose a head there to see its attention.

    \b
    Examples:
      marginlens probe minilm
      marginlens probe my-model --text sentences.txt --limit 100 --out my-probe
      marginlens probe my-model --no-max-margin --device cuda
      marginlens probe training-run --checkpoints --json > curves.json
      marginlens probe fine-tuned --against my-model
    """
    inputs = RequestedInputs(text, images, limit)
    whole_number(queries, "queries", at_least=1)
    if offset is not None:
        whole_number(offset, "offset", at_least=0)
    output = Output(as_json, quiet)
    folder = _page_folder(out, as_json=as_json)
    if quiet:
        # Transformers reads this when it is imported.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    pages = [] if folder is None else [folder / PAGE]
    if model.endswith(".parquet"):
        others = {"text": text, "images": images, "limit": limit, "offset": offset, "against": against}
        refuse_options("with the file of a monitored run", **others)
        return output.show(*_monitored(model, folder), pages)
    source = Source(model, against, device, trust_pickle, download)
    source.check(checkpoints=checkpoints)
    inputs.check()
    from marginlens.probe.result import ProbeSettings

    max_margin = not checkpoints if max_margin is None else max_margin
    settings = ProbeSettings(max_margin=max_margin, queries=queries, offset=offset, seed=seed)
    with output.stage("Probing") as bar:
        result = _probed(source, inputs, settings, bar, checkpoints=checkpoints)
        if folder is not None:
            from marginlens.probe.folder import write_report

            write_report(folder, result)
    output.show(result, probe_lines(result), pages)


def _page_folder(out: Path | None, *, as_json: bool) -> Path | None:
    """Return the folder for the page, None if there is no page; raise if the folder holds something else."""
    if out is None and as_json:
        return None
    from marginlens.runtime.probe_folders import check_folder

    folder = FOLDER if out is None else out
    check_folder(folder)
    return folder


def _probed(
    source: Source, requested: RequestedInputs, settings: ProbeSettings, bar: ProgressCallback, *, checkpoints: bool
) -> ProbeResult | CheckpointCurves | ProbeDifference:
    """Probe a model, the checkpoints in a folder, or two models against each other."""
    from marginlens.probe.run import probe_checkpoints, probe_model
    from marginlens.runtime.model_folders import checkpoint_folders

    if checkpoints:
        folders = checkpoint_folders(source.model)
        inputs = requested.encoded(source.load(folders[0]))
        options: dict[str, Any] = {"trust_pickle": source.trust_pickle, "device": source.device}
        return probe_checkpoints(folders, inputs, settings, **options, progress=bar)
    loaded = source.load(source.model)
    inputs = requested.encoded(loaded)
    if source.against is None:
        return probe_model(loaded, inputs, settings, progress=bar)
    from marginlens.probe.difference import compare_models

    with rename_arguments(**dict.fromkeys(TYPED_AS["probe"], "against"), model="against"):
        other = source.load(source.against)
    return compare_models(loaded, other, inputs, settings, progress=bar)


def _monitored(path: str, folder: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return the curves and the alarms of a run that a monitor watched: its numbers and its text."""
    from marginlens.probe.monitor.alarms import alarm_summary, find_alarms
    from marginlens.probe.monitor.record import read_run

    curves = read_run(path)
    alarms = find_alarms(curves)
    numbers = {**curves.to_dict(), "alarms": [alarm.to_dict() for alarm in alarms]}
    if folder is not None:
        from marginlens.probe.folder import write_report

        write_report(folder, curves, alarms)
    return numbers, [*probe_lines(curves), *map(str, alarm_summary(alarms) or (Fact("alarm.none"),))]


# ---- inputs and models


@dataclass(frozen=True)
class RequestedInputs:
    """The requested inputs: a text or images, and the number of them to use."""

    text: Path | None
    images: Path | None
    limit: int | None

    def __post_init__(self) -> None:
        if self.text is not None:
            refuse_options("if --text is given", images=self.images)
        if self.limit is not None:
            whole_number(self.limit, "limit", at_least=1)

    def check(self) -> None:
        """Raise if the text does not exist."""
        if self.text is not None and not self.text.exists():
            got = f"{str(self.text)!r}, which is not there"
            raise InputError("text", "a text file with one input per line", got)

    def encoded(self, loaded: LoadedModel) -> Inputs:
        """Return the first inputs as this model reads them."""
        from marginlens.probe.models.inputs import encode_texts, example_sentences, read_images, read_texts

        if loaded.images is not None and (loaded.tokenizer is None or self.images is not None):
            if self.images is None:
                got = "nothing" if self.text is None else f"--text {self.text}"
                raise InputError("images", "a file of images for this model, which reads images", repr(got))
            read = read_images(self.images, loaded.images)
            return read.subset(range(len(read))[: self.limit])
        if self.images is not None:
            got = repr(str(self.images))
            raise InputError("images", "left out for this model, which reads texts", got, "Use --text.")
        texts = example_sentences() if self.text is None else read_texts(self.text)
        return encode_texts(list(texts)[: self.limit], loaded.tokenizer, loaded.model.config)


@dataclass(frozen=True)
class Source:
    """The model to probe, another one to compare it with, and how they are loaded."""

    model: str
    against: str | None
    device: str
    trust_pickle: bool
    download: bool

    def check(self, *, checkpoints: bool) -> None:
        """Raise, before any slow import, for options that exclude each other and for missing folders."""
        from marginlens.runtime.model_folders import checkpoint_folders, model_place

        if self.against is not None:
            refuse_options("with --against", checkpoints=checkpoints)
        if checkpoints:
            for folder in checkpoint_folders(self.model):
                model_place(folder, trust_pickle=self.trust_pickle)
        else:
            _refuse_checkpoints(self.model)
            model_place(self.model, trust_pickle=self.trust_pickle, download=self.download)
        if self.against is not None:
            with rename_arguments(path="against"):
                model_place(self.against, trust_pickle=self.trust_pickle, download=self.download)

    def load(self, place: str | Path) -> LoadedModel:
        """Load a model; a checkpoint is never downloaded."""
        from marginlens.probe.models.loading import load_model

        download = self.download and isinstance(place, str)
        return load_model(place, download=download, trust_pickle=self.trust_pickle, device=self.device)


def _refuse_checkpoints(model: str) -> None:
    """Raise, with a remedy, for a folder that holds no model but several subfolders with models, as a training run leaves them."""
    folder = Path(model)
    inside = sorted(config.parent.name for config in folder.glob("*/config.json")) if folder.is_dir() else []
    if inside and not (folder / "config.json").is_file():
        raise InputError(
            "model",
            "one model",
            f"{model!r}, which holds {len(inside)} of them, such as {inside[0]!r}",
            "--checkpoints draws the curves of all; or name one of them.",
        )


# ---- the text


def probe_lines(result: ProbeResult | CheckpointCurves | ProbeDifference) -> list[str]:
    """State in sentences what a probe found; the page has the numbers of every head."""
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.findings import answers, findings, main_results, training_findings
    from marginlens.probe.result import ProbeResult
    from marginlens.result import counted

    if isinstance(result, ProbeResult):
        counts = f"{counted(result.n_inputs, 'input')}, {counted(result.n_queries, 'query', 'queries')}"
        lines = [
            f"{result.model}: {result.size_words}; {counts}",
            *map(str, (*main_results(result), *findings(result))),
        ]
        for answer in answers(result):
            lines.append(f"{answer.question} {answer.answer}")
            if answer.heads:
                lines.append(f"{answer.named}: {', '.join(f'{head.name} ({head.detail})' for head in answer.heads)}.")
    elif isinstance(result, ProbeDifference):
        counts = f"{result.size_words}; {counted(result.probed.n_inputs, 'input')}"
        lines = [f"{result.probed.model} against {result.against.model}: {counts}", *map(str, result.findings())]
    else:
        counts = f"{counted(len(result.names), 'checkpoint')}; {counted(result.n_inputs, 'input')}"
        lines = [f"{result.model}: {counts}", *map(str, training_findings(result))]
    return [*lines, *map(str, result.notes)]
