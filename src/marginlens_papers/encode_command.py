"""`marginlens encode`: labelled texts as token ids, as paper B has them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marginlens.cli._deferred import errors, files, np, terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import argument, flag, option

if TYPE_CHECKING:
    from marginlens_papers.reviews import ReviewSource

STDIN = "-"
_CALLED: dict[str, Any] = {  # what the command calls arguments of the library
    **dict.fromkeys(("path", "source"), "{file}"),
    "texts": "the texts of {file}",
    "y": "the labels of {file}",
    "labels": "the labels of {file}",
    "header": "{no_header}",
    "empty": "{drop}",
}


@dataclass(frozen=True)
class FileForm:
    """How a file of labelled texts is written: columns, delimiter, encoding, and whether it has a header."""

    text: Annotated[str | None, option("COLUMN", "Column of the texts, by name or number from 1.")] = None
    label: Annotated[str | None, option("COLUMN", "Column of the labels, by name or number from 1.")] = None
    split: Annotated[str | None, option("COLUMN", "Column that names the part of each row.")] = None
    delimiter: Annotated[str | None, option("SIGN", "Column delimiter.", "guessed")] = None
    encoding: Annotated[str | None, option("NAME", "Text encoding, such as latin-1.", "UTF-8; UTF-16 by its mark")] = (
        None
    )
    no_header: Annotated[
        bool, flag("--no-header", "The first row of a table is data: columns are numbered from 1.")
    ] = False


@command("Nothing was written.", **_CALLED)
def encode(
    file: Annotated[
        Path,
        argument(
            "FILE",
            "Labelled texts: a table (CSV, TSV, parquet, also .gz), JSON lines, a folder with a folder of .txt files for each class, "
            "aclImdb or Yelp's reviews; - reads stdin.",
        ),
    ],
    form: FileForm,
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
    drop: Annotated[bool, flag("--drop", "Leave out texts without any token that is kept.")] = False,
    seed: Annotated[int, option("N", "Random seed.")] = 0,
) -> Answer:
    """Encode labelled texts as paper B does, for training by marginlens embeddings.

    Examples:
        marginlens encode reviews.csv --out ids.npz --pieces bert-vocabulary.txt --drop
        marginlens encode aclImdb --out imdb.npz --pieces bert-vocabulary.txt --part train --sample 10000 --seed 1
    """
    from marginlens.data.files import write_labelled
    from marginlens_papers.reviews import TRAIN, ReviewPart, encode_reviews, paper_pipeline

    files.check_place(out, "out", (".npz",))
    source = _source(file, form)
    taken = ReviewPart(source, part, sample, hold_out, seed)
    pipeline = paper_pipeline(_pieces(pieces), empty="drop" if drop else "refuse")
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
    from marginlens_papers.texts.text_files import TextFile

    if any((folder / "train" / "pos").is_dir() for folder in (file, file / "aclImdb")):
        return ImdbFolder(file)
    if form.label is None and _has_stars(file):
        return YelpLines(file)
    if str(file) != STDIN and not file.exists():
        raise errors.reject("path", "a file or folder of labelled texts", f"{str(file)!r}, which is not there")
    columns = (form.text, form.label, form.split)
    return TwoClassFile(TextFile(file, *columns, form.delimiter, form.encoding, not form.no_header))


def _has_stars(file: Path) -> bool:
    """Whether a file of JSON lines has Yelp's stars instead of labels."""
    if file.suffix.lower() not in (".json", ".jsonl", ".ndjson") or not file.is_file():
        return False
    with file.open("rb") as content:
        first = content.readline()
    try:
        entry = json.loads(first)
    except ValueError:
        return False
    names = set(entry) if isinstance(entry, dict) else set()
    return {"stars", "text"} <= names and not {"label", "sentiment", "class", "y"} & names


def _pieces(place: Path) -> Any:
    """The tokenizer in a file."""
    from marginlens_papers.texts.vectorize import SubwordTokenizer

    with errors.calling(path="pieces"):
        return SubwordTokenizer.from_file(place)
