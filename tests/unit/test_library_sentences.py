"""Sentences that the library keeps in its Python code instead of `words/`: how many there are.

A sentence is a string of four words or more, not counting what stands between braces. Docstrings are not counted. The arguments of errors
are not counted either, given directly or by a local variable (an `InputError` renders what was expected and what to do), nor the help of
commands and their options, nor the accounts that `uses` writes into the table of statements.
"""

import ast
import re
from pathlib import Path

import marginlens

SOURCE = Path(marginlens.__file__).parent
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]+")
BRACES = re.compile(r"\{[^{}]*\}")
# Calls that raise an error or make one, with what checks arguments on its behalf.
ERRORS = {
    "InputError",
    "MissingExtra",
    "CoreError",
    "EngineError",
    "missing_extra",
    "require",
    "warn",
    "float_array",
    "real_array",
    "real_number",
    "index_array",
    "array_of_any",
    "batch_index",
    "refuse",
    "refuse_options",
    "share_number",
    "whole_number",
    "positive_number",
    "nonnegative_number",
    "as_path",
    "not_such_a_file",
    "read_result",
    "AssertionError",
    "RuntimeError",
    "TypeError",
    "KeyError",
    "AttributeError",
}
DOCUMENTATION = {"Option", "Argument", "Typer", "command", "callback", "uses"}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

# What is reached: lower it, never raise it.
MAX_SENTENCES = 135


def called(node):
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def explained_later(tree):
    """The values of local variables that are arguments of an error in the same function, such as `expected`."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        errors = [node for node in ast.walk(function) if isinstance(node, ast.Call) and called(node) in ERRORS]
        names = {node.id for call in errors for node in ast.walk(call) if isinstance(node, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
                yield id(node.value)


def strings(tree):
    """The strings of a syntax tree that are counted: (line, text without what is filled in)."""
    skipped = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and ast.get_docstring(node)}
    skipped |= set(explained_later(tree))
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in skipped or (isinstance(node, ast.Call) and called(node) in ERRORS | DOCUMENTATION):
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "…".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
            waiting += [part for part in node.values if not isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        else:
            waiting += ast.iter_child_nodes(node)


def sentences():
    """The sentences in the code of the library: "file:line: text"."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "words" not in path.relative_to(SOURCE).parts:
            for line, text in strings(ast.parse(path.read_text(encoding="utf-8"))):
                if len(WORD.findall(BRACES.sub("…", text))) >= 4 and " " in text.strip():
                    yield f"{path.relative_to(SOURCE)}:{line}: {text[:100]}"


def test_few_sentences_are_in_the_code():
    counted = list(sentences())
    assert len(counted) <= MAX_SENTENCES, f"{len(counted)}:\n" + "\n".join(counted)
