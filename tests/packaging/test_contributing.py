"""CONTRIBUTING's steps, followed to the letter in a copy: an optimizer, a norm, a risk, a claim, an adapter, each in at most four files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tolerances import HANGING

ROOT = Path(__file__).parents[2]

LION = '''"""Lion: signs of a mean of gradients that looks ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marginlens.norms import LInf, Norm
from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.typing import FloatArray


@dataclass(frozen=True)
class Lion:
    """Steps of the signs of β₁ m + (1 - β₁) g, with m the mean of past gradients."""

    size: float
    betas: tuple[float, float] = (0.9, 0.99)
    norm: ClassVar[Norm] = LInf()

    def init(self, x0: FloatArray) -> Any:
        """No mean yet."""
        return None

    def update(self, gradient: LogScaled, state: Any) -> tuple[FloatArray, Any]:
        """The signs, and the next mean in units of 1 - β₂."""
        first, second = self.betas
        ahead = gradient if state is None else gradient.plus(state, first * (1 - second) / (1 - first))
        mean = gradient if state is None else gradient.plus(state, second)
        return -self.size * np.sign(ahead.array), mean
'''
COLUMNS = '''"""The sum of the Euclidean norms of a matrix's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marginlens.typing import FloatArray


@dataclass(frozen=True)
class Columns:
    """Σ_j ‖x_:j‖, whose dual is the largest norm of a column."""

    needs_matrix: ClassVar[bool] = True

    def value(self, x: FloatArray) -> float:
        """Σ_j ‖x_:j‖."""
        return float(np.linalg.norm(x, axis=0).sum())

    def dual(self, g: FloatArray) -> float:
        """max_j ‖g_:j‖."""
        return float(np.linalg.norm(g, axis=0).max())

    def steepest(self, g: FloatArray) -> FloatArray:
        """The unit vector along the longest column, in its place."""
        sizes = np.linalg.norm(g, axis=0)
        return np.where(np.arange(g.shape[1]) == sizes.argmax(), g / np.where(sizes > 0.0, sizes, 1.0), 0.0)
'''
RIDGE = '''"""The risk of attention with weight decay."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.risk.attention import AttentionRisk
from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.risk.protocol import MarginRows
from marginlens.typing import ArrayLike, FloatArray, IntArray


class RidgeRisk:
    """L(p) + λ ‖p‖²/2."""

    def __init__(self, inner: AttentionRisk, decay: float) -> None:
        self.inner, self.decay, self.shape = inner, decay, inner.shape

    def value(self, x: FloatArray) -> Any:
        """L(p) + λ ‖p‖²/2."""
        return self.inner.value(x) + self.decay * float(np.sum(np.square(x))) / 2.0

    def log_value(self, x: FloatArray) -> Any:
        """Its logarithm."""
        return np.log(self.value(x))

    def gradient(self, x: FloatArray) -> LogScaled:
        """∇L(p) + λ p."""
        return self.inner.gradient(x).plus(LogScaled(np.asarray(x), np.asarray(0.0)), self.decay)

    def select(self, x: FloatArray) -> IntArray:
        """As without decay."""
        return self.inner.select(x)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """As without decay."""
        return self.inner.margin_rows(selected)

    def smoothness(self) -> Any:
        """That of L, and λ."""
        return self.inner.smoothness() + self.decay
'''
ERNIE = '''

class ErnieAdapter(LinearAdapter):
    """ERNIE: BERT's layers with a further embedding of the task."""

    families: ClassVar[tuple[str, ...]] = ("ernie",)
    projections: tuple[str, ...] = ("query", "key")
'''
CLAIM = '''"""Lion heads for the ℓ∞ margin."""

from __future__ import annotations

from typing import Any

import marginlens as ml
from marginlens.optimizers import Lion
from marginlens_papers.claim import Claim, Effort, Finding


class X_Z1(Claim):
    """X-Z1."""

    labels = ("X N1",)

    def compute(self, effort: Effort, progress: Any) -> Finding:
        """Runs of Lion, and their margin over the best."""
        progress.expect(1)
        data, v = ml.data.sphere_tokens(1, 2, 3, 6, 4)
        run = ml.descend(data[0], v[0], optimizer=Lion(0.01), n_steps=3_000)
        progress.advance()
        best = ml.att_svm(data[0], run.selected, norm=ml.LInf())
        slack = float((best.rows @ run.final).min()) / ml.LInf().value(run.final)
        share = slack / float(best.margin)
        return Finding(f"Lion has {share:.3f} of the best margin.", {"share_of_margin": share})

    def draw(self, finding: Finding) -> Any:
        """A bar."""
        figure, (ax,) = ml.plotting.figure()
        ax.bar(["Lion"], [finding.numbers["share_of_margin"]])
        return {"share": figure}
