"""What `marginlens probe` does between its options and its ending: inputs, the probe, the folder and the tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from marginlens.errors import reject
from marginlens.probe.models.inputs import Inputs
from marginlens.probe.models.loading import LoadedModel, load_model
from marginlens.probe.page.findings import head_name
from marginlens.probe.result import BASELINES, CheckpointCurves, ProbeResult, ProbeSettings
from marginlens.runtime.files import resolved, write_folder
from marginlens.runtime.progress import ProgressCallback

FOLDER = "probe-report"
PAGE, NUMBERS, CURVES = "index.html", "probe.json", "checkpoints.json"
CURVES_PNG, CURVES_SVG = "curves.png", "curves.svg"
_HEADS = 6  # heads that each table of the terminal names
_LAYER_COLUMNS = ("relative_nnz", "nnz", "entropy", "top_probability", "frobenius", "margin_median", "decisive_share")
_MAX_MARGIN_COLUMNS = {title: f"correlation{ending}" for ending, (title, _) in BASELINES.items()}
_MAX_MARGIN_COLUMNS |= {"margin over best": "margin_ratio", "of random heads": "margin_ratio_random_head"}
_CURVE_COLUMNS = ("nnz/T", "first: nnz/T", "entropy", "Frobenius norm", "median margin", "decisive", "tied")


@dataclass(frozen=True)
class Request:
    """What the command line asked for: the model, its inputs, and whether to trust pickles and to download."""

    model: str
    text: Path | None
    images: Path | None
    limit: int | None
    trusted: tuple[bool, bool] = (False, False)

    def __post_init__(self) -> None:
        if self.text is not None and self.images is not None:
            raise reject("images", "left out when --text is given", repr(str(self.images)))

    def load(self) -> LoadedModel:
        """The model."""
        return load_model(self.model, trust_pickle=self.trusted[0], download=self.trusted[1])

    def inputs(self, loaded: LoadedModel) -> Inputs:
        """The inputs as this model reads them."""
        from marginlens.probe.models.inputs import encode_texts, example_sentences, read_images, read_texts

        if loaded.images is not None:
            if self.images is None:
                raise reject("images", "a file of images for this model, which reads images", repr(_given(self.text)))
            images = read_images(self.images, loaded.images)
            return images.subset(range(len(images))[: self.limit])
        if self.images is not None:
            raise reject("images", "left out for this model, which reads texts", repr(str(self.images)), "Use --text.")
        texts = example_sentences() if self.text is None else read_texts(self.text)
        return encode_texts(list(texts)[: self.limit], loaded.tokenizer, loaded.model.config)


def probed(request: Request, settings: ProbeSettings, progress: ProgressCallback) -> ProbeResult:
    """Load the model and the inputs, and probe."""
    from marginlens.probe.run import probe_model

    loaded = request.load()
    return probe_model(loaded, request.inputs(loaded), settings, progress=progress)


def curves(request: Request, settings: ProbeSettings, progress: ProgressCallback) -> CheckpointCurves:
    """Probe every checkpoint in the folder that was named as the model."""
    from marginlens.probe.run import checkpoint_folders, probe_checkpoints

    folders = checkpoint_folders(request.model)
    trust = request.trusted[0]
    loaded = load_model(folders[0], trust_pickle=trust)
    return probe_checkpoints(folders, request.inputs(loaded), settings, trust_pickle=trust, progress=progress)


# ---- the folder


def check_folder(folder: Path | None) -> Path | None:
    """A place where the page can be written: nothing there yet, or an earlier probe, in a folder that is there."""
    if folder is None:
        return None
    final = resolved(folder)
    expected = "a new folder, or one that an earlier probe wrote"
    if final.exists() and not final.is_dir():
        raise reject("out", expected, f"the file {str(folder)!r}")
    if final.is_dir():  # it is replaced whole, so nothing may be in it that a probe did not write
        found = {one.name for one in final.iterdir()}
        others = sorted(found - {PAGE, NUMBERS, CURVES, CURVES_PNG, CURVES_SVG})
        if others or (found and not found & {NUMBERS, CURVES}):
            raise reject(
                "out", expected, f"{str(folder)!r}, which holds something else ({(others or sorted(found))[0]})"
            )
        if Path.cwd().is_relative_to(final):
            raise reject("out", expected, f"{str(folder)!r}, the folder that the command runs in")
    if not final.parent.is_dir():
        raise reject("out", "a folder inside one that exists", repr(str(folder)))
    return folder


def write(found: ProbeResult | CheckpointCurves, folder: Path) -> None:
    """Write the folder, which appears whole or not at all."""
    write_folder(folder, _files(found), "out")


def _files(found: ProbeResult | CheckpointCurves) -> dict[str, bytes]:
    numbers = json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False, indent=1).encode()
    if isinstance(found, ProbeResult):
        from marginlens.probe.page import probe_page

        return {PAGE: probe_page(found).encode(), NUMBERS: numbers}
    from marginlens.plotting.files import png, svg
    from marginlens.probe.page.checkpoints import checkpoint_page, draw_curves

    figure = draw_curves(found)
    return {
        PAGE: checkpoint_page(found).encode(),
        CURVES_PNG: png(figure),
        CURVES_SVG: svg(figure),
        CURVES: numbers,
    }


# ---- the terminal


def show(out: Console, found: ProbeResult | CheckpointCurves, folder: Path | None) -> None:
    """The tables, and where the rest is."""
    if isinstance(found, ProbeResult):
        _show_heads(out, found)
    else:
        _show_curves(out, found)
    if folder is not None:
        out.print(f"The page is at {folder / PAGE}", markup=False, soft_wrap=True)


def _show_heads(out: Console, found: ProbeResult) -> None:
    from marginlens.cli._terminal import rows_table

    size = f"{found.n_layers} layers of {found.n_heads} heads; {found.n_inputs:,} inputs, {found.n_queries:,} queries"
    out.print(f"{found.model}: {size}", markup=False)
    out.print(rows_table("Layers, means over heads", [_layer(found, layer) for layer in range(found.n_layers)]))
    sparsest = _order(found["relative_nnz"], largest=False)
    out.print(rows_table("The sparsest heads", [_head(found, at) for at in sparsest]))
    if found.has_max_margin and np.isfinite(found["correlation"]).any():
        layers = [{"layer": k, **_correlations(found, k)} for k in range(found.n_layers)]
        out.print(rows_table("Correlation with the max-margin W, means over heads", layers))
        best = [
            {"head": head_name(*at), **_correlations(found, at)} for at in _order(found["correlation"], largest=True)
        ]
        out.print(rows_table("The most max-margin heads", best))
    for note in found.notes:
        out.print(note, markup=False)


def _layer(found: ProbeResult, layer: int) -> dict[str, Any]:
    shown = [measure for measure in found.shown if measure.name in _LAYER_COLUMNS]
    means = {measure.title: _mean(found[measure.name][layer]) for measure in shown}
    return {"layer": layer, **means, "decisive": _share(found["decisive_share"][layer]), **_tied(found, layer)}


def _head(found: ProbeResult, at: tuple[int, int]) -> dict[str, Any]:
    return {
        "head": head_name(*at),
        "nnz/T": _mean(found["relative_nnz"][at]),
        "top probability": _mean(found["top_probability"][at]),
        "Frobenius norm": _mean(found["frobenius"][at]),
        "median margin": _mean(found["margin_median"][at]),
        "selects itself": _share(found["self_share"][at]),
        "the first": _share(found["first_share"][at]),
        "the last": _share(found["last_share"][at]),
        **_tied(found, at),
    }


def _tied(found: ProbeResult, at: Any) -> dict[str, Any]:
    """The share of queries whose selection is tied, where there are such in some head."""
    share = found["tied_share"]
    return {"tied": _share(share[at])} if np.nan_to_num(share).any() else {}


def _correlations(found: ProbeResult, at: Any) -> dict[str, Any]:
    """The correlation beside its baselines, and the margin over the best one beside that of random heads."""
    return {title: _mean(found[name][at]) for title, name in _MAX_MARGIN_COLUMNS.items()}


def _order(values: Any, *, largest: bool) -> list[tuple[int, int]]:
    """Layer and head of the first few, those without a number left out."""
    flat = np.argsort(-values.ravel() if largest else values.ravel(), kind="stable")
    flat = flat[np.isfinite(values.ravel()[flat])][:_HEADS]
    return [(int(one) // values.shape[1], int(one) % values.shape[1]) for one in flat]


def _show_curves(out: Console, found: CheckpointCurves) -> None:
    from marginlens.cli._terminal import rows_table

    out.print(f"{found.model}: {len(found.names)} checkpoints; {found.n_inputs:,} inputs", markup=False)
    rows = [{name: one for name, one in row.items() if name in ("checkpoint", *_CURVE_COLUMNS)} for row in found.rows()]
    out.print(rows_table("The last layer, means over heads", rows))
    if "correlation" in found.measures:
        rows = [_beside(found, k) for k in range(len(found.names))]
        out.print(rows_table("Correlation with the max-margin W, means over the heads of the last layer", rows))
    trends = {"nnz/T": found.trends("relative_nnz")[-1], "norm of W": found.trends("frobenius")[-1]}
    said = [f"{title} {rank:.3f}".replace("-", "−") for title, (rank, _) in trends.items() if np.isfinite(rank)]
    if said and found.can_have_trend:
        out.print(f"Rank correlation with the order of training: {', '.join(said)}", markup=False)
    for note in found.notes:
        out.print(note, markup=False)


def _beside(found: CheckpointCurves, place: int) -> dict[str, Any]:
    """One checkpoint of the last layer: the correlation beside its baselines, and the margin over the best one beside a random head's."""
    numbers = {title: _mean(found.by_layer(name)[place, -1]) for title, name in _MAX_MARGIN_COLUMNS.items()}
    return {"checkpoint": found.names[place], **numbers}


def _mean(values: Any) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = np.asarray(values)[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _share(values: Any) -> str:
    mean = _mean(values)
    return "–" if mean is None else f"{mean:.0%}"


def _given(path: Path | None) -> str:
    return "nothing" if path is None else f"--text {path}"
