"""A Figs 6 and 7: attention of a vision transformer gets sparser, and its key-query weights grow, as it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.probe.heads.sparsity import relative_sparsity
from marginlens.result.palette import ACCENTS, INK, PATH
from marginlens.typing import Axes, Figure
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress
from marginlens_papers.claims.a.vision_runs import VisionCurves, VisionRun, VisionSettings, vision_run
from marginlens_papers.claims.a.vision_training import TrainedVision, chosen_images, digit_images, train_vision

COLUMNS = 8  # epochs shown side by side, at most
_CELL = 1.15  # inches
_HEADROOM = 1.22  # the largest value times it: the legend stands above all curves, wherever they run


def map_figure(curves: VisionCurves, title: str, images: Any = None) -> Figure:
    """Figure 6: one row for each image, one column for each kept epoch, each map on a scale from 0 to its own largest entry.

    Args:
        images: (n_chosen, height, width, channels) bytes, drawn at the left if they are given.
    """
    epochs = _thinned(curves.map_epochs)
    first = 0 if images is None else 1
    rows, columns = len(curves.labels), len(epochs) + first
    from matplotlib.figure import Figure

    fig = Figure(figsize=(0.4 + _CELL * columns, 0.7 + 1.22 * _CELL * rows), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False)
    for row, label in enumerate(curves.labels):
        if images is not None:
            axes[row, 0].imshow(np.squeeze(images[row]), cmap="gray", interpolation="nearest")
            axes[row, 0].set_xlabel("image", fontsize=9, labelpad=2)
        for column, epoch in enumerate(epochs):
            s = curves.maps[curves.map_epochs.index(epoch), row]
            edge = int(np.sqrt(s.size))
            ax = axes[row, column + first]
            ax.imshow(s.reshape(edge, edge), cmap="viridis", vmin=0.0, vmax=s.max(), interpolation="nearest")
            ax.set_xlabel(f"nnz/T {_short(float(relative_sparsity(s)))}", fontsize=9, labelpad=2)
            if row == 0:
                ax.set_title(f"epoch {epoch}", fontsize=11)
        axes[row, 0].set_ylabel(label)
    for ax in axes.ravel():
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
    fig.suptitle(f"{title}\neach map from 0 (dark) to its own largest entry (bright)", fontsize=12)
    return fig


def curve_figure(runs: Sequence[VisionCurves], title: str) -> Figure:
    """Figure 7: nnz/T and ‖W‖_F of every layer over epochs, and accuracies; one run, or a few that differ in their seed."""
    from matplotlib.ticker import MaxNLocator

    fig, (left, middle, right) = ml.plotting.figure(3, width=4.4, height=3.9)
    n_layers = runs[0].by_layer["sparsity"].shape[1]
    colours = ml.plotting.shades(max(n_layers - 1, 1))
    for ax, name in ((left, "sparsity"), (middle, "norm")):
        for layer in range(n_layers):
            last = layer == n_layers - 1
            colour = ACCENTS[0] if last else colours[layer]
            look = {"color": colour, "linewidth": 2.2 if last else 0.9, "zorder": 4 if last else 3}
            _curves(ax, runs, [run.by_layer[name][:, layer] for run in runs], look, _layer_label(layer, n_layers))
    left.set(ylabel="nnz(s)/T", title="Sparsity of the CLS map")
    middle.set(ylabel="$‖W‖_F$, all heads", title="Key-query matrix")
    for name, colour, label in (("train_accuracy", PATH, "training"), ("test_accuracy", ACCENTS[2], "test")):
        _curves(right, runs, [run.scalars[name] for run in runs], {"color": colour, "linewidth": 1.6}, label)
    right.set(ylabel="accuracy", title="Accuracy")
    largest = max(float(np.nanmax(run.by_layer["norm"])) for run in runs)
    for ax, top in ((left, 1.0), (middle, largest), (right, 1.0)):
        ax.set(xlabel="epoch", ylim=(0.0, _HEADROOM * top))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(loc="upper center", ncols=3, fontsize=9, columnspacing=1.2, handlelength=1.5)
    for ax in (left, right):
        ax.set_yticks(np.linspace(0.0, 1.0, 6))
    fig.suptitle(title, fontsize=12, color=INK)
    return fig


def runs_figure(runs: Mapping[str, VisionCurves], title: str) -> Figure:
    """The last layer's nnz/T and ‖W‖_F, and the training accuracy, of runs that differ in their settings; norms on a logarithmic scale."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter

    fig, axes = ml.plotting.figure(3, width=4.4, height=4.2)
    marks = ("-", "--", "-.", ":", (0, (1, 1)), (0, (6, 2, 1, 2, 1, 2)))
    for k, (name, run) in enumerate(runs.items()):
        values = (run.by_layer["sparsity"][:, -1], run.by_layer["norm"][:, -1], run.scalars["train_accuracy"])
        for ax, value in zip(axes, values, strict=True):
            ax.plot(run.epochs, value, color=ACCENTS[k], linestyle=marks[k % len(marks)], linewidth=2.0, label=name)
    for ax, label, name in zip(
        axes,
        ("nnz(s)/T", "$‖W‖_F$, all heads", "accuracy"),
        ("Sparsity", "Key-query matrix", "Training accuracy"),
        strict=True,
    ):
        ax.set(xlabel="epoch", ylabel=label, title=name)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in (axes[0], axes[2]):
        ax.set_ylim(0.0, 1.05)
    axes[1].set(yscale="log", yticks=(1, 2, 5, 10))
    axes[1].yaxis.set_major_formatter(ScalarFormatter())
    axes[1].yaxis.set_minor_formatter(NullFormatter())
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(runs), 3))
    fig.suptitle(title, fontsize=12, color=INK)
    return fig


