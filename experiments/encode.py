"""Labelled texts as token ids, as paper B has them: `python -m experiments.encode FILE --pieces VOCABULARY --out OUT.npz`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.reviews import (
    TRAIN,
    ImdbFolder,
    ReviewPart,
    ReviewSource,
    TwoClassFile,
    YelpLines,
    encode_reviews,
    paper_pipeline,
)
from experiments.texts import SubwordTokenizer, TextFile
from experiments.training.script import Dots, in_one_sentence
from marginlens.data.files import write_labelled
from marginlens.errors import InputError
from marginlens.runtime.files import check_place

_JSON_LINES = (".json", ".jsonl", ".ndjson")


def main(arguments: Sequence[str] | None = None) -> int:
    """Encode labelled texts as paper B does, for training by `python -m experiments.embeddings`."""
    parser = argparse.ArgumentParser(prog="python -m experiments.encode", description=main.__doc__)
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a table (CSV, TSV, parquet, also packed), JSON lines, a folder with a folder of .txt files for each class, aclImdb or "
        "Yelp's reviews",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.npz", help="where the ids go")
    parser.add_argument(
        "--pieces", type=Path, required=True, metavar="VOCABULARY", help="BERT's vocabulary, or a tokenizer's .json"
    )
    for name, column in (("text", "of the texts"), ("label", "of the labels"), ("split", "that names each row's part")):
        parser.add_argument(f"--{name}", metavar="COLUMN", help=f"column {column}, by name or number from 1")
    parser.add_argument("--delimiter", metavar="SIGN", help="column delimiter (guessed)")
    parser.add_argument("--encoding", metavar="NAME", default="utf-8-sig", help="such as latin-1 (UTF-8)")
    parser.add_argument("--no-header", action="store_true", help="the first row of a table is data")
    parser.add_argument("--part", metavar="PART", help="take only this part (all texts)")
    parser.add_argument("--sample", type=int, metavar="N", help="draw so many texts at random (all)")
    parser.add_argument("--hold-out", type=float, metavar="SHARE", help="hold out this share of each class (none)")
    parser.add_argument("--count-in", metavar="PART", help="count tokens in this part only (all texts, or train)")
    parser.add_argument("--drop", action="store_true", help="leave out texts without any token that is kept")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (0)")
    options = parser.parse_args(arguments)

    def encode() -> int:
        check_place(options.out, "out", (".npz",))
        taken = ReviewPart(_source(options), options.part, options.sample, options.hold_out, options.seed)
        pieces = SubwordTokenizer.from_file(options.pieces)
        pipeline = paper_pipeline(pieces, empty="drop" if options.drop else "refuse")
        count_in = TRAIN if options.count_in is None and options.hold_out is not None else options.count_in
        began = time.perf_counter()
        encoded = encode_reviews(taken, pipeline, count_in=count_in, progress=Dots())
        seconds = time.perf_counter() - began
        write_labelled(options.out, encoded.data, encoded.names, encoded.split)
        left_out = "".join(f"; left out {n} ({reason})" for reason, n in encoded.left_out.items() if n)
        counts = (
            f"{len(encoded.data):,} texts, {len(encoded.data.tokens):,} positions, {len(encoded.vocabulary):,} tokens"
        )
        print(f" {counts}{left_out}, in {seconds:.1f} s. Written to {options.out}.")
        return 0

    return in_one_sentence(encode)


def _source(options: argparse.Namespace) -> ReviewSource:
    """The texts: aclImdb and Yelp's reviews as paper B takes them, anything else as people have it."""
    file = options.file
    if any((folder / "train" / "pos").is_dir() for folder in (file, file / "aclImdb")):
        return ImdbFolder(file)
    if options.label is None and _has_stars(file):
        return YelpLines(file)
    if not file.exists():
        raise InputError("file", "a file or folder of labelled texts", f"{str(file)!r}, which is not there")
    columns = (options.text, options.label, options.split)
    return TwoClassFile(TextFile(file, *columns, options.delimiter, options.encoding, not options.no_header))


def _has_stars(file: Path) -> bool:
    """Whether a file of JSON lines has Yelp's stars instead of labels."""
    if file.suffix.lower() not in _JSON_LINES or not file.is_file():
        return False
    with file.open("rb") as content:
        first = content.readline()
    try:
        entry = json.loads(first)
    except ValueError:
        return False
    names = set(entry) if isinstance(entry, dict) else set()
    return {"stars", "text"} <= names and not {"label", "sentiment", "class", "y"} & names


if __name__ == "__main__":
    sys.exit(main())
