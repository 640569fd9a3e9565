"""`marginlens text`: train a classifier that shows which tokens decide, explain texts with it, draw its tokens, encode reviews."""

from __future__ import annotations

import csv
import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from marginlens.cli import papers_module
from marginlens.cli._commands import Entry, group
from marginlens.cli._deferred import errors, files, np, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet
from marginlens.cli._voice import naming
from marginlens.cli.score import Delimiter, Encoding, NoHeader, measures, show_measures

if TYPE_CHECKING:
    from rich.console import Console

    from marginlens.data.tokens import BoolArray, IntArray
    from marginlens.plotting.tokens import TokenPoints
    from marginlens.runtime.progress import ProgressCallback
    from marginlens.text import Reviews, ReviewSource
    from marginlens.text.classifier import AttentionTextClassifier

_INVERSE_PENALTIES = (1.0, 10.0, 100.0)  # C of logistic regression, from which the comparison chooses
_VALIDATION_SHARE = 0.1  # of the training texts, by which it chooses
STDIN = "-"
_TOP_TOKENS = 12  # that are shown

ReviewFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Labelled texts: a table (CSV, TSV, parquet, also .gz), JSON lines, a folder with a folder of .txt files for each class, "
        "aclImdb or Yelp's reviews.",
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
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the texts.", show_default="8")] = None,
    ngrams: Annotated[
        int | None, typer.Option(metavar="N", help="Most words of a phrase, 1 to 3.", show_default="3")
    ] = None,
    phrase_count: Annotated[
        int | None, typer.Option(metavar="N", help="Phrases that occur N times are tokens.", show_default="2")
    ] = None,
    min_count: Annotated[
        int | None, typer.Option(metavar="N", help="Words that occur N times are tokens.", show_default="2")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="R", help="Of the scores.", show_default="0.07")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(metavar="W", help="Of the votes.", show_default="0")] = None,
    drop: Drop = False,
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a classifier on labelled texts, and print how well it does and which tokens decide.

    Nothing is written before training is done; the model's folder appears whole or not at all.

    Examples:
        marginlens text train reviews.csv --test 0.2 --out model
        marginlens text train reviews.csv --text body --label stars --drop --compare
        marginlens text train train.csv --test test.csv --seed 1 --json
    """
    with errors_as_sentences("Nothing was written."):
        from marginlens.text.classifier import check_model_folder

        chosen = {
            "epochs": epochs,
            "ngrams": ngrams,
            "phrase_count": phrase_count,
            "min_count": min_count,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
        }
        settings = {name: value for name, value in chosen.items() if value is not None}
        form = (delimiter, encoding, no_header)
        request = TrainingRequest(file, (text, label, split), part, test, drop, seed, form, settings)
        errors.whole_number(seed, "seed", at_least=0)
        if out is not None:
            check_model_folder(out, "out")
        request.source()
        with terminal.Bars() as bars:
            model, answer = _train(request, bars.bar("Training"), bars.bar("Comparing") if compare else None)
        if out is not None:
            kept = (
                "command",
                "file",
                "sha256",
                "versions",
                "size",
                "trained_on",
                "tested_on",
                "test_part",
                "measures",
                "models",
            )
            model.save(out, {name: answer[name] for name in kept})
        if as_json:
            typer.echo(_rows.as_json(answer))
        else:
            _show_training(terminal.console(), answer, out)


def explain(
    model: ModelFolder,
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Texts to explain; - reads stdin.", show_default=False)
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write the texts with their words highlighted there.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Classify texts, and show for each the tokens that decide.

    Examples:
        marginlens text explain model "A wonderful film" "Dull and far too long"
        marginlens text explain model "A wonderful film" --html why.html
    """
    with errors_as_sentences():
        from marginlens.text.classifier import AttentionTextClassifier
        from marginlens.text.explanation import html_page

        if html is not None:
            files.check_place(html, "html", (".html", ".htm"))
        classifier = AttentionTextClassifier.load(model)
        if texts == [STDIN]:
            from marginlens.text.text_files import TextFile

            texts = TextFile(STDIN).rows(labelled=False).texts
        explanations = [classifier.explain(text) for text in texts]
        if html is not None:
            files.write_whole(html, html_page(explanations).encode(), "html")
        if as_json:
            typer.echo(_rows.as_json([explanation.to_dict() for explanation in explanations]))
            return
        out = terminal.console()
        for explanation in explanations:
            out.print(explanation.text, markup=False)
            out.print(
                terminal.rows_table(explanation.verdict, explanation.table())
                if explanation.rows
                else explanation.verdict
            )
        if html is not None:
            out.print(f"Written to {html}", markup=False)


