"""Explanations of classified texts: what each token contributes to the decision, as a table and as highlighted HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.embeddings.statistics import TokenStatistics
from marginlens.pages import render
from marginlens.result import Displayed, Headline, Tabular, counted, drawn
from marginlens.result.drawing import MAX_BARS, draw_bars
from marginlens.result.palette import GLOBAL, LOCAL
from marginlens.text.learning import TokenSets, log_probabilities
from marginlens.text.phrases import Span
from marginlens.typing import Axes, FloatArray

_TABLE_ROWS = 15  # rows of the printed table
_NAMED = 3  # tokens or words that a sentence names
SELECTED_ATTENTION = 0.5  # from which on a token is called selected: it then counts more than all others together
_LISTED_CLASSES = 6  # whose probabilities are listed where there are more than two
_DEEPEST = 0.45  # opacity of the deepest colour, on which dark and light letters can both be read
FULL_COLOUR = 0.5  # contribution, in log-odds, from which on a word has the full colour: from 50 to 62 % by itself


class TokenRow(NamedTuple):
    """One distinct token of a text: how often it stands there, and what it does.

    `attention` is its share of the softmax, `a` = ⟨E_s,p⟩, `b` = ⟨E_s,v⟩ its vote, `contribution` = attention · b; the contributions of all
    tokens, the rest token included, add up to f. With two classes b and contribution speak for the second, with more for the predicted
    one; `contributions` has them for every class, in the order of the explanation's `outputs`. `alpha` and `posterior_difference` are
    those of the training texts, of the same class; NaN for the rest token. `in_training` counts its occurrences in the training texts
    of every class.
    """

    token: str
    count: int  # type: ignore[assignment]  # in place of the method of tuples
    attention: float
    a: float
    b: float
    contribution: float
    alpha: float
    posterior_difference: float
    contributions: tuple[float, ...] = ()
    in_training: tuple[int, ...] = ()

    @property
    def called(self) -> str:
        """The token in a sentence."""
        return f"'{self.token}'" if self.count else "the rest token"


REST_TOKEN = "(rest)"  # what the token that stands in every text is called


@dataclass(frozen=True, repr=False)
class TextExplanation(Displayed, Tabular):
    """Which tokens of a text decide, the one that contributes most first.

    `f` is what is explained: with two classes the log-odds of `classes[1]`, with more the output of the predicted class. `outputs` are
    all outputs, one for two classes, else one for each. `probabilities` are those of `classes`. `margin` is by how much the highest score
    of the text's tokens exceeds the next. `words` are the words of the text, with what each contributes to f; all of them and the rest
    token, `rest`, together contribute f. `weighted` says whether some training texts counted more than others. As a data frame: a row for
    each of `rows`.
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
    weighted: bool = False
    quantities = "{verdict}"
    table_quantities = (
        "probabilities={likeliest}, f={f}, most attended={most_attended.token}, its attention={most_attended.attention}, "
        "rest token={rest.contribution}, unknown words={unknown:#}"
    )

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
    def unknown(self) -> tuple[str, ...]:
        """The distinct words of the text, signs aside, that the model does not know: not in the training texts, or too seldom."""
        written = (word for _, word, span, _ in self.stretches() if span and not span.tokens)
        return tuple(dict.fromkeys(word for word in written if any(map(str.isalnum, word))))

    @property
    def most_attended(self) -> TokenRow:
        """The row with the largest attention, which is often the rest token's."""
        return max(self.rows, key=lambda row: row.attention)

    @property
    def selected(self) -> str | None:
        """The token of the text that has half of the attention or more; None where no token has, as in most texts."""
        top = self.most_attended
        return top.token if top.count and top.attention >= SELECTED_ATTENTION else None

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
        """One sentence: the decision, and what speaks most for it and against it."""
        share = f"{self.label} (probability {self.probability:.3f}"
        if not self.known:
            why = "none of the text's words is known" if self.words else "the text has no words"
            of = "the weighted share of its class" if self.weighted else "the share of its class"
            return f"{share}): {why}, so this is {of} in training"
        sign = -1.0 if len(self.outputs) == 1 and self.label == self.classes[0] else 1.0
        speaking = [row for row in self.rows if sign * row.contribution > 0.0][:_NAMED]
        against = [row for row in self.rows if sign * row.contribution < 0.0][:1]
        named = ", ".join(f"{row.called} ({row.contribution:+.2f})" for row in speaking)
        parts = [f"for it {named}", *(f"against it {row.called} ({row.contribution:+.2f})" for row in against)]
        top = self.most_attended
        if top.attention >= SELECTED_ATTENTION:
            parts.append(f"{top.called} has {top.attention:.0%} of the attention" + (": selected" if top.count else ""))
        if self.unknown:
            more = len(self.unknown) - _NAMED
            listed = ", ".join(f"'{word}'" for word in self.unknown[:_NAMED])
            parts.append(f"unknown: {listed}" + (f" and {more} more" if more > 0 else ""))
        return f"{share}, f = {self.f:+.3f}): {'; '.join(parts)}"

    def table(self, n_rows: int = _TABLE_ROWS) -> list[dict[str, str]]:
        """The tokens with the largest contributions, and in the last row the rest token, as cells of text."""
        two = len(self.outputs) == 1
        column = self.classes.index(self.label)
        sides = "{} / {}".format(*self.classes) if two else f"{self.label} / others"

        def trained(row: TokenRow) -> str:
            of = row.in_training if two else (row.in_training[column], sum(row.in_training) - row.in_training[column])
            return " / ".join(f"{n:,}" for n in of)

        return [
            {
                "token": row.token,
                "times": str(row.count) if row.count else "",
                "contribution": f"{row.contribution:+.4f}",
                "attention": f"{row.attention:.3f}",
                "vote": f"{row.b:+.2f}",
                f"in training, {sides}": trained(row) if row.in_training else "",
            }
            for row in (*self.known[: n_rows - 1], self.rest)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the words' positions, as JSON holds it."""
        return {
            "text": self.text,
            "label": self.label,
            "probability": self.probability,
            "f": self.f,
            "selected": self.selected,
            "most_attended": {"token": self.most_attended.token, "attention": self.most_attended.attention},
            "selection_margin": self.margin,
            "unknown": list(self.unknown),
            "probabilities": {str(name): value for name, value in zip(self.classes, self.probabilities, strict=True)},
            "outputs": list(self.outputs),
            "tokens": [
                row._asdict() | ({} if row.count else {"alpha": None, "posterior_difference": None})
                for row in self.rows
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
        return "\n".join([self.verdict, *lines, *self.others()])

    def others(self, n_rows: int = _TABLE_ROWS) -> list[str]:
        """A line about the tokens that `table` leaves out; none where it leaves out none."""
        left = self.known[n_rows - 1 :]
        total = f"{sum(row.contribution for row in left):+.4f}"
        return [f"and {counted(len(left), 'token')} more, {total} in all"] if left else []

    def to_html(self) -> str:
        """The text with every word coloured by its contribution, deeper up to ±0.5, and the table; all of it escaped, in one element."""
        return html_page([self], page=False)

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw the largest contributions as bars: to the right what speaks for the second of `poles`, to the left for the first."""
        largest = sorted(self.rows, key=lambda row: -abs(row.contribution))[:MAX_BARS]
        tokens, values = [row.token for row in largest], [row.contribution for row in largest]
        colours = [GLOBAL if value > 0.0 else LOCAL for value in values]
        first, second = self.poles
        draw_bars(ax, tokens, values, f"← {first}    contribution to f    {second} →", colours=colours, ylabel="token")

    def _headline(self) -> Headline:
        return Headline(str(self.label), self.verdict.removeprefix(f"{self.label} "))

    def _text_html(self) -> str:
        return render(
            "marginlens.text", "explanation.html", {"background": background}, explanations=[self], part="text"
        ).strip()

    def stretches(self) -> Iterator[tuple[str, str, Span | None, float]]:
        """What stands before each word, the word, its span and what it contributes; at last what stands after all, without a span."""
        end = 0
        for span, contribution in self.words:
            if isinstance(self.text, str):
                before, word = self.text[end : span.start], self.text[span.start : span.end]
            else:
                before, word = " " * bool(end), str(int(self.text[span.start]))
            end = span.end
            yield before, word, span, contribution
        if isinstance(self.text, str):
            yield self.text[end:], "", None, 0.0


def html_page(explanations: list[TextExplanation], *, page: bool = True) -> str:
    """A whole page of explanations, or only the element of the first."""
    filters = {"background": background}
    part = "page" if page else "element"
    return render("marginlens.text", "explanation.html", filters, explanations=explanations, part=part).strip() + "\n"


def explain_sample(model: Any, sample: Any) -> TextExplanation:
    """The explanation of one text, or one list of token ids, by a fitted classifier; only its own tokens are looked at."""
    text = model.tokens_.read(sample)
    ids, place, count = np.unique(text.tokens, return_index=True, return_counts=True)
    distinct = ids[np.argsort(place)].astype(np.int32)  # summed in this order, as for many texts, f has the same bits
    outputs = model._votes().outputs(TokenSets(distinct, np.array([0, len(ids)]), len(model.a_)))[0]
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
    of_a_place = (contribution[:-1] / count)[np.searchsorted(ids, text.part_of)]
    of_words = np.bincount(text.word, text.share * of_a_place, len(text.bounds))
    trained = model.class_counts_[ids]  # (n_distinct, n_classes)
    inside = trained[:, 1 if len(outputs) == 1 else best]
    known = TokenStatistics(inside, trained.sum(axis=1) - inside, model.training_["positions"])
    names = (*map(model.tokens_.names.__getitem__, ids.tolist()), REST_TOKEN)
    alpha, difference = (np.append(values, np.nan) for values in (known.alpha, known.posterior_difference))
    columns = (np.append(count, 0), attention, a, votes[:, column], contribution, alpha, difference)
    of_classes = (zip(*contributions.T.tolist(), strict=True), (*zip(*trained.T.tolist(), strict=True), ()))
    rows = list(map(TokenRow._make, zip(names, *(values.tolist() for values in columns), *of_classes, strict=True)))
    order = np.argsort(-np.abs(contribution), kind="stable").tolist()
    classes = tuple(model.classes_.tolist())
    first, second = top_two(a[:-1])
    return TextExplanation(
        sample,
        classes[best],
        classes,
        float(outputs[column]),
        first - second,
        tuple(map(rows.__getitem__, order)),
        tuple(zip(text.spans(), of_words.tolist(), strict=True)),
        tuple(outputs.tolist()),
        tuple(np.exp(log_probabilities(outputs[None])[0]).tolist()),
        model.training_["weighted"],
    )


def top_two(scores: FloatArray) -> tuple[float, float]:
    """The two highest scores; the second is -∞ where there is one, both are NaN where there is none."""
    if not len(scores):
        return float("nan"), float("nan")
    ranked = np.sort(scores)[::-1]
    return float(ranked[0]), float(ranked[1]) if len(ranked) > 1 else -np.inf


def background(contribution: float) -> str:
    """The colour behind a word: blue for the first of the poles, red-brown for the second, on one scale in all texts."""
    return shade(contribution / FULL_COLOUR, (LOCAL, GLOBAL))


def shade(strength: float, colours: tuple[str, str]) -> str:
    """The first colour for a negative strength, the second for a positive one, deeper up to a strength of 1."""
    red, green, blue = (int(colours[strength > 0.0][k : k + 2], 16) for k in (1, 3, 5))
    return f"background:rgba({red},{green},{blue},{_DEEPEST * min(abs(strength), 1.0) ** 0.5:.2f})"
