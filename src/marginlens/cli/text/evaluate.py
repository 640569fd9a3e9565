"""`marginlens text evaluate`: how well a model classifies labelled texts in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

from marginlens.cli._deferred import errors, files, terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import option
from marginlens.cli.text._options import OF_TEXT_FILE, LabelledForm, ModelFolder, TextsFile

_WIDEST = 12  # classes up to which the confusion table is printed
_SHOWN_TEXT = 120  # characters of a text


@command(**OF_TEXT_FILE)
def evaluate(
    model: ModelFolder,
    file: TextsFile,
    form: LabelledForm,
    mistakes: Annotated[int, option("N", "Show the N texts that the model is most wrong about.")] = 5,
    html: Annotated[
        Path | None, option("OUT.html", "Write a page there: numbers, mistakes with their words, tokens to search.")
    ] = None,
) -> Answer:
    """Say how well a model classifies labelled texts.

    Accuracy, balanced accuracy (the mean recall of the classes), macro F1, AUC (of each class against the others), log-loss, and for each
    class precision, recall, F1 and how often each class was said of its texts; then the texts that the model is most wrong about, which are
    often those with a wrong label.

    Examples:
        marginlens text evaluate model test.csv
        marginlens text evaluate model test.csv --mistakes 20 --html page.html
        marginlens text evaluate model test.tsv --text 2 --label 1 --no-header --json
    """
    from marginlens.text.classifier import AttentionTextClassifier
    from marginlens.text.evaluation import evaluation_page, measures

    errors.whole_number(mistakes, "mistakes", at_least=0)
    if html is not None:
        files.check_place(html, "html", (".html", ".htm"))
    classifier = AttentionTextClassifier.load(model)
    found = form.of(file).rows(labelled=True)
    answer = {"file": file, "texts": len(found.texts), "left_out": found.left_out}
    answer |= measures(classifier, found.texts, found.labels or [], mistakes)
    if html is not None:
        page = evaluation_page(classifier, found.texts, answer, subject(answer))
        files.write_whole(html, page.encode(), "html")
    return Answer(answer, measures_text(answer), [html])


# ---- the terminal


def subject(answer: dict[str, Any]) -> str:
    """What was measured, in a line."""
    trained_on = answer["trained_on"]
    remark = ", none of which was trained on" if trained_on == 0 else ""
    if trained_on:
        remark = f", {trained_on:,} of which were trained on: only the first number speaks for new texts"
    left_out = "".join(f"; {n:,} left out ({reason})" for reason, n in answer["left_out"].items())
    return f"{answer['file']}: {terminal.counted(answer['texts'], 'text')}{remark}{left_out}"


def measures_text(answer: dict[str, Any]) -> Iterator[Any]:
    """What `measures` found, for the terminal."""
    from marginlens.text.evaluation import facts

    yield subject(answer)
    yield terminal.facts_table("How well the model does", facts(answer, answer["texts"]))
    names = [row["label"] for row in answer["classes"]]
    with_said = len(names) <= _WIDEST
    rows = [
        {
            **{"F1" if name == "f1" else name: value for name, value in row.items()},
            **({f"said {name}": n for name, n in zip(names, counts, strict=True)} if with_said else {}),
        }
        for row, counts in zip(answer["classes"], answer["confusion"], strict=True)
    ]
    yield terminal.rows_table("By class, with how often each was said" if with_said else "By class", rows)
    if not with_said:
        yield "--json has the confusion table too."
    if answer["mistakes"]:
        shortened = [{**row, "text": shorten(row["text"], _SHOWN_TEXT, placeholder=" …")} for row in answer["mistakes"]]
        yield terminal.rows_table("The texts that it is most wrong about", shortened)
