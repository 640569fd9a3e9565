"""Reviews from Yelp's open dataset: JSON lines with a text and its stars, by the rules of paper B."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.errors import reject, whole_number
from marginlens.text.reviews import Reviews, check_file, file_digest, unreadable

SHORTEST, LONGEST = 1_000, 1_500  # characters
_EXPECTED = "Yelp's reviews as JSON lines, each with 'text' and 'stars'"


@dataclass(frozen=True)
class YelpLines:
    """A file of JSON lines, one review in each with `text` and `stars` from 1 to 5.

    Args:
        path: the file, e.g. yelp_academic_dataset_review.json.
        shortest, longest: reviews outside these numbers of characters are left out; both ends belong.
        n_reviews: how many of the reviews left to draw at random, all by default; fewer where there are fewer.
        seed: of that draw.

    One and two stars become -1, four and five +1; three stars are left out.
    """

    path: str | os.PathLike[str]
    shortest: int = SHORTEST
    longest: int = LONGEST
    n_reviews: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number(self.shortest, "shortest", at_least=0)
        whole_number(self.longest, "longest", at_least=self.shortest)
        if self.n_reviews is not None:
            whole_number(self.n_reviews, "n_reviews", at_least=2)
        whole_number(self.seed, "seed", at_least=0)

    def read(self) -> Reviews:
        """The texts in the file's order and their labels; `left_out` counts neutral, too short and too long ones."""
        left_out = {"3 stars": 0, f"under {self.shortest} characters": 0, f"over {self.longest} characters": 0}
        neutral, short, long = left_out
        rng = np.random.default_rng(self.seed)
        chosen: list[tuple[int, str, float]] = []
        met = 0
        for text, stars in self._lines():
            if stars == 3:
                left_out[neutral] += 1
            elif len(text) < self.shortest:
                left_out[short] += 1
            elif len(text) > self.longest:
                left_out[long] += 1
            else:
                review = (met, text, 1.0 if stars > 3 else -1.0)
                met += 1
                if self.n_reviews is None or len(chosen) < self.n_reviews:
                    chosen.append(review)
                elif (
                    place := int(rng.integers(met))
                ) < self.n_reviews:  # every review met so far is equally likely to be kept
                    chosen[place] = review
        if not chosen:
            counted = ", ".join(f"{count} with {reason}" for reason, count in left_out.items())
            raise reject("path", f"{_EXPECTED}, some of which count", f"{str(self.path)!r} with none ({counted})")
        chosen.sort()
        y = np.array([label for _, _, label in chosen])
        if abs(y.sum()) == len(y):
            raise reject(
                "path", "reviews of exactly two classes", f"{str(self.path)!r} with {len(y)} that are all {y[0]:+.0f}"
            )
        if met > len(chosen):
            left_out["not drawn"] = met - len(chosen)
        return Reviews([text for _, text, _ in chosen], y, ("1 or 2 stars", "4 or 5 stars"), None, left_out)

    def digest(self) -> str:
        """SHA-256 of the file."""
        return file_digest(check_file(self.path, _EXPECTED))

    def to_dict(self) -> dict[str, Any]:
        """The rules."""
        rules = {"shortest": self.shortest, "longest": self.longest, "n_reviews": self.n_reviews, "seed": self.seed}
        return {"source": "yelp"} | rules

    def _lines(self) -> Iterator[tuple[str, int]]:
        place = check_file(self.path, _EXPECTED)
        number = 0
        try:
            with place.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    if line.strip():
                        yield self._review(line, number)
        except OSError as problem:
            raise unreadable(self.path, _EXPECTED, problem) from problem

    def _review(self, line: bytes, number: int) -> tuple[str, int]:
        where = f"line {number} of {str(self.path)!r}"
        try:
            review = json.loads(line)
        except (ValueError, RecursionError) as problem:  # text that is not UTF-8 included
            raise reject("path", _EXPECTED, f"{where}, which is not JSON") from problem
        there = review if isinstance(review, dict) else {}
        missing = [name for name in ("text", "stars") if name not in there]
        if missing:
            raise reject(
                "path", _EXPECTED, f"{where} without {missing[0]!r} (it has {', '.join(map(repr, there)) or 'none'})"
            )
        text, stars = there["text"], there["stars"]
        if not isinstance(text, str):
            raise reject("path", _EXPECTED, f"{where} whose 'text' is no string")
        if isinstance(stars, bool) or stars not in (1, 2, 3, 4, 5):
            raise reject("path", f"{_EXPECTED} from 1 to 5", f"{where} with {stars!r} stars")
        return text, int(stars)
