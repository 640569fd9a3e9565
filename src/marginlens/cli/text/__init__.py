"""`marginlens text`: train a classifier that shows which tokens decide, classify and explain texts with it, draw its tokens."""

from __future__ import annotations

from importlib.util import find_spec

from marginlens.cli._commands import Entry, group

PAPERS = {  # of the package marginlens_papers, where it is installed
    "figure": Entry("marginlens_papers.figure_command", "figure", "Draw what each token says to a model."),
    "encode": Entry("marginlens_papers.encode_command", "encode", "Encode labelled texts as paper B does."),
}

app = group(
    {
        "train": Entry("marginlens.cli.text.train", "train", "Train a classifier on labelled texts."),
        "predict": Entry("marginlens.cli.text.predict", "predict", "Classify every text of a file."),
        "evaluate": Entry(
            "marginlens.cli.text.evaluate", "evaluate", "Say how well a model classifies labelled texts."
        ),
        "explain": Entry("marginlens.cli.text.explain", "explain", "Classify texts, and show which tokens decide."),
        **(PAPERS if find_spec("marginlens_papers") else {}),
    },
    help="Classify texts and see which tokens decide.",
)