def figure(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_RESULT",
            help="A model's folder, a folder of a training run, or a kept run (.json).",
            show_default=False,
        ),
    ],
    plot: Annotated[
        Path, typer.Option(metavar="OUT.png", help="Draw it there, as .png, .svg or .pdf.", show_default=False)
    ],
    names: Annotated[int, typer.Option(metavar="N", help="Tokens to name in each panel.", min=0)] = 12,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Draw every token's products with p and v against what its occurrences say about the label.

    Examples:
        marginlens text figure model --plot tokens.png
        marginlens text figure model --plot tokens.pdf --names 20
    """
    with errors_as_sentences():
        from marginlens.plotting.files import FIGURE_SUFFIXES, write_figure
        from marginlens.plotting.tokens import draw_tokens

        files.check_place(plot, "plot", FIGURE_SUFFIXES)
        points, title = _read_points(source)
        fig = draw_tokens(points, title=title, n_names=names)
        write_figure(plot, fig)
        if as_json:
            columns = zip(points.names or [""] * len(points.a), points.a, points.b, points.count, strict=True)
            named = [{"token": name, "a": a, "b": b, "count": count} for name, a, b, count in columns]
            typer.echo(_rows.as_json({"title": title, "tokens": named, "plot": str(plot)}))
        else:
            terminal.say(f"Written to {plot}")


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
        str | None, typer.Option("--part", metavar="PART", help="Take only this part.", show_default="all texts")
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
    quiet: Quiet = False,
) -> None:
    """Encode labelled texts as paper B does, for training by marginlens embeddings.

    Examples:
        marginlens text encode reviews.csv --out ids.npz --pieces bert-vocabulary.txt --drop
        marginlens text encode aclImdb --out imdb.npz --pieces bert-vocabulary.txt --part train --sample 10000 --seed 1
    """
    with errors_as_sentences("Nothing was written."):
        from marginlens.data.files import write_labelled
        from marginlens.text import ReviewPart, encode_reviews, paper_pipeline, review_source
        from marginlens.text.readers import TRAIN

        files.check_place(out, "out", (".npz",))
        taken = ReviewPart(review_source(file, text, label, split), part, sample, hold_out, seed)
        pipeline = paper_pipeline(_pieces(pieces), empty="drop" if drop else "refuse")
        if count_in is None and hold_out is not None:
            count_in = TRAIN
        start = time.perf_counter()
        with terminal.Bars() as bars:
            encoded = encode_reviews(taken, pipeline, count_in=count_in, progress=bars.bar("Encoding"))
        seconds = time.perf_counter() - start
        write_labelled(out, encoded.data, encoded.names, encoded.split)
        names, sizes = np.unique([] if encoded.split is None else encoded.split, return_counts=True)
        answer: dict[str, Any] = {
            "file": file.name,
            "samples": len(encoded.data),
            "positions": len(encoded.data.tokens),
            "tokens": len(encoded.vocabulary),
            "parts": {str(name): int(size) for name, size in zip(names, sizes, strict=True)},
            "classes": list(encoded.classes),
            "left_out": {reason: n for reason, n in encoded.left_out.items() if n},
            "seconds": seconds,
            "out": str(out),
        }
        if as_json:
            typer.echo(_rows.as_json(answer))
        else:
            left_out = "".join(f"; left out {n} ({reason})" for reason, n in answer["left_out"].items())
            total = f"{answer['samples']:,} texts, {answer['positions']:,} positions, {answer['tokens']:,} tokens"
            total += "".join(f"; {n:,} in {name}" for name, n in answer["parts"].items())
            speed = f"{seconds:.1f} s, {answer['samples'] / seconds:,.0f} texts per second"
            terminal.console().print(f"{total}{left_out}\n{speed}, reading included\nWritten to {out}", markup=False)


# ---- training


@dataclass(frozen=True)
class TrainingRequest:
    """What was asked for on the command line."""

    file: Path
    columns: tuple[str | None, str | None, str | None]
    part: str | None = None
    test: str | None = None
    drop: bool = False
    seed: int = 0
    form: tuple[str | None, str | None, bool] = (None, None, False)  # delimiter, encoding, whether a header is missing
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the classifier, where they are not the usual ones

    def source(self, path: Path | None = None) -> ReviewSource:
        """Where the texts are."""
        from marginlens.text import ImdbFolder, YelpLines
        from marginlens.text.text_files import TextFile

        place = self.file if path is None else path
        delimiter, encoding, no_header = self.form
        if any((folder / "train" / "pos").is_dir() for folder in (place, place / "aclImdb")):
            return ImdbFolder(place)
        if self.columns[1] is None and _has_stars(place):
            return YelpLines(place, shortest=0, longest=sys.maxsize)
        return TextFile(place, *self.columns, delimiter, encoding, not no_header, self.drop)

    def command(self, compare: bool) -> str:
        """What to type to get this again, without paths of one machine."""
        text, label, split = self.columns
        test = self.test if self.test is None or not Path(self.test).exists() else Path(self.test).name
        delimiter, encoding, no_header = self.form
        given = {"--text": text, "--label": label, "--split": split, "--train": self.part, "--test": test}
        given |= {"--delimiter": delimiter, "--encoding": encoding}
        given |= {"--" + name.replace("_", "-"): v for name, v in self.settings.items()}
        words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        flags = [name for name, on in (("--no-header", no_header), ("--drop", self.drop), ("--compare", compare)) if on]
        seed = ["--seed", str(self.seed)] if self.seed else []
        return shlex.join(["marginlens", "text", "train", self.file.name, *words, *flags, *seed])


class Parts(NamedTuple):
    """Texts to train on and to test on, with their labels; nothing to test on where `tested_on` is None."""

    texts: list[str]
    labels: Any
    test_texts: list[str]
    test_labels: Any
    tested_on: str | None
    reviews: Reviews


def read_parts(request: TrainingRequest) -> Parts:
    """Read the texts and split them into those to train on and those to test on."""
    share = _test_share(request.test)
    reviews = request.source().read()
    labels = np.array(reviews.classes)[(reviews.y > 0).astype(int)]
    train, test, tested_on = _train_test_masks(request, reviews, share)
    tested = ([reviews.texts[i] for i in np.flatnonzero(test)], labels[test])
    if request.test is not None and tested_on is None:
        other = request.source(Path(request.test)).read()
        if other.classes != reviews.classes:
            expected = f"a file with the classes {reviews.classes[0]!r} and {reviews.classes[1]!r}"
            raise errors.reject("test", expected, f"{other.classes[0]!r} and {other.classes[1]!r}")
        tested = (other.texts, np.array(other.classes)[(other.y > 0).astype(int)])
        tested_on = Path(request.test).name
    return Parts([reviews.texts[i] for i in np.flatnonzero(train)], labels[train], *tested, tested_on, reviews)


def _test_share(test: str | None) -> float | None:
    """The share to test on, where a number was given."""
    try:
        share = float(test) if test is not None else None
    except ValueError:
        return None
    if share is not None and not 0.0 < share < 1.0:
        raise errors.reject("test", "a part, a file, or a share between 0 and 1", repr(test))
    return share


def _has_stars(place: Path) -> bool:
    """Whether a file of JSON lines has Yelp's stars instead of labels."""
    if place.suffix.lower() not in (".json", ".jsonl", ".ndjson") or not place.is_file():
        return False
    with place.open("rb") as stream:
        first = stream.readline()
    try:
        entry = json.loads(first)
    except ValueError:
        return False
    return isinstance(entry, dict) and "stars" in entry and not {"label", "sentiment", "class", "y"} & set(entry)


