"""The README does what it says: its example runs as printed, its links lead somewhere, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/symbols.md", "docs/theorems.md"]
_LONGEST_EXAMPLE = 15


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_examples_run_one_after_the_other_as_printed(tmp_path):
    examples = blocks("python")
    assert all(len(example.splitlines()) <= _LONGEST_EXAMPLE for example in examples)
    code = "\n".join(examples)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    matrix = re.search(r"cosine with the max-margin matrix ([\d.]+)", done.stdout)
    assert matrix is not None, done.stdout
    assert float(matrix[1]) > 0.95
    cosine = re.search(r"cosine with the max-margin direction ([\d.]+)", done.stdout)
    assert cosine is not None, done.stdout
    assert float(cosine[1]) > 0.999


def test_the_citation_names_this_version_and_every_paper():
    import marginlens
    from marginlens.papers import BIBLIOGRAPHY

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {marginlens.__version__}\n" in citation
    for paper in BIBLIOGRAPHY.values():
        assert f'title: "{paper.title}"\n    year: {paper.year}\n' in citation
