"""`marginlens probe`: what the attention heads of a model select on a user's inputs, as text, a page and JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marginlens.cli.options import DEVICES, AsJson, Quiet, refuse_options, words_of
from marginlens.cli.output import Output
from marginlens.errors import InputError, rename_arguments, whole_number
from marginlens.words import Fact

if TYPE_CHECKING:
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.models.inputs import Inputs
    from marginlens.probe.models.loading import LoadedModel
    from marginlens.probe.result import CheckpointCurves, ProbeResult

FOLDER = Path("probe-report")
PAGE = "index.html"
MODEL_ARGUMENTS = ("name", "model", "path", "folder", "folders", "file", "config", "tokenizer")


@rename_arguments(**dict.fromkeys(MODEL_ARGUMENTS, "model"), texts="text")
def probe(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_PATH",
            help="Folder that save_pretrained wrote, minilm for the packaged all-MiniLM-L6-v2, or the .parquet file of a monitored run.",
        ),
    ],
    text: Annotated[
        Path | None, typer.Option(help="Text with one input per line; sentences of our own by default.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Images: .npz, .npy, .png or .jpg, or a folder of them.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the page: probe-report, or none with --json.")] = None,
    max_margin: Annotated[
        bool | None, typer.Option(help="Ask how max-margin each head is: the longest part, off with --checkpoints.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Number of inputs to use, the first ones.")] = None,
    queries: Annotated[int, typer.Option(help="Queries of each input in the max-margin part.")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed of queries and baselines.")] = 0,
    offset: Annotated[int | None, typer.Option(help="Offset of query and key for W with rotary positions.")] = None,
    device: Annotated[
        str, typer.Option(help=f"Device of the model: {', '.join(DEVICES)}.", autocompletion=words_of(*DEVICES))
    ] = "cpu",
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Draw curves over checkpoints in a folder.")
    ] = False,
    against: Annotated[str | None, typer.Option(help="Model to compare with, on the same inputs.")] = None,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Load pickled weights, which can run code.")
    ] = False,
    download: Annotated[bool, typer.Option("--download", help="Fetch the model from the Hugging Face Hub.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what the attention heads of a model select.

    It says how sparsely they attend, what they select and with which margin. The page shows a heat map over layers and heads for every
    measure; choose a head there to see its attention.

    \b
    Examples:
      marginlens probe minilm
      marginlens probe my-model --text sentences.txt --limit 100 --out my-probe
      marginlens probe my-model --no-max-margin --device cuda
      marginlens probe training-run --checkpoints --json > curves.json
      marginlens probe fine-tuned --against my-model
    """
    if text is not None:
        refuse_options("when --text is given", images=images)
    if against is not None:
        refuse_options("with --against", checkpoints=checkpoints)
    if limit is not None:
        whole_number(limit, "limit", at_least=1)
    whole_number(queries, "queries", at_least=1)
    if offset is not None:
        whole_number(offset, "offset", at_least=0)
    output = Output(as_json, quiet)
    asked = not checkpoints if max_margin is None else max_margin
    folder = out if out is not None or as_json else FOLDER
    if folder is not None:
        from marginlens.runtime.probe_folders import check_folder

        check_folder(folder)
    is_run = model.endswith(".parquet")
    if not is_run:
        _check_given(model, against, text, checkpoints, trust_pickle=trust_pickle, download=download)
    if quiet:  # transformers reads this when it is imported
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    pages = [] if folder is None else [folder / PAGE]
    if is_run:
        others = {"text": text, "images": images, "limit": limit, "offset": offset, "against": against}
        refuse_options("with the file of a monitored run", **others)
        output.show(*_monitored(model, folder), pages)
        return
    from marginlens.probe.folder import write_report
    from marginlens.probe.models.loading import load_model
    from marginlens.probe.result import ProbeSettings
    from marginlens.probe.run import probe_checkpoints, probe_model
    from marginlens.runtime.model_folders import checkpoint_folders

    settings = ProbeSettings(max_margin=asked, queries=queries, offset=offset, seed=seed)
    result: ProbeResult | CheckpointCurves | ProbeDifference
    options: dict[str, Any] = {"trust_pickle": trust_pickle, "device": device}
    with output.stage("Probing") as bar:
        if checkpoints:
            folders = checkpoint_folders(model)
            inputs = _inputs(load_model(folders[0], **options), text, images, limit)
            result = probe_checkpoints(folders, inputs, settings, **options, progress=bar)
        else:
            loaded = load_model(model, download=download, **options)
            inputs = _inputs(loaded, text, images, limit)
            if against is None:
                result = probe_model(loaded, inputs, settings, progress=bar)
            else:
                from marginlens.probe.difference import compare_models

                with rename_arguments(**dict.fromkeys(MODEL_ARGUMENTS, "against")):
                    other = load_model(against, download=download, **options)
                result = compare_models(loaded, other, inputs, settings, progress=bar)
        if folder is not None:
            write_report(folder, result)
    output.show(result, probe_lines(result), pages)