def _curves(ax: Axes, runs: Sequence[VisionCurves], values: Sequence[Any], look: dict[str, Any], label: str) -> None:
    """One curve, or the median of several with each of them thin behind it."""
    if len(values) == 1:
        ax.plot(runs[0].epochs, values[0], label=label or None, **look)
        return
    for run, value in zip(runs, values, strict=True):
        ax.plot(run.epochs, value, **{**look, "linewidth": 0.7, "alpha": 0.5})
    ax.plot(runs[0].epochs, np.median(values, axis=0), label=f"{label}, median" if label else None, **look)


def _layer_label(layer: int, n_layers: int) -> str:
    """Names for the last layer, and for the first and the last of the others."""
    if layer == n_layers - 1:
        return "last layer"
    if layer == 0:
        return "layer 1"
    return f"layer {layer + 1}" if layer == n_layers - 2 else ""


def _short(share: float) -> str:
    """Two digits, or three if two would show it as zero."""
    return f"{share:.2f}" if share >= 0.1 else f"{share:.3f}"


def _thinned(epochs: Sequence[int]) -> list[int]:
    """As many epochs as fit, with the first and the last among them."""
    if len(epochs) <= COLUMNS:
        return list(epochs)
    chosen = np.round(np.linspace(0, len(epochs) - 1, COLUMNS)).astype(int)
    return [epochs[k] for k in chosen]


DIGITS = VisionSettings(
    width=32,
    layers=2,
    heads=2,
    mlp=32,
    patch=2,
    spread=0.07,
    epochs=12,
    batch=32,
    learning_rate=2.5e-3,
    optimiser="adamw",
    warmup=405,
    measured=256,
    tested=360,
)
SEEDS = range(5)
QUICK = replace(DIGITS, epochs=8, warmup=270)
CIFAR10 = "cifar10"
OTHERS = ("cifar10-seed-1", "cifar10-shifts-4", "cifar10-adamw-1e-4", "cifar10-adamw-3e-3", "cifar10-sgd-3e-3")
LEARNT, LEARNT_DIGITS = 0.5, 0.8  # test accuracies that a run must reach; chance is .1 on both sets
DENSER = 1.1  # a last nnz/T above this many times the lowest is reported, because it is not progressive sparsification
STATED_RATE = 3e-3
TRAINS = all(find_spec(package) is not None for package in ("torch", "transformers", "sklearn"))


def _bounds(name: str) -> dict[str, Bound]:
    """What the trends and the accuracy of a run on this set of images must reach."""
    return {
        f"{name}_accuracy": Bound(low=LEARNT if name == CIFAR10 else LEARNT_DIGITS),
        f"{name}_share_of_first": Bound(high=0.6),
        f"{name}_sparsity_rank": Bound(high=-0.7),
        f"{name}_norm_rank": Bound(low=0.95),
    }


