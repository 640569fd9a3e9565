"""The lab's next-token tab in a real browser: a typed text, its priority graphs and its continuation, against Python."""

from __future__ import annotations

import pytest

import marginlens as ml
from browser_page import accessibility_violations, lab_link, lab_state, open_lab, prefer, settle, wait_for
from marginlens.data import text_windows
from marginlens.data.vocabulary import Characters, Words

TEXT = "How much wood would a woodchuck chuck if a woodchuck could chuck wood? As much wood as a woodchuck would."
UNITS = {"characters": Characters(), "words": Words(max_vocabulary=400)}


@pytest.fixture
def text_tab(lab):
    lab.find_element("id", "tab-button-text").click()
    wait_until_read(lab)
    return lab


def wait_until_read(browser):
    wait_for(browser, "!['reading', undefined].includes(document.querySelector('#text-input').dataset.read)")
    wait_for(browser, "document.querySelector('#text-graph .chip') && document.querySelector('#text-prompt')")
    settle(browser)


def change(browser, element_id, value):
    """Set a field as a reader would, ending with a change of it, and wait until it has had its effect."""
    script = """
      const [id, value] = arguments, field = document.getElementById(id);
      field.value = value;
      for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));
    """
    browser.execute_script(script, element_id, value)
    settle(browser)


def type_text(browser, text, unit="characters", window=8, last=None):
    """Put a text into the tab and wait until it is read."""
    browser.find_element("css selector", f"input[name='text-unit'][value='{unit}']").click()
    change(browser, "text-window", window)
    field = browser.find_element("id", "text-source")
    field.clear()
    field.send_keys(text)
    wait_for(browser, f"window.lab.state().text.source.length === {len(text)}")
    wait_until_read(browser)
    if last is not None:
        choice = browser.find_element("css selector", f"#last-token option[value='{last}']")
        choice.click()
        wait_for(browser, f"document.querySelector('#last-token').value === '{last}'")
        settle(browser)
    return text_windows(text, window, UNITS[unit])


def drawn_components(browser):
    """The groups of tokens in the picture, in the order of their numbers."""
    script = """
      return [...document.querySelectorAll("#text-graph .chip")].map((chip) =>
        [Number(chip.dataset.token), Number(chip.getAttribute("aria-label").match(/group ([0-9]+)$/)[1])]);
    """
    groups: dict[int, list[int]] = {}
    for token, group in browser.execute_script(script):
        groups.setdefault(group, []).append(token)
    return [sorted(groups[number]) for number in sorted(groups)]


def listed_pairs(browser):
    """Winner, loser and windows of every pair in the list."""
    browser.execute_script("document.querySelector('#text-graph details').open = true")
    more = browser.find_element("css selector", "#text-graph details > button")
    if more.is_displayed():
        more.click()
    script = """
      return [...document.querySelectorAll("#text-graph .pair")].map((pair) =>
        [...pair.dataset.pair.split(",").map(Number), Number(pair.textContent.match(/([0-9]+) windows?$/)[1])]);
    """
    return sorted(map(tuple, browser.execute_script(script)))


def continued(browser):
    script = "return [...document.querySelectorAll('.continued .token')].map((token) => Number(token.dataset.token))"
    return browser.execute_script(script)


# ---- the same as Python


@pytest.mark.parametrize(("unit", "window"), [("characters", 8), ("words", 6)])
def test_a_typed_text_has_the_priority_graph_that_python_finds(text_tab, unit, window):
    expected = text_windows(TEXT, window, UNITS[unit])
    graphs = ml.priority_graphs(expected.data)
    last = max(graphs, key=lambda token: (len(graphs[token].edges), token))
    named = type_text(text_tab, TEXT, unit, window, last)
    graph, data = graphs[last], named.data
    assert drawn_components(text_tab) == [sorted(members.tolist()) for members in graph.components]
    ends = [i for i in range(len(data)) if data[i][0][-1] == last]
    windows = {
        (i, j): sum(data[n][1] == i and j in data[n][0] for n in ends) for i, j in map(tuple, graph.edges.tolist())
    }
    assert listed_pairs(text_tab) == sorted((i, j, count) for (i, j), count in windows.items())
    counts = text_tab.find_element("class name", "counts").text
    assert f"{len(named.vocabulary)} different. {len(data)} windows of {window} {unit}" in counts
    assert f"{len(data.dropped)} other windows" in counts


@pytest.mark.parametrize(("unit", "window"), [("characters", 12), ("words", 8)])
def test_the_automaton_continues_as_in_python_with_reasons(text_tab, unit, window):
    named = type_text(text_tab, TEXT, unit, window)
    prompt = "How much wood would a woodchuck"
    text_tab.find_element("css selector", "input[name='text-draw'][value='likely']").click()
    change(text_tab, "text-count", 15)
    change(text_tab, "text-prompt", prompt)
    wait_for(text_tab, "document.querySelectorAll('.continued .token').length === 15")
    automaton = ml.NextTokenAutomaton.fit(named.data)
    ids = named.vocabulary.encode(prompt).tolist()
    for place, token in enumerate(continued(text_tab)):
        probability = automaton.predict_proba(ids[-window:])
        assert probability[token] >= probability.max() - 1e-9
        text_tab.find_element("css selector", f".continued [data-place='{place}']").click()
        settle(text_tab)
        reason = text_tab.find_element("class name", "reason").text
        shown = named.vocabulary.shown
        assert reason.startswith(f"After “{shown[ids[-1]]}”")
        assert f"“{shown[token]}”" in reason
        for winner, loser, _ in automaton.explain(ids[-window:]).reasons[:1]:
            assert f"“{shown[loser]}”" in reason or "more" in reason, winner
        ids.append(token)


