"""`marginlens text train`: train a classifier on labelled texts, test it, and put it beside the usual ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marginlens.cli._commands import typed_command
from marginlens.cli._deferred import errors, np, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import flag, option
from marginlens.cli.text._options import OF_TEXT_FILE, LabelledFile, Seed, SplitForm
from marginlens.cli.text._parts import Parts, TrainingRequest, read_parts
from marginlens.cli.text.evaluate import measures_text

if TYPE_CHECKING:
    from marginlens.runtime.progress import ProgressCallback
    from marginlens.text.classifier import AttentionTextClassifier

_TOP_TOKENS = 12  # that are shown
_MODEL_COLUMNS = (
    "model={model}, test accuracy={test_accuracy:.2%}, training accuracy={training_accuracy:.2%}, tokens={tokens:,}, "
    "seconds={seconds:.1f}, CPU seconds={cpu_seconds:.1f}"
)
_LOOKED_AT = 2000  # texts in which their attention is measured
_SHOWN_CLASSES = 6  # whose names are said
_SAVED_FACTS = (
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


@dataclass(frozen=True)
class ModelSettings:
    """The settings of a classifier; None and False are the usual ones."""

    ngrams: Annotated[int | None, option("N", "Most words of a phrase, 1 to 3.", "3; 2 below 500 texts")] = None
    min_count: Annotated[int | None, option("N", "Minimum count of a word.", "2; 1 below 500 texts")] = None
    phrase_count: Annotated[
        int | None, option("N", "Phrases that occur N times are tokens.", "2; 1 below 500 texts")
    ] = None
    characters: Annotated[bool, flag("--characters", "Take every letter as a word: for languages without blanks.")] = (
        False
    )
    class_weight: Annotated[
        str | None,
        option(
            "WEIGHTS",
            "balanced, so that rare classes count as much as others, or weights such as ham=1,spam=5.",
            words=("balanced",),
        ),
    ] = None
    epochs: Annotated[int | None, option("N", "Passes over the texts.", "8; 16 below 500 texts")] = None
    learning_rate: Annotated[float | None, option("R", "Of the scores.", "0.07")] = None
    weight_decay: Annotated[float | None, option("W", "Of the votes.", "0")] = None
    selective: Annotated[
        bool, flag("--selective", "Let a few tokens of a text have nearly all attention; less accurate.")
    ] = False

    def given(self) -> dict[str, Any]:
        """The settings that are not the usual ones, by name."""
        settings = {**vars(self), "class_weight": _class_weight(self.class_weight)}
        return {name: value for name, value in settings.items() if value is not None and value is not False}


def _class_weight(text: str | None) -> str | dict[str, float] | None:
    """ "balanced", or a weight for every class."""
    if text is None or text == "balanced":
        return text
    weights = {}
    for entry in text.split(","):
        name, _, number = entry.rpartition("=")
        try:
            weights[name.strip()] = float(number)
        except ValueError:
            weights[""] = 0.0
    if "" in weights or not all(0.0 < weight < float("inf") for weight in weights.values()):
        raise errors.reject("class_weight", "balanced, or a positive weight by label such as ham=1,spam=5", repr(text))
    return weights


@command("Nothing was written.", **OF_TEXT_FILE, random_state="{seed}", train="{part}")
def train(
    file: LabelledFile,
    form: SplitForm,
    model: ModelSettings,
    part: Annotated[
        str | None, option("PART", "The part to train on.", "train, if there is one", name="--train")
    ] = None,
    test: Annotated[
        str | None,
        option(
            "PART|FILE|SHARE",
            "What to test on: a part, another file, or a share such as 0.2 of each class drawn at random, equal texts on one "
            "side.",
            "test, if there is one",
        ),
    ] = None,
    out: Annotated[Path | None, option("FOLDER", "Write the model there.")] = None,
    compare: Annotated[
        bool,
        flag(
            "--compare",
            "Train TF-IDF of words and pairs with logistic regression, tuned by cross-validation, beside it.",
        ),
    ] = False,
    tokenizer: Annotated[
        Path | None, option("FILE.json", "Cut texts by this tokenizer of the package tokenizers instead.")
    ] = None,
    seed: Seed = 0,
) -> Answer:
    """Train a classifier on labelled texts of two or more classes, and print how well it does and which tokens decide.

    Nothing is written before training is done; the model's folder appears whole or not at all.

    Examples:
        marginlens text train reviews.csv --test 0.2 --out model
        marginlens text train reviews.csv --text body --label stars --drop --compare
        marginlens text train mails.csv --class-weight balanced --test 0.2
        marginlens text train 新闻.jsonl --characters --test 0.2 --out model
        marginlens text train train.csv --test test.csv --seed 1 --json
        marginlens text train - --test 0.2 < reviews.csv
    """
    from marginlens.text.classifier import check_model_folder

    settings = model.given()
    errors.whole_number(seed, "seed", at_least=0)
    if tokenizer is not None and model.characters:
        raise errors.reject("characters", "left out beside --tokenizer", "both")
    request = TrainingRequest(file, form, part, test, seed)
    if out is not None:
        check_model_folder(out, "out")
    _ = request.source  # refused before anything is written
    with terminal.Bars() as bars:
        classifier, answer = _trained(request, settings, tokenizer, bars.bar("Training"), compare=compare)
    if out is not None:
        classifier.save(out, {name: answer[name] for name in _SAVED_FACTS})
    return Answer(answer, _text(answer), [out])


def _tokenizer(path: Path | None) -> Any:
    """The tokenizer in a file of the package tokenizers."""
    if path is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError as problem:
        raise errors.missing_extra("tokenizers", "text", "--tokenizer") from problem
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as problem:  # the package raises plain exceptions
        expected = "a tokenizer of the package tokenizers, saved as .json"
        raise errors.reject("tokenizer", expected, f"{str(path)!r}, which cannot be read") from problem


def _trained(
    request: TrainingRequest,
    settings: dict[str, Any],
    tokenizer: Path | None,
    training: ProgressCallback,
    *,
    compare: bool,
) -> tuple[AttentionTextClassifier, dict[str, Any]]:
    """Train, test, and where asked train the comparison too: the model, and all numbers as JSON holds them."""
    from marginlens.runtime.versions import versions
    from marginlens.text.baselines import TfidfLogistic
    from marginlens.text.classifier import AttentionTextClassifier
    from marginlens.text.evaluation import measures, token_weights

    cut_by = _tokenizer(tokenizer)
    parts = read_parts(request)
    model = AttentionTextClassifier(tokenizer=cut_by, random_state=request.seed, **settings)
    _check_weights(settings.get("class_weight"), parts)
    start = (time.perf_counter(), time.process_time())
    _fit(model, parts, training, drop=request.form.drop)
    rows = [_row("attention over words and phrases", model, len(model.a_), parts, start)]
    if compare:
        start = (time.perf_counter(), time.process_time())
        rival = TfidfLogistic(seed=request.seed).fit(parts.texts, parts.labels)
        rows.append(_row(f"{rival.name}, C = {rival.chosen['C']}", rival, rival.n_tokens, parts, start))
    n_tested = len(parts.test_texts)
    named = f", {n_tested:,} to test on ({parts.tested_on})" if parts.tested_on is not None else ""
    trained_on = len(parts.texts) - len(model.left_out_)
    without_token = {"no token left": len(model.left_out_)} if len(model.left_out_) else {}
    looked_at = (parts.test_texts or parts.texts)[:_LOOKED_AT]
    weights, table = token_weights(model, looked_at), model.token_importance_
    top = [s for s in weights.order[:_TOP_TOKENS].tolist() if weights.n_texts[s]]
    names, counts = np.unique(parts.labels, return_counts=True)
    parameters = {k: v for k, v in model.get_params().items() if k not in ("pipeline", "tokenizer")}
    return model, {
        "command": typed_command("out"),
        "file": request.file.name,
        "sha256": request.source.digest(),
        "versions": versions(),
        "settings": {**parameters, "tokenizer": None if tokenizer is None else tokenizer.name},
        "size": f"{terminal.counted(trained_on, 'text')} to train on{named}",
        "classes": names.tolist(),
        "texts_by_class": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        "left_out": {**parts.left_out, **without_token},
        "trained_on": trained_on,
        "tested_on": n_tested,
        "test_part": parts.tested_on,
        "measures": measures(model, parts.test_texts, parts.test_labels) if n_tested else None,
        "models": rows,
        "comparison": _comparison(rows, n_tested),
        "training": model.training_,
        "tokens_looked_at": len(looked_at),
        "tokens": [
            dict(zip(table.dtype.names, map(_plain, table[s]), strict=True))
            | {"attention": float(weights.attention[s]), "contribution": float(weights.contribution[s])}
            for s in top
        ],
    }


def _comparison(rows: list[dict[str, Any]], n_tested: int) -> str | None:
    """Whether the other model does better on the texts to test on, and by how much, in a sentence."""
    if len(rows) < 2 or not n_tested:
        return None
    own, other = (row["test_accuracy"] for row in rows)
    if own == other:
        return f"This model and {rows[1]['model']} are right about equally many texts."
    texts = terminal.counted(round(abs(own - other) * n_tested), "text")
    better = "better" if own > other else "worse"
    return f"This model is {better} than {rows[1]['model']}, by {100 * abs(own - other):.2f} points: {texts} of {n_tested:,}."


def _check_weights(weights: Any, parts: Parts) -> None:
    """Refuse weights of other classes than those that are there."""
    if isinstance(weights, dict) and set(weights) != set(parts.classes):
        shown = ", ".join(map(repr, parts.classes[:_SHOWN_CLASSES]))
        unknown = sorted(set(weights) - set(parts.classes))
        missing = sorted(set(parts.classes) - set(weights))
        got = f"one for {unknown[0]!r}, which is no class" if unknown else f"none for {missing[0]!r}"
        raise errors.reject("class_weight", f"a weight for every class ({shown})", got)


def _fit(model: AttentionTextClassifier, parts: Parts, progress: ProgressCallback, *, drop: bool) -> None:
    """Fit; texts without a token are refused unless they are to be dropped."""
    import warnings

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(parts.texts, parts.labels, progress=progress)
    if len(model.left_out_) and not drop:
        first, more = int(model.left_out_[0]), len(model.left_out_) - 1
        got = f"none in the text {parts.texts[first][:40]!r}" + (f" and {more:,} more" if more else "")
        raise errors.reject("texts", "texts that have at least one token", got, "--drop leaves them out.")
    for warning in said:
        if "left_out_" not in str(warning.message):  # which the table says
            warnings.warn(warning.message, stacklevel=2)


def _row(name: str, model: Any, n_tokens: int, parts: Parts, start: tuple[float, float]) -> dict[str, Any]:
    """How well a model does, and the seconds since `start`, by the clock and of the processor."""
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


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


# ---- the terminal


def _text(answer: dict[str, Any]) -> Iterator[Any]:
    yield terminal.Line(f"{answer['file']}: {answer['size']}; {_classes(answer['texts_by_class'])}")
    if answer["left_out"]:
        yield "; ".join(f"{n} left out: {why}" for why, n in answer["left_out"].items())
    yield terminal.rows_table("Accuracy", [_rows.cells(row, _MODEL_COLUMNS) for row in answer["models"]])
    if answer["measures"] is not None:
        tested = {"file": answer["test_part"], "texts": answer["tested_on"], "left_out": {}}
        yield from measures_text({**tested, **answer["measures"]})
    if answer["test_part"] is None:
        yield "There is no part to test on: --test 0.2 would hold out a fifth."
    texts = terminal.counted(answer["tokens_looked_at"], "text")
    title = f"The tokens that contribute most to the answers about {texts}: attention times vote, summed"
    yield terminal.rows_table(title, [_token_cells(row) for row in answer["tokens"]])
    if answer["comparison"] is not None:
        yield answer["comparison"]


def _classes(counts: dict[str, int]) -> str:
    """The classes and how many texts each has: the largest where there are many."""
    if len(counts) == 2:
        (first, n_first), (second, n_second) = counts.items()
        return f"{first!r} ({n_first:,}) against {second!r} ({n_second:,})"
    largest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_SHOWN_CLASSES]
    more = ", ..." if len(counts) > _SHOWN_CLASSES else ""
    return f"{len(counts)} classes: " + ", ".join(f"{name!r} ({n:,})" for name, n in largest) + more


def _token_cells(row: dict[str, Any]) -> dict[str, Any]:
    """What a token does; with more than two classes its vote is that for the class that it speaks for."""
    cells = {"token": row["token"], "speaks for": str(row["label"]), "contribution": row["contribution"]}
    return cells | {"mean attention": row["attention"], "vote": row["b"], "times in training": row["count"]}
