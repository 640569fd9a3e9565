// The bar at the top: tabs, examples, undo and redo, the share menu and the theme.

import { element, replace, setAttributes, setText } from "./dom.js";
import { exampleNamed, exampleOf } from "./examples.js";
import { stateOfPreset } from "./state.js";
import { text } from "./words.js";

const THEMES = ["system", "light", "dark"];
const THEME_SIGNS = { system: "◐", light: "☀", dark: "☾" };
const THEME_STORAGE = "marginlens-lab-theme";
const TABS = [
  { name: "plane", text: "Token selection" },
  { name: "text", text: "Next tokens" },
  { name: "growth", text: "Why logits explode" },
];
const OWN_NAMES = { plane: "Your own problem", text: "Your own text", growth: "Choose an example" }; // where no example is shown
const PANELS = [
  { name: "numbers", text: "Numbers" },
  { name: "data", text: "Data" },
  { name: "training", text: "Training" },
];

// ---- tabs

/**
 * A list of tabs { name, text } in root, as people expect of tabs: arrow keys, Home and End move and choose. `prefix` begins the ids of its
 * buttons' panels. Returns show(name), which shows the panel of that name alone.
 */
function tabList(root, prefix, label, tabs, choose) {
  let shown = tabs[0].name;
  const onkeydown = (event) => {
    const at = tabs.findIndex((tab) => tab.name === shown);
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    const { name } = tabs[(places[event.key] + tabs.length) % tabs.length];
    choose(name);
    document.getElementById(`${prefix}-button-${name}`).focus();
  };
  const button = ({ name, text }) =>
    element("button", { id: `${prefix}-button-${name}`, type: "button", role: "tab", "aria-controls": `${prefix}-${name}`, onclick: () => choose(name) }, text);
  setAttributes(root, { role: "tablist", "aria-label": label, onkeydown });
  replace(root, tabs.map(button));
  return (name) => {
    shown = name;
    for (const tab of tabs) {
      const isShown = tab.name === name;
      setAttributes(document.getElementById(`${prefix}-button-${tab.name}`), { "aria-selected": String(isShown), tabindex: isShown ? "0" : "-1" });
      document.getElementById(`${prefix}-${tab.name}`).hidden = !isShown;
    }
  };
}

/** The parts of the lab. */
export function mountTabs(root, store) {
  const choose = (name) => store.apply(`show ${name}`, (state) => (state.tab === name ? state : { ...state, tab: name }), { undoable: false });
  const show = tabList(root, "tab", "Parts of the lab", TABS, choose);
  return { update: ({ tab }) => show(tab) };
}

/** Numbers, data and training beside the picture; returns the function that shows one of them. */
export function mountPanels(root) {
  const show = tabList(root, "panel", "Panels", PANELS, (name) => show(name));
  show(PANELS[0].name);
  return show;
}

// ---- theme

function storedTheme() {
  try {
    return localStorage.getItem(THEME_STORAGE);
  } catch {
    return null; // pages from a file may have no storage
  }
}

function themeButton() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let theme = THEMES.includes(storedTheme()) ? storedTheme() : "system";
  const button = element("button", { type: "button", class: "icon" });
  const show = () => {
    document.documentElement.dataset.theme = theme === "system" ? (system.matches ? "dark" : "light") : theme;
    setText(button, THEME_SIGNS[theme]);
    setAttributes(button, { "aria-label": `Colours: ${theme}`, title: `Colours: ${theme}` });
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem(THEME_STORAGE, theme);
    } catch {
      // then the choice lasts as long as the page
    }
    show();
    dispatchEvent(new Event("themechange"));
  });
  system.addEventListener("change", () => {
    show();
    dispatchEvent(new Event("themechange"));
  });
  show();
  return button;
}

// ---- menus

