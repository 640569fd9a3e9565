"""The lab's table of a problem and what its page says, by keyboard and pointer in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from browser_page import (
    PHONE,
    accessibility_violations,
    apply,
    lab_state,
    overflowing,
    predicted_limits,
    resize,
    reveal,
    settle,
    type_into,
    undo,
)
from tolerances import ROUNDING, SIX_DIGITS

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement


def field(lab: WebDriver, name: str) -> WebElement:
    reveal(lab, "#editor")
    return lab.find_element("css selector", f'#editor [aria-label="{name}"]')


def text_of(lab: WebDriver, selector: str) -> str:
    reveal(lab, selector)
    return lab.find_element("css selector", selector).text


def press(lab: WebDriver, text: str, region: str = "#editor") -> None:
    """Press the first button whose text begins so, by the keyboard."""
    reveal(lab, region)
    buttons = lab.find_elements("css selector", f"{region} button")
    next(button for button in buttons if button.text.startswith(text)).send_keys(" ")
    settle(lab)


def show_problem(lab: WebDriver, problem: dict[str, Any]) -> None:
    apply(lab, "(state) => ({ ...state, problem: arguments[0], preset: null })", problem)


def problem_of(lab: WebDriver) -> dict[str, Any]:
    return lab_state(lab)["problem"]


def test_editing_a_field_moves_the_token_and_undoes_as_one_step(lab: WebDriver) -> None:
    before, limits = lab_state(lab), predicted_limits(lab)
    type_into(lab, field(lab, "x₁ of token 0 of input 0"), "−1,25")  # as people write it
    after = lab_state(lab)
    assert after["problem"]["keys"][0][0] == [-1.25, 1]
    assert after["chosen"]["token"] == 0
    assert predicted_limits(lab) != limits
    undo(lab)
    assert problem_of(lab) == before["problem"]
    assert field(lab, "x₁ of token 0 of input 0").get_attribute("value") == "-0.1"


def test_a_rejected_number_restores_the_previous_value(lab: WebDriver) -> None:
    from selenium.webdriver.common.keys import Keys

    before = problem_of(lab)
    for typed in ("2e9", "1e400", "2*3", Keys.DELETE, "1/0"):  # what means no number is in settings.test.mjs
        type_into(lab, field(lab, "x₁ of token 0 of input 0"), typed)
        assert "x₁ of token 0 of input 0 must be a number from −10⁶ to 10⁶" in text_of(lab, "#message")
        assert field(lab, "x₁ of token 0 of input 0").get_attribute("value") == "-0.1"
        assert problem_of(lab) == before


def test_a_number_is_applied_on_enter_only(lab: WebDriver) -> None:
    from selenium.webdriver.common.keys import Keys

    before = problem_of(lab)
    x = field(lab, "x₁ of token 1 of input 0")
    x.send_keys(Keys.CONTROL + "a" + Keys.NULL + "-")
    apply(lab, "(state) => ({ ...state, playback: { ...state.playback, step: 1 } })")
    x.send_keys("0,5")
    settle(lab)
    assert problem_of(lab) == before
    x.send_keys(Keys.ENTER)
    settle(lab)
    assert problem_of(lab)["keys"][0][1] == [-0.5, 0]
    x.send_keys(Keys.ARROW_UP)
    settle(lab)
    assert problem_of(lab)["keys"][0][1] == [-0.4, 0]


def test_scores_can_be_set_by_slider_and_by_head(lab: WebDriver) -> None:
    from selenium.webdriver.common.keys import Keys

    scores = problem_of(lab)["scores"]
    field(lab, "Score of token 1 of input 0").send_keys(Keys.ARROW_RIGHT * 3)
    settle(lab)
    assert problem_of(lab)["scores"][0][1] == pytest.approx(scores[0][1] + 0.03, rel=SIX_DIGITS, abs=ROUNDING)
    undo(lab)
    assert problem_of(lab)["scores"] == scores
    show_problem(lab, {"tokens": problem_of(lab)["keys"], "head": [1, 1]})
    type_into(lab, field(lab, "v₁ of the head"), "2")
    shown = [output.text for output in lab.find_elements("css selector", "#editor .score output")]
    assert shown == ["0.8", "2", "0"]  # (2, 1)·x of the tokens (-0.1, 1), (1, 0) and (0, 0)


def test_tokens_inputs_starts_and_keys_can_be_added_and_removed(lab: WebDriver) -> None:
    before = lab_state(lab)
    press(lab, "Add token")
    assert len(problem_of(lab)["keys"][0]) == 4
    assert lab.execute_script("return document.activeElement.ariaLabel") == "x₁ of token 3 of input 0"
    press(lab, "Add input")
    press(lab, "Add start")
    press(lab, "Label +1")
    state = lab_state(lab)
    assert [len(state["problem"]["keys"]), len(state["starts"])] == [2, len(before["starts"]) + 1]
    assert state["problem"]["labels"] == [-1, 1]
    show_problem(lab, {**state["problem"], "tokens": state["problem"]["keys"]})
    type_into(lab, field(lab, "k₂ of the key of token 1 of input 1"), "-3")
    assert problem_of(lab)["keys"][1][1][1] == -3
    assert problem_of(lab)["tokens"][1][1][1] != -3
    field(lab, "Remove token 3 of input 0").send_keys(" ")
    settle(lab)
    field(lab, "Remove input 1").send_keys(" ")
    settle(lab)
    assert problem_of(lab)["tokens"] == before["problem"]["keys"]


def test_degenerate_problems_are_shown_with_an_explanation(lab: WebDriver) -> None:
    show_problem(lab, {"tokens": [[[1, 0], [1, 0], [0, 1]]], "scores": [[1, 0, 2]]})
    assert "Token 0 and token 1 of input 0" in text_of(lab, "#limits .remarks")
    show_problem(lab, {"tokens": [[[1, 0], [0, 1], [-1, 0]]], "scores": [[2, 2, 2]]})
    assert "training changes nothing here" in text_of(lab, "#headline")


def test_choosing_a_limit_shows_its_support_and_its_proof(lab: WebDriver) -> None:
    second = lab.find_elements("css selector", "#limits button.limit")[1]
    second.send_keys(" ")
    settle(lab)
    assert lab_state(lab)["chosen"]["limit"] == 1
    assert lab.execute_script("return document.activeElement === arguments[0]", second)
    assert "→ 1" in text_of(lab, "#support")
    assert text_of(lab, "#margin-proof").startswith("✓")
    second.send_keys(" ")
    settle(lab)
    assert lab_state(lab)["chosen"]["limit"] is None


def test_a_start_far_out_in_a_cone_is_decided_by_a_theorem(lab: WebDriver) -> None:
    show_problem(lab, {**problem_of(lab), "optimizer": {"name": "gradient-descent", "size": 0.1}})
    apply(lab, "(state) => ({ ...state, starts: [[1e9, 0]], chosen: { ...state.chosen, start: 0 } })")
    assert text_of(lab, "#headline") == "Token 1 wins."
    assert text_of(lab, "#proved").startswith(("Proved ✓", "Computed, not proved: a theorem covers this start"))


def test_a_full_table_fits_a_phone_and_its_names_are_accessible(lab: WebDriver, axe: object) -> None:
    inputs, places = range(8), range(12)
    tokens, keys = [[[[t, i] for t in places] for i in inputs], [[[-t, i + 1] for t in places] for i in inputs]]
    show_problem(lab, {"tokens": tokens, "keys": keys, "scores": [[t / 7 for t in places] for _ in inputs]})
    reveal(lab, "#editor")
    assert accessibility_violations(lab) == []
    resize(lab, PHONE)
    settle(lab)
    assert overflowing(lab) == []
