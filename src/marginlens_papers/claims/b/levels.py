"""B Fig 2: on K-level data, trained embeddings order tokens by their posterior difference."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.b.embedding_runs import LEVELS, EmbeddingRun, EmbeddingSettings, embedding_runs
from marginlens_papers.claims.b.one_layer import OneLayerRun, train_one_layer
from marginlens_papers.claims.b.text_runs import Ranks, panels, ranks_of, spearman

SEED = 2
SIZES, SEEDS = (
    ((1_000, 60), (5_000, 20)),
    (0, 1, 2, 3),
)  # sequences and epochs of the other reduced runs, and their seeds
LENGTH = 256
RELEVANT = np.flatnonzero(Levels().level > 0)


class B_F2(Claim):
    labels = ("B Fig 2", "B Eq. (34)", "B Eq. (35)", "B Eq. (37)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train the reduced model, and measure it and the kept one alike."""
        paper = effort is Effort.PAPER
        n, d, epochs = (20_000, 256, 10) if paper else (6_000, 256, 5)
        others = SIZES if paper else ()
        progress.expect(epochs + sum(len(SEEDS) * other[1] for other in others) + 1)
        live = _trained(n, d, epochs, SEED, progress)
        sizes = {size: [_trained(size, d, count, seed, progress) for seed in SEEDS] for size, count in others}
        full = stated_run()
        numbers: dict[str, float] = {"live_cosine_of_p_and_v": ml.correlation(live.parameters.p, live.parameters.v)}
        ranks: dict[str, Ranks] = {}
        law = Levels().posterior_difference[RELEVANT]
        for name, run in (("full", full), ("live", live)):
            difference = run.statistics.posterior_difference
            found = ranks_of(difference, run.a, run.b, RELEVANT)
            ranks[name] = found
            numbers |= {f"{name}_v": found.v[0], f"{name}_p": found.p[0], f"{name}_loss": run.loss}
            numbers[f"{name}_levels_out_of_order"] = out_of_order(level_means(run.a))
            numbers |= _along_v(name, run.b)
            numbers[f"{name}_v_by_law"] = float(spearman(run.b[RELEVANT], law))
            numbers[f"{name}_p_by_law"] = float(spearman(run.a[RELEVANT], np.abs(law)))
        for size, runs in sizes.items():
            both = [(run, run.statistics.posterior_difference[RELEVANT]) for run in runs]
            p = [float(spearman(run.a[RELEVANT], np.abs(difference))) for run, difference in both]
            v = [float(spearman(run.b[RELEVANT], difference)) for run, difference in both]
            numbers |= {
                f"smallest_v_of_{size}": min(v),
                f"smallest_p_of_{size}": min(p),
                f"largest_p_of_{size}": max(p),
            }
        progress.advance()
        order = "in order of level" if numbers["full_levels_out_of_order"] == 0 else "not in order of level"
        measured = (
            f"Full size: Spearman {ranks['full']}, loss {full.loss:.1e}, mean $⟨E_s, p⟩$ {order}; against the law's own eight values "
            f"{numbers['full_v_by_law']:.3f} and {numbers['full_p_by_law']:.3f}, since tokens of one level differ in the sequences "
            f"alone. Reduced, trained here (d = {d}, {n:,} sequences, {epochs} epochs): Spearman {ranks['live']}, loss {live.loss:.1e}."
        )
        share = abs(numbers["full_offset"]) / numbers["full_spread"]
        note = (
            f"The irrelevant tokens are not a cloud around zero along v. Their $⟨E_s, v⟩$ is {numbers['full_offset']:+.2f} ± "
            f"{numbers['full_offset_spread']:.2f}, {share:.2f} of the spread of the relevant tokens, and {numbers['live_offset']:+.2f} ± "
            f"{numbers['live_offset_spread']:.2f} in the reduced run. So {numbers['full_wrong_signs_of_level_1']:.0f} of the 12 tokens "
            "of the lowest level have the wrong sign of $⟨E_s, v⟩$. The paper does not state the number of sequences, and it matters"
        )
        if sizes:
            offsets = [_along_v("", run.b)["_offset"] for runs in sizes.values() for run in runs]
            numbers |= {"smallest_offset": min(offsets), "largest_offset": max(offsets)}
            ranges = [
                f"{numbers[f'smallest_p_of_{size}']:.2f} to {numbers[f'largest_p_of_{size}']:.2f} with {size:,}"
                for size in sizes
            ]
            note += (
                f": in the reduced model Spearman of (p) is {', '.join(ranges)}, {ranks['live'].p[0]:.2f} with {n:,}; over these seeds "
                f"the offset goes from {min(offsets):+.2f} to {max(offsets):+.2f}"
            )
        arrays: dict[str, Any] = {"full": full, "live": live, "reduced": f"d = {d}, {n:,} sequences, {epochs} epochs"}
        archived = [name for name in numbers if name.startswith("full")]
        return Finding(measured, numbers, arrays, note + ".", archived=archived)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The paper's two panels for both runs, and what each level has on average."""
        full, live, reduced = (finding.arrays[name] for name in ("full", "live", "reduced"))
        size = f"d = {full.settings.d_model}, {full.facts['sequences']:,} sequences, {int(full.epochs[-1])} epochs"
        return {
            "full": panels(full, f"K-level data, full size: {size}"),
            "reduced": panels(live, f"K-level data, reduced: {reduced}"),
            "levels": _levels(full, live),
        }


