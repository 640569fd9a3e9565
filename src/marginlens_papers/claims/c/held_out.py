"""C, abstract: how well the automaton and n-grams predict held-out text, and what W cannot use: order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

import marginlens as ml
from marginlens.nexttoken import score_held_out
from marginlens.nexttoken.scores import HeldOutScores
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.tables import Table, read

SEED = 31
WINDOW, VOCABULARY, HELD_OUT = 3, 30, 0.2
NOISE = 0.2  # share of tokens that are drawn from the whole vocabulary
DISTANCES = np.array(
    [0.05, 0.6, 0.15]
)  # shares of tokens that repeat the last one, the one before, and the one before that
TRIGRAM = "trigram of all of the text"


class C_H(Claim):
    labels = ("C Abstract",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Score the automaton and n-grams on both generated texts, and read the table of the real one."""
        n_tokens = 200_000 if effort is Effort.PAPER else 60_000
        found: dict[str, HeldOutScores] = {}
        for name in progress.each(("order", "layer")):
            rng = np.random.default_rng([SEED, len(found)])
            weigh = (lambda window: DISTANCES) if name == "order" else _layer(rng)
            found[name] = _scored(_text(n_tokens, weigh, rng), different=name == "order")
        chance = DISTANCES + NOISE / VOCABULARY
        second, unordered = chance[1] / chance.sum(), chance[1:].mean() / chance.sum()
        (automaton, *others), order = found["layer"].scores.values(), found["order"].scores
        limited, trigram = order["automaton"], order[TRIGRAM]
        best = max(score.accuracy for score in others)
        numbers = {
            "errors_above_the_bound_without_order": _errors(limited.accuracy, unordered, limited.n_samples),
            "errors_of_the_trigram_below_its_limit": -_errors(trigram.accuracy, second, trigram.n_samples),
            "lead_of_the_trigram": trigram.accuracy - limited.accuracy,
            "lead_of_the_automaton": automaton.accuracy - best,
            "log_loss_above_the_best_n_gram": automaton.mixed_log_loss - min(score.mixed_log_loss for score in others),
        }
        real = shakespeare()[0]["held_out"]["scores"]
        measured = (
            f"If order decides, the automaton is right in {limited.accuracy:.3f} of {limited.n_samples} held-out windows of three "
            f"different tokens ({unordered:.3f} at most without order), the trigram in {trigram.accuracy:.3f} (its limit: {second:.3f}). "
            f"On the text of a layer the automaton is right in {automaton.accuracy:.3f}, the best n-gram in {best:.3f}. On windows of 3 "
            "characters of tiny Shakespeare: " + ", ".join(f"{row['rule']} {row['accuracy']:.3f}" for row in real) + "."
        )
        tables = {name: {rule: score.accuracy for rule, score in held.scores.items()} for name, held in found.items()}
        tables["shakespeare"] = {row["rule"]: row["accuracy"] for row in real}
        return Finding(measured, numbers, tables)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Bars of accuracy by rule, a group for each text."""
        fig, axes = ml.plotting.figure(3, width=4.2, height=3.4)
        titles = ("Order decides", "Text of a layer", "Tiny Shakespeare")
        for ax, title, scores in zip(axes, titles, finding.arrays.values(), strict=True):
            colours = [ml.plotting.ACCENTS[int(rule != "automaton")] for rule in scores]
            ax.barh(range(len(scores)), list(scores.values()), color=colours)
            ax.set_yticks(range(len(scores)), list(scores) if ax is axes[0] else [])
            ax.set(xlim=(0.0, 1.0), xlabel="accuracy")
            ax.invert_yaxis()
            ax.set_title(title)
        return {"held-out": fig}


def _errors(accuracy: float, expected: float, n_samples: int) -> float:
    """How many standard errors a measured accuracy is above the expected one."""
    return float((accuracy - expected) / np.sqrt(expected * (1.0 - expected) / n_samples))


@dataclass(frozen=True)
class HeldOutTable(Table):
    """The output of `marginlens graph --held-out 0.1 --json` for a text, with windows of 3 and 8 characters and of 8 words."""

    MADE_BY = "marginlens graph tinyshakespeare.txt --held-out 0.1 --json"
    WINDOWS: ClassVar[tuple[int, ...]] = (3, 8, 8)

    runs: tuple[dict[str, Any], ...]

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        runs = tuple(values["runs"])
        if tuple(run["settings"]["window"] for run in runs) != cls.WINDOWS:
            raise ValueError("other windows")
        return cls(runs)


def shakespeare() -> tuple[dict[str, Any], ...]:
    """The runs on tiny Shakespeare, which come with the package."""
    return read("shakespeare-held-out", HeldOutTable, {"file": "tinyshakespeare.txt"}).runs


def _text(n_tokens: int, weigh: Any, rng: np.random.Generator) -> IntArray:
    """A text whose next token is one of the last three with the probabilities `weigh(window)`, nearest first, or random."""
    ids = rng.integers(0, VOCABULARY, n_tokens)
    drawn = rng.random(n_tokens)
    for t in range(WINDOW, n_tokens):
        chosen = int(np.searchsorted(np.cumsum(weigh(ids[t - WINDOW : t][::-1])), drawn[t]))
        if chosen < WINDOW:
            ids[t] = ids[t - 1 - chosen]
    return ids


def _layer(rng: np.random.Generator) -> Any:
    """The attention of a layer with random weights over one-hot tokens, as probabilities of the last three tokens, less the noise."""
    M: FloatArray = np.exp(2.0 * rng.standard_normal((VOCABULARY, VOCABULARY)))
    return lambda window: (1.0 - NOISE) * M[window[0], window] / M[window[0], window].sum()


def _scored(ids: IntArray, *, different: bool) -> HeldOutScores:
    """The automaton and n-grams on the end of a text, only on windows of three different tokens if `different`."""
    text = "".join(chr(ord("A") + token) for token in ids.tolist())
    split = ml.data.split_text_windows(text, WINDOW, held_out=HELD_OUT)
    if different:
        rows = np.sort(split.held_out.tokens.reshape(-1, WINDOW), axis=1)
        chosen = np.flatnonzero((np.diff(rows) > 0).all(axis=1))
        split = split._replace(held_out=split.held_out.take(chosen))
    return score_held_out(split, {"automaton": ml.NextTokenAutomaton.fit(split.training.data)})
