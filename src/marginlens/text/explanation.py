"""Explanations of classified texts: each token's attention and vote, as a table and as highlighted HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.pages import render
from marginlens.result import Displayed, Headline, Tabular, axes_for, counted
from marginlens.result.drawing import MAX_BARS, draw_bars
from marginlens.result.palette import GLOBAL, LOCAL
from marginlens.text.phrases import Span
from marginlens.typing import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TABLE_ROWS = 15  # rows of the printed table
_LISTED_CLASSES = 6  # whose probabilities are listed where there are more than two
_DEEPEST = 0.45  # opacity of the deepest colour, on which dark and light letters can both be read
_FULL_COLOUR = 0.25  # share of all contributions at which a word has the full colour


@dataclass(frozen=True)
class TokenRow:
    """One distinct token of a text: how often it stands there, and what it does.

    `attention` is its share of the softmax, `a` = ⟨E_s,p⟩, `b` = ⟨E_s,v⟩ its vote, `contribution` = attention · b; the contributions of all
    tokens, the rest token included, add up to f. With two classes b and contribution speak for the second, with more for the predicted
    one; `contributions` has them for every class, in the order of the explanation's `outputs`. `alpha` and `posterior_difference` are
    those of the training texts, of the same class; NaN for the rest token.
    """

    token: str
    count: int
    attention: float
    a: float
    b: float
    contribution: float
    alpha: float
    posterior_difference: float
    contributions: tuple[float, ...] = ()


REST_TOKEN = "(rest)"  # what the token that stands in every text is called


@dataclass(frozen=True, repr=False)
class TextExplanation(Displayed, Tabular):
    """Which tokens of a text decide, the most attended first.

    `f` is what is explained: with two classes the log-odds of `classes[1]`, with more the output of the predicted class. `outputs` are
    all outputs, one for two classes, else one for each. `probabilities` are those of `classes`. `margin` is by how much the selected token
    beats every other, `words` are the stretches of the text that have tokens, with what each contributes to f; all of them and the rest
    token, `rest`, together contribute f. As a data frame: a row for each of `rows`.
    """

    text: Any
    label: Any
    classes: tuple[Any, ...]
    f: float
    margin: float
    rows: tuple[TokenRow, ...]
    words: tuple[tuple[Span, float], ...]
    outputs: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()

    @property
    def probability(self) -> float:
        """Of the predicted label."""
        return max(self.probabilities)

    @property
    def known(self) -> tuple[TokenRow, ...]:
        """The rows of the text's tokens, without the rest token."""
        return tuple(row for row in self.rows if row.count)

    @property
    def rest(self) -> TokenRow:
        """The row of the rest token, which stands in every text and so counts no occurrence."""
        return next(row for row in self.rows if not row.count)

    @property
    def selected(self) -> str | None:
        """The token of the text with the highest score; None where it has no known token."""
        return max(self.known, key=lambda row: row.a).token if self.known else None

    @property
    def poles(self) -> tuple[str, str]:
        """What a negative and what a positive contribution speak for."""
        if len(self.outputs) == 1:
            return str(self.classes[0]), str(self.classes[1])
        return f"against {self.label}", f"for {self.label}"

    def likeliest(self, n_classes: int = _LISTED_CLASSES) -> list[tuple[str, float]]:
        """The classes with the highest probabilities, and these."""
        ranked = sorted(zip(self.classes, self.probabilities, strict=True), key=lambda pair: -pair[1])
        return [(str(name), share) for name, share in ranked[:n_classes]]

    def _columns(self) -> dict[str, Any]:
        names = ("token", "count", "attention", "a", "b", "contribution", "alpha", "posterior_difference")
        columns: dict[str, Any] = {name: [getattr(row, name) for row in self.rows] for name in names}
        if len(self.outputs) > 1:
            columns["contributions"] = np.array([row.contributions for row in self.rows])
        return columns

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.known:
            share = f"probability {self.probability:.3f}"
            return (
                f"{self.label} ({share}): none of the text's words is known, so this is the share in training, no more."
            )
        return f"{self.label} (probability {self.probability:.3f}, f = {self.f:+.3f}); selected token: {self.selected}"

    def table(self, n_rows: int = _TABLE_ROWS) -> list[dict[str, str]]:
        """The tokens with the largest contributions as cells of text."""
        largest = sorted(self.rows, key=lambda row: -abs(row.contribution))[:n_rows]
        return [
            {
                "token": row.token,
                "times": str(row.count) if row.count else "",
                "attention": f"{row.attention:.3f}",
                "contribution": f"{row.contribution:+.4f}",
                "⟨E,p⟩": f"{row.a:+.2f}",
                "⟨E,v⟩": f"{row.b:+.2f}",
                "α": f"{row.alpha:+.1e}" if row.count else "",
                "posterior difference": f"{row.posterior_difference:+.3f}" if row.count else "",
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
            "probabilities": {str(name): value for name, value in zip(self.classes, self.probabilities, strict=True)},
            "outputs": list(self.outputs),
            "tokens": [
                asdict(row) | ({} if row.count else {"alpha": None, "posterior_difference": None}) for row in self.rows
            ],
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
        rest = [f"and {counted(more, 'token that contributes', 'tokens that contribute')} less"] if more else []
        return "\n".join([self.verdict, *lines, *rest])

    def __repr__(self) -> str:
        return f"TextExplanation({self.verdict})"

    def to_html(self) -> str:
        """The text with every word coloured by its contribution, and the table below; all of it escaped, in one element."""
        return html_page([self], page=False)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the largest contributions as bars: to the right what speaks for the second of `poles`, to the left for the first."""
        ax = axes_for(ax)
        largest = sorted(self.rows, key=lambda row: -abs(row.contribution))[:MAX_BARS]
        values = [row.contribution for row in largest]
        colours = [GLOBAL if value > 0.0 else LOCAL for value in values]
        first, second = self.poles
        draw_bars(
            ax,
            [row.token for row in largest],
            values,
            f"← {first}    contribution to f    {second} →",
            colours=colours,
            ylabel="token",
        )
        return ax

    def _headline(self) -> Headline:
        return Headline(str(self.label), self.verdict.removeprefix(f"{self.label} "))

    def _facts(self) -> dict[str, Any]:
        likeliest = {name: round(share, 3) for name, share in self.likeliest()}
        rest = self.rest.contribution
        return {
            "probabilities": likeliest,
            "f": self.f,
            "selected token": self.selected,
            "its margin": self.margin,
            "rest token": rest,
        }

    def _text_html(self) -> str:
        return render(
            "marginlens.text", "explanation.html", {"background": background}, explanations=[self], part="text"
        ).strip()

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
    filters = {"background": background}
    part = "page" if page else "element"
    return render("marginlens.text", "explanation.html", filters, explanations=explanations, part=part).strip() + "\n"


def explain_sample(model: Any, sample: Any) -> TextExplanation:
    """The explanation of one text, or one list of token ids, by a fitted classifier."""
    places = model.tokens_.positions([sample]).tokens
    ids, count = np.unique(places, return_counts=True)
    proba = model.predict_proba([sample])[0]
    outputs = np.atleast_1d(model.decision_function([sample])[0])
    best = int(outputs[0] > 0.0) if len(outputs) == 1 else int(outputs.argmax())
    column = 0 if len(outputs) == 1 else best
    a = np.append(model.a_[ids], model.rest_a_)
    votes = np.vstack(
        [model.b_[ids].reshape(len(ids), len(model.rest_b_)), model.rest_b_]
    )  # (n_distinct + 1, n_outputs)
    attention = np.exp(a - a.max())
    attention /= attention.sum()
    contributions = attention[:, None] * votes
    contribution = contributions[:, column]
    each = dict(zip(ids.tolist(), (contribution[:-1] / count).tolist(), strict=True))  # of one of its places
    words = tuple(
        (span, sum(share * each[s] for s, share in zip(span.tokens, span.shares, strict=True)))
        for span in model.tokens_.spans(sample)
    )
    known = model.statistics_ if len(outputs) == 1 else model.statistics_of(model.classes_[best])
    names = [*(model.tokens_.names[s] for s in ids.tolist()), REST_TOKEN]
    alpha, difference = (np.append(values[ids], np.nan) for values in (known.alpha, known.posterior_difference))
    columns = (attention, a, votes[:, column], contribution, alpha, difference)
    rows = [
        _row(name, int(n), list(map(float, values)), tuple(of_all.tolist()))
        for name, n, of_all, *values in zip(names, np.append(count, 0), contributions, *columns, strict=True)
    ]
    rows.sort(key=lambda row: -row.attention)
    classes = tuple(model.classes_.tolist())
    first, second = top_two(a[:-1])
    return TextExplanation(
        sample,
        classes[best],
        classes,
        float(outputs[column]),
        first - second,
        tuple(rows),
        words,
        tuple(outputs.tolist()),
        tuple(proba.tolist()),
    )


def _row(name: str, count: int, values: list[float], contributions: tuple[float, ...]) -> TokenRow:
    attention, a, b, contribution, alpha, difference = values
    return TokenRow(name, count, attention, a, b, contribution, alpha, difference, contributions)


def top_two(scores: FloatArray) -> tuple[float, float]:
    """The two highest scores; the second is -∞ where there is one, both are NaN where there is none."""
    if not len(scores):
        return float("nan"), float("nan")
    ranked = np.sort(scores)[::-1]
    return float(ranked[0]), float(ranked[1]) if len(ranked) > 1 else -np.inf


def background(strength: float) -> str:
    """The colour behind a word: red-brown for the second of the poles, blue for the first, deeper for a larger part."""
    depth = min(abs(strength), 1.0) ** 0.5
    red, green, blue = (int((GLOBAL if strength > 0 else LOCAL)[k : k + 2], 16) for k in (1, 3, 5))
    return f"background:rgba({red},{green},{blue},{_DEEPEST * depth:.2f})"
