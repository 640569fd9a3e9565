"""What the library refuses, said in the words of the command line: options and files instead of arguments, commands instead of calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from marginlens.cli._commands import typed_name
from marginlens.cli._deferred import errors

_FIRST = "{}"  # the command's first argument, as its help calls it
_INSIDE = "{name} in {{}}"  # an entry of the file that it names
_ENTRIES = ("X", "y", "v", "K", "W", "E", "C", "sequences", "labels", "vocabulary", "lengths", "mask", "n_vocabulary")
_PROBLEM_FILE = {name: _INSIDE.format(name=repr(name)) for name in _ENTRIES} | {
    "head": "the head in {}",
    "rows": "the keys in {}",
    "places": "the tokens in {}",
}
_TEXT_FILE = {
    "X": "the texts of {}",
    "texts": "the texts of {}",
    "y": "the labels of {}",
    "labels": "the labels of {}",
    "random_state": "--seed",
    "train": "--train",
}

_TEXTS_OF_A_MODEL = {name: words.format("FILE") for name, words in _TEXT_FILE.items()} | {
    "path": "FILE",
    "folder": "MODEL",
}

# What the library calls a thing -> what the person typed, or the part of the file; options of the same name need no line.
_EVERYWHERE = {
    **dict.fromkeys(("path", "file", "files", "source", "data", "problem", "location"), _FIRST),
    "folder": "--out",
    "device": "--device",
    "n_steps": "--steps",
    "size": "--step-size",
    "step": "--step-size",
    "n_workers": "--workers",
    "rate": "--step-size",
}
_BY_COMMAND: Mapping[str, Mapping[str, str]] = {
    "marginlens solve": _PROBLEM_FILE,
    "marginlens train": _PROBLEM_FILE | {"betas": "the betas in {}", "power": "--decay"},
    "marginlens graph": _PROBLEM_FILE | {"max_vocabulary": "--vocabulary", "engine": "--scheduler", "unit": "--words"},
    "marginlens lab": _PROBLEM_FILE | {"name": "--preset"},
    "marginlens claims": {"folder": "--report"},
    "marginlens statement": {"label": "LABEL"},
    "marginlens probe": {
        "tokenizer": "the tokenizer of {}",
        "config": "config.json of {}",
        "model": _FIRST,
        "name": _FIRST,
        "folder": _FIRST,
        "folders": _FIRST,
        "W_Q": "the query weights of {}",
        "W_K": "the key weights of {}",
        "texts": "--text",
        "inputs": "the inputs",
    },
    "marginlens sweep run": {"plan": "PLAN", "engine": "--scheduler", "folder": "--out"},
    "marginlens embeddings": {"rng": "--data-seed", "set": "--set", "n_samples": "--levels", "n_tokens": "--length"},
    "marginlens vision": {"set": "--set"},
    "marginlens sweep status": {"folder": _FIRST},
    "marginlens sweep summary": {"folder": _FIRST},
    "marginlens sweep table": {"folder": _FIRST},
    "marginlens text train": _TEXT_FILE,
    "marginlens text evaluate": _TEXTS_OF_A_MODEL,
    "marginlens text predict": _TEXTS_OF_A_MODEL,
    "marginlens text explain": {"folder": "MODEL", "path": "--file"},
    "marginlens text figure": {"folder": _FIRST},
    "marginlens text encode": _TEXT_FILE | {"hold_out": "--hold-out"},
}

_FILES = {
    "marginlens sweep run": "PLAN",
    "marginlens solve": "FILE",
    "marginlens train": "FILE",
    "marginlens lab": "FILE",
}

# Advice that names Python, and what to type instead.
_ADVICE = (
    (
        r"(?:Use|Leave them out with) (?:empty|unrealizable)=\"drop\"(?: to leave them out)?\.",
        "--drop leaves them out.",
    ),
    (r"a pipeline with a smaller min_count", "a smaller --min-count"),
    (r"AttentionTextClassifier\.save wrote", "marginlens text train --out wrote"),
    (r"Use drop=True to leave them out\.", "--drop leaves them out."),
    (r"Put the texts into a list\.", ""),
    (r"Leave out 'head' to", "Leave 'C' out of the file to"),
    (r"Leave it out, or give None, for the head", "Leave it out for the head"),
    (r"State an offset", "State one with --offset"),
    (r"\w+=True \(on the command line: (--[\w-]+)\)", r"\1"),
    (r"Call priority_graphs with the stream and this folder: it is made again\.", "Run the same command again."),
    (r"one for each sample of X", "one for each text"),
    (r"Name it with the argument '(\w+)'\.", r"Name it with --\1."),
    (r"give header=False\.", "give --no-header."),
    (r"A smaller min_count may help\.", "A smaller --min-count may help."),
    (r"whole numbers of shape \((\d+),\): one token index per input", r"one token index per input, \1 in all"),
    (r"an array of finite numbers of shape \((\d+),\)", r"finite numbers, \1 in all"),
    (r"got shape \((\d+),\)(?: with dtype \w+)?", r"got \1"),
)
_CLASSES = re.compile(
    r"\b(?:ml\.)?(L1|L2|LInf|Spectral|Nuclear|Frobenius)\(\)"
)  # and what --norm calls them, in small letters
_REJECTION = re.compile(r"The '(.+?)' argument must be (.*); got (.*) instead\.(?: (.*))?", re.DOTALL)
_CALLED = r"\b(?!save_pretrained\b)[a-z]+(?:_[a-z0-9]+)+\b(?!\.\w)"  # names with underscores, outside names of files


def in_words(problem: Any, context: Any) -> str:
    """The sentence for an `InputError` of a command.

    Args:
        problem: the error; where `reject` made it, it has its parts.
        context: of the command that runs; None leaves the error as Python says it.
    """
    if context is None:
        return str(problem)
    typed = {parameter.name: typed_name(parameter) for parameter in context.command.params}
    if not problem.argument:
        again = _REJECTION.fullmatch(str(problem))  # as a function of the library said it of another's argument
        if again is None:
            return _advice(str(problem), typed)
        problem = errors.reject(*(part or "" for part in again.groups()))
    in_file = re.search(r" in '[^']*'$", problem.got)  # entries of a file, though an option may have the same name
    name = f"{problem.argument!r} in FILE" if in_file else _name(problem.argument, context, typed)
    if problem.expected.startswith("left out") or problem.got in ("none", "both"):
        sentence = f"{name} must be {problem.expected}."
    else:
        sentence = f"{name} must be {problem.expected}; got {problem.got}."
    return _advice(f"{sentence} {problem.remedy}".rstrip(), typed)


@contextmanager
def naming(**names: str) -> Iterator[None]:
    """Say of a library's argument that it is another option of the command, e.g. `naming(path="pieces")`."""
    try:
        yield
    except errors.InputError as problem:
        if problem.argument not in names:
            raise
        renamed = names[problem.argument]
        raise errors.reject(renamed, problem.expected, problem.got, problem.remedy) from problem


