"""`marginlens text encode`: labelled texts as token ids, as paper B has them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marginlens.cli._deferred import errors, files, np, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet
from marginlens.cli.text._options import (
    OF_TEXT_FILE,
    Delimiter,
    Encoding,
    FileForm,
    LabelColumn,
    LabelledFile,
    NoHeader,
    Seed,
    SplitColumn,
    TextColumn,
)
from marginlens.cli.text._parts import TrainingRequest, has_stars

if TYPE_CHECKING:
    from marginlens_papers.reviews import ReviewSource


def encode(
    file: LabelledFile,
    out: Annotated[Path, typer.Option(metavar="OUT.npz", help="Where the ids go.", show_default=False)],
    pieces: Annotated[
        Path,
        typer.Option(
            metavar="VOCABULARY",
            help="BERT's vocabulary (one token on each line), or a tokenizer saved as .json.",
            show_default=False,
        ),
    ],
    text: TextColumn = None,
    label: LabelColumn = None,
    split: SplitColumn = None,
    part: Annotated[
        str | None, typer.Option("--part", metavar="PART", help="Take only this part.", show_default="all texts")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="Draw so many texts at random.", show_default="all")
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Hold out this share of each class; the parts are then train and held-out, and tokens are counted in train.",
            show_default="none",
        ),
    ] = None,
    count_in: Annotated[
        str | None,
        typer.Option(metavar="PART", help="Count tokens in this part only.", show_default="all texts, or train"),
    ] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    drop: Annotated[bool, typer.Option("--drop", help="Leave out texts without any token that is kept.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Encode labelled texts as paper B does, for training by marginlens embeddings.

    Examples:
        marginlens text encode reviews.csv --out ids.npz --pieces bert-vocabulary.txt --drop
        marginlens text encode aclImdb --out imdb.npz --pieces bert-vocabulary.txt --part train --sample 10000 --seed 1
    """
    with errors_as_sentences("Nothing was written.", **OF_TEXT_FILE):
        from marginlens.data.files import write_labelled
        from marginlens_papers.reviews import TRAIN, ReviewPart, encode_reviews, paper_pipeline

        files.check_place(out, "out", (".npz",))
        source = _source(file, FileForm(text, label, split, delimiter, encoding, no_header))
        taken = ReviewPart(source, part, sample, hold_out, seed)
        pipeline = paper_pipeline(_pieces(pieces), empty="drop" if drop else "refuse")
        if count_in is None and hold_out is not None:
            count_in = TRAIN
        start = time.perf_counter()
        with terminal.Bars() as bars:
            encoded = encode_reviews(taken, pipeline, count_in=count_in, progress=bars.bar("Encoding"))
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
        if as_json:
            typer.echo(_rows.as_json(answer))
        else:
            left_out = "".join(f"; left out {n} ({reason})" for reason, n in answer["left_out"].items())
            units = {"samples": "text", "positions": "position", "tokens": "token"}
            total = ", ".join(terminal.counted(answer[name], unit) for name, unit in units.items())
            total += "".join(f"; {n:,} in {name}" for name, n in answer["parts"].items())
            speed = f"{seconds:.1f} s, {answer['samples'] / seconds:,.0f} texts per second"
            terminal.console().print(f"{total}{left_out}\n{speed}, reading included\nWritten to {out}", markup=False)


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
