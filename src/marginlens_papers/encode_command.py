"""`marginlens text encode`: labelled texts as token ids, as paper B has them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marginlens.cli._deferred import errors, files, np, terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import flag, option
from marginlens.cli.text._options import OF_TEXT_FILE, FileForm, LabelledFile, Seed, SplitForm
from marginlens.cli.text._parts import TrainingRequest, has_stars

if TYPE_CHECKING:
    from marginlens_papers.reviews import ReviewSource


@dataclass(frozen=True)
class EncodedForm(SplitForm):
    """The form of a file whose texts are encoded: those without a token may be dropped, rows without a text may not."""

    drop: Annotated[bool, flag("--drop", "Leave out texts without any token that is kept.")] = False


@command("Nothing was written.", **OF_TEXT_FILE)
def encode(
    file: LabelledFile,
    form: EncodedForm,
    out: Annotated[Path, option("OUT.npz", "Where the ids go.")],
    pieces: Annotated[
        Path, option("VOCABULARY", "BERT's vocabulary (one token on each line), or a tokenizer saved as .json.")
    ],
    part: Annotated[str | None, option("PART", "Take only this part.", "all texts")] = None,
    sample: Annotated[int | None, option("N", "Draw so many texts at random.", "all")] = None,
    hold_out: Annotated[
        float | None,
        option(
            "SHARE",
            "Hold out this share of each class; the parts are then train and held-out, and tokens are counted in train.",
            "none",
        ),
    ] = None,
    count_in: Annotated[str | None, option("PART", "Count tokens in this part only.", "all texts, or train")] = None,
    seed: Seed = 0,
) -> Answer:
    """Encode labelled texts as paper B does, for training by marginlens embeddings.

    Examples:
        marginlens text encode reviews.csv --out ids.npz --pieces bert-vocabulary.txt --drop
        marginlens text encode aclImdb --out imdb.npz --pieces bert-vocabulary.txt --part train --sample 10000 --seed 1
    """
    from marginlens.data.files import write_labelled
    from marginlens_papers.reviews import TRAIN, ReviewPart, encode_reviews, paper_pipeline

    files.check_place(out, "out", (".npz",))
    source = _source(file, replace(form, drop=False))
    taken = ReviewPart(source, part, sample, hold_out, seed)
    pipeline = paper_pipeline(_pieces(pieces), empty="drop" if form.drop else "refuse")
    if count_in is None and hold_out is not None:
        count_in = TRAIN
    start = time.perf_counter()
    with terminal.stage("Encoding") as bar:
        encoded = encode_reviews(taken, pipeline, count_in=count_in, progress=bar)
    seconds = time.perf_counter() - start
    write_labelled(out, encoded.data, encoded.names, encoded.split)
    names, sizes = np.unique([] if encoded.split is None else encoded.split, return_counts=True)
    answer: dict[str, Any] = {
        "file": file.name,
        "samples": len(encoded.data),
        "positions": len(encoded.data.tokens),
        "tokens": len(encoded.vocabulary),
        "parts": {str(name): int(size) for name, size in zip(names, sizes, strict=True)},
        "classes": list(encoded.classes),
        "left_out": {reason: n for reason, n in encoded.left_out.items() if n},
        "seconds": seconds,
        "out": str(out),
    }
    left_out = "".join(f"; left out {n} ({reason})" for reason, n in answer["left_out"].items())
    units = {"samples": "text", "positions": "position", "tokens": "token"}
    total = ", ".join(terminal.counted(answer[name], unit) for name, unit in units.items())
    total += "".join(f"; {n:,} in {name}" for name, n in answer["parts"].items())
    speed = f"{seconds:.1f} s, {answer['samples'] / seconds:,.0f} texts per second"
    return Answer(answer, [f"{total}{left_out}", f"{speed}, reading included"], [out])


def _source(file: Path, form: FileForm) -> ReviewSource:
    """Where the texts are: aclImdb and Yelp's reviews as paper B takes them, anything else as people have it."""
    from marginlens_papers.reviews import ImdbFolder, TwoClassFile, YelpLines

    if any((folder / "train" / "pos").is_dir() for folder in (file, file / "aclImdb")):
        return ImdbFolder(file)
    if form.label is None and has_stars(file):
        return YelpLines(file)
    return TwoClassFile(TrainingRequest(file, form).source)


def _pieces(place: Path) -> Any:
    """The tokenizer in a file."""
    from marginlens.text import SubwordTokenizer

    with errors.calling(path="pieces"):
        return SubwordTokenizer.from_file(place)