def _train_test_masks(
    request: TrainingRequest, reviews: Reviews, share: float | None
) -> tuple[BoolArray, BoolArray, str | None]:
    """(n_reviews,) which texts to train on, which to test on, and what the latter are called."""
    n = len(reviews)
    parts = [] if reviews.split is None else sorted(set(reviews.split.tolist()))
    part = "train" if request.part is None and "train" in parts else request.part
    train = np.ones(n, dtype=bool) if part is None else reviews.in_part(part, "train")
    if share is not None:
        rng, test = np.random.default_rng(request.seed), np.zeros(n, dtype=bool)
        for sign in (-1.0, 1.0):  # each class in proportion, and both in both parts
            candidates = np.flatnonzero(train & (reviews.y == sign))
            size = max(1, round(share * len(candidates)))
            if size >= len(candidates):
                name = reviews.classes[int(sign > 0)]
                expected = f"a share that leaves some of the {len(candidates)} texts of class {name!r} to train on"
                raise errors.reject("test", expected, repr(request.test))
            test[rng.permutation(candidates)[:size]] = True
        return train & ~test, test, f"{share:g} of each class, drawn at random"
    tested_part = "test" if request.test is None and "test" in parts and part != "test" else request.test
    if tested_part in parts:
        test = reviews.in_part(str(tested_part))
        if part == tested_part:
            raise errors.reject("test", "another part than the one to train on", repr(request.test))
        return train & ~test, test, tested_part
    if request.test is not None and not Path(request.test).exists():
        named = ", ".join(map(repr, parts)) or "there are none"
        raise errors.reject("test", f"a part ({named}), a file, or a share between 0 and 1", repr(request.test))
    return train, np.zeros(n, dtype=bool), None


