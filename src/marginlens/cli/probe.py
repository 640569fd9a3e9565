"""`marginlens probe`: what the attention heads of a model select on a user's inputs, as a table, a page and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marginlens.cli._commands import is_quiet, wants_json
from marginlens.cli._deferred import errors, files, np, terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import DEVICES, argument, flag, option, refuse_options

if TYPE_CHECKING:
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.models.inputs import Inputs
    from marginlens.probe.models.loading import LoadedModel
    from marginlens.probe.result import CheckpointCurves, ProbeResult

FOLDER = Path("probe-report")
PAGE, LAB, NUMBERS, CURVES = "index.html", "lab.html", "probe.json", "checkpoints.json"
CURVES_PNG, CURVES_SVG = "curves.png", "curves.svg"
_CALLED: dict[str, Any] = {  # what the command calls arguments of the library
    **dict.fromkeys(("name", "path", "folder", "folders", "file"), "{model}"),
    "tokenizer": "the tokenizer of {model}",
    "config": "config.json of {model}",
    "W_Q": "the query weights of {model}",
    "W_K": "the key weights of {model}",
    "texts": "{text}",
}
_HEADS = 6  # heads that each table of the terminal names
_ROWS = 30  # of a long run that the terminal shows, evenly spread
_COLUMNS = ("relative_nnz", "top_probability", "frobenius", "margin_median", "tied_share")  # of every table of heads
_LAYER_COLUMNS = (*_COLUMNS, "nnz", "entropy", "decisive_share")
_HEAD_COLUMNS = (*_COLUMNS, "previous_share", "first_share", "separator_share")
_CURVE_COLUMNS = ("relative_nnz", "first_relative_nnz", "entropy", *_COLUMNS[2:], "decisive_share")
_MAX_MARGIN = {  # heading and measure: the correlation and the margin over the best one, each beside that of random heads
    "this head": "correlation",
    "random head": "correlation_random_head",
    "margin over best": "margin_ratio",
    "of random heads": "margin_ratio_random_head",
}


@command("Nothing was written.", **_CALLED)
def probe(
    model: Annotated[
        str,
        argument(
            "MODEL_OR_PATH",
            "A folder that save_pretrained wrote, minilm for the packaged all-MiniLM-L6-v2, or the .parquet file of a monitored run.",
        ),
    ],
    text: Annotated[Path | None, option("FILE", "One input per line.", "200 sentences of our own")] = None,
    images: Annotated[
        Path | None, option("FILE", "Images in a .npz, .npy, .png or .jpg file, or a folder of pictures.")
    ] = None,
    out: Annotated[Path | None, option("FOLDER", "Where the page goes.", "probe-report; nowhere with --json")] = None,
    max_margin: Annotated[
        bool | None,
        typer.Option(
            "--max-margin/--no-max-margin",
            help="Ask how max-margin each head is: the longest part.",
            show_default="on; off with --checkpoints",
        ),
    ] = None,
    limit: Annotated[int | None, option("N", "Use the first N inputs only.")] = None,
    queries: Annotated[int, option("N", "Queries of each input in the max-margin part.")] = 1,
    seed: Annotated[int, option("N", "Which queries and baselines the max-margin part draws.")] = 0,
    offset: Annotated[
        int | None, option("N", "Models with rotary positions: take W at this offset of query and key.")
    ] = None,
    device: Annotated[str, option("NAME", "Where the model runs: cpu, cuda, cuda:1, mps.", words=DEVICES)] = "cpu",
    checkpoints: Annotated[
        bool, flag("--checkpoints", "The folder holds the checkpoints of a training run: draw curves.")
    ] = False,
    against: Annotated[
        str | None, option("MODEL_OR_PATH", "Show what sets the model apart from this one, on the same inputs.")
    ] = None,
    trust_pickle: Annotated[
        bool, flag("--trust-pickle", "Also load weights in pickle form, which can run code.")
    ] = False,
    download: Annotated[bool, flag("--download", "Fetch the model of this name from the Hugging Face Hub.")] = False,
) -> Answer:
    """Probe the attention heads of a model: how sparsely they attend, what they select and with which margin.

    The page shows a heat map over layers and heads for every measure; choose a head there to see its attention.

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
        errors.whole_number(limit, "limit", at_least=1)
    errors.whole_number(queries, "queries", at_least=1)
    if offset is not None:
        errors.whole_number(offset, "offset", at_least=0)
    asked = not checkpoints if max_margin is None else max_margin
    folder = out if out is not None or wants_json() else FOLDER
    if folder is not None:
        _check_folder(folder)
    if not model.endswith(".parquet"):
        _check_given(model, against, text, checkpoints, trust_pickle=trust_pickle, download=download)
    if is_quiet():
        os.environ.setdefault(
            "TRANSFORMERS_VERBOSITY", "error"
        )  # its notices are remarks; it reads this when it is imported
    from marginlens.probe.models.loading import load_model
    from marginlens.probe.result import ProbeSettings
    from marginlens.probe.run import checkpoint_folders, probe_checkpoints, probe_model

    settings = ProbeSettings(max_margin=asked, queries=queries, offset=offset, seed=seed)
    page = [] if folder is None else [folder / PAGE]
    if model.endswith(".parquet"):
        others = {"text": text, "images": images, "limit": limit, "offset": offset, "against": against}
        refuse_options("with the file of a monitored run", **others)
        return _monitored(model, folder)._replace(written=page)
    result: ProbeResult | CheckpointCurves | ProbeDifference
    options: dict[str, Any] = {"trust_pickle": trust_pickle, "device": device}
    with terminal.stage("Probing") as bar:
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

                model_arguments = ("name", "model", "path", "folder", "config", "tokenizer")
                with errors.calling(**dict.fromkeys(model_arguments, "against")):
                    other = load_model(against, download=download, **options)
                result = compare_models(loaded, other, inputs, settings, progress=bar)
        if folder is not None:
            files.write_folder(folder, _files(result, checkpoints), "out")
    return Answer(result, probe_text(result), page)