def _monitored(path: str, folder: Path | None) -> tuple[dict[str, Any], list[str]]:
    """The curves and the alarms of a run that a monitor watched: its numbers and its text."""
    from marginlens.probe.monitor.alarms import alarm_summary, find_alarms
    from marginlens.probe.monitor.record import read_run

    curves = read_run(path)
    alarms = find_alarms(curves)
    numbers = {**curves.to_dict(), "alarms": [alarm.to_dict() for alarm in alarms]}
    if folder is not None:
        from marginlens.probe.folder import write_report

        write_report(folder, curves, alarms)
    return numbers, [*probe_lines(curves), *map(str, alarm_summary(alarms) or (Fact("alarm.none"),))]


def _inputs(loaded: LoadedModel, text: Path | None, images: Path | None, limit: int | None) -> Inputs:
    """The first `limit` inputs as this model reads them."""
    from marginlens.probe.models.inputs import encode_texts, example_sentences, read_images, read_texts

    if loaded.images is not None and (loaded.tokenizer is None or images is not None):
        if images is None:
            given = "nothing" if text is None else f"--text {text}"
            raise InputError("images", "a file of images for this model, which reads images", repr(given))
        found = read_images(images, loaded.images)
        return found.subset(range(len(found))[:limit])
    if images is not None:
        raise InputError("images", "left out for this model, which reads texts", repr(str(images)), "Use --text.")
    texts = example_sentences() if text is None else read_texts(text)
    return encode_texts(list(texts)[:limit], loaded.tokenizer, loaded.model.config)


# ---- the model


def _check_given(
    model: str, against: str | None, text: Path | None, checkpoints: bool, *, trust_pickle: bool, download: bool
) -> None:
    """Refuse folders and files that are not there, before anything is imported that takes seconds."""
    from marginlens.runtime.model_folders import checkpoint_folders, model_place

    if checkpoints:
        for folder in checkpoint_folders(model):
            model_place(folder, trust_pickle=trust_pickle)
    else:
        _refuse_checkpoints(model)
        model_place(model, trust_pickle=trust_pickle, download=download)
    if against is not None:
        with rename_arguments(path="against"):
            model_place(against, trust_pickle=trust_pickle, download=download)
    if text is not None and not text.exists():
        raise InputError("text", "a text file with one input per line", f"{str(text)!r}, which is not there")


def _refuse_checkpoints(model: str) -> None:
    """Say of a folder that holds no model but several in folders of their own, as a training run leaves them, how to see them."""
    folder = Path(model)
    inside = sorted(config.parent.name for config in folder.glob("*/config.json")) if folder.is_dir() else []
    if inside and not (folder / "config.json").is_file():
        got = f"{model!r}, which holds {len(inside)} of them, such as {inside[0]!r}"
        raise InputError("model", "one model", got, "--checkpoints draws the curves of all; or name one of them.")


# ---- the text


def probe_lines(result: ProbeResult | CheckpointCurves | ProbeDifference) -> list[str]:
    """What a probe found, in sentences; the page has the numbers of every head."""
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.findings import answers, findings, main_result, training_findings
    from marginlens.probe.result import ProbeResult
    from marginlens.result import counted

    if isinstance(result, ProbeResult):
        counts = f"{counted(result.n_inputs, 'input')}, {counted(result.n_queries, 'query', 'queries')}"
        lines = [
            f"{result.model}: {result.size_words}; {counts}",
            str(main_result(result)),
            *map(str, findings(result)),
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
