"""`marginlens text evaluate`: how well a model classifies labelled texts in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from marginlens.cli._deferred import errors, files
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import option
from marginlens.cli.text._measures import measures_text, subject
from marginlens.cli.text._options import OF_TEXT_FILE, LabelledForm, ModelFolder, TextsFile


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