/** A button that opens a menu of { label, run }; arrow keys move, Escape closes. */
function menuButton(name, items) {
  const button = element("button", { type: "button", "aria-haspopup": "menu", "aria-expanded": "false" }, name);
  const entries = items.map(({ label, run }) =>
    element("button", { type: "button", role: "menuitem", tabindex: "-1", onclick: () => (show(false), run()) }, label),
  );
  const list = element("div", { role: "menu", "aria-label": name, hidden: true }, entries);
  const root = element("div", { class: "menu" }, button, list);
  function show(isOpen, place = null) {
    const hadFocus = list.contains(document.activeElement);
    list.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) entries.at(place ?? 0).focus();
    else if (hadFocus) button.focus();
  }
  button.addEventListener("click", () => show(list.hidden));
  button.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    show(true, event.key === "ArrowDown" ? 0 : -1);
  });
  list.addEventListener("keydown", (event) => {
    const at = entries.indexOf(document.activeElement);
    const places = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 };
    if (event.key === "Escape") show(false);
    else if (event.key in places) {
      event.preventDefault();
      entries.at(places[event.key] % entries.length).focus();
    }
  });
  root.addEventListener("focusout", (event) => {
    if (!root.contains(event.relatedTarget)) show(false);
  });
  document.addEventListener("pointerdown", (event) => {
    if (!root.contains(event.target)) show(false);
  });
  return root;
}

// ---- the bar

/** Whether letters typed there are meant for a text. */
export function isTyping(target) {
  return target.matches?.('textarea, [contenteditable], input:not([type="range"], [type="checkbox"], [type="radio"])') ?? false;
}

/** items: what the share menu offers, [{ label, run }]; help: what its button does. */
export function mountToolbar(root, store, { items, help }) {
  const undo = element("button", { type: "button", class: "icon", onclick: () => store.undo() }, "↶");
  const redo = element("button", { type: "button", class: "icon wide", onclick: () => store.redo() }, "↷");
  const reset = element("button", { type: "button", class: "wide", title: "Back to how this example began", onclick: () => store.reset() }, "Reset");
  const presets = globalThis.labPresets;
  const option = ({ name, title }) => element("option", { value: name }, title);
  const [first, ...others] = [...new Set(presets.map(({ group }) => group))].map((group) =>
    element("optgroup", { label: group }, presets.filter((preset) => preset.group === group).map(option)),
  );
  const more = element("option", { value: "more" }, text("lab.more_examples"));
  const showOthers = (areShown) => {
    more.hidden = areShown || others.length === 0;
    for (const group of others) group.hidden = !areShown;
  };
  showOthers(false);
  const [caption, whole] = [document.getElementById("caption"), element("span")];
  replace(caption, whole, element("span", {}, text("lab.changed")));
  const other = element("option", { value: "", hidden: true });
  let shownValue = () => {}; // puts the example that is shown into the list
  const select = element("select", { id: "preset" }, other, first, more, others);
  select.addEventListener("change", () => {
    if (select.value === "more") {
      showOthers(true);
      shownValue();
      select.showPicker?.();
      return;
    }
    const preset = exampleNamed(select.value);
    if (!preset) return;
    const opened = stateOfPreset(preset);
    const state = preset.text ? opened : { ...opened, text: store.state.text };
    if (store.load(state, `open “${preset.title}”`)) dispatchEvent(new Event("exampleopened"));
  });
  replace(
    root,
    element("span", { class: "example" }, element("label", { for: "preset" }, "Example"), select),
    undo,
    redo,
    reset,
    menuButton("Share", items),
    element("button", { type: "button", class: "icon wide", "aria-label": "Keyboard and mouse", title: "Keyboard and mouse (?)", onclick: help }, "?"),
    themeButton(),
  );
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || isTyping(event.target)) return;
    const key = event.key.toLowerCase();
    if (key !== "z" && key !== "y") return;
    event.preventDefault();
    if (key === "y" || event.shiftKey) store.redo();
    else store.undo();
  });
  const name = (button, verb, label) =>
    setAttributes(button, { disabled: label === null, "aria-label": label === null ? verb : `${verb}: ${label}`, title: label === null ? verb : `${verb}: ${label}` });
  return {
    update(state) {
      name(undo, "Undo", store.undoLabel);
      name(redo, "Redo", store.redoLabel);
      const example = exampleOf(state);
      const isTrue = example !== null && !example.isChanged; // what it says of itself
      setText(whole, example?.caption ?? "");
      caption.hidden = !example?.caption;
      caption.classList.toggle("of-scene", globalThis.labWords.story.some(({ preset }) => preset === state.preset));
      setAttributes(caption, { dataset: { shows: isTrue ? "whole" : "changed" } }); // in one place, so that nothing jumps under a hand that drags
      setText(other, example ? `${example.title}, changed` : OWN_NAMES[state.tab]);
      shownValue = () => (select.value = isTrue ? example.name : "");
      shownValue();
    },
  };
}
