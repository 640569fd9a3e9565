"""Explanations of classified texts: each token's attention and vote, as a table and as highlighted HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from marginlens.pages import render
from marginlens.text.vectorize import Span
from marginlens.typing import FloatArray

_TABLE_ROWS = 15  # rows of the printed table
_FULL_COLOUR = 0.25  # share of all contributions at which a word has the full colour


@dataclass(frozen=True)
class TokenRow:
    """One distinct token of a text: how often it stands there, and what it does.

    `attention` is its share of the softmax over all its occurrences, `a` = ⟨E_s,p⟩, `b` = ⟨E_s,v⟩, `contribution` = attention · b; the
    contributions of all tokens add up to f. `alpha` and `posterior_difference` are those of the training texts.
    """

    token: str
    count: int
    attention: float
    a: float
    b: float
    contribution: float
    alpha: float
    posterior_difference: float


@dataclass(frozen=True, repr=False)
class TextExplanation:
    """Which tokens of a text decide, the most attended first.

    `f` are the log-odds of `classes[1]`, `margin` is by how much the selected token beats every other, `words` are the stretches of the
    text that have tokens, with what each contributes; all of them together contribute f.
    """

    text: Any
    label: Any
    classes: tuple[Any, Any]
    f: float
    margin: float
    rows: tuple[TokenRow, ...]
    words: tuple[tuple[Span, float], ...]

    @property
    def probability(self) -> float:
        """Of the predicted label."""
        return float(np.exp(-np.logaddexp(0.0, -abs(self.f))))

    @property
    def selected(self) -> str | None:
        """The token with the highest score; None where the text has no known token."""
        return max(self.rows, key=lambda row: row.a).token if self.rows else None

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.rows:
            return f"{self.label}: none of the text's words is known, so this is a guess."
        return f"{self.label} (probability {self.probability:.3f}, f = {self.f:+.3f}); selected token: {self.selected}"

    def table(self, n_rows: int = _TABLE_ROWS) -> list[dict[str, str]]:
        """The tokens with the largest contributions as cells of text."""
        largest = sorted(self.rows, key=lambda row: -abs(row.contribution))[:n_rows]
        return [
            {
                "token": row.token,
                "times": str(row.count),
                "attention": f"{row.attention:.3f}",
                "contribution": f"{row.contribution:+.4f}",
                "⟨E,p⟩": f"{row.a:+.2f}",
                "⟨E,v⟩": f"{row.b:+.2f}",
                "α": f"{row.alpha:+.1e}",
                "posterior difference": f"{row.posterior_difference:+.3f}",
            }
            for row in largest
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the words' positions, as JSON holds it."""
        return {
            "text": self.text,
            "label": self.label,
            "probability": self.probability,
            "f": self.f,
            "selected": self.selected,
            "selection_margin": self.margin,
            "tokens": [asdict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        cells = self.table()
        widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in cells[0]} if cells else {}
        lines = [
            "  ".join(
                f"{row[name]:{'<' if name == 'token' else '>'}{width}}" for name, width in widths.items()
            ).rstrip()
            for row in ([{name: name for name in widths}, *cells] if cells else [])
        ]
        more = len(self.rows) - len(cells)
        rest = [f"and {more} tokens that contribute less"] if more else []
        return "\n".join([self.verdict, *lines, *rest])

    def __repr__(self) -> str:
        return f"TextExplanation({self.verdict})"

    def to_html(self) -> str:
        """The text with every word coloured by its contribution, and the table below; all of it escaped, in one element."""
        return html_page([self], page=False)

    _repr_html_ = to_html

    def stretches(self) -> Iterator[tuple[str, str, float, float]]:
        """What stands before each word with tokens, the word, what it contributes, and how deep its colour is, from -1 to 1."""
        total = sum(abs(contribution) for _, contribution in self.words) or 1.0
        end = 0
        for span, contribution in self.words:
            if isinstance(self.text, str):
                before, word = self.text[end : span.start], self.text[span.start : span.end]
            else:
                before, word = " " * bool(end), str(int(self.text[span.start]))
            end = span.end
            yield before, word, contribution, contribution / total / _FULL_COLOUR
        if isinstance(self.text, str):
            yield self.text[end:], "", 0.0, 0.0


def html_page(explanations: list[TextExplanation], *, page: bool = True) -> str:
    """A whole page of explanations, or only the element of the first."""
    filters = {"background": _background}
    return render("marginlens.text", "explanation.html", filters, explanations=explanations, page=page).strip() + "\n"


def explain_sample(model: Any, sample: Any) -> TextExplanation:
    """The explanation of one text, or one list of token ids, by a fitted classifier."""
    ids, count = np.unique(model.tokens_.positions([sample])[0], return_counts=True)
    a, b = model.a_[ids], model.b_[ids]
    attention = count * np.exp(a - a.max(initial=-np.inf))
    attention = attention / attention.sum() if len(ids) else attention
    contribution = attention * b
    each = dict(zip(ids.tolist(), (contribution / count).tolist(), strict=True))  # of one occurrence
    words = tuple(
        (span, sum(share * each[s] for s, share in zip(span.tokens, span.shares, strict=True)))
        for span in model.tokens_.spans(sample)
    )
    known, names = model.statistics_, model.tokens_.names
    columns = (attention, a, b, contribution, known.alpha[ids], known.posterior_difference[ids])
    rows = [
        TokenRow(names[s], int(n), *map(float, values))
        for s, n, *values in zip(ids.tolist(), count, *columns, strict=True)
    ]
    rows.sort(key=lambda row: -row.attention)
    f = float(model.decision_function([sample])[0])
    classes = model.classes_.tolist()
    first, second = top_two(a)
    margin = (first - second) / model.norm_p_
    return TextExplanation(sample, classes[int(f > 0.0)], (classes[0], classes[1]), f, margin, tuple(rows), words)


def top_two(scores: FloatArray) -> tuple[float, float]:
    """The two highest scores; the second is -∞ where there is one, both are NaN where there is none."""
    if not len(scores):
        return float("nan"), float("nan")
    ranked = np.sort(scores)[::-1]
    return float(ranked[0]), float(ranked[1]) if len(ranked) > 1 else -np.inf


def _background(strength: float) -> str:
    """The background of a word: red-brown for the second class, blue for the first, deeper for a larger part."""
    from marginlens.plotting.style import GLOBAL, LOCAL

    depth = min(abs(strength), 1.0) ** 0.5
    red, green, blue = (int((GLOBAL if strength > 0 else LOCAL)[k : k + 2], 16) for k in (1, 3, 5))
    return f"background:rgba({red},{green},{blue},{0.75 * depth:.2f});border-radius:3px;padding:.1em .15em"