# ---- what a reader does


def test_a_chosen_token_shows_whom_it_beats(text_tab):
    named = type_text(text_tab, TEXT, "words", 6)
    last = int(text_tab.find_element("id", "last-token").get_attribute("value"))
    graph = ml.priority_graphs(named.data)[last]
    text_tab.find_element("css selector", "#text-graph .chip.top").click()
    token = int(text_tab.execute_script("return document.activeElement.dataset.token"))
    beaten = {int(chip.get_attribute("data-token")) for chip in text_tab.find_elements("css selector", ".chip.beaten")}
    assert beaten == {other for winner, other in map(tuple, graph.strict.tolist()) if winner == token} != set()
    assert text_tab.execute_script("return document.activeElement.getAttribute('aria-pressed')") == "true"
    said = text_tab.find_element("css selector", "#text-graph .about").text
    assert said.startswith(f"After “{named.vocabulary.shown[last]}”, “{named.vocabulary.shown[token]}” wins over ")
    assert said.endswith(" and loses to nothing.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opened_panels_are_accessible(text_tab, axe, scheme):
    prefer(text_tab, color_scheme=scheme)
    script = """
      document.querySelector(".continued .token").click();
      document.querySelector("#text-graph .chip.top").click();
      document.querySelectorAll("#tab-text details").forEach((details) => (details.open = true));
    """
    text_tab.execute_script(script)
    assert accessibility_violations(text_tab) == []


def test_a_text_is_undone_and_travels_by_link(text_tab, lab_file):
    before = lab_state(text_tab)["text"]["source"]
    last = min(ml.priority_graphs(text_windows(TEXT, 6, UNITS["words"]).data))
    type_text(text_tab, TEXT, "words", 6, last)
    link, typed = lab_link(text_tab), lab_state(text_tab)["text"]
    open_lab(text_tab, lab_file, link[link.index("#") :])
    wait_until_read(text_tab)
    assert lab_state(text_tab)["text"] == typed
    assert text_tab.find_element("id", "text-source").get_attribute("value") == TEXT
    assert text_tab.find_element("id", "last-token").get_attribute("value") == str(last)
    change(text_tab, "text-source", TEXT[:60])
    wait_for(text_tab, "window.lab.state().text.source.length === 60")
    text_tab.execute_script("document.activeElement.blur(); window.lab.store.undo()")
    settle(text_tab)
    assert text_tab.find_element("id", "text-source").get_attribute("value") == TEXT
    assert before != TEXT


def test_listed_sequences_are_read(text_tab):
    option = text_tab.find_elements("css selector", "#text-example option")[-1]
    option.click()
    wait_for(text_tab, "window.lab.state().text.sequences !== undefined")
    wait_until_read(text_tab)
    assert drawn_components(text_tab) == [[0, 1, 2], [3]]  # after e2, as in C's Figure 2
    graph = ml.priority_graphs(ml.data.figure_2())[1]
    assert [sorted(members.tolist()) for members in graph.components] == [[0, 1, 2], [3]]


def test_unreadable_texts_and_prefixes_are_refused(text_tab):
    type_text(text_tab, TEXT)
    for text, sentence in (("", "There is no text yet"), ("abc", "The window must be shorter than the text")):
        change(text_tab, "text-source", text)
        wait_for(text_tab, "document.querySelector('#text-input').dataset.read === 'refused'")
        assert text_tab.find_element("class name", "counts").text.startswith(sentence)
        change(text_tab, "text-source", TEXT)
        wait_until_read(text_tab)
        assert "different" in text_tab.find_element("class name", "counts").text
    change(text_tab, "text-prompt", "wood Ж")
    wait_for(text_tab, "document.querySelector('.text-continuation .fails').textContent !== ''")
    refusal = text_tab.find_element("css selector", ".text-continuation .fails").text
    assert refusal == "The beginning holds “Ж”, which the text does not: use tokens of the text."
    change(text_tab, "text-prompt", "wood")
    wait_for(text_tab, "document.querySelector('.text-continuation .fails').textContent === ''")


def test_animation_continues_while_a_long_text_is_read(text_tab):
    long = (TEXT + " ") * 1000
    script = """
      const [text, done] = arguments, field = document.getElementById("text-source"), panel = document.getElementById("text-input");
      field.value = text;
      field.dispatchEvent(new Event("change"));
      let frames = 0;
      const look = () => {
        if (panel.dataset.read === "yes" && window.lab.state().text.source === text) done(frames);
        else { frames += panel.dataset.read === "reading"; requestAnimationFrame(look); }
      };
      requestAnimationFrame(look);
    """
    assert text_tab.execute_async_script(script, long) >= 1
    assert f"{len(UNITS['words'].split(long)):,} words" in text_tab.find_element("class name", "counts").text


def test_real_heads_answer_for_the_chosen_sentence_head_and_word(text_tab):
    verdict = text_tab.find_element("id", "heads-verdict")
    assert verdict.text.startswith("From “it”, this head gives “river” 82 % of its attention")
    change(text_tab, "heads-sentence", 0)
    change(text_tab, "heads-head", 0)
    words = text_tab.find_elements("css selector", ".head-word")
    assert [word.text.split("\n")[0] for word in words[:4]] == ["[CLS]", "my", "neighbour", "fed"]
    words[3].click()
    assert verdict.text.startswith("From “fed”, this head gives “neighbour” ")
    assert text_tab.execute_script("return document.activeElement.textContent").startswith("fed")
