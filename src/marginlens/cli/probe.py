"""`marginlens probe`: what the attention heads of a model select on a user's inputs, as a table, a page and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marginlens.cli import _rows
from marginlens.cli._exit import one_sentence
from marginlens.cli._options import AsJson


def probe(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_PATH",
            help="A folder that save_pretrained wrote, or minilm for the packaged all-MiniLM-L6-v2.",
            show_default=False,
        ),
    ],
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="One input per line.", show_default="200 sentences of our own"),
    ] = None,
    images: Annotated[
        Path | None, typer.Option("--images", metavar="FILE", help="Images in a .npz, .npy or .png file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Where the page goes.", show_default="probe-report; nowhere with --json"
        ),
    ] = None,
    max_margin: Annotated[
        bool | None,
        typer.Option(
            "--max-margin/--no-max-margin",
            help="Ask how max-margin each head is: the longest part.",
            show_default="on; off with --checkpoints",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Use the first N inputs only.", min=1)
    ] = None,
    queries: Annotated[
        int, typer.Option("--queries", metavar="N", help="Queries of each input in the max-margin part.", min=1)
    ] = 1,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Which queries and baselines the max-margin part draws.", min=0)
    ] = 0,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset", metavar="N", help="Models with rotary positions: take W at this offset of query and key.", min=0
        ),
    ] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="The folder holds the checkpoints of a training run: draw curves.")
    ] = False,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Also load weights in pickle form, which can run code.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the model of this name from the Hugging Face Hub.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Probe the attention heads of a model: how sparsely they attend, what they select and with which margin.

    The page shows a heat map over layers and heads for every measure; choose a head there to see its attention.
    """
    with one_sentence("Nothing was written."):
        from marginlens.cli import probe_work as work
        from marginlens.cli._terminal import Bars, console
        from marginlens.probe.result import ProbeSettings

        asked = not checkpoints if max_margin is None else max_margin
        settings = ProbeSettings(max_margin=asked, queries=queries, offset=offset, seed=seed)
        request = work.Request(model, text, images, limit, (trust_pickle, download))
        place = work.check_folder(out if out is not None or as_json else Path(work.FOLDER))
        with Bars(console(stderr=True)) as bars:
            bar = bars.bar("Probing")
            found = (work.curves if checkpoints else work.probed)(request, settings, bar)
            if place is not None:
                work.write(found, place)
        if as_json:
            typer.echo(_rows.as_json(found.to_dict()))
        else:
            work.show(console(), found, place)
