"""`marginlens text`: train a classifier that shows which tokens decide, explain texts with it, draw its tokens, encode reviews."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from marginlens.commands import answers
from marginlens.commands.endings import one_sentence
from marginlens.commands.options import AsJson

app = typer.Typer(
    help="Classify texts and see which tokens decide.", no_args_is_help=True, pretty_exceptions_enable=False
)

ReviewFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Labelled texts: a CSV or parquet table, the folder aclImdb, or Yelp's JSON lines.",
        show_default=False,
    ),
]
ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A folder that text train --out wrote.", show_default=False)
]
TextColumn = Annotated[str | None, typer.Option("--text", metavar="COLUMN", help="The texts of a table.")]
LabelColumn = Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="The labels of a table.")]
SplitColumn = Annotated[str | None, typer.Option("--split", metavar="COLUMN", help="The part each row belongs to.")]
Drop = Annotated[bool, typer.Option("--drop", help="Leave out texts without any token that is kept.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of everything random.")]


@app.command()
def train(
    file: ReviewFile,
    text: TextColumn = None,
    label: LabelColumn = None,
    split: SplitColumn = None,
    part: Annotated[
        str | None,
        typer.Option("--train", metavar="PART", help="The part to train on.", show_default="train, if there is one"),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="PART|FILE|SHARE",
            help="What to test on: a part, another file, or a share such as 0.2 drawn at random.",
            show_default="test, if there is one",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the model there.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Train TF-IDF with logistic regression beside it.")
    ] = False,
    drop: Drop = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a classifier on labelled texts, and print how well it does and which tokens decide.

    Nothing is written before training is done; the model's folder appears whole or not at all.
    """
    with one_sentence("Nothing was written."):
        from marginlens.commands import text_training as work
        from marginlens.report.terminal import Bars, console

        request = work.Request(file, (text, label, split), part, test, out, drop, seed)
        request.check()
        with Bars(console(stderr=True)) as bars:
            result = work.train(request, compare, bars.bar)
        if out is not None:
            result.save(out)
        told = result.told()
        if as_json:
            typer.echo(answers.as_json(told))
        else:
            _show_training(console(), told, out)


@app.command()
def explain(
    model: ModelFolder,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts to explain.", show_default=False)],
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write the texts with their words highlighted there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Classify texts, and show for each the tokens that decide."""
    with one_sentence():
        from marginlens.commands.graph_answers import check_output
        from marginlens.data.files import write_whole
        from marginlens.embeddings.classifier import AttentionTextClassifier
        from marginlens.embeddings.explaining import html_page
        from marginlens.report.terminal import console, rows_table

        check_output(html, "html", (".html", ".htm"))
        found = AttentionTextClassifier.load(model)
        explained = [found.explain(one) for one in texts]
        if html is not None:
            write_whole(html, html_page(explained).encode(), "html")
        if as_json:
            typer.echo(answers.as_json([_explanation_told(one) for one in explained]))
            return
        out = console()
        for one in explained:
            out.print(one.text, markup=False)
            out.print(rows_table(escape(one.verdict), one.table()) if one.rows else escape(one.verdict))
        if html is not None:
            out.print(f"Written to {html}", markup=False)


@app.command()
def figure(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_RESULT",
            help="A model's folder, a folder of a training run, or a kept run (.json).",
            show_default=False,
        ),
    ],
    plot: Annotated[Path, typer.Option(metavar="OUT.png", help="Draw it there, as .png or .svg.", show_default=False)],
    names: Annotated[int, typer.Option(metavar="N", help="Tokens to name in each panel.", min=0)] = 12,
) -> None:
    """Draw every token's products with p and v against what its occurrences say about the label."""
    with one_sentence():
        from marginlens.commands.graph_answers import check_output
        from marginlens.commands.text_figures import draw

        check_output(plot, "plot", (".png", ".svg"))
        draw(source, plot, names)
        typer.echo(f"The picture is at {plot}")


@app.command()
def encode(
    file: ReviewFile,
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
        str | None, typer.Option(metavar="PART", help="Take only this part.", show_default="all texts")
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
    drop: Drop = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Encode labelled texts as paper B does, for training by `python -m marginlens.embeddings.run`."""
    with one_sentence("Nothing was written."):
        from marginlens.commands import text_training as work
        from marginlens.commands.graph_answers import check_output
        from marginlens.report.terminal import Bars, console
        from marginlens.text import ReviewPart

        check_output(out, "out", (".npz",))
        request = work.Request(file, (text, label, split), drop=drop, seed=seed)
        taken = ReviewPart(request.source(), part, sample, hold_out, seed)
        with Bars(console(stderr=True)) as bars:
            told = work.encode(request, taken, pieces, count_in, out, bars.bar("Encoding"))
        if as_json:
            typer.echo(answers.as_json(told))
        else:
            left_out = "".join(f"; left out {n} ({why})" for why, n in told["left_out"].items())
            sizes = f"{told['samples']:,} texts, {told['positions']:,} positions, {told['tokens']:,} tokens"
            sizes += "".join(f"; {n:,} in {name}" for name, n in told["parts"].items())
            speed = f"{told['seconds']:.1f} s, {told['samples'] / told['seconds']:,.0f} texts per second"
            console().print(f"{sizes}{left_out}\n{speed}, reading included\nWritten to {out}", markup=False)


# ---- the terminal


def _show_training(out: Console, told: dict[str, Any], folder: Path | None) -> None:
    from marginlens.report.terminal import rows_table

    first, second = told["classes"]
    out.print(f"{told['file']}: {told['size']}; {first!r} against {second!r}", markup=False)
    if told["left_out"]:
        out.print("; ".join(f"{n} left out: {why}" for why, n in told["left_out"].items()), markup=False)
    out.print(rows_table("Accuracy", [_model_cells(row) for row in told["models"]]))
    if told["tested_on"] is None:
        out.print("There is no part to test on: --test 0.2 would hold out a fifth.", markup=False)
    rows = [{**row, "alpha": f"{row['alpha']:+.2e}"} for row in told["tokens"]]
    out.print(rows_table("The tokens selected most often", rows))
    if folder is not None:
        out.print(f"The model is at {folder}", markup=False)


def _model_cells(row: dict[str, Any]) -> dict[str, Any]:
    tested = row["test_accuracy"]
    return {
        "model": row["model"],
        "test accuracy": "–" if tested is None else f"{tested:.2%}",
        "training accuracy": f"{row['training_accuracy']:.2%}",
        "tokens": f"{row['tokens']:,}",
        "seconds": f"{row['seconds']:.1f}",
        "CPU seconds": f"{row['cpu_seconds']:.1f}",
    }


def _explanation_told(one: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "text": one.text,
        "label": one.label,
        "probability": one.probability,
        "f": one.f,
        "selected": one.selected,
        "selection_margin": one.margin,
        "tokens": [asdict(row) for row in one.rows],
    }
