"""Which texts `marginlens text train` trains on and which it tests on: parts of a file, another file, or a share of each class."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from marginlens.cli._deferred import errors, np
from marginlens.cli.text._options import STDIN, FileForm

if TYPE_CHECKING:
    from marginlens.data.tokens import BoolArray
    from marginlens.text.text_files import LabelledTexts, TextFile


@dataclass(frozen=True)
class TrainingRequest:
    """Which texts were asked for.

    Args:
        file: the texts. form: how they are written. part: the part to train on. test: a part, a file, or a share to test on.
        seed: of a share that is drawn.
    """

    file: Path
    form: FileForm = field(default_factory=FileForm)
    part: str | None = None
    test: str | None = None
    seed: int = 0

    @cached_property
    def source(self) -> TextFile:
        """Where the texts are."""
        return self._source_at(self.file)

    def _source_at(self, place: Path) -> TextFile:
        """The texts of the file or of stdin, or of another file of the same kind."""
        if place == self.file == Path(STDIN):
            return self.form.of(STDIN)
        if not place.exists():
            expected = "a file or folder of labelled texts"
            raise errors.reject("path", expected, f"{str(place)!r}, which is not there")
        place = place / "aclImdb" if (place / "aclImdb").is_dir() else place
        return (replace(self.form, label="stars") if self._has_stars(place) else self.form).of(place)

    def _has_stars(self, place: Path) -> bool:
        return self.form.label is None and has_stars(place)

    def read(self, path: Path | None = None) -> LabelledTexts:
        """The texts with their labels as words, of the file itself or of another one; Yelp's stars are good or bad."""
        source = self.source if path is None else self._source_at(path)
        found = source.rows(labelled=True)
        if not self._has_stars(self.file if path is None else path):
            return found
        clear = [i for i, stars in enumerate(found.labels or ()) if stars != "3"]
        labels = ["1 or 2 stars" if (found.labels or ())[i] in "12" else "4 or 5 stars" for i in clear]
        left_out = {**found.left_out, "3 stars": len(found.texts) - len(clear)}
        return found._replace(texts=[found.texts[i] for i in clear], labels=labels, left_out=left_out)


class Parts(NamedTuple):
    """Texts to train on and to test on, with their labels; nothing to test on where `tested_on` is None."""

    texts: list[str]
    labels: Any
    test_texts: list[str]
    test_labels: Any
    tested_on: str | None
    classes: tuple[str, ...]
    left_out: dict[str, int]


def read_parts(request: TrainingRequest) -> Parts:
    """Read the texts and split them into those to train on and those to test on."""
    share = _test_share(request.test)
    found = request.read()
    labels = np.array(found.labels)
    train, test, tested_on = _train_test_masks(request, found, labels, share)
    tested = ([found.texts[i] for i in np.flatnonzero(test)], labels[test])
    classes = np.unique(labels[train])
    if request.test is not None and tested_on is None:
        other = request.read(Path(request.test))
        tested, tested_on = (other.texts, np.array(other.labels)), Path(request.test).name
    unknown = np.setdiff1d(tested[1], classes)
    if len(unknown):
        shown = ", ".join(map(repr, classes.tolist()[:6])) + (", ..." if len(classes) > 6 else "")
        raise errors.reject("test", f"texts of classes that are trained on ({shown})", f"{unknown.tolist()[0]!r}")
    texts = [found.texts[i] for i in np.flatnonzero(train)]
    return Parts(texts, labels[train], *tested, tested_on, tuple(classes.tolist()), found.left_out)


def _test_share(test: str | None) -> float | None:
    """The share to test on, where a number was given."""
    try:
        share = float(test) if test is not None else None
    except ValueError:
        return None
    if share is not None and not 0.0 < share < 1.0:
        raise errors.reject("test", "a part, a file, or a share between 0 and 1", repr(test))
    return share


def has_stars(place: Path) -> bool:
    """Whether a file of JSON lines has Yelp's stars instead of labels."""
    if place.suffix.lower() not in (".json", ".jsonl", ".ndjson") or not place.is_file():
        return False
    with place.open("rb") as stream:
        first = stream.readline()
    try:
        entry = json.loads(first)
    except ValueError:
        return False
    return (
        isinstance(entry, dict)
        and {"stars", "text"} <= set(entry)
        and not {"label", "sentiment", "class", "y"} & set(entry)
    )


def _train_test_masks(
    request: TrainingRequest, found: LabelledTexts, labels: Any, share: float | None
) -> tuple[BoolArray, BoolArray, str | None]:
    """(n_texts,) which texts to train on, which to test on, and what the latter are called."""
    n = len(labels)
    split = np.array([] if found.split is None else [str(part) for part in found.split])
    parts = sorted(set(split.tolist()))
    part = "train" if request.part is None and "train" in parts else request.part
    if part is not None and part not in parts:
        raise errors.reject("train", f"a part that FILE names ({_listed(parts)})", repr(part))
    train = np.ones(n, dtype=bool) if part is None else split == part
    if share is not None:
        test = _drawn(found.texts, labels, train, share, request)
        return train & ~test, test, f"{share:g} of each class, drawn at random"
    tested_part = "test" if request.test is None and "test" in parts and part != "test" else request.test
    if tested_part in parts:
        if part == tested_part:
            raise errors.reject("test", "another part than the one to train on", repr(request.test))
        test = split == tested_part
        return train & ~test, test, tested_part
    if request.test is not None and not Path(request.test).exists():
        expected = f"a part ({_listed(parts)}), a file, or a share between 0 and 1"
        raise errors.reject("test", expected, repr(request.test))
    return train, np.zeros(n, dtype=bool), None


def _drawn(texts: list[str], labels: Any, train: BoolArray, share: float, request: TrainingRequest) -> BoolArray:
    """(n_texts,) a share of each class drawn at random, at least one text of it and not all; equal texts stay on one side."""
    rng, index = np.random.default_rng(request.seed), dict[str, int]()
    number = np.array([index.setdefault(text, len(index)) for text in texts])  # equal texts have equal numbers
    tested = np.zeros(len(index), dtype=bool)
    candidates = np.flatnonzero(train)
    first = candidates[np.unique(number[candidates], return_index=True)[1]]  # a row for each distinct text
    for name in np.unique(labels[train]):
        distinct = number[first[labels[first] == name]]
        if len(distinct) == 1:
            expected = "a part or a file where a class has a single text, which cannot be both trained and tested on"
            copies = int(np.sum(labels[train] == name))
            times = f", {copies} times" if copies > 1 else ""
            raise errors.reject("test", expected, f"a share, where class {str(name)!r} has one{times}")
        size = max(1, round(share * len(distinct)))
        if size >= len(distinct) > 0:
            expected = f"a share that leaves some of the {len(distinct)} texts of class {str(name)!r} to train on"
            raise errors.reject("test", expected, repr(request.test))
        tested[rng.permutation(distinct)[:size]] = True
    return train & tested[number]


def _listed(parts: list[str]) -> str:
    return ", ".join(map(repr, parts)) or "there are none"
