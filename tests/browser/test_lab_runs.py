"""Runs of the lab in a real browser: every optimizer against Python, joint training, the curves and settings."""

from __future__ import annotations

import numpy as np
import pytest

from browser_page import (
    accessibility_violations,
    apply,
    lab_state,
    open_lab,
    overflowing,
    path_ends,
    prefer,
    problem_of,
    resize,
    reveal,
    settle,
    type_into,
    undo,
    wait_for,
)
from marginlens.dynamics import descend
from tolerances import ROUNDING

OPTIMIZERS = ("gradient-descent", "normalized-gd", "sign-descent", "coordinate-descent", "steepest-descent", "adam")
N_STEPS = 300


def choose(browser, select, value):
    reveal(browser, f"#{select}")
    browser.find_element("css selector", f"#{select} option[value='{value}']").click()
    settle(browser)


def type_in(browser, field, value):
    reveal(browser, f"#{field}")
    type_into(browser, browser.find_element("id", field), str(value))


def go_to(browser, step):
    type_in(browser, "playback-step", step)
    wait_for(browser, f"lab.runs().step === {step}")
    settle(browser)


def train_both(browser):
    reveal(browser, "#settings")
    browser.find_element("css selector", "input[name='train'][value='both']").click()
    settle(browser)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_the_steps_that_python_takes(lab, name):
    choose(lab, "setting-optimizer", name)
    type_in(lab, "setting-size", 0.25)
    if name in ("sign-descent", "coordinate-descent", "steepest-descent"):
        type_in(lab, "setting-momentum", 0.5)
        type_in(lab, "setting-decay", 0.3)
    choose(lab, "setting-loss", "exponential")
    apply(lab, "(state) => ({ ...state, starts: [[0.4, -0.3], [-0.5, 1.2]] })")
    go_to(lab, N_STEPS)
    state = lab_state(lab)
    problem = problem_of(state)
    assert state["problem"]["optimizer"]["name"] == name
    assert state["problem"]["optimizer"]["size"] == 0.25
    for start, end in zip(state["starts"], path_ends(lab), strict=True):
        run = descend(problem.risk, optimizer=problem.optimizer, n_steps=N_STEPS, start=np.array(start))
        assert end == pytest.approx(run.final, rel=1e-9, abs=ROUNDING)


def test_joint_training_can_be_switched_on_and_off(lab):
    before = lab_state(lab)["problem"]
    train_both(lab)
    type_in(lab, "setting-size", 0.2)
    go_to(lab, N_STEPS)
    state = lab_state(lab)
    problem = problem_of(state)
    assert problem.trains_head
    start = (problem.start_head, problem.start)
    run = descend(problem.risk, optimizer=problem.optimizer, n_steps=N_STEPS, start=start).split()
    head = lab.execute_script("return Array.from(lab.runs().paths[0].now.head)")
    assert path_ends(lab)[0] == pytest.approx(run.p, rel=1e-9, abs=ROUNDING)
    assert head == pytest.approx(run.v, rel=1e-9, abs=ROUNDING)
    reveal(lab, "#curves")
    shown = lab.find_element("id", "curves").text
    assert "Norm of the head" in shown
    assert "Correlation of the head" in shown
    reveal(lab, "#bias")
    assert "Theorems 5 and 6" in lab.find_element("id", "bias").text
    reveal(lab, "#settings")
    lab.find_element("css selector", "input[name='train'][value='attention']").click()
    reveal(lab, "#curves")
    settle(lab)
    assert lab_state(lab)["problem"]["train"] == "attention"
    assert "Norm of the head" not in lab.find_element("id", "curves").text
    for _ in range(3):
        undo(lab)
    assert lab_state(lab)["problem"] == before


def test_a_setting_out_of_range_is_refused_and_unchanged(lab):
    before = lab_state(lab)["problem"]
    type_in(lab, "setting-size", -1)
    assert lab_state(lab)["problem"] == before
    assert "Step size must be a number of at least 0" in lab.find_element("id", "message").text
    size = before.get("optimizer", {}).get("size", 1)
    assert float(lab.find_element("id", "setting-size").get_attribute("value")) == size


def test_curves_follow_the_step_and_have_descriptions(lab):
    go_to(lab, 40)
    charts = "return [...document.querySelectorAll('#curves [role=img]')].map((one) => one.getAttribute('aria-label'))"
    wait_for(lab, "document.querySelector('#curves [role=img]').getAttribute('aria-label').includes('step 40')")
    norm, correlation, attention, risk = lab.execute_script(charts)
    assert norm.startswith("Norm")
    assert correlation.count("limit") >= len(lab.execute_script("return lab.analysis().limits"))
    assert "token" in attention
    assert risk.startswith("Risk")


def test_scrubbing_leaves_the_path_unchanged(lab):
    go_to(lab, 20)
    there = path_ends(lab)
    go_to(lab, 500)
    bar = lab.find_element("id", "playback-bar")
    script = """
      const bar = arguments[0];
      bar.value = 1000 * Math.log1p(20) / Math.log1p(lab.runs().end);
      bar.dispatchEvent(new Event("input")); bar.dispatchEvent(new Event("change"));
    """
    lab.execute_script(script, bar)
    settle(lab)
    assert lab.execute_script("return lab.runs().step") == 20
    assert path_ends(lab) == there
    assert bar.get_attribute("aria-valuetext").startswith("step 20 of")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_joint_training_with_open_tables_is_accessible(browser, lab_file, axe, scheme):
    prefer(browser, color_scheme=scheme)
    open_lab(browser, lab_file)
    train_both(browser)
    go_to(browser, 100)
    reveal(browser, "#curves")
    reveal(browser, "#bias")
    settle(browser)
    assert accessibility_violations(browser) == []


def test_settings_and_curves_fit_the_narrowest_phone(browser, lab_file):
    resize(browser, (340, 700))
    open_lab(browser, lab_file)
    choose(browser, "setting-optimizer", "adam")
    go_to(browser, 100)
    assert overflowing(browser) == []
