"""Part of the reviews of a source: one of its parts, a random sample of it, and a share held out from training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import IntArray
from marginlens.errors import reject, whole_number
from marginlens.text.reviews import Reviews, ReviewSource

TRAIN, HELD_OUT = "train", "held-out"


@dataclass(frozen=True)
class ReviewPart:
    """Some reviews of a source, in the source's order.

    Args:
        source: where the reviews are.
        part: take only the reviews whose `split` is this; all by default.
        sample: how many of them to draw at random, each class in proportion; all by default.
        hold_out: the share to hold out, of each class; the reviews are then in the parts "train" and "held-out" instead of the source's
            own. Equal texts stay together, so that nothing held out is trained on.
        seed: of both draws.
    """

    source: ReviewSource
    part: str | None = None
    sample: int | None = None
    hold_out: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sample is not None:
            whole_number(self.sample, "sample", at_least=2)
        if self.hold_out is not None and not 0.0 < self.hold_out < 1.0:
            raise reject("hold_out", "a share between 0 and 1", repr(self.hold_out))
        whole_number(self.seed, "seed", at_least=0)

    def read(self) -> Reviews:
        """The reviews that are left, with their part where some are held out."""
        reviews = self.source.read()
        rng = np.random.default_rng(self.seed)
        if self.part is not None:
            named = [] if reviews.split is None else sorted(set(reviews.split.tolist()))
            if self.part not in named:
                raise reject(
                    "part", f"a part that the reviews name ({', '.join(map(repr, named)) or 'none'})", repr(self.part)
                )
            reviews = _chosen(reviews, np.flatnonzero(reviews.split == self.part))
        if self.sample is not None:
            if self.sample > len(reviews):
                raise reject("sample", f"at most {len(reviews)}, the reviews that are there", self.sample)
            reviews = _chosen(reviews, self._sample(reviews, rng))
        if self.hold_out is None:
            return reviews
        return replace(reviews, split=_hold_out(reviews, self.hold_out, rng))

    def digest(self) -> str:
        """SHA-256 of the bytes that the source reads."""
        return self.source.digest()

    def to_dict(self) -> dict[str, Any]:
        """The source's settings, and what is taken of it."""
        taken = {"part": self.part, "sample": self.sample, "hold_out": self.hold_out, "seed": self.seed}
        return {"source": "part of reviews", "of": self.source.to_dict(), **taken}

    def _sample(self, reviews: Reviews, rng: np.random.Generator) -> IntArray:
        assert self.sample is not None
        positive = round(self.sample * float(np.mean(reviews.y > 0)))
        drawn = [
            rng.choice(np.flatnonzero(reviews.y == sign), size, replace=False)
            for sign, size in ((-1.0, self.sample - positive), (1.0, positive))
        ]
        return np.sort(np.concatenate(drawn))


def _chosen(reviews: Reviews, places: IntArray) -> Reviews:
    split = None if reviews.split is None else reviews.split[places]
    return replace(reviews, texts=[reviews.texts[i] for i in places], y=reviews.y[places], split=split)


def _hold_out(reviews: Reviews, share: float, rng: np.random.Generator) -> npt.NDArray[np.str_]:
    """(n_reviews,) the part of each review; a text that occurs several times goes where its first occurrence goes."""
    _, first, distinct = np.unique(np.array(reviews.texts, dtype=object), return_index=True, return_inverse=True)
    drawn = np.zeros(len(first), dtype=bool)
    for sign in (-1.0, 1.0):
        texts = np.flatnonzero(reviews.y[first] == sign)
        chosen = rng.permutation(texts)[: round(share * len(texts))]
        if not 0 < len(chosen) < len(texts):
            raise reject("hold_out", f"a share that parts {len(texts)} texts of one class", share)
        drawn[chosen] = True
    return np.where(drawn[distinct.reshape(-1)], HELD_OUT, TRAIN)
