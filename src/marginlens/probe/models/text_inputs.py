"""Texts as a model reads them: one input per line, cut into batches of similar length."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError, reject
from marginlens.probe.models.reading import InputBatch, batch_size

_OFFSET_POSITIONS = ("roberta", "camembert", "xlm-roberta")  # positions count from pad_token_id + 1
_STRETCH, _SLACK = 1.2, 4  # the longest text of a batch against its shortest, in tokens
_NO_LIMIT = 10**9  # tokenizers without a limit of their own name one far beyond this


@dataclass(frozen=True, repr=False)
class TextInputs:
    """Tokenised texts, in their own order."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]  # special tokens included
    tokens: tuple[tuple[str, ...], ...]  # the same, to be shown
    n_truncated: int  # texts that were longer than the model's positions and lost their end
    max_tokens: int  # how many positions the model has
    pad_id: int

    def __repr__(self) -> str:
        cut = f", {self.n_truncated} truncated to {self.max_tokens} tokens" if self.n_truncated else ""
        return f"TextInputs({len(self)} texts, {self.n_tokens} tokens{cut})"

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def n_tokens(self) -> int:
        """How many tokens all texts have together, without padding."""
        return sum(map(len, self.ids))

    def batches(self) -> Iterator[InputBatch]:
        """Batches from the shortest texts to the longest, padded on the right to their own longest text."""
        order = sorted(range(len(self)), key=lambda place: len(self.ids[place]))  # stable: ties in their own order
        lengths = [len(self.ids[place]) for place in order]
        start = 0
        for stop in range(1, len(order) + 1):
            ends = stop == len(order) or lengths[stop] > _STRETCH * lengths[start] + _SLACK
            if ends or stop - start >= batch_size(lengths[stop]):
                yield self._batch(order[start:stop])
                start = stop

    def _batch(self, places: list[int]) -> InputBatch:
        longest = len(self.ids[places[-1]])
        ids = np.full((len(places), longest), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(places), longest), dtype=np.int64)
        for row, place in enumerate(places):
            ids[row, : len(self.ids[place])] = self.ids[place]
            mask[row, : len(self.ids[place])] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        return InputBatch(np.asarray(places, dtype=np.int64), inputs, tuple(self.tokens[place] for place in places))


def read_texts(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a UTF-8 text file that are not blank, each one input."""
    place, expected = Path(path), "a UTF-8 text file with one input per line"
    if not place.is_file():
        problem = "which is a folder" if place.is_dir() else "which is not there"
        raise reject("text", expected, f"{str(path)!r}, {problem}")
    try:
        content = place.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise reject("text", expected, f"{str(path)!r}, whose byte {problem.start} is not UTF-8") from problem
    except OSError as problem:
        raise reject("text", expected, f"{str(path)!r}, which cannot be read ({problem.strerror})") from problem
    texts = [line.strip() for line in content.split("\n") if line.strip()]
    if not texts:
        raise reject("text", expected, f"{str(path)!r}, which is empty" + (" but for blank lines" if content else ""))
    return texts


def encode_texts(texts: Sequence[str], tokenizer: Any, config: Any) -> TextInputs:
    """Tokenise texts for a model, cutting off what is beyond its positions.

    Args:
        texts: at least one text, none of them without tokens.
        tokenizer: of the model, as transformers loads it. config: the model's configuration.
    Returns:
        The token ids of every text in the order given; `n_truncated` counts the texts that were cut.
    """
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise reject("texts", "a list of at least one text", repr(texts)[:60])
    if tokenizer is None:
        raise reject("tokenizer", "the tokenizer of the model", "None", "Keep its files in the model's folder.")
    limit = max_tokens(config, tokenizer)
    ids = _ids(tokenizer, list(texts))
    long = [place for place, one in enumerate(ids) if len(one) > limit]
    if long:
        shorter = _ids(tokenizer, [texts[place] for place in long], truncation=True, max_length=limit)
        for place, one in zip(long, shorter, strict=True):
            ids[place] = one
    for place, one in enumerate(ids):
        if not one:
            raise InputError(f"Text {place + 1} has no tokens: {texts[place][:40]!r}.")
    highest = max(map(max, ids))
    if highest >= config.vocab_size:
        raise reject(
            "tokenizer",
            f"the one of this model, with ids below {config.vocab_size}",
            f"one that gives the id {highest}",
        )
    strings = _strings(tokenizer, ids)
    pad = tokenizer.pad_token_id
    return TextInputs(
        tuple(texts),
        tuple(map(tuple, ids)),
        tuple(tuple(strings[token] for token in one) for one in ids),
        len(long),
        limit,
        0 if pad is None or pad >= config.vocab_size else int(pad),
    )


def max_tokens(config: Any, tokenizer: Any = None) -> int:
    """How many tokens a text may have: as many as the model has positions, or fewer where the tokenizer says so."""
    limit = int(getattr(config, "max_position_embeddings", _NO_LIMIT))
    if config.model_type in _OFFSET_POSITIONS:
        limit -= int(config.pad_token_id) + 1
    own = getattr(tokenizer, "model_max_length", None)
    return limit if own is None else min(limit, int(min(own, _NO_LIMIT)))


def _ids(tokenizer: Any, texts: list[str], **options: Any) -> list[list[int]]:
    encoded = tokenizer(texts, padding=False, verbose=False, **{"truncation": False, **options})
    return [list(map(int, one)) for one in encoded["input_ids"]]


def _strings(tokenizer: Any, ids: list[list[int]]) -> dict[int, str]:
    """Each token as a reader would write it: the letters that its bytes spell, and a space where a word begins."""
    distinct = sorted({token for one in ids for token in one})
    written = [str(one) for one in tokenizer.convert_ids_to_tokens(distinct)]
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if type(decoder).__name__ == "ByteLevel":
        spelled = [tokenizer.convert_tokens_to_string([one]) for one in written]
        shown = [text if "\ufffd" not in text else raw for text, raw in zip(spelled, written, strict=True)]
    else:
        shown = [one.replace("▁", " ") for one in written]
    return dict(zip(distinct, shown, strict=True))