def _monitored(path: str, folder: Path | None) -> Answer:
    """The curves and the alarms of a run that a monitor watched, as a page and on the terminal."""
    from marginlens.probe.monitor.alarms import alarm_summary, find_alarms
    from marginlens.probe.monitor.record import read_run

    curves = read_run(path)
    alarms = find_alarms(curves)
    numbers = {**curves.to_dict(), "alarms": [alarm.sentence for alarm in alarms]}
    if folder is not None:
        from marginlens.probe.page import checkpoint_page

        content = json.dumps(numbers, ensure_ascii=False, allow_nan=False, indent=1).encode()
        files.write_folder(folder, {PAGE: checkpoint_page(curves, alarms).encode(), CURVES: content}, "out")
    return Answer(numbers, [*probe_text(curves), *(alarm_summary(alarms) or ("No alarm was raised.",))])


def _inputs(loaded: LoadedModel, text: Path | None, images: Path | None, limit: int | None) -> Inputs:
    """The first `limit` inputs as this model reads them."""
    from marginlens.probe.models.inputs import encode_texts, example_sentences, read_images, read_texts

    if loaded.images is not None and (loaded.tokenizer is None or images is not None):
        if images is None:
            given = "nothing" if text is None else f"--text {text}"
            raise errors.reject("images", "a file of images for this model, which reads images", repr(given))
        found = read_images(images, loaded.images)
        return found.subset(range(len(found))[:limit])
    if images is not None:
        raise errors.reject("images", "left out for this model, which reads texts", repr(str(images)), "Use --text.")
    texts = example_sentences() if text is None else read_texts(text)
    return encode_texts(list(texts)[:limit], loaded.tokenizer, loaded.model.config)


# ---- the folder


def _check_folder(folder: Path) -> None:
    """Refuse a place where the page cannot be written: it must be new, or an earlier probe, in a folder that exists."""
    final = files.resolved(folder)
    expected = "a new folder, or one that an earlier probe wrote"
    if final.exists() and not final.is_dir():
        raise errors.reject("out", expected, f"the file {str(folder)!r}")
    if final.is_dir():  # it is replaced whole, so nothing may be in it that a probe did not write
        names = {file.name for file in final.iterdir()}
        others = sorted(names - {PAGE, LAB, NUMBERS, CURVES, CURVES_PNG, CURVES_SVG})
        if others or (names and not names & {NUMBERS, CURVES}):
            first = (others or sorted(names))[0]
            raise errors.reject("out", expected, f"{str(folder)!r}, which holds something else ({first})")
        if Path.cwd().is_relative_to(final):
            raise errors.reject("out", expected, f"{str(folder)!r}, the folder that the command runs in")
    if not final.parent.is_dir():
        raise errors.reject("out", "a folder inside one that exists", repr(str(folder)))
    files.check_writable(final, "out")


def _check_given(
    model: str, against: str | None, text: Path | None, checkpoints: bool, *, trust_pickle: bool, download: bool
) -> None:
    """Refuse folders and files that are not there, before anything is imported that takes seconds."""
    from marginlens.runtime.model_folders import model_place

    if not checkpoints:
        _refuse_checkpoints(model)
        model_place(model, trust_pickle=trust_pickle, download=download)
    if against is not None:
        with errors.calling(path="against"):
            model_place(against, trust_pickle=trust_pickle, download=download)
    if text is not None and not text.exists():
        raise errors.reject("text", "a text file with one input per line", f"{str(text)!r}, which is not there")


def _refuse_checkpoints(model: str) -> None:
    """Say of a folder that holds no model but several in folders of their own, as a training run leaves them, how to see them."""
    folder = Path(model)
    inside = sorted(config.parent.name for config in folder.glob("*/config.json")) if folder.is_dir() else []
    if inside and not (folder / "config.json").is_file():
        got = f"{model!r}, which holds {len(inside)} of them, such as {inside[0]!r}"
        raise errors.reject("model", "one model", got, "--checkpoints draws the curves of all; or name one of them.")


