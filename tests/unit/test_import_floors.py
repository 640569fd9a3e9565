"""The import contract that `make lint` checks breaks where imports run against the floors, and no files import each other in a circle."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
PLANTED = {
    "marginlens/data/tokens.py": "from marginlens.svm import att_svm",
    "marginlens/graphs/export.py": "def later():\n    from marginlens.theory import predict_limit",
    "marginlens/cli/predict.py": "def later():\n    from marginlens_papers.report import ledger",
    "marginlens_papers/claims/a/paths.py": "def later():\n    from experiments import encode",
    "marginlens/somewhere.py": '"""A folder without a floor."""',
}
FOUND = (
    "marginlens.data is not allowed to import marginlens.svm",
    "marginlens.graphs is not allowed to import marginlens.theory",
    "The library never imports what the papers claim BROKEN",
    "Nothing that is installed imports the long runs of a checkout BROKEN",
    "somewhere",
)


def test_planted_imports_break_the_contract(tmp_path):
    for package in ("marginlens", "marginlens_papers"):
        ignored = shutil.ignore_patterns("*.json")
        shutil.copytree(ROOT / "src" / package, tmp_path / package, ignore=ignored)
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    for path, lines in PLANTED.items():
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{lines}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"]
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 1
    assert [sentence for sentence in FOUND if sentence not in done.stdout] == []


FINDS_THE_PAPERS = {
    "marginlens/__init__.pyi",  # `ml.ledger`
    "marginlens/cli/app.py",
    "marginlens/cli/statement.py",
    "marginlens/papers.py",
}  # what looks for the second package when it is asked for something of it, and does without where there is none


LIBRARY = ("marginlens/**/*.py", "marginlens/**/*.pyi", "marginlens_command.py")


def files_naming(package, patterns):
    """The files in which a text outside docstrings, or an import, begins with the name of a package."""
    naming = set()
    for path in (path for pattern in patterns for path in SOURCES.glob(pattern)):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if any(text.split(".")[0] == package for text in texts | modules):
            naming.add(path.relative_to(SOURCES).as_posix())
    return naming


def test_no_library_file_imports_the_papers_by_name():
    """`import_module` and its like are not seen by the contract."""
    assert files_naming("marginlens_papers", LIBRARY) == FINDS_THE_PAPERS


def test_no_installed_file_names_the_long_runs_of_a_checkout():
    assert files_naming("experiments", (*LIBRARY, "marginlens_papers/**/*.py")) == set()


def test_no_import_cycles():
    """Imports inside functions count; those for types alone do not."""
    files = {name(path): path for path in SOURCES.rglob("*.py")}
    imported = networkx.DiGraph()
    for module, path in files.items():
        for target in targets(ast.parse(path.read_text(encoding="utf-8"))):
            if target in files and files[target].name != "__init__.py":
                imported.add_edge(module, target)
    assert len(imported) > 300
    assert [circle for circle in networkx.strongly_connected_components(imported) if len(circle) > 1] == []


def name(path):
    """The module of a file."""
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


def targets(tree):
    """The modules that a file may import, from each `from a.b import c` both a.b and a.b.c."""
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in for_types:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


REFUSED_AT_ONCE = {
    "no folder": "probe nowhere",
    "no config": "probe empty",
    "no weights": "probe without-weights",
    "no text": "probe minilm --text nowhere.txt",
    "no second model": "probe nowhere --against empty",
    "a limit of none": "probe without-weights --limit 0",
}


@pytest.mark.parametrize("line", REFUSED_AT_ONCE.values(), ids=REFUSED_AT_ONCE)
def test_the_command_refuses_missing_files_before_importing_numpy(tmp_path, line):
    (tmp_path / "empty").mkdir()
    (tmp_path / "without-weights").mkdir()
    (tmp_path / "without-weights" / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    script = """
import sys
from marginlens_command import main
try:
    main()
except SystemExit as end:
    print(end.code, [name for name in ("numpy", "scipy", "torch", "transformers") if name in sys.modules])
"""
    command = [sys.executable, "-c", script, *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"
    assert done.stderr.startswith("marginlens: ")
    assert done.stderr.count("\n") == 1