class A_F67(Claim):
    labels = ("A Fig 6", "A Fig 7")
    protocol = (
        "s is the mean over heads of the attention of CLS in a layer, without CLS → CLS and scaled to sum 1, so that T is the number of "
        "patches; nnz(s)/T is averaged over 256 fixed test images, before the first epoch and after each. $‖W‖_F$ is the norm of all "
        "heads' $W_h = W_K,h W_Q,hᵀ/√d_h$ side by side. CIFAR-10: ViT-base (12 layers, 12 heads, width 768) with 2 × 2 patches, T = 256, "
        "trained on a GPU on 18,000 images; the curves and maps come with the package. Digits, trained here and now: scikit-learn's 8 × "
        f"8 digits, 2 × 2 patches, T = 16, {DIGITS.layers} layers, {DIGITS.heads} heads, width {DIGITS.width}, {DIGITS.epochs} epochs of "
        f"AdamW, batch {DIGITS.batch}, rate {DIGITS.learning_rate:g} after a warm-up of {DIGITS.warmup} steps (9 epochs), initial "
        f"weights of spread {DIGITS.spread:g}, five seeds, of which the worst decides; the quick form has one seed, {QUICK.epochs} "
        f"epochs and a warm-up of {QUICK.warmup} steps. These settings were chosen among about 28 on seeds 0 to 7: without a warm-up, "
        "nnz/T falls within the first epochs and then varies about a level, so that some seeds missed a rank correlation; of seeds 10 to "
        "19, tried afterwards (two of them also before, with more epochs), nine met all three bounds and one ended at .612 of its first "
        "nnz/T. In both sets the last layer must end at .6 of its first nnz/T or below, with a rank correlation with the epoch of at "
        f"least .95 for $‖W‖_F$ and of at most −.7 for nnz/T, and the model must have learnt: a test accuracy of at least {LEARNT:g} on "
        f"CIFAR-10 and {LEARNT_DIGITS:g} on digits, where chance is .1. The paper's words ask for more: 400 epochs on all 50,000 images, "
        "the same trends in a run at the stated rate that learns, and a map that gets progressively sparser, not denser again. On "
        "CIFAR-10 the settings that decide were chosen after four others: with images shifted half as far, the run learnt most of them "
        "by heart within its 100 epochs, its map got denser again meanwhile, and its rank correlation missed the bound. All these runs, "
        "two of them at the paper's rate, are shown with the one that decides, and so is another seed of it. The photographs beside "
        "the maps of Fig 6 are not drawn: the package holds no image of CIFAR-10."
    )
    expected = {"cifar10_accuracy": Bound(low=LEARNT), **(_bounds("digits") if TRAINS else {})}
    as_stated = {
        **{name: bound for name, bound in _bounds(CIFAR10).items() if name != "cifar10_accuracy"},
        "cifar10_epochs": Bound(low=400.0),
        "cifar10_training_images": Bound(low=50_000.0),
        "cifar10_last_over_lowest": Bound(high=DENSER),
        "stated_rate_share_of_first": _bounds(CIFAR10)["cifar10_share_of_first"],
    }

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train on digits with every seed, and measure these runs and the kept one alike."""
        paper = effort is Effort.PAPER
        seeds = list(SEEDS if paper else SEEDS[:1]) if TRAINS else []
        settings = DIGITS if paper else QUICK
        progress.expect(len(seeds) * (settings.epochs + 1) + 1)
        data = digit_images()
        runs: list[TrainedVision] = []
        for seed in seeds:
            with _one_thread():
                runs.append(train_vision(data, replace(settings, seed=seed), progress.advance))
        archived = vision_run(CIFAR10)
        numbers = _numbers_of(archived)
        others = [vision_run(name) for name in OTHERS]
        numbers["stated_rate_share_of_first"] = stated_rate_share([archived, *others])
        words, notes = (
            [_archived_words(archived, numbers)],
            [_note(archived), _turn(archived), *(_other_words(other) for other in others)],
        )
        if runs:
            found = [trends(run.curves) for run in runs]
            numbers |= {
                "digits_share_of_first": max(result.share_of_first for result in found),
                "digits_sparsity_rank": max(trend.sparsity_rank for trend in found),
                "digits_norm_rank": min(trend.norm_rank for trend in found),
                "digits_accuracy": float(np.mean([run.accuracy for run in runs])),
            }
            words.append(_digit_words(found, numbers["digits_accuracy"], settings.epochs))
        else:
            notes.append("Nothing was trained on digits, because torch or transformers is not installed.")
        progress.advance()
        images = data.x_test[chosen_images(data)]
        arrays: dict[str, Any] = {
            "digits": [run.curves for run in runs],
            "archived": archived,
            "others": others,
            "images": images,
        }
        stored = [name for name in numbers if not name.startswith("digits")]
        return Finding(" ".join(words), numbers, arrays, " ".join(filter(None, notes)), archived=stored)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Figure 6, maps of a few images over epochs, and Figure 7, the curves, for both sets of images."""
        digits, archived, others, images = (finding.arrays[name] for name in ("digits", "archived", "others", "images"))
        size = f"CIFAR-10, ViT-base, {int(archived.curves.epochs[-1])} epochs"
        figures = {
            "maps-cifar10": map_figure(
                archived.curves, f"{size}: attention of CLS in the last layer (photographs not in this package)"
            ),
            "curves-cifar10": curve_figure([archived.curves], size),
            "runs-cifar10": runs_figure(
                {_name(run): run.curves for run in (archived, *others)}, "CIFAR-10, ViT-base, last layer"
            ),
        }
        if digits:
            size = f"Digits, {DIGITS.layers} layers"
            figures["maps-digits"] = map_figure(
                digits[0], f"{size}, seed 0: attention of CLS in the last layer", images
            )
            seeds = f", {len(digits)} seeds" if len(digits) > 1 else ""
            figures["curves-digits"] = curve_figure(digits, f"{size}{seeds}")
        return figures


