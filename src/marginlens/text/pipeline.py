"""From reviews to token ids: the settings, the vocabulary that they find in texts, and texts encoded by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.errors import InputError, array_of_any, reject, whole_number
from marginlens.progress import Progress, Silence
from marginlens.text.cleaning import Cleaning
from marginlens.text.stemming import Snowball
from marginlens.text.stopwords import StopWords
from marginlens.text.wordpiece import Pieces, pieces_from_dict
from marginlens.text.words import PieceTable, WordStream, as_texts, number_words, tabulate


@dataclass(frozen=True)
class TextPipeline:
    r"""How reviews become sequences of token ids: clean, leave out stop words, stem, cut into pieces, leave out rare tokens.

    .. math:: \text{review} \mapsto X_i = (x_{i1}, \dots, x_{iT_i}), \quad x_{it} \in \mathcal S = \{s : \text{count}(s) \ge m\}

    Args:
        cleaning: what counts as a word and how it is written.
        stop_words: words to leave out; None keeps all.
        stemming: `Snowball("english")` cuts words to their stems; None leaves them whole.
        pieces: `WordPiece.from_file(path)` or `SavedTokenizer.from_file(path)` cuts stems into pieces; None keeps them whole.
        min_count: tokens that occur less often than this in all texts together are left out.
        empty: what to do with a review that loses all its tokens: "refuse" names it, "drop" leaves it out and lists it.

    Every step is a function of single words, so it is done once for each distinct word. `paper_pipeline` has the settings of paper B.
    """

    cleaning: Cleaning = field(default_factory=Cleaning)
    stop_words: StopWords | None = field(default_factory=StopWords)
    stemming: Snowball | None = None
    pieces: Pieces | None = None
    min_count: int = 50
    empty: str = "refuse"

    def __post_init__(self) -> None:
        if not isinstance(self.cleaning, Cleaning):
            raise reject("cleaning", "a Cleaning", type(self.cleaning).__name__)
        if not isinstance(self.stop_words, StopWords | None):
            raise reject("stop_words", "StopWords, or None to keep all", type(self.stop_words).__name__)
        if self.stemming is not None and not callable(getattr(self.stemming, "stems", None)):
            raise reject("stemming", "a Snowball stemmer, or None for whole words", type(self.stemming).__name__)
        if self.pieces is not None and not callable(getattr(self.pieces, "cut", None)):
            raise reject("pieces", "a WordPiece, a SavedTokenizer, or None", type(self.pieces).__name__)
        whole_number(self.min_count, "min_count", at_least=1)
        if not isinstance(self.empty, str) or self.empty not in ("refuse", "drop"):
            raise reject("empty", '"refuse" or "drop"', repr(self.empty))

    def fit(self, texts: Sequence[str], progress: Progress | None = None) -> Vocabulary:
        """The tokens that occur at least `min_count` times in the texts."""
        words = number_words(as_texts(texts), self.cleaning.words, progress or Silence())
        return self._vocabulary(words, self.table(words.distinct), None)

    def encode(
        self, texts: Sequence[str], y: Any, *, counted: Any = None, progress: Progress | None = None
    ) -> EncodedTexts:
        """Find the vocabulary of the texts and encode them by it, reading them once.

        Args:
            texts: n_texts strings. y: (n_texts,) labels, each -1 or +1.
            counted: (n_texts,) True for the texts in which tokens are counted, e.g. those to train on; all by default.
        Returns:
            `data`, the labelled sequences, and `vocabulary`, whose `names[s]` is token s.
        """
        listed = as_texts(texts)
        mask = None if counted is None else _mask(counted, len(listed))
        labels = _signs(y, len(listed))
        words = number_words(listed, self.cleaning.words, progress or Silence())
        table = self.table(words.distinct)
        vocabulary = self._vocabulary(words, table, mask)
        return vocabulary._encoded(*table.renamed(vocabulary._ids(table.names)).expand(words), labels)

    def table(self, words: list[str]) -> PieceTable:
        """What each distinct word becomes."""
        forms = [self.cleaning.form(word) for word in words]
        distinct = dict.fromkeys(forms)
        parts = {form: self._parts(form) for form in distinct}
        stems = list(dict.fromkeys(part for several in parts.values() for part in several))
        stemmed = self.stemming.stems(stems) if self.stemming else stems
        once = list(dict.fromkeys(stemmed))
        cut = dict(zip(once, self.pieces.cut(once) if self.pieces else [(stem,) for stem in once], strict=True))
        of_part = {part: cut[stem] for part, stem in zip(stems, stemmed, strict=True)}
        return tabulate([tuple(piece for part in parts[form] for piece in of_part[part]) for form in forms])

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON holds them; `from_dict` gives the pipeline back."""
        stop = self.stop_words
        listed = None if stop is None else {"words": sorted(stop.words), "keep_negations": stop.keep_negations}
        return {
            "cleaning": asdict(self.cleaning),
            "stop_words": listed,
            "stemming": asdict(self.stemming) if self.stemming else None,
            "pieces": self.pieces.to_dict() if self.pieces else None,
            "min_count": int(self.min_count),
            "empty": self.empty,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> TextPipeline:
        """The pipeline that `to_dict` described."""
        try:
            stop, stem, pieces = saved["stop_words"], saved["stemming"], saved["pieces"]
            return cls(
                Cleaning(**saved["cleaning"]),
                StopWords(frozenset(stop["words"]), stop["keep_negations"]) if stop else None,
                Snowball(**stem) if stem else None,
                pieces_from_dict(pieces) if pieces else None,
                saved["min_count"],
                saved["empty"],
            )
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, IndexError) as problem:
            raise reject("saved", "the settings of a text pipeline, as to_dict writes them", repr(problem)) from problem

    def _parts(self, form: str) -> tuple[str, ...]:
        """What is left of a word in its written form when stop words are gone."""
        if form == "'":  # a punctuation mark that was kept
            return (form,)
        if self.stop_words is None:
            return tuple(filter(None, form.split("'")))
        return self.stop_words.remaining(form)

    def _vocabulary(self, words: WordStream, table: PieceTable, counted: BoolArray | None) -> Vocabulary:
        counts = table.counts(words.counts(counted))
        kept = sorted(np.flatnonzero(counts >= self.min_count).tolist(), key=lambda k: (-counts[k], table.names[k]))
        if not kept:
            n_texts = len(words.offsets) - 1 if counted is None else int(counted.sum())
            most = int(counts.max(initial=0))
            got = f"{n_texts} whose most frequent token occurs {most} times"
            remedy = "Give more texts, or a pipeline with a smaller min_count."
            raise reject("texts", f"reviews with a token that occurs {self.min_count} times", got, remedy)
        return Vocabulary(self, tuple(table.names[k] for k in kept), counts[kept])


