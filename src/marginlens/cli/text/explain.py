"""`marginlens text explain`: why texts are classified as they are, from the command line, a file or stdin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marginlens.cli._deferred import errors, files, terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import argument, option, refuse_options
from marginlens.cli.text._options import STDIN, FileForm, ModelFolder

if TYPE_CHECKING:
    from marginlens.text.explanation import TextExplanation


@command(path="{file}", folder="{model}", header="{no_header}")
def explain(
    model: ModelFolder,
    form: FileForm,
    texts: Annotated[list[str] | None, argument("TEXT...", "Texts to explain; - reads stdin.")] = None,
    file: Annotated[
        str | None, option("FILE", "Explain the texts of a file, as text predict reads it, instead.")
    ] = None,
    limit: Annotated[int | None, option("N", "Only the first N texts of the file.", "20")] = None,
    html: Annotated[Path | None, option("OUT.html", "Write the texts with their words highlighted there.")] = None,
) -> Answer:
    """Classify texts, and show for each the tokens that decide.

    Examples:
        marginlens text explain model "A wonderful film" "Dull and far too long"
        marginlens text explain model "A wonderful film" --html why.html
        marginlens text explain model --file reviews.csv --text body --limit 100 --html why.html
        marginlens text explain model - --json < sentences.txt
    """
    from marginlens.text.classifier import AttentionTextClassifier
    from marginlens.text.explanation import html_page

    if html is not None:
        files.check_place(html, "html", (".html", ".htm"))
    if texts == [STDIN] and file is None:
        texts, file = None, STDIN
    if file is None:
        refuse_options("unless --file is given", limit=limit, **vars(form))
    if not texts and file is None:
        raise errors.reject("texts", "given, or --file in its place", "none")
    if texts and file is not None:
        raise errors.reject("texts", "left out beside --file", "both")
    classifier = AttentionTextClassifier.load(model)
    left = 0
    if file is not None:
        found = form.of(file).rows(labelled=False)
        most = errors.whole_number(20 if limit is None else limit, "limit", at_least=1)
        texts, left = found.texts[:most], max(0, len(found.texts) - most)
    explanations = [classifier.explain(one) for one in texts or ()]
    if html is not None:
        files.write_whole(html, html_page(explanations).encode(), "html")
    return Answer(explanations, _text(explanations, left), [html])


def _text(explanations: list[TextExplanation], left: int) -> Iterator[Any]:
    for explanation in explanations:
        yield explanation.text
        yield terminal.rows_table(explanation.verdict, explanation.table())
        yield from explanation.others()
    if left:
        yield f"and {terminal.counted(left, 'text')} more; --limit {left + len(explanations)} explains them all."