'''
CLAIM_TEXTS = """

[X-Z1]
title = "Lion has the largest margin in ℓ∞"
statement = "Runs of Lion reach the ℓ∞ margin."
protocol = "One problem, n = 2, T = 3, d = 6, 3,000 steps of .01."
paper_value = "beyond the papers"
headline = "share_of_margin"

[X-Z1.expected]
share_of_margin = [0.9, inf]

[X-Z1.words.number]
share_of_margin = "Margin of the run over the best in ℓ∞"

[X-Z1.figures.share]
caption = "Margin of the run over the best."
alt = "One bar for Lion, whose height is the margin of its run divided by the best margin in the norm of largest entries, close to one."
"""
CHECK = """
import numpy as np
import marginlens as ml
from marginlens.norms import Columns
from marginlens.norms.choice import norm_named
from marginlens.optimizers import Lion
from marginlens.risk import RidgeRisk

data, v = ml.data.sphere_tokens(1, 2, 3, 4, 1)
risk = ml.AttentionRisk(data[0], v[0])
assert ml.predict(risk, optimizer=Lion(0.01)).bias.norm == ml.LInf()
W = ml.att_svm(data[0], [0, 1], norm=norm_named("columns"), query=np.eye(2))
assert W.status is ml.Status.OPTIMAL, W
assert ml.predict(risk.as_matrix(np.eye(2)), optimizer=ml.SteepestDescent(Columns(), 0.1)).bias.norm == Columns()
ridge = RidgeRisk(risk, 0.1)
run = ml.descend(ridge, optimizer=ml.GradientDescent(1.0 / ridge.smoothness()), n_steps=3_000)
assert np.allclose(risk.gradient(run.final).value(), -0.1 * run.final, atol=1e-8)  # where decay holds the weights
"""


@pytest.fixture
def copy(tmp_path):
    """The sources, the tests and the guides, to be changed."""
    for folder in ("src", "tests", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def insert(file, before, line):
    """Put a line in front of the first that starts like this."""
    text = file.read_text(encoding="utf-8")
    assert before in text, f"{file.name} has no {before!r}"
    file.write_text(text.replace(before, line + before, 1), encoding="utf-8")


def append(file, text):
    with file.open("a", encoding="utf-8") as end:
        end.write(text)


def python(copy, *arguments):
    """A process that imports the copy."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": str(copy / "src"), "PATH": "/usr/bin:/bin", "HOME": str(copy)},
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=HANGING,
    )


def test_extensions_are_added_as_contributing_describes(copy):
    library, contract = copy / "src" / "marginlens", copy / "tests" / "contract" / "test_protocols.py"
    for folder, name, kind, text, after in (
        ("optimizers", "lion", "Lion", LION, "mirror"),
        ("norms", "columns", "Columns", COLUMNS, "entrywise"),
        ("risk", "ridge", "RidgeRisk", RIDGE, "softmax"),
    ):
        (library / folder / f"{name}.py").write_text(text, encoding="utf-8")
        export = f"from marginlens.{folder}.{name} import {kind}\n"
        insert(library / folder / "__init__.py", f"from marginlens.{folder}.{after}", export)
    insert(library / "names.py", '"MaxRow")', '"Columns", ')
    done = python(copy, "-c", CHECK)
    assert done.returncode == 0, done.stderr

    insert(contract, "Momentum()], ids", "ml.optimizers.Lion(0.01), ")
    insert(contract, "ml.Spectral(), ml.Nuclear(), ml.MaxRow()]", "ml.norms.Columns(), ")
    insert(
        copy / "tests" / "quadratic_risk.py",
        '        "W": of_p',
        '        "ridge": ml.risk.RidgeRisk(of_p, 0.1),\n',
    )
    done = python(copy, "-m", "pytest", "-n", "0", "-rp", str(contract), "-k", "Lion or Columns or ridge")
    assert done.returncode == 0, done.stdout
    assert all(f"keep_their_contract[{name}]" in done.stdout for name in ("Lion", "Columns()-(1, 1)", "ridge"))

    claims = copy / "src" / "marginlens_papers" / "claims"
    (claims / "ours" / "lion.py").write_text(CLAIM, encoding="utf-8")
    append(claims / "ours" / "claims.toml", CLAIM_TEXTS)
    insert(claims / "catalogue.py", '    "A-L1": "a.lemmas",\n', '    "X-Z1": "ours.lion",\n')
    done = python(copy, "-m", "marginlens", "reproduce", "--only", "X-Z1", "--quick", "--out", "report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "We checked 1 statement about attention: 1 holds." in done.stdout
    assert (copy / "report" / "index.html").exists()


def test_an_adapter_is_added_as_the_guide_describes(copy):
    pytest.importorskip("transformers")
    adapters = copy / "src" / "marginlens" / "probe" / "models" / "adapters"
    append(adapters / "encoders.py", ERNIE)
    insert(adapters / "__init__.py", "BertAdapter, DebertaAdapter, DistilBert", "ErnieAdapter, ")
    insert(adapters / "__init__.py", "    DistilBertAdapter,\n", "    ErnieAdapter,\n")
    insert(
        copy / "tests" / "tiny_families.py", '    "distilbert": ', '    "ernie": ("ErnieModel", {**SMALL, **TEXT}),\n'
    )
    row = "| `ErnieAdapter` | ernie | in the inputs | every token that is not padding | one per head |\n"
    insert(copy / "docs" / "adapters.md", "| `AlbertAdapter`", row)
    done = python(copy, "-m", "pytest", "-n", "0", "tests/contract/test_probe_adapters.py", "-k", "ernie")
    assert done.returncode == 0, done.stdout