@dataclass(frozen=True)
class Trends:
    """The last layer of one run: its last nnz/T over its first, and both rank correlations with the epoch."""

    share_of_first: float
    sparsity_rank: float
    norm_rank: float


def trends(curves: VisionCurves) -> Trends:
    """What Figure 7 shows, in three numbers."""
    from scipy.stats import spearmanr

    sparsity, norm = (curves.by_layer[name][:, -1] for name in ("sparsity", "norm"))
    ranks = [float(spearmanr(curves.epochs, values).statistic) for values in (sparsity, norm)]
    return Trends(float(sparsity[-1] / sparsity[0]), *ranks)


def stated_rate_share(runs: list[VisionRun]) -> float:
    """The smallest last nnz/T over the first among runs at the paper's rate that learnt; nan if there is none."""
    shares = [
        trends(run.curves).share_of_first
        for run in runs
        if run.settings.learning_rate == STATED_RATE and run.accuracy >= LEARNT
    ]
    return min(shares, default=float("nan"))


# ---- words
def _numbers_of(archived: VisionRun) -> dict[str, float]:
    last = trends(archived.curves)
    sparsity = archived.curves.by_layer["sparsity"]
    return {
        f"{CIFAR10}_epochs": float(archived.curves.epochs[-1]),
        f"{CIFAR10}_training_images": float(archived.facts["data"]["train"]),
        f"{CIFAR10}_last_over_lowest": float(sparsity[-1, -1] / sparsity[:, -1].min()),
        f"{CIFAR10}_share_of_first": last.share_of_first,
        f"{CIFAR10}_sparsity_rank": last.sparsity_rank,
        f"{CIFAR10}_norm_rank": last.norm_rank,
        f"{CIFAR10}_accuracy": archived.accuracy,
        f"{CIFAR10}_layers_sparser": float(np.sum(sparsity[-1] < sparsity[0])),
    }


def _archived_words(archived: VisionRun, numbers: dict[str, float]) -> str:
    sparsity, norm = (archived.curves.by_layer[name][:, -1] for name in ("sparsity", "norm"))
    return (
        f"CIFAR-10, {int(archived.curves.epochs[-1])} epochs: nnz/T of the last layer {sparsity[0]:.3f} → {sparsity[-1]:.3f} "
        f"({numbers[f'{CIFAR10}_share_of_first']:.2f} of the first), rank correlation with the epoch "
        f"{numbers[f'{CIFAR10}_sparsity_rank']:.3f}; $‖W‖_F$ {norm[0]:.3g} → {norm[-1]:.3g}, rank correlation "
        f"{numbers[f'{CIFAR10}_norm_rank']:.3f}; {int(numbers[f'{CIFAR10}_layers_sparser'])} of {archived.settings.layers} layers end "
        f"sparser than they began; test accuracy {archived.accuracy:.3f}."
    )


