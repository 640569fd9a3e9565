"""The wheel job: build what is published, install it outside the checkout into fresh environments, and use it there.

    python tests/packaging/run.py                          with every Python from 3.11 to 3.14 that is found, without any extra
    python tests/packaging/run.py --python python3.12      with this one
    python tests/packaging/run.py --extras                 then every extra in an environment of its own
    python tests/packaging/run.py --extras graph,text      or these
    python tests/packaging/run.py --no-base --extras text  and nothing without extras
    python tests/packaging/run.py --oldest                 with the oldest release of each package that pyproject.toml allows

Without an extra: how large the environment is, the command, the tests that need no extra, and once mypy --strict on a user's script.
With one: that pip finds nothing missing, and a call that needs the extra. With none, and with each extra that a recipe of docs/start.md
needs: the page's lines for installing, with the wheel for the checkout, and these recipes are typed into a shell, and what they print is
compared. An environment that fails is said at once, the others go on, and the job fails at the end.
Environments lie in a temporary folder and are deleted again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from packaging_tools import ROOT, build
from typed_pages import blocks, is_shown

TORCH = "torch==2.13.0"
NEEDS_TORCH = {"torch", "probe", "monitor", "minilm", "report"}
MAX_MEGABYTES = 290  # of an environment without extras, bytecode included; 283 were measured, SciPy 143, NumPy 72
TESTS = (  # which need no extra
    "tests/cli/test_entrance.py",
    "tests/cli/test_solve.py",
    "tests/data/test_token_dataset.py",
    "tests/dynamics/test_descend.py",
    "tests/norms/test_norms.py",
    "tests/packaging/test_without_extras.py",
    "tests/optimizers/test_optimizers.py",
    "tests/risk/test_attention_gradient.py",
    "tests/runtime",
    "tests/svm/test_attention_svm.py",
    "tests/svm/test_margin_solution.py",
)
EXTRAS = {  # a call that needs the extra, whole
    "plot": "import marginlens as ml; ml.plotting.png(ml.priority_graphs(ml.data.figure_2())[1].plot().figure)",
    "torch": """
import torch
import marginlens as ml
head = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
ml.descend(ml.data.figure_8()[0], head, n_steps=10)
""",
    "graph": """
import marginlens as ml
from marginlens.graphs.export import to_networkx
[to_networkx(graph) for graph in ml.priority_graphs(ml.data.figure_2()).values()]
""",
    "text": """
from tokenizers import Tokenizer, models
Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).save("words.json")
from marginlens.data.tokenizer import read_tokenizer
read_tokenizer("words.json")
""",
    "probe": """
import torch
from transformers import GPT2Config, GPT2Model
from marginlens.probe import read_attention
sizes = {"vocab_size": 12, "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 8}
model = GPT2Model(GPT2Config(**sizes, attn_implementation="eager")).eval()
assert len(list(read_attention(model, {"input_ids": torch.arange(8)[None]}))) == 1
""",
    "monitor": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from marginlens.probe import AttentionMonitor
model = GPT2LMHeadModel(GPT2Config(vocab_size=12, n_layer=1, n_head=2, n_embd=8, n_positions=8))
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
monitor = AttentionMonitor(path="run.parquet", every=1)
settings = TrainingArguments("run", max_steps=2, report_to="none", save_strategy="no", use_cpu=True)
Trainer(model, settings, train_dataset=rows, callbacks=[monitor]).train()
monitor.write_page("run.html")
""",
    "minilm": "from marginlens.probe import load_model; load_model('minilm')",
    "sweep": """
import marginlens as ml
plan = {"n_inputs": 4, "n_tokens": 6, "d": [5], "n_problems": 20, "n_steps": 10, "record": ["selection"]}
ml.sweep(plan, "made").summary()
""",
    "cluster": """
import marginlens as ml
from distributed import Client
plan = {"n_inputs": 4, "n_tokens": 6, "d": 5, "n_problems": 20, "n_steps": 10, "chunk": 7}
if __name__ == "__main__":
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        assert ml.sweep(plan, "made", client.get_executor()).status().is_finished
""",
    "pandas": "import marginlens as ml; ml.ledger().to_frame()",
    "report": """
from marginlens_papers import report
from marginlens_papers.claim import Effort
from marginlens_papers.claims import catalogue
report.reproduce(catalogue.chosen(["A-F1a", "A-F67"]), effort=Effort.QUICK)
""",
    "site": "import sphinx, myst_parser, sphinx_gallery, furo",
    "bench": "import qpsolvers, cvxopt, quadprog, clarabel, piqp, cvxpy",
}  # not here: gpu, which needs a CUDA device; all and dev, which are the others together