def _train(
    request: TrainingRequest, training: ProgressCallback, comparing: ProgressCallback | None
) -> tuple[AttentionTextClassifier, dict[str, Any]]:
    """Train, test, and where asked train the comparison too: the model, and all numbers as JSON holds them."""
    from marginlens.runtime.versions import versions
    from marginlens.text.classifier import MIN_COUNT, AttentionTextClassifier, default_pipeline

    parts = read_parts(request)
    settings = dict(request.settings)
    min_count = settings.pop("min_count", MIN_COUNT)
    pipeline = replace(default_pipeline("drop" if request.drop else "refuse"), min_count=min_count)
    model = AttentionTextClassifier(pipeline, random_state=request.seed, **settings)
    start = (time.perf_counter(), time.process_time())
    model.fit(parts.texts, parts.labels, progress=training)
    rows = [_row("attention over words and phrases", model, parts, start, len(model.a_))]
    if comparing is not None:
        rows += _baselines(parts, request.seed, comparing)
    n_tested = len(parts.test_texts)
    tested = f", {n_tested:,} to test on ({parts.tested_on})" if parts.tested_on is not None else ""
    trained_on = len(parts.texts) - len(model.left_out_)
    without_token = {"no token left": len(model.left_out_)} if len(model.left_out_) else {}
    table = model.token_importance_
    top = table[np.argsort(-table["selected"], kind="stable")[:_TOP_TOKENS]]
    return model, {
        "command": request.command(compare=comparing is not None),
        "file": request.file.name,
        "sha256": request.source().digest(),
        "versions": versions(),
        "settings": {"min_count": min_count, **{k: v for k, v in model.get_params().items() if k != "pipeline"}},
        "size": f"{trained_on:,} texts to train on{tested}",
        "classes": list(parts.reviews.classes),
        "left_out": {**{reason: n for reason, n in parts.reviews.left_out.items() if n}, **without_token},
        "trained_on": trained_on,
        "tested_on": n_tested,
        "test_part": parts.tested_on,
        "measures": measures(model, parts.test_texts, list(map(str, parts.test_labels))) if n_tested else None,
        "models": rows,
        "training": model.training_,
        "tokens": [dict(zip(table.dtype.names, row.item(), strict=True)) for row in top],
    }


def _row(name: str, model: Any, parts: Parts, start: tuple[float, float], n_tokens: int) -> dict[str, Any]:
    seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    tested = None if parts.tested_on is None else float(np.mean(model.predict(parts.test_texts) == parts.test_labels))
    return {
        "model": name,
        "test_accuracy": tested,
        "training_accuracy": float(np.mean(model.predict(parts.texts) == parts.labels)),
        "tokens": n_tokens,
        "seconds": seconds,
        "cpu_seconds": cpu,
    }


