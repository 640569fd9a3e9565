"""How right a classifier is on labelled texts: accuracies, AUC, log-loss, F1 of each class and the confusion table."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from marginlens.cli._deferred import errors, np, terminal
from marginlens.cli.text._options import left_out_words

_WIDEST = 12  # classes up to which the confusion table is printed
_SHOWN_TEXT = 120  # characters of a text


def measures(classifier: Any, texts: list[str], labels: list[str], n_mistakes: int = 0) -> dict[str, Any]:
    """How well a classifier does on texts with these labels, as plain values; row i of the confusion table is what was said of class i.

    `mistakes` are the texts of which something else than their label was said, at most `n_mistakes`, those that are least expected first.
    """
    from sklearn import metrics

    classes = [str(name) for name in classifier.classes_]
    unknown = sorted(set(labels) - set(classes))
    if unknown:
        shown = ", ".join(map(repr, classes[:6])) + (", ..." if len(classes) > 6 else "")
        raise errors.reject("label", f"among the model's classes {shown}", repr(unknown[0]))
    log_probabilities = np.asarray(classifier.predict_log_proba(texts))
    index = {name: k for k, name in enumerate(classes)}
    indices = np.array([index[label] for label in labels])
    predicted = log_probabilities.argmax(axis=1)
    every = np.arange(len(classes))
    of_label = log_probabilities[np.arange(len(indices)), indices]
    wrong = np.flatnonzero(predicted != indices)
    worst = wrong[np.argsort(of_label[wrong], kind="stable")][:n_mistakes]
    precision, recall, f1, counts = metrics.precision_recall_fscore_support(
        indices, predicted, labels=every, zero_division=0.0
    )
    present = np.unique(indices)
    auc = None
    if len(present) == len(classes):
        shares = np.exp(log_probabilities)
        shares = shares[:, 1] if len(classes) == 2 else shares / shares.sum(axis=1, keepdims=True)
        auc = float(metrics.roc_auc_score(indices, shares, multi_class="ovr", labels=every))
    return {
        "accuracy": float(np.mean(predicted == indices)),
        "balanced_accuracy": float(np.mean(recall[present])),
        "macro_f1": float(np.mean(f1[present])),
        "auc": auc,
        "log_loss": float(-np.mean(of_label)),
        "classes": [
            {"label": name, "texts": int(n), "precision": float(p), "recall": float(r), "f1": float(f)}
            for name, n, p, r, f in zip(classes, counts, precision, recall, f1, strict=True)
        ],
        "confusion": metrics.confusion_matrix(indices, predicted, labels=every).tolist(),
        "mistakes": [
            {
                "label": labels[i],
                "said": classes[predicted[i]],
                "probability": float(np.exp(log_probabilities[i].max())),
            }
            | {"text": texts[i]}
            for i in worst.tolist()
        ],
    }


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {"F1" if name == "f1" else name: value for name, value in row.items()}


def show_measures(answer: dict[str, Any]) -> None:
    """Print what `measures` found."""
    out = terminal.console()
    out.print(
        f"{answer['file']}: {terminal.counted(answer['texts'], 'text')}{left_out_words(answer['left_out'])}",
        markup=False,
    )
    facts = {
        "accuracy": f"{answer['accuracy']:.2%}",
        "balanced accuracy": f"{answer['balanced_accuracy']:.2%}",
        "macro F1": f"{answer['macro_f1']:.4f}",
        "AUC": "–" if answer["auc"] is None else f"{answer['auc']:.4f}",
        "log-loss": f"{answer['log_loss']:.4f}",
    }
    out.print(terminal.facts_table("How well the model does", facts))
    names = [row["label"] for row in answer["classes"]]
    with_said = len(names) <= _WIDEST
    rows = [
        {**_cells(row), **({f"said {name}": n for name, n in zip(names, counts, strict=True)} if with_said else {})}
        for row, counts in zip(answer["classes"], answer["confusion"], strict=True)
    ]
    out.print(terminal.rows_table("By class, with how often each was said" if with_said else "By class", rows))
    if not with_said:
        out.print("--json has the confusion table too.", markup=False)
    if answer["mistakes"]:
        shortened = [{**row, "text": shorten(row["text"], _SHOWN_TEXT, placeholder=" …")} for row in answer["mistakes"]]
        out.print(terminal.rows_table("The texts that it is most wrong about", shortened))
