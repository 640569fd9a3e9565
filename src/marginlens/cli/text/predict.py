"""`marginlens text predict`: labels and probabilities of the texts in a file."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from marginlens.cli._deferred import files, np, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet
from marginlens.cli.text._options import (
    Delimiter,
    DropEmpty,
    Encoding,
    FileForm,
    ModelFolder,
    NoHeader,
    TextColumn,
    TextsFile,
    left_out_words,
)

_BATCH = 1000  # texts between two steps of the progress bar
_SHOWN = 20  # predictions that the terminal lists; --out writes all
_COUNTED = 12  # classes whose numbers are said


def predict(
    model: ModelFolder,
    file: TextsFile,
    out: Annotated[
        str | None,
        typer.Option(metavar="OUT.csv", help="Write all predictions there, as .csv or .jsonl; - prints JSON lines."),
    ] = None,
    text: TextColumn = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    drop: DropEmpty = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Classify every text of a file: its label, the probability of each class, and the token that the model selects.

    Examples:
        marginlens text predict model reviews.csv --out scores.csv
        marginlens text predict model reviews.jsonl.gz --text body --out scores.jsonl
        marginlens text predict model - --out - < sentences.txt
    """
    with errors_as_sentences("Nothing was written."):
        from marginlens.text.classifier import AttentionTextClassifier

        if out is not None and out != "-":
            files.check_place(Path(out), "out", (".csv", ".jsonl"))
        classifier = AttentionTextClassifier.load(model)
        found = FileForm(text, None, None, delimiter, encoding, no_header, drop).of(file).rows(labelled=False)
        predictions = _predictions(classifier, found.texts)
        if out == "-":
            typer.echo(_json_lines(predictions), nl=False)
        elif out is not None:
            content = _json_lines(predictions) if out.endswith(".jsonl") else _csv(predictions)
            files.write_whole(Path(out), content.encode(), "out")
        if as_json:
            typer.echo(_rows.as_json({"predictions": predictions, "left_out": found.left_out, "out": out}))
        elif out != "-":
            _show(predictions, found.left_out, out)


def _predictions(classifier: Any, texts: list[str]) -> list[dict[str, Any]]:
    """Label, probabilities and selected token of each text."""
    names = [str(name) for name in classifier.classes_]
    found: list[dict[str, Any]] = []
    with terminal.Bars() as bars:
        bar = bars.bar("Classifying")
        for start in range(0, len(texts), _BATCH):
            part = texts[start : start + _BATCH]
            selected = _selected(classifier, part)
            for text, probability, token in zip(part, classifier.predict_proba(part), selected, strict=True):
                best = int(np.argmax(probability))
                found.append(
                    {
                        "text": text,
                        "label": names[best],
                        "probability": float(probability[best]),
                        "selected": token,
                        "probabilities": dict(zip(names, probability.tolist(), strict=True)),
                    }
                )
            bar(len(found), len(texts))
    return found


def _selected(classifier: Any, texts: list[str]) -> list[str | None]:
    """The token of each text with the highest score, None where none is known."""
    places = classifier.tokens_.positions(texts)
    names, found = classifier.tokens_.names, []
    for start, end in zip(places.offsets[:-1], places.offsets[1:], strict=True):
        ids = places.tokens[start:end]
        found.append(names[ids[np.argmax(classifier.a_[ids])]] if len(ids) else None)
    return found


def _json_lines(predictions: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predictions)


def _csv(predictions: list[dict[str, Any]]) -> str:
    stream = io.StringIO(newline="")
    names = list(predictions[0]["probabilities"])
    writer = csv.writer(stream)
    writer.writerow(["text", "label", "probability", "selected", *(f"probability of {name}" for name in names)])
    for row in predictions:
        writer.writerow(
            [row["text"], row["label"], row["probability"], row["selected"] or "", *row["probabilities"].values()]
        )
    return stream.getvalue()


def _show(predictions: list[dict[str, Any]], left_out: dict[str, int], out: str | None) -> None:
    labels = [row["label"] for row in predictions]
    said = sorted(((labels.count(name), name) for name in set(labels)), key=lambda pair: (-pair[0], pair[1]))
    counts = ", ".join(f"{n:,} {name}" for n, name in said[:_COUNTED])
    more = f" and {terminal.counted(len(said) - _COUNTED, 'class', 'classes')} more" if len(said) > _COUNTED else ""
    terminal.say(f"{terminal.counted(len(predictions), 'text')}: {counts}{more}{left_out_words(left_out)}")
    if out is not None:
        terminal.say(f"Written to {out}")
        return
    cells = [
        {
            "text": row["text"][:60],
            "label": row["label"],
            "probability": f"{row['probability']:.3f}",
            "selected": row["selected"] or "–",
        }
        for row in predictions[:_SHOWN]
    ]
    terminal.console().print(terminal.rows_table("Predictions", cells))
    if len(predictions) > _SHOWN:
        terminal.say(f"and {len(predictions) - _SHOWN:,} more; --out scores.csv writes them all.")