def _baselines(parts: Parts, seed: int, progress: ProgressCallback) -> list[dict[str, Any]]:
    """TF-IDF with logistic regression, on words and on words and pairs; its C is chosen on a tenth of the training texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from marginlens.runtime.progress import Progress
    from marginlens.text.classifier import MIN_COUNT

    rows = []
    watch = Progress(progress, 2 * (1 + len(_INVERSE_PENALTIES)))
    fitted, validation = _validation_split(parts.labels, seed)
    for words, name in ((1, "TF-IDF of words"), (2, "TF-IDF of words and pairs")):
        start = (time.perf_counter(), time.process_time())
        vectorizer = TfidfVectorizer(ngram_range=(1, words), min_df=MIN_COUNT, sublinear_tf=True)
        X = vectorizer.fit_transform([parts.texts[i] for i in fitted])
        X_validation = vectorizer.transform([parts.texts[i] for i in validation])
        accuracies = []
        for C in _INVERSE_PENALTIES:
            trial = LogisticRegression(C=C, max_iter=1000).fit(X, parts.labels[fitted])
            accuracies.append(float(np.mean(trial.predict(X_validation) == parts.labels[validation])))
            watch.advance()
        C = _INVERSE_PENALTIES[int(np.argmax(accuracies))]  # of equally good ones the strongest penalty
        model = make_pipeline(vectorizer, LogisticRegression(C=C, max_iter=1000)).fit(parts.texts, parts.labels)
        row = _row(f"{name} + logistic regression, C = {C:g}", model, parts, start, len(vectorizer.vocabulary_))
        by_C = {f"{value:g}": accuracy for value, accuracy in zip(_INVERSE_PENALTIES, accuracies, strict=True)}
        rows.append({**row, "validation_accuracy_by_C": by_C})
        watch.advance()
    return rows


def _validation_split(labels: Any, seed: int) -> tuple[IntArray, IntArray]:
    """Indices of the training texts to fit trials on, and of the tenth of each class, at least one, to judge them by."""
    rng = np.random.default_rng(seed)
    fitted, validation = [], []
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        size = max(1, round(_VALIDATION_SHARE * len(indices))) if len(indices) > 1 else 0
        validation.append(indices[:size])
        fitted.append(indices[size:])
    return np.sort(np.concatenate(fitted)), np.sort(np.concatenate(validation))


def _pieces(place: Path) -> Any:
    """The tokenizer in a file."""
    from marginlens.text import SubwordTokenizer

    with naming(path="pieces"):
        return SubwordTokenizer.from_file(place)


# ---- figures


def _read_points(source: Path) -> tuple[TokenPoints, str]:
    """The tokens of a model, a training run or a kept run, and what to call them."""
    from marginlens.embeddings.train import TABLE
    from marginlens.plotting.tokens import TokenPoints
    from marginlens.text.classifier import SETTINGS_FILE, AttentionTextClassifier

    if (source / SETTINGS_FILE).is_file():
        model = AttentionTextClassifier.load(source)
        known = model.statistics_
        points = TokenPoints.of(known.posterior_difference, model.a_, model.b_, known.count, model.tokens_.names)
        negative, positive = (str(name) for name in model.classes_)
        points = replace(points, classes=(f"texts of class {negative!r}", f"texts of class {positive!r}"))
        return points, f"What each token says to the classifier in {source.resolve().name!r}"
    if (source / TABLE).is_file():
        return _read_table(source / TABLE), f"Tokens of the run {source.resolve().name}"
    archive = papers_module("archive") if source.is_file() and source.suffix.lower() == ".json" else None
    if archive is not None:
        run = archive.read_run(source)
        known = run.statistics
        return TokenPoints.of(known.posterior_difference, run.a, run.b, known.count, run.names), run.summary
    got = f"{str(source)!r}, which is {'something else' if source.exists() else 'not there'}"
    raise errors.reject("source", "a model's folder, a folder of a training run, or a kept run (.json)", got)


def _read_table(path: Path) -> TokenPoints:
    from marginlens.plotting.tokens import TokenPoints

    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        difference, a, b = ([float(row[name]) for row in rows] for name in ("posterior_difference", "a", "b"))
        count = np.array([int(row["count"]) for row in rows])
        names = [row["token"] for row in rows]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as problem:
        raise errors.reject("source", "a folder of a training run", f"{str(path)!r}, which cannot be read") from problem
    return TokenPoints.of(difference, a, b, count, names if any(names) else None)


# ---- the terminal


def _show_training(out: Console, answer: dict[str, Any], folder: Path | None) -> None:
    first, second = answer["classes"]
    out.print(f"{answer['file']}: {answer['size']}; {first!r} against {second!r}", markup=False)
    if answer["left_out"]:
        out.print("; ".join(f"{n} left out: {why}" for why, n in answer["left_out"].items()), markup=False)
    out.print(terminal.rows_table("Accuracy", [_model_cells(row) for row in answer["models"]]))
    if answer["measures"] is not None:
        show_measures({"file": answer["test_part"], "texts": answer["tested_on"], "left_out": {}, **answer["measures"]})
    if answer["test_part"] is None:
        out.print("There is no part to test on: --test 0.2 would hold out a fifth.", markup=False)
    rows = [{**row, "alpha": f"{row['alpha']:+.2e}"} for row in answer["tokens"]]
    out.print(terminal.rows_table("The tokens selected most often", rows))
    if folder is not None:
        terminal.say(f"Written to {folder}")


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


app = group(
    {
        "train": train,
        "predict": Entry("marginlens.cli.score", "predict", "Classify every text of a file."),
        "evaluate": Entry("marginlens.cli.score", "evaluate", "Say how well a model classifies labelled texts."),
        "explain": explain,
        "figure": figure,
        "encode": encode,
    },
    help="Classify texts and see which tokens decide.",
)