def _files(result: Any, checkpoints: bool) -> dict[str, bytes]:
    numbers = json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False, indent=1).encode()
    from marginlens.probe.difference import ProbeDifference

    if isinstance(result, ProbeDifference):
        from marginlens.probe.page import difference_page

        return {PAGE: difference_page(result).encode(), NUMBERS: numbers}
    if not checkpoints:
        from marginlens.lab import lab_page
        from marginlens.probe.page import probe_page

        page = probe_page(result, lab=LAB).encode()
        return {PAGE: page, LAB: lab_page().encode(), NUMBERS: numbers}
    from marginlens.plotting.files import png, svg
    from marginlens.probe.page import checkpoint_page, draw_curves

    figure = draw_curves(result)
    pictures = {CURVES_PNG: png(figure), CURVES_SVG: svg(figure)}
    return {PAGE: checkpoint_page(result).encode(), **pictures, CURVES: numbers}


# ---- the terminal


def probe_text(result: ProbeResult | CheckpointCurves | ProbeDifference) -> Iterator[Any]:
    """The tables of a probe, of the checkpoints of a training run, or of the difference of two models."""
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.result import ProbeResult

    if isinstance(result, ProbeResult):
        yield from _head_text(result)
    elif isinstance(result, ProbeDifference):
        yield from _difference_text(result)
    else:
        yield from _curve_text(result)
    yield from result.notes


def _head_text(result: ProbeResult) -> Iterator[Any]:
    from marginlens.probe.page.sentences import answers, main_result
    from marginlens.probe.result import ranked_heads

    measured = f"{terminal.counted(result.n_inputs, 'input')}, {terminal.counted(result.n_queries, 'query', 'queries')}"
    yield f"{result.model}: {result.size_words}; {measured}"
    yield main_result(result)
    for answer in answers(result):
        yield f"{answer.question} {answer.sentence}"
        if answer.rows:
            named = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
            yield terminal.rows_table(answer.note, named)
        if answer.heads:
            heads = ", ".join(f"{head.name} ({head.says})" for head in answer.heads)
            yield f"{answer.named}: {heads}."
    layers = [{"layer": result.layer_name(k), **_cells(result, _LAYER_COLUMNS, k)} for k in range(result.n_layers)]
    yield terminal.rows_table("Layers, means over heads", layers)
    sparsest = [
        {"head": result.head_name(*at), "kind": result.kinds[at], **_cells(result, _HEAD_COLUMNS, at)}
        for at in ranked_heads(-result["relative_nnz"], _HEADS)
    ]
    yield terminal.rows_table("The sparsest heads", sparsest)
    if result.has_max_margin and np.isfinite(result["correlation"]).any():

        def means(at: Any) -> dict[str, Any]:
            return {title: _mean(result[name][at]) for title, name in _MAX_MARGIN.items()}

        layers = [{"layer": result.layer_name(k), **means(k)} for k in range(result.n_layers)]
        yield terminal.rows_table("Correlation with the max-margin W, means over heads", layers)
        best = [{"head": result.head_name(*at), **means(at)} for at in ranked_heads(result["correlation"], _HEADS)]
        yield terminal.rows_table("The most max-margin heads", best)


def _difference_text(result: ProbeDifference) -> Iterator[Any]:
    size = f"{result.size_words}; {terminal.counted(result.probed.n_inputs, 'input')}"
    yield f"{result.probed.model} against {result.against.model}: {size}"
    yield terminal.rows_table("The heads that changed most", result.rows(_HEADS))
    yield from result.sentences()


def _curve_text(result: CheckpointCurves) -> Iterator[Any]:
    from marginlens.probe.result import evenly

    counts = terminal.counted(len(result.names), "checkpoint"), terminal.counted(result.n_inputs, "input")
    yield f"{result.model}: {'; '.join(counts)}"
    rows = result.rows(names=_CURVE_COLUMNS)
    yield terminal.rows_table("The last layer, means over heads", [rows[k] for k in evenly(len(rows), _ROWS)])
    if "correlation" in result.measures:
        columns = {title: result.by_layer(name)[:, -1] for title, name in _MAX_MARGIN.items()}
        rows = [
            {"checkpoint": checkpoint, **{title: _mean(values[k]) for title, values in columns.items()}}
            for k, checkpoint in enumerate(result.names)
            if np.isfinite(result["correlation"][k]).any()
        ]
        yield terminal.rows_table("Correlation with the max-margin W, means over the heads of the last layer", rows)
    trends = {"nnz/T": result.trends("relative_nnz")[-1], "norm of W": result.trends("frobenius")[-1]}
    known = [f"{title} {rank:.3f}".replace("-", "−") for title, (rank, _) in trends.items() if np.isfinite(rank)]
    if known and result.can_have_trend:
        yield f"Rank correlation with the order of training: {', '.join(known)}"


def _cells(result: ProbeResult, names: Collection[str], at: Any) -> dict[str, Any]:
    """The means of measures over some heads, those of shares in percent; what no head has is left out."""
    shown = [measure for measure in result.shown if measure.name in names]
    return {one.title: _share(result[one.name][at]) if one.is_share else _mean(result[one.name][at]) for one in shown}


def _mean(values: Any) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = np.asarray(values)[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _share(values: Any) -> str:
    mean = _mean(values)
    return "–" if mean is None else f"{mean:.0%}"
