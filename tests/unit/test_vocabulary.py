"""The words that docs/vocabulary.md settles: pages and texts use them, and the short lines of a verdict use no others."""

import re
from pathlib import Path

import pytest

from marginlens.words import rendered_examples, texts

ROOT = Path(__file__).resolve().parents[2]
# Pages that relate to the papers' symbols, and pages that are generated from docstrings, measurements and codes.
OF_THE_PAPERS = {
    "texts.md",
    "symbols.md",
    "vocabulary.md",
    "differences.md",
    "theorems.md",
    "ledger.md",
    "changelog.md",
}
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in OF_THE_PAPERS)]
SHORT_LINES = r"outcome\.(ends_at|rival|because|why|verdict|gap|missing|lacking|token)(\.|$)|outcome\.theorem\.(because|undecided|unknown)"
CODES = r"GMM|LMM|\bflow|\bnorms?\b|\btubes?\b|\bangles?\b|Thm|Theorem|\b[A-GX]-\w+\d|‖|verify\("
SETTLED = ("winner", "direction", "margin", "score", "best", "local", "holds with caveats", "computed", "Proved ✓")


def sentences(pattern):
    for code in texts():
        if re.match(pattern, code):
            for _, _, sentence in rendered_examples(code):
                yield code, sentence


def test_the_short_lines_of_a_verdict_are_plain():
    found = list(sentences(SHORT_LINES))
    assert len(found) > 60
    assert [(code, said) for code, said in found if re.search(CODES, said)] == []
    assert any(
        re.search(CODES, said) for _, said in sentences(r"outcome\.(tube|reached|claim)")
    )  # what details may say


def test_no_text_says_gmm_or_lmm():
    said = [(code, sentence) for code, sentence in sentences("") if re.search(r"\b[GL]MM\b", sentence)]
    assert said == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_say_best_and_local(page):
    assert re.findall(r"\b[GL]MM\b|with care\b", page.read_text(encoding="utf-8")) == []


def test_the_vocabulary_defines_the_settled_words():
    page = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    defined = re.findall(r"^\| (.+?) \|", page, flags=re.MULTILINE)
    for word in SETTLED:
        assert any(f"**{word}**" in entry for entry in defined), word
