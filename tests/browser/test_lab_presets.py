"""Every preset of the lab by its link, in a real browser: the state, the limits and the way there from the report."""

from __future__ import annotations

import numpy as np
import pytest

from browser_page import lab_state, open_lab, open_page, predicted_limits, problem_of, wait_for
from fake_claims import fake_claim
from marginlens.lab import permalink, presets
from marginlens.theory import predict_limit
from marginlens_papers.report import reproduce

ATOL = 1e-9


@pytest.mark.parametrize("name", [entry.name for entry in presets()])
def test_a_link_made_in_python_opens_the_preset_with_the_limits_of_the_library(browser, lab_file, name):
    entry = next(entry for entry in presets() if entry.name == name)
    open_lab(browser, lab_file, permalink(name))
    state = lab_state(browser)
    assert (state["preset"], state["tab"]) == (name, "text" if entry.text else "plane")
    assert problem_of(state).data == entry.problem.data
    assert browser.find_element("id", "message").text.count(".") <= 1
    if entry.text or entry.problem.trains_head or "X-N" in name:
        return  # limits of other norms and of joint training are compared in tests/lab
    problem = entry.problem
    candidates = predict_limit(problem.data, problem.head, loss=problem.loss, optimizer=problem.optimizer).candidates
    expected = {
        tuple(row): direction
        for row, direction in zip(candidates.selections.tolist(), candidates.directions, strict=True)
    }
    found = {tuple(limit["selected"]): limit["direction"] for limit in predicted_limits(browser)}
    feasible = {
        selected for selected, direction in expected.items() if np.all(np.isfinite(direction)) and np.any(direction)
    }
    assert set(found) == feasible
    for selected, direction in found.items():
        np.testing.assert_allclose(direction, expected[selected], rtol=0, atol=ATOL)


def test_the_report_leads_to_the_lab_with_the_claims_problem(browser, tmp_path):
    report = reproduce((fake_claim("A-F8"), fake_claim("X-B")), tmp_path / "report")
    open_page(browser, report.page)
    browser.execute_script("document.querySelector('button.all').click()")  # opens every claim
    links = browser.find_elements("css selector", "article .lab a")
    assert [link.text for link in links] == [entry.title for entry in presets() if entry.claim in ("A-F8", "X-B")]
    browser.execute_script('arguments[0].scrollIntoView({ block: "center", behavior: "instant" })', links[-1])
    links[-1].click()
    wait_for(browser, "window.lab?.store !== undefined")
    assert lab_state(browser)["preset"] == "X-B-random"
    assert browser.current_url.startswith((report.folder / "lab.html").as_uri())
