"""How right a classifier is on labelled texts: accuracies, AUC, log-loss, F1 of each class, the confusion table, and a page of all this."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marginlens.errors import reject
from marginlens.pages import render
from marginlens.result import counted
from marginlens.result.palette import ACCENTS, HOLDS
from marginlens.text.explanation import background, shade
from marginlens.text.learning import token_sets
from marginlens.typing import FloatArray, IntArray

MAX_LISTED_TOKENS = 5000  # rows of the page's table of tokens
MAX_LISTED_CELLS = 45_000  # cells of that table, so that the page stays well below a megabyte
MAX_CLASS_COLUMNS = 12  # classes up to which each has columns in the page's tables
_LISTED_CONFUSIONS = 30  # pairs of classes that are listed where there are more


def text_digests(texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    """(n_texts,) a number for each text, by which a model knows the texts that it was trained on; how words are parted does not count."""
    plain = (" ".join(text.split()).encode("utf-8", "surrogatepass") for text in texts)
    return np.frombuffer(b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in plain), dtype="<u8")


def measures(classifier: Any, texts: Sequence[str], labels: Sequence[Any], n_mistakes: int = 0) -> dict[str, Any]:
    """How well a classifier does on texts with these labels, as plain values; row i of the confusion table is what was said of class i.

    `mistakes` are the texts of which something else than their label was said, at most `n_mistakes`, those that are least expected first.
    `trained_on` counts the texts that the classifier was trained on, None where it does not know, and `accuracy_of_unseen` is that of the
    others.
    """
    from sklearn import metrics

    labels = list(map(str, labels))
    if len(labels) != len(texts):
        raise reject("labels", f"{len(texts):,} labels, one for each text", f"{len(labels):,}")
    classes = [str(name) for name in classifier.classes_]
    unknown = sorted(set(labels) - set(classes))
    if unknown:
        shown = ", ".join(map(repr, classes[:6])) + (", ..." if len(classes) > 6 else "")
        raise reject("label", f"among the model's classes {shown}", repr(unknown[0]))
    log_probabilities = np.asarray(classifier.predict_log_proba(texts))
    index = {name: k for k, name in enumerate(classes)}
    indices = np.array([index[label] for label in labels])
    predicted = log_probabilities.argmax(axis=1)
    every = np.arange(len(classes))
    digests = getattr(classifier, "text_digests_", ())
    unseen = ~np.isin(text_digests(texts), digests)
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
        "trained_on": int(np.sum(~unseen)) if len(digests) else None,
        "accuracy_of_unseen": float(np.mean((predicted == indices)[unseen])) if unseen.any() else None,
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
                "text": texts[i],
            }
            for i in worst.tolist()
        ],
    }


def facts(measured: Mapping[str, Any], n_texts: int) -> dict[str, str]:
    """What `measures` found as words and numbers, accuracy on texts that were not trained on first where there are others."""
    trained_on, unseen = measured["trained_on"], measured["accuracy_of_unseen"]
    shown = {"accuracy": f"{measured['accuracy']:.1%}"}
    if trained_on:
        of_others = "–" if unseen is None else f"{unseen:.1%}"
        shown = {
            f"accuracy on the {n_texts - trained_on:,} texts that it was not trained on": of_others,
            f"accuracy on all, {trained_on:,} of {n_texts:,} trained on": shown["accuracy"],
        }
    return shown | {
        "balanced accuracy": f"{measured['balanced_accuracy']:.1%}",
        "macro F1": f"{measured['macro_f1']:.3f}",
        "AUC": "–" if measured["auc"] is None else f"{measured['auc']:.3f}",
        "log-loss": f"{measured['log_loss']:.3f}",
    }


def evaluation_page(classifier: Any, texts: Sequence[str], measured: Mapping[str, Any], subject: str = "") -> str:
    """One HTML file that needs no other: what `measures` found, the mistakes with their words highlighted, and a table of tokens to search.

    Args:
        classifier: the `AttentionTextClassifier` that was measured. texts: those that it was measured on.
        measured: what `measures` gave. subject: a line about what was measured, which counts the texts unless it is given.
    """
    names = [row["label"] for row in measured["classes"]]
    off_diagonal = np.array(measured["confusion"])
    np.fill_diagonal(off_diagonal, 0)
    true, said = np.nonzero(off_diagonal)
    pairs = sorted(
        ((names[i], names[j], int(off_diagonal[i, j])) for i, j in zip(true, said, strict=True)),
        key=lambda row: -row[2],
    )
    columns = _vote_columns(classifier, names)
    return render(
        "marginlens.text",
        "evaluation.html",
        {
            "background": background,
            "counted": counted,
            "agreement": lambda share: shade(share, (HOLDS, ACCENTS[3])),  # other colours than those of the words
        },
        subject=subject or counted(len(texts), "text"),
        measured=measured,
        facts=facts(measured, len(texts)),
        names=names,
        with_columns=len(names) <= MAX_CLASS_COLUMNS,
        confusions=pairs[:_LISTED_CONFUSIONS],
        n_confusions=len(pairs),
        n_wrong=int(off_diagonal.sum()),
        explained=[(row, classifier.explain(row["text"])) for row in measured["mistakes"]],
        vote_names=list(columns),
        tokens=list(_token_cells(classifier, texts, columns)),
        n_tokens=len(classifier.a_),
    )


def _vote_columns(classifier: Any, names: list[str]) -> dict[str, Any]:
    """(n_tokens,) votes by the name of their column; of many classes the one that each token speaks for, and its vote."""
    if len(names) == 2:
        return {f"vote (+\u00a0{names[1]}, \u2212\u00a0{names[0]})": classifier.b_}
    if len(names) <= MAX_CLASS_COLUMNS:
        return {f"vote for {name}": classifier.b_[:, k] for k, name in enumerate(names)}
    return {"speaks for": np.array(names)[classifier.b_.argmax(axis=1)], "its vote": classifier.b_.max(axis=1)}


class TokenWeights(NamedTuple):
    """What the tokens of a model do in some texts, (n_tokens,) each: the texts that have it, its mean attention in them, NaN where none
    has, and its contribution, attention times the width of its votes summed over the texts; `order` has those that contribute most first.
    """

    n_texts: IntArray
    attention: FloatArray
    contribution: FloatArray
    order: IntArray


def token_weights(classifier: Any, texts: Sequence[str]) -> TokenWeights:
    """What each token contributes to the outputs of these texts; its attention is e^(a - a_0) times that of the rest token."""
    places = classifier.tokens_.positions(texts)
    sets = token_sets(places.tokens, places.offsets, len(classifier.a_))
    votes = classifier._votes()
    rest = np.repeat(votes.rest_attention(sets)[:, 0], np.diff(sets.offsets))
    n_texts = np.bincount(sets.token, minlength=sets.n_tokens)
    attention = np.exp(classifier.a_ - classifier.rest_a_) * np.bincount(sets.token, rest, minlength=sets.n_tokens)
    width = np.abs(classifier.b_) if classifier.b_.ndim == 1 else np.ptp(votes.b, axis=1)
    mean = np.divide(attention, n_texts, out=np.full(len(attention), np.nan), where=n_texts > 0)
    order = np.lexsort((-classifier.class_counts_.sum(axis=1), -attention * width))
    return TokenWeights(n_texts, mean, attention * width, order)


def _token_cells(classifier: Any, texts: Sequence[str], columns: Mapping[str, Any]) -> Iterator[list[str]]:
    """The tokens that contribute most to the outputs of these texts, then those that training had most often, as cells of text."""
    found, names = token_weights(classifier, texts), classifier.tokens_.names
    most = min(MAX_LISTED_TOKENS, MAX_LISTED_CELLS // (5 + len(columns)))
    for s in found.order[:most].tolist():
        yield [
            names[s],
            f"{found.attention[s]:.5f}" if found.n_texts[s] else "–",
            *(str(column[s]) if column.dtype.kind == "U" else f"{column[s]:+.2f}" for column in columns.values()),
            f"{found.contribution[s]:,.2f}",
            f"{found.n_texts[s]:,}",
            f"{classifier.class_counts_[s].sum():,}",
        ]