def paper_pipeline(pieces: Pieces, *, empty: str = "refuse") -> TextPipeline:
    """The preprocessing of paper B, Appendix E: no punctuation, no stop words, stems, BERT's pieces, tokens that occur 50 times."""
    return TextPipeline(stemming=Snowball("english"), pieces=pieces, min_count=50, empty=empty)


@dataclass(frozen=True, repr=False, eq=False)
class Vocabulary:
    """The tokens that a pipeline keeps, most frequent first: `names[s]` is token s and `counts[s]` how often it occurred."""

    pipeline: TextPipeline
    names: tuple[str, ...]
    counts: IntArray

    def encode(self, texts: Sequence[str], y: Any, progress: Progress | None = None) -> EncodedTexts:
        """Labelled sequences of these texts; tokens outside the vocabulary are left out."""
        listed = as_texts(texts)
        labels = _signs(y, len(listed))
        return self._encoded(*self.positions(listed, progress), labels)

    def positions(self, texts: Sequence[str], progress: Progress | None = None) -> tuple[IntArray, IntArray]:
        """Token ids of all texts in one array, and where each text starts; a text may be left with no token."""
        words = number_words(as_texts(texts), self.pipeline.cleaning.words, progress or Silence())
        table = self.pipeline.table(words.distinct)
        return table.renamed(self._ids(table.names)).expand(words)

    def places(self, text: str) -> list[tuple[int, int, IntArray]]:
        """For each word of one text that has tokens: where it starts, where it ends, and their ids."""
        spans = self.pipeline.cleaning.places(text)
        table = self.pipeline.table([text[start:end] for start, end in spans])
        table = table.renamed(self._ids(table.names))
        ids = [table.pieces[table.offsets[k] : table.offsets[k + 1]] for k in range(len(spans))]
        return [(start, end, found) for (start, end), found in zip(spans, ids, strict=True) if len(found)]

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens, {int(self.counts.sum())} occurrences)"

    def _ids(self, names: list[str]) -> IntArray:
        """The id of each name, -1 for a name outside the vocabulary."""
        known = {name: s for s, name in enumerate(self.names)}
        return np.array([known.get(name, -1) for name in names], dtype=np.int64)

    def _encoded(self, tokens: IntArray, offsets: IntArray, labels: FloatArray) -> EncodedTexts:
        lengths = np.diff(offsets)
        kept = np.flatnonzero(lengths)
        if len(kept) < len(lengths):
            where = np.flatnonzero(lengths == 0)
            if self.pipeline.empty == "refuse":
                more = f" and {len(where) - 1} more" if len(where) > 1 else ""
                got = f"none in the review at index {int(where[0])}{more}"
                raise reject(
                    "texts", "reviews that keep at least one token", got, 'Use empty="drop" to leave them out.'
                )
            if not len(kept):
                raise reject("texts", "reviews that keep at least one token", f"none in any of {len(lengths)}")
        ends = np.concatenate([[0], offsets[1:][kept]]).astype(np.int64)  # empty reviews take no room
        data = LabelledSequences.of_positions(tokens, ends, labels[kept], len(self))
        return EncodedTexts(data, self, kept)


@dataclass(frozen=True, repr=False, eq=False)
class EncodedTexts:
    """Texts as token ids: sample i of `data` is the text at index `kept[i]` of those given."""

    data: LabelledSequences
    vocabulary: Vocabulary
    kept: IntArray

    @property
    def names(self) -> tuple[str, ...]:
        """The token that each id stands for."""
        return self.vocabulary.names

    def __repr__(self) -> str:
        return f"EncodedTexts({self.data!r})"


def _signs(y: Any, n_texts: int) -> FloatArray:
    expected = f"labels, each -1 or +1, of shape ({n_texts},)"
    labels = array_of_any(y, "y", expected)
    if labels.shape != (n_texts,):
        raise reject("y", expected, f"shape {labels.shape}")
    wrong = ~np.isin(labels, (-1, 1))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise reject(
            "y", "labels, each -1 or +1", f"{labels[i]!r} at index {i}", "two_classes maps other labels to them."
        )
    return labels.astype(np.float64)


def _mask(counted: Any, n_texts: int) -> BoolArray:
    expected = f"booleans of shape ({n_texts},)"
    mask = array_of_any(counted, "counted", expected)
    if mask.shape != (n_texts,) or mask.dtype != bool:
        raise reject("counted", expected, f"shape {mask.shape} with dtype {mask.dtype}")
    return mask