def _digit_words(found: list[Trends], accuracy: float, epochs: int) -> str:
    def span(values: list[float], digits: int) -> str:
        low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
        return low if low == high else f"{low} to {high}"

    shares = span([result.share_of_first for result in found], 2)
    ranks = (span([getattr(trend, name) for trend in found], 3) for name in ("sparsity_rank", "norm_rank"))
    seeds = f"{len(found)} seeds" if len(found) > 1 else "one seed"
    return (
        f"Digits, {epochs} epochs, {seeds}: last nnz/T over first {shares}, rank correlation with the epoch {next(ranks)}, of $‖W‖_F$ "
        f"{next(ranks)}; mean test accuracy {accuracy:.3f}."
    )


def _note(archived: VisionRun) -> str:
    settings, data = archived.settings, archived.facts["data"]
    altered = [
        word
        for word, given in ((f"shifted by up to {settings.crop} pixels", settings.crop), ("mirrored", settings.flip))
        if given
    ]
    extras = [
        f"{settings.warmup} steps of warm-up" if settings.warmup else "",
        f"gradients cut to norm {settings.clip:g}" if settings.clip else "",
        f"images {' and '.join(altered)}" if altered else "",
        f"weight decay {settings.weight_decay:g}" if settings.weight_decay else "",
    ]
    added = ", ".join(extra for extra in extras if extra)
    stopped = "" if archived.finished else f" of {settings.epochs}"
    return (
        "We see both trends of the paper, but with fewer images and epochs than it used, so whether its own numbers come out is open. The "
        "paper trained for 400 epochs on 50,000 images at a fixed rate of 3e-3 and does not state its "
        "optimizer; here "
        f"{int(archived.curves.epochs[-1])} epochs{stopped} on {data['train']:,} images, {_rule(archived)}, batch {settings.batch}"
        + (f", {added}." if added else ".")
    )


def _turn(run: VisionRun) -> str:
    """What was measured, in a sentence, if a run went through all its epochs and ends with a denser map than it once had."""
    epochs, s = run.curves.epochs, run.curves.by_layer["sparsity"][:, -1]
    lowest = int(np.argmin(s))
    if not run.finished or s[-1] <= DENSER * s[lowest]:
        return ""
    falling = trends(run.curves.until(int(epochs[lowest])))
    accuracy = run.curves.scalars["train_accuracy"]
    return (
        f"nnz/T is lowest at epoch {int(epochs[lowest])} ({s[lowest]:.3f}, rank correlation {falling.sparsity_rank:.3f} up to there) and "
        f"{s[-1]:.3f} at the end, while the training accuracy goes from {accuracy[lowest]:.2f} to {accuracy[-1]:.2f} "
        "and $‖W‖_F$ grows on."
    )


def _other_words(other: VisionRun) -> str:
    s, norm = (other.curves.by_layer[name][:, -1] for name in ("sparsity", "norm"))
    sentence = (
        f"Tried too: {_name(other)}, {int(other.curves.epochs[-1])} epochs: "
        f"nnz/T {s[0]:.3f} → {s[-1]:.3f}, rank correlation {trends(other.curves).sparsity_rank:.3f}, "
        f"$‖W‖_F$ {norm[0]:.5g} → {norm[-1]:.5g}, training accuracy {other.curves.scalars['train_accuracy'][-1]:.2f}."
    )
    if other.accuracy < LEARNT:
        sentence += f" It had learnt little by then (test accuracy {other.accuracy:.3f}); more epochs were not tried."
    return " ".join(filter(None, (sentence, _turn(other))))


def _rule(run: VisionRun) -> str:
    optimiser = "AdamW" if run.settings.optimiser == "adamw" else "SGD with momentum .9"
    return f"{optimiser} at rate {run.settings.learning_rate:g}"


def _name(run: VisionRun) -> str:
    """What distinguishes a run on CIFAR-10 from the others: how it steps, how far it shifts its images, and its seed if that is not 0."""
    seed = f", seed {run.settings.seed}" if run.settings.seed else ""
    return f"{_rule(run)}, shifts up to {run.settings.crop}{seed}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch on one thread and without oneDNN, whose preparations take longer than products of this size; restored afterwards."""
    import torch

    threads, prepared = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = prepared