def _name(argument: str, context: Any, typed: Mapping[str, str]) -> str:
    """What the person typed for an argument of the library."""
    path = " ".join(["marginlens", *context.command_path.split()[1:]])
    named = {**_EVERYWHERE, **_BY_COMMAND.get(path, {})}
    if argument in typed:
        return typed[argument]
    if "assignments" in typed and argument not in named:
        return f"--set {argument}"
    if argument in named:
        first = next((typed_name(one) for one in context.command.params if one.param_type_name == "argument"), "FILE")
        return _capital(named[argument].format(first))
    if path in _FILES:
        return f"{argument!r} in {_FILES[path]}"
    return f"The {argument.replace('_', ' ').strip()}"


def _capital(words: str) -> str:
    """A sentence's first letter is a capital one, unless it is what was typed."""
    return words[:1].upper() + words[1:] if words.startswith("the ") else words


def _advice(sentence: str, typed: Mapping[str, str]) -> str:
    """A sentence without names of Python that cannot be typed."""
    for pattern, instead in _ADVICE:
        sentence = re.sub(pattern, instead, sentence)
    sentence = _CLASSES.sub(lambda found: found[1].lower(), sentence)

    def spoken(found: re.Match[str]) -> str:
        as_written = {"plan", "assignments"} & set(typed)  # a plan and settings have such names
        return typed.get(found[0], found[0] if as_written else found[0].replace("_", " "))

    parts = re.split(r"('[^']*'|\"[^\"]*\"|`[^`]*`)", sentence)  # what is quoted stays as it was typed
    return "".join(part if k % 2 else re.sub(_CALLED, spoken, part) for k, part in enumerate(parts)).rstrip()