START = ROOT / "docs" / "start.md"
INSTALL = "Install"  # the part of the page that every recipe begins with
END_OF_BLOCK = "==== end of block ===="


class Failed(Exception):
    """What went wrong in an environment."""


class Environment(NamedTuple):
    """A fresh environment, and the folder outside the checkout where commands run."""

    python: Path
    outside: Path

    def pip(self, *words: str) -> None:
        """Install, quietly, as a user does: pip compiles what it installs."""
        self.run("-m", "pip", "--quiet", "--disable-pip-version-check", "install", *words)

    def run(self, *words: str) -> str:
        """What Python prints there; `Failed`, with what it printed, where it fails."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.python), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.outside, env=clean)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} failed:\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def megabytes(self) -> int:
        """Room that the installed packages take, as du counts it, bytecode and folders included, less what came with the environment."""
        (packages,) = self.python.parents[1].glob("lib/python*/site-packages")
        others = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
        files = (path for path in packages.rglob("*") if path.relative_to(packages).parts[0] not in others)
        return round(sum(path.lstat().st_blocks * 512 for path in files) / 2**20)


@contextmanager
def environment(interpreter: str, folder: Path) -> Iterator[Environment]:
    """An environment of an interpreter, deleted afterwards."""
    place = Path(tempfile.mkdtemp(prefix="environment-", dir=folder))
    outside = place / "outside"
    subprocess.run([interpreter, "-m", "venv", str(place / "venv")], check=True)
    outside.mkdir()
    try:
        yield Environment(place / "venv" / "bin" / "python", outside)
    finally:
        shutil.rmtree(place)


def oldest() -> list[str]:
    """The oldest releases of the base's packages that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.sub(r"^([\w-]+)>=([\d.]+)", r"\1==\2.*", row) for row in project["dependencies"]]


def check_base(interpreter: str, wheel: Path, folder: Path, *, with_types: bool, others: Sequence[str] = ()) -> str:
    """Install without extras, measure, run the command and the tests; and a type checker, if asked for."""
    with environment(interpreter, folder) as place:
        place.pip(str(wheel), *others)
        size = place.megabytes()
        if size > MAX_MEGABYTES:
            raise Failed(f"The packages of an environment without extras take {size} MB, more than {MAX_MEGABYTES}.")
        file = place.run("-c", "import marginlens; print(marginlens.__file__)").strip()
        if not Path(file).is_relative_to(place.python.parents[1]):
            raise Failed(f"marginlens was imported from {file}, which is not where it was installed.")
        version = subprocess.run(
            [place.python.parent / "marginlens", "--version"], check=True, capture_output=True, text=True
        )
        place.pip("pytest", "pytest-timeout", "hypothesis")
        checkout = folder / "checkout"  # the copy that the wheel was built from
        shutil.copytree(checkout / "tests", place.outside / "tests")
        shutil.copy(checkout / "pyproject.toml", place.outside)
        passed = place.run("-m", "pytest", "-p", "no:cacheprovider", *TESTS).splitlines()
        words = [f"{size} MB", version.stdout.strip(), passed[-1].strip(" =") if passed else ""]
        if with_types:
            place.pip("mypy")
            shutil.copy(checkout / "tests" / "packaging" / "user_program.py", place.outside)
            (place.outside / "pyproject.toml").unlink()  # a user has settings of their own
            words.append("mypy --strict: " + place.run("-m", "mypy", "--strict", "user_program.py").strip())
        return "; ".join(words)


def check_extra(interpreter: str, wheel: Path, extra: str, folder: Path) -> str:
    """Install with an extra, and call what needs it."""
    with environment(interpreter, folder) as place:
        if extra in NEEDS_TORCH:
            place.pip(TORCH)
        place.pip(f"{wheel}[{extra}]")
        place.run("-m", "pip", "check")
        place.run("-c", EXTRAS[extra])
        return f"{place.megabytes()} MB"


