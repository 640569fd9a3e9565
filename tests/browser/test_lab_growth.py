"""The tab about growing logits: it trains by itself, answers in a sentence, and follows its sliders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from browser_page import PHONE, accessibility_violations, lab_state, overflowing, resize, settle, wait_for

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

SAYS = "document.getElementById('growth-verdict').textContent.includes"


def test_growth_tab_trains_on_opening_and_follows_decay_and_clip(lab: WebDriver, axe: object) -> None:
    lab.find_element("id", "tab-button-growth").click()
    wait_for(lab, f"{SAYS}('51.5 with Adam and 106 with Muon')")
    charts = lab.find_elements("css selector", "#growth [role=img]")
    assert [chart.get_attribute("aria-label").split(",")[0] for chart in charts] == [
        "Largest logit",
        "Margin",
        "Entropy",
    ]
    rows = [row.text for row in lab.find_elements("css selector", "#growth tbody tr")]
    assert rows == [
        "GD 0.9 0.693 in all: log of the steps 0.717 in all",
        "Adam 0.03 0.0252 a step 0.0252 a step",
        "Muon 0.03 0.0809 a step 0.0809 a step",
    ]
    assert accessibility_violations(lab) == []
    lab.execute_script(
        """
        const slider = document.querySelector('[aria-label="Weight decay, slider"]');
        slider.value = 134;
        slider.dispatchEvent(new Event("input"));
        """
    )
    wait_for(lab, f"{SAYS}('pulls Muon')")
    assert lab_state(lab)["growth"]["decay"] == 0.201
    field = lab.find_element("id", "setting-growth-clip")
    field.clear()
    field.send_keys("5\n")
    wait_for(lab, f"{SAYS}('5 with Adam and 5 with Muon')")
    resize(lab, PHONE)
    settle(lab)
    assert overflowing(lab) == []
    assert accessibility_violations(lab) == []


def test_growth_tab_state_is_in_the_link(lab: WebDriver) -> None:
    lab.execute_script(
        "lab.store.apply('x', (state) => ({ ...state, tab: 'growth', growth: { rate: 0.1, decay: 0.1, clip: 0 } }))"
    )
    lab.execute_async_script("lab.link().then((link) => { location.hash = ''; location.href = link; arguments[0](); })")
    wait_for(lab, "lab.state().tab === 'growth' && lab.state().growth.rate === 0.1")
    assert lab.find_element("id", "setting-growth-rate").get_attribute("value") == "0.1"
