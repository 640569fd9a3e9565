"""`marginlens text predict` and `text evaluate`: labels and probabilities of texts in a file, and how right they are."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marginlens.cli._deferred import errors, files, np, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet

if TYPE_CHECKING:
    from marginlens.text.text_files import TextFile

_BATCH = 1000  # texts between two steps of the progress bar
_SHOWN = 20  # predictions that the terminal lists; --out writes all

ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A folder that text train --out wrote.", show_default=False)
]
TextsFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Texts: a table (CSV, TSV, parquet), JSON lines, one text on each line (.txt), a folder for each class, any of them packed "
        "as .gz; - reads stdin.",
        show_default=False,
    ),
]
TextColumn = Annotated[
    str | None, typer.Option("--text", metavar="COLUMN", help="The texts of a table, by name or number from 1.")
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="The labels of a table, by name or number from 1.")
]
Delimiter = Annotated[
    str | None, typer.Option("--delimiter", metavar="SIGN", help="Of a table.", show_default="guessed")
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="Such as latin-1.", show_default="UTF-8; UTF-16 by its mark"),
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="The first row of a table is data: columns are numbered from 1.")
]
DropEmpty = Annotated[bool, typer.Option("--drop", help="Leave out rows without a text or a label, and count them.")]


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
        found = _text_file(file, text, None, delimiter, encoding, no_header, drop).rows(labelled=False)
        predictions = _predictions(classifier, found.texts)
        if out == "-":
            typer.echo(_json_lines(predictions), nl=False)
        elif out is not None:
            content = _json_lines(predictions) if out.endswith(".jsonl") else _csv(predictions)
            files.write_whole(Path(out), content.encode(), "out")
        if as_json:
            typer.echo(_rows.as_json({"predictions": predictions, "left_out": found.left_out, "out": out}))
        elif out != "-":
            _show_predictions(predictions, found.left_out, out)


def evaluate(
    model: ModelFolder,
    file: TextsFile,
    text: TextColumn = None,
    label: LabelColumn = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    drop: DropEmpty = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say how well a model classifies labelled texts: accuracy, balanced accuracy, F1 of each class, AUC, log-loss, confusion matrix.

    Examples:
        marginlens text evaluate model test.csv
        marginlens text evaluate model test.tsv --text 2 --label 1 --no-header --json
    """
    with errors_as_sentences():
        from marginlens.text.classifier import AttentionTextClassifier

        classifier = AttentionTextClassifier.load(model)
        found = _text_file(file, text, label, delimiter, encoding, no_header, drop).rows(labelled=True)
        answer = {"file": file, "texts": len(found.texts), "left_out": found.left_out}
        answer |= measures(classifier, found.texts, found.labels or [])
        if as_json:
            typer.echo(_rows.as_json(answer))
        else:
            show_measures(answer)


def measures(classifier: Any, texts: list[str], labels: list[str]) -> dict[str, Any]:
    """How well a classifier does on texts with these labels, as plain values."""
    from sklearn import metrics

    classes = [str(name) for name in classifier.classes_]
    unknown = sorted(set(labels) - set(classes))
    if unknown:
        raise errors.reject("label", f"among the model's classes {', '.join(map(repr, classes))}", repr(unknown[0]))
    probabilities = np.asarray(classifier.predict_proba(texts))
    indices = np.array([classes.index(label) for label in labels])
    predicted = probabilities.argmax(axis=1)
    every = np.arange(len(classes))
    precision, recall, f1, counts = metrics.precision_recall_fscore_support(
        indices, predicted, labels=every, zero_division=0.0
    )
    present = np.unique(indices)
    auc = None
    if len(classes) == 2 and len(present) == 2:
        auc = float(metrics.roc_auc_score(indices, probabilities[:, 1]))
    elif len(classes) > 2 and len(present) == len(classes):
        auc = float(metrics.roc_auc_score(indices, probabilities, multi_class="ovr", labels=every))
    chosen = probabilities[np.arange(len(indices)), indices]
    return {
        "accuracy": float(np.mean(predicted == indices)),
        "balanced_accuracy": float(np.mean(recall[present])),
        "auc": auc,
        "log_loss": float(-np.mean(np.log(np.maximum(chosen, np.finfo(float).tiny)))),
        "classes": [
            {"label": name, "texts": int(n), "precision": float(p), "recall": float(r), "f1": float(f)}
            for name, n, p, r, f in zip(classes, counts, precision, recall, f1, strict=True)
        ],
        "confusion": metrics.confusion_matrix(indices, predicted, labels=every).tolist(),
    }


def show_measures(answer: dict[str, Any]) -> None:
    """Print what `measures` found."""
    out = terminal.console()
    out.print(f"{answer['file']}: {answer['texts']:,} texts{_left_out(answer['left_out'])}", markup=False)
    auc = "–" if answer["auc"] is None else f"{answer['auc']:.4f}"
    facts = {
        "accuracy": f"{answer['accuracy']:.2%}",
        "balanced accuracy": f"{answer['balanced_accuracy']:.2%}",
        "AUC": auc,
        "log-loss": f"{answer['log_loss']:.4f}",
    }
    out.print(terminal.facts_table("How well the model does", facts))
    names = [row["label"] for row in answer["classes"]]
    rows = [
        {**row, **{f"said {name}": n for name, n in zip(names, counts, strict=True)}}
        for row, counts in zip(answer["classes"], answer["confusion"], strict=True)
    ]
    out.print(terminal.rows_table("By class, with how often each was said", rows))


def _text_file(
    file: str,
    text: str | None,
    label: str | None,
    delimiter: str | None,
    encoding: str | None,
    no_header: bool,
    drop: bool,
) -> TextFile:
    from marginlens.text.text_files import TextFile

    return TextFile(file, text, label, None, delimiter, encoding, not no_header, drop)


def _predictions(classifier: Any, texts: list[str]) -> list[dict[str, Any]]:
    """Label, probabilities and selected token of each text."""
    names = [str(name) for name in classifier.classes_]
    found = []
    with terminal.Bars() as bars:
        bar = bars.bar("Classifying")
        for start in range(0, len(texts), _BATCH):
            part = texts[start : start + _BATCH]
            for text, probability in zip(part, classifier.predict_proba(part), strict=True):
                best = int(np.argmax(probability))
                of_class = {name: float(share) for name, share in zip(names, probability, strict=True)}
                found.append(
                    {
                        "text": text,
                        "label": names[best],
                        "probability": float(probability[best]),
                        "selected": classifier.explain(text).selected,
                        "probabilities": of_class,
                    }
                )
            bar(len(found), len(texts))
    return found


def _json_lines(predictions: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predictions)


def _csv(predictions: list[dict[str, Any]]) -> str:
    stream = io.StringIO(newline="")
    names = list(predictions[0]["probabilities"])
    writer = csv.writer(stream)
    writer.writerow(["text", "label", "probability", "selected", *(f"probability of {name}" for name in names)])
    for row in predictions:
        shares = [row["probabilities"][name] for name in names]
        writer.writerow([row["text"], row["label"], row["probability"], row["selected"] or "", *shares])
    return stream.getvalue()


def _show_predictions(predictions: list[dict[str, Any]], left_out: dict[str, int], out: str | None) -> None:
    labels = [row["label"] for row in predictions]
    counts = ", ".join(f"{labels.count(name):,} {name}" for name in predictions[0]["probabilities"])
    terminal.say(f"{len(predictions):,} texts: {counts}{_left_out(left_out)}")
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


def _left_out(counts: dict[str, int]) -> str:
    return "".join(f"; {n:,} left out ({reason})" for reason, n in counts.items())