def recipes() -> dict[str, list[str]]:
    """The headings of start.md's recipes by the extra that they need, "" for none."""
    found: dict[str, str] = {}
    for block in blocks(START):
        if block.heading != INSTALL:
            needed = re.search(r"pip install 'marginlens\[(\w+)\]'", block.code)
            found[block.heading] = needed[1] if needed else found.get(block.heading, "")
    return {extra: [name for name in found if found[name] == extra] for extra in found.values()}


def check_start(interpreter: str, wheel: Path, extra: str, folder: Path) -> str:
    """Type the recipes of start.md that need exactly this extra into a shell, and compare what they print."""
    names = recipes()[extra]
    typed = [block for block in blocks(START) if block.heading in (INSTALL, *names)]
    lines = ["set -e"]
    for block in typed:
        lines += [block.code if block.language == "sh" else f"python - <<'TYPED'\n{block.code}TYPED\n"]
        lines += [f"echo '{END_OF_BLOCK}'"]
    torch = f"pip install --quiet {TORCH}\n" if extra in NEEDS_TORCH else ""  # as the page says, before the extra
    script = "\n".join(lines).replace("python3 -m venv", f"{interpreter} -m venv")
    script = script.replace("pip install .\n", f"pip install --quiet {wheel}\n{torch}")
    place = Path(tempfile.mkdtemp(prefix="start-", dir=folder))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"BROWSER": "true", "PIP_QUIET": "1"}
    try:
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=place, env=clean)
    finally:
        shutil.rmtree(place)
    if done.returncode != 0:
        raise Failed(f"a line of {START.name} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    for block, printed in zip(typed, done.stdout.split(f"{END_OF_BLOCK}\n"), strict=False):
        if block.shown is not None and not is_shown(block.shown, printed):
            raise Failed(f"{START.name} shows\n{block.shown}\nand typing it prints\n{printed}")
    return f"{START.name}: {', '.join(names)}"


def interpreters() -> list[str]:
    """Every Python from 3.11 to 3.14 that is on the path and starts."""
    names = [f"python3.{minor}" for minor in (11, 12, 13, 14)]
    return [
        name
        for name in names
        if shutil.which(name) and subprocess.run([name, "-V"], capture_output=True).returncode == 0
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job and print a line for every environment."""
    parser = argparse.ArgumentParser(description="Install the wheel outside the checkout, and use it there.")
    parser.add_argument("--python", action="append", help="an interpreter; repeat it for several")
    parser.add_argument(
        "--extras", nargs="?", const=",".join(EXTRAS), default="", help="extras to install, all if none is named"
    )
    parser.add_argument("--no-base", action="store_true", help="only the extras")
    parser.add_argument("--no-types", action="store_true", help="leave out mypy, which takes minutes")
    parser.add_argument("--oldest", action="store_true", help="the oldest releases of what is installed, in each")
    options = parser.parse_args(arguments)
    found = options.python or interpreters() or [sys.executable]
    failures = 0
    with tempfile.TemporaryDirectory(prefix="marginlens-wheel-") as name:
        folder = Path(name)
        wheel = build(folder).wheel
        checks: list[tuple[str, Callable[[], str]]] = []
        for k, interpreter in enumerate([] if options.no_base else found):
            with_types = k == 0 and not options.no_types
            settings: dict[str, Any] = {"with_types": with_types, "others": oldest() if options.oldest else ()}
            checks.append((interpreter, partial(check_base, interpreter, wheel, folder, **settings)))
        extras = [extra for extra in options.extras.split(",") if extra]
        for extra in extras:
            checks.append((f"{found[0]}, {extra}", partial(check_extra, found[0], wheel, extra, folder)))
        for extra in sorted(recipes().keys() & {*extras, *([] if options.no_base else [""])}):
            checks.append((f"{found[0]}, start", partial(check_start, found[0], wheel, extra, folder)))
        for name, check in checks:
            start = time.perf_counter()
            try:
                said = check()
            except Failed as failure:
                failures += 1
                said = f"FAILED: {failure}"
            print(f"{name}: {said} ({time.perf_counter() - start:.0f} s)", flush=True)
    if failures:
        raise SystemExit(f"{failures} of {len(checks)} environments failed.")


if __name__ == "__main__":
    main()