def level_means(a: FloatArray) -> FloatArray:
    """(n_levels + 1,) the mean ⟨E_s, p⟩ of irrelevant tokens, then of each level."""
    level = Levels().level
    return np.array([a[level == k].mean() for k in range(level.max() + 1)])


def out_of_order(means: FloatArray) -> int:
    """How many levels have no larger mean than the level below."""
    return int(np.sum(~(np.diff(means) > 0.0)))


def stated_run() -> EmbeddingRun:
    """The kept run at the paper's rate for synthetic data."""
    return min(embedding_runs(LEVELS, 1), key=lambda run: abs(np.log(run.settings.learning_rate / 1e-4)))


def _trained(n: int, d: int, epochs: int, seed: int, progress: Progress) -> OneLayerRun:
    """The reduced model, trained on n sequences."""
    settings = EmbeddingSettings(
        d_model=d, epochs=epochs, learning_rate=1e-3, weight_decay=1e-4, seed=seed, milestones=()
    )
    return train_one_layer(level_sequences(n, LENGTH, seed), settings, progress.advance)


def _along_v(name: str, b: FloatArray) -> dict[str, float]:
    """Where irrelevant tokens lie along v, and which relevant tokens have the sign of ⟨E_s, v⟩ that they should."""
    law = Levels()
    irrelevant, relevant, lowest = law.level == 0, law.level > 0, law.level == 1
    right = np.sign(b) == law.sign
    return {
        f"{name}_offset": float(b[irrelevant].mean()),
        f"{name}_offset_spread": float(b[irrelevant].std()),
        f"{name}_spread": float(b[relevant].std()),
        f"{name}_right_signs": float(np.mean(right[relevant])),
        f"{name}_wrong_signs_of_level_1": float(np.sum(~right[lowest])),
    }


def _levels(full: Any, live: Any) -> Figure:
    """⟨E_s, p⟩ and |⟨E_s, v⟩| by level: the mean and the middle 80% of tokens."""
    fig, (left, right) = ml.plotting.figure(2, width=5.2, height=4.2)
    law = Levels()
    names = ["none", *(f"{1.0 - 2.0 * delta:g}" for delta in law.deltas)]
    shown = (
        (full, "full size", ml.plotting.ACCENTS[0], -0.12),
        (live, "reduced, trained here", ml.plotting.ACCENTS[1], 0.12),
    )
    for run, label, colour, shift in shown:
        for ax, values in ((left, run.a), (right, run.b * np.where(law.sign == 0, 1, law.sign))):
            parts = [values[law.level == k] for k in range(len(names))]
            mean = np.array([part.mean() for part in parts])
            low, high = (np.array([np.percentile(part, q) for part in parts]) for q in (10, 90))
            places = np.arange(len(names)) + shift
            ax.vlines(places, low, high, color=colour, linewidth=1.4)
            ax.plot(places, mean, "o", color=colour, markersize=5, label=label)
    for ax in (left, right):
        ax.set_xticks(np.arange(len(names)), names)
        ax.set_xlabel("modulus of the law's posterior difference, by level")
    left.set(ylabel="$⟨E_s, p⟩$: mean, middle 80%", title="Selection grows with importance")
    right.set(ylabel="$⟨E_s, v⟩$ times the token's sign", title="Prediction grows with importance")
    left.legend(loc="upper left")
    return fig
