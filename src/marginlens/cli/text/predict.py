"""`marginlens text predict`: labels and probabilities of the texts in a file."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from marginlens.cli._deferred import files, np, terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import option
from marginlens.cli.text._options import OF_TEXT_FILE, FileForm, ModelFolder, TextsFile

_BATCH = 1000  # texts between two steps of the progress bar
_SHOWN = 20  # predictions that the terminal lists; --out writes all
_COUNTED = 12  # classes whose numbers are said
_OURS = ("predicted", "probability", "strongest_token", "probabilities")  # columns behind those of the file


@command("Nothing was written.", **OF_TEXT_FILE)
def predict(
    model: ModelFolder,
    file: TextsFile,
    form: FileForm,
    out: Annotated[
        str | None, option("OUT.csv", "Write all predictions there, as .csv or .jsonl; - prints JSON lines.")
    ] = None,
) -> Answer:
    """Classify every text of a file: what is predicted, its probability, the token that speaks most for it, and all probabilities.

    Every row of the file comes back with all its columns, also those without a text, of which the shares in training are predicted.

    Examples:
        marginlens text predict model reviews.csv --out scores.csv
        marginlens text predict model reviews.jsonl.gz --text body --out scores.jsonl
        marginlens text predict model - --out - < sentences.txt
    """
    from marginlens.text.classifier import AttentionTextClassifier

    if out is not None and out != "-":
        files.check_place(Path(out), "out", (".csv", ".jsonl"))
    classifier = AttentionTextClassifier.load(model)
    texts, rows = form.of(file).entries()
    written, called = _table(rows, _predictions(classifier, texts))
    if out == "-":
        typer.echo(_json_lines(written), nl=False)
    elif out is not None:
        content = _json_lines(written) if out.endswith(".jsonl") else _csv(written, called["probabilities"])
        files.write_whole(Path(out), content.encode(), "out")
    numbers = {"predictions": written, "columns": called, "out": out}
    return Answer(numbers, () if out == "-" else _text(texts, written, called, out), [] if out == "-" else [out])


def _predictions(classifier: Any, texts: list[str]) -> list[dict[str, Any]]:
    """What is predicted of each text, and what speaks most for it."""
    names = [str(name) for name in classifier.classes_]
    found: list[dict[str, Any]] = []
    with terminal.stage("Classifying") as bar:
        for start in range(0, len(texts), _BATCH):
            part = texts[start : start + _BATCH]
            probabilities = classifier.predict_proba(part)
            strongest = _strongest(classifier, part, probabilities.argmax(axis=1))
            for probability, token in zip(probabilities.tolist(), strongest, strict=True):
                shares = dict(zip(names, probability, strict=True))
                best = max(shares, key=shares.__getitem__)
                found.append(dict(zip(_OURS, (best, shares[best], token, shares), strict=True)))
            bar(len(found), len(texts))
    return found


def _strongest(classifier: Any, texts: list[str], predicted: Any) -> list[str | None]:
    """The token of each text that contributes most to what is predicted; None where none speaks for it."""
    places, names = classifier.tokens_.positions(texts), classifier.tokens_.names
    b, found = classifier.b_, []
    for best, start, end in zip(predicted, places.offsets[:-1], places.offsets[1:], strict=True):
        ids = places.tokens[start:end]
        votes = (1.0 if best else -1.0) * b[ids] if b.ndim == 1 else b[ids, best]
        weights = np.exp(classifier.a_[ids] - classifier.a_[ids].max(initial=-np.inf)) * votes
        found.append(names[ids[weights.argmax()]] if weights.max(initial=0.0) > 0.0 else None)
    return found


def _table(
    rows: list[dict[str, Any]], predictions: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of the file with what is predicted behind their own columns, and what ours are called beside those."""
    from marginlens.text.text_files import free_names

    taken = dict.fromkeys(name for row in rows for name in row)
    called = dict(zip(_OURS, free_names(_OURS, taken), strict=True))
    ours = ({called[name]: value for name, value in row.items()} for row in predictions)
    return [row | more for row, more in zip(rows, ours, strict=True)], called


def _json_lines(predictions: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predictions)


def _csv(rows: list[dict[str, Any]], probabilities: str) -> str:
    """The table with a column for each class in place of its probabilities; what is no text is written as JSON."""
    from marginlens.text.text_files import free_names

    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != probabilities]
    classes = list(rows[0][probabilities])
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow([*names, *free_names((f"probability of {name}" for name in classes), names)])
    for row in rows:
        values = (row.get(name) for name in names)
        plain = ["" if v is None else v if isinstance(v, str | float) else json.dumps(v) for v in values]
        writer.writerow([*plain, *row[probabilities].values()])
    return stream.getvalue()


def _text(texts: list[str], rows: list[dict[str, Any]], called: dict[str, str], out: str | None) -> Iterator[Any]:
    predicted, probability, strongest, _ = called.values()
    said = sorted(Counter(row[predicted] for row in rows).items(), key=lambda pair: (-pair[1], pair[0]))
    counts = ", ".join(f"{n:,} {name}" for name, n in said[:_COUNTED])
    more = f" and {terminal.counted(len(said) - _COUNTED, 'class', 'classes')} more" if len(said) > _COUNTED else ""
    empty = sum(not text.strip() for text in texts)
    without = f"; {empty:,} without a text" if empty else ""
    yield terminal.Line(f"{terminal.counted(len(rows), 'text')}: {counts}{more}{without}")
    renamed = [f"{new!r}" for name, new in called.items() if new != name]
    if renamed:
        yield f"The file has columns of these names already; the new ones are called {', '.join(renamed)}."
    if out is not None:
        return
    cells = [
        {
            "text": text[:60],
            "predicted": row[predicted],
            "probability": f"{row[probability]:.3f}",
            "speaks most for it": row[strongest] or "–",
        }
        for text, row in zip(texts[:_SHOWN], rows, strict=False)
    ]
    yield terminal.rows_table("Predictions", cells)
    if len(rows) > _SHOWN:
        yield f"and {len(rows) - _SHOWN:,} more; --out scores.csv writes them all."
