// Settings of the training: optimizer, step size, loss, number of steps, what is trained and where it starts.

import { DEFAULT_STEPS, MAX_STEPS, OPTIMIZERS } from "../../kernels/problem.js";
import { LOSS_CODES } from "../../kernels/softmax.js";
import { element } from "../dom.js";
import { numberField } from "../typed_number.js";
import { withProblem, withTrain } from "../state.js";
import { text, title } from "../words.js";

const { settings: FIELDS } = globalThis.labWords; // their bounds

const optimizerCode = (name) => `lab.optimizer.${name.replaceAll("-", "_")}`;
const lossCode = (name) => `lab.loss.${name.replaceAll("-", "_")}`;

const RARE_SETTINGS = ["decay", "momentum", "p", "beta1", "beta2", "eps"];
const RARE_OPTIMIZER = "steepest-descent"; // in a norm ℓp of one's choice
const SLIDER_POSITIONS = 200;

/** The value at a share of a slider, with three digits. */
export function valueAt({ low, high, isLog }, share) {
  return Number((isLog ? low * (high / low) ** share : low + (high - low) * share).toPrecision(3));
}

/** The share of a slider at a value, within [0, 1]. */
export function shareOf({ low, high, isLog }, value) {
  const share = isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.min(1, Math.max(0, share));
}

/** The optimizer of a problem with all its settings. */
export function optimizerOf(problem) {
  const given = problem.optimizer ?? { name: "normalized-gd", size: problem.train === "both" ? 0.1 : 1 };
  return { ...structuredClone(OPTIMIZERS[given.name]), ...given };
}

/** The settings of an optimizer as single numbers: Adam's betas apart. */
export function settingsOf({ name, betas, ...settings }) {
  return betas === undefined ? settings : { size: settings.size, decay: settings.decay, beta1: betas[0], beta2: betas[1], eps: settings.eps };
}

/** The state with one setting of its optimizer changed. */
export function withSetting(state, name, value) {
  const optimizer = optimizerOf(state.problem);
  const changed = { beta1: { betas: [value, optimizer.betas?.[1]] }, beta2: { betas: [optimizer.betas?.[0], value] } }[name] ?? { [name]: value };
  return withProblem(state, { optimizer: { ...optimizer, ...changed } });
}

/** The state with another optimizer, which takes over the step size and other settings that it has too. */
export function withOptimizerNamed(state, name) {
  const before = optimizerOf(state.problem);
  const settings = structuredClone(OPTIMIZERS[name]);
  for (const key of Object.keys(settings)) if (key in before) settings[key] = before[key];
  return withProblem(state, { optimizer: { name, ...settings } });
}

/** A slider with a number field beside it: { node, show(value) }; onchange(value, gesture) returns whether the value was taken. */
export function sliderField(store, name, field, onchange) {
  const id = `setting-${name}`;
  let pull = 0;
  const slider = element("input", { type: "range", min: 0, max: SLIDER_POSITIONS, step: 1, "aria-label": `${field.label}, slider` });
  const change = (value) => onchange(value, null);
  const box = numberField(store, { name: field.label, low: 0, isWhole: field.whole === Math.round, change, id, title: field.about });
  for (const type of ["pointerdown", "focus"]) slider.addEventListener(type, () => pull++);
  slider.addEventListener("input", () => onchange(field.whole(valueAt(field, Number(slider.value) / SLIDER_POSITIONS)), `${id}-${pull}`));
  const node = element(
    "div",
    { class: "field setting" },
    element("label", { for: id }, field.label),
    element("div", { class: "row" }, slider, box.node),
  );
  const show = (value) => {
    box.fill(value);
    if (document.activeElement !== slider || Math.abs(valueAt(field, Number(slider.value) / SLIDER_POSITIONS) - value) > 0.02 * Math.abs(value))
      slider.value = Math.round(SLIDER_POSITIONS * shareOf(field, value));
    slider.setAttribute("aria-valuetext", String(value));
  };
  return { node, show };
}

function choice(id, label, names, codeOf, onchange) {
  const option = (name) => element("option", { value: name }, title(codeOf(name)));
  const rare = names.filter((name) => name === RARE_OPTIMIZER);
  const select = element("select", { id }, names.filter((name) => name !== RARE_OPTIMIZER).map(option), rare.length > 0 ? element("optgroup", { label: "Advanced" }, rare.map(option)) : null);
  select.addEventListener("change", () => onchange(select.value));
  return { node: element("div", { class: "field setting" }, element("label", { for: id }, label), select), select };
}

export function mountSettings(root, store) {
  const optimizer = choice("setting-optimizer", "Optimizer", Object.keys(OPTIMIZERS), optimizerCode, (name) =>
    store.apply(`train with ${title(optimizerCode(name))}`, (state) => withOptimizerNamed(state, name)),
  );
  const fields = Object.fromEntries(
    Object.entries(FIELDS).map(([name, bounds]) => {
      const [label, about] = [title(`lab.setting.${name}`), text(`lab.setting.${name}`)];
      const change = (value, gesture) => store.apply(`set ${label.toLowerCase()}`, (state) => withSetting(state, name, value), { gesture });
      return [name, sliderField(store, name, { whole: (value) => value, label, about, ...bounds }, change)];
    }),
  );
  const loss = choice("setting-loss", "Loss", Object.keys(LOSS_CODES), lossCode, (name) =>
    store.apply(`use the ${title(lossCode(name)).toLowerCase()} loss`, (state) => withProblem(state, { loss: name })),
  );
  const stepsField = { label: "Number of steps", low: 10, high: MAX_STEPS, isLog: true, whole: Math.round };
  const steps = sliderField(store, "steps", stepsField, (value, gesture) =>
    store.apply("set the number of steps", (state) => withProblem(state, { steps: value }), { gesture }),
  );
  const radio = (group, value, text, onchange) => {
    const input = element("input", { type: "radio", name: group, value, onchange });
    return { input, label: element("label", { class: "check" }, input, text) };
  };
  const train = {
    attention: radio("train", "attention", "Attention", () => store.apply("train the attention alone", (state) => withTrain(state, "attention"))),
    both: radio("train", "both", "Head and attention", () => store.apply("train head and attention", (state) => withTrain(state, "both"))),
  };
  const rareFields = RARE_SETTINGS.map((name) => fields[name].node);
  const advanced = element("details", { class: "advanced" }, element("summary", {}, "Advanced"), element("div", { class: "settings" }, rareFields));
  root.replaceChildren(
    element(
      "div",
      { class: "settings" },
      element("fieldset", { class: "setting" }, element("legend", {}, "Train"), train.attention.label, train.both.label),
      optimizer.node,
      fields.size.node,
      loss.node,
      steps.node,
      advanced,
    ),
  );
  return {
    update(state) {
      const { problem } = state;
      const isJoint = problem.train === "both";
      const chosen = optimizerOf(problem);
      const settings = settingsOf(chosen);
      optimizer.select.value = chosen.name;
      for (const option of optimizer.select.options) option.disabled = isJoint && option.value !== "gradient-descent" && option.value !== "normalized-gd";
      optimizer.select.title = text(optimizerCode(chosen.name));
      for (const [name, { node, show }] of Object.entries(fields)) {
        node.hidden = !(name in settings);
        if (name in settings) show(settings[name]);
      }
      advanced.hidden = rareFields.every((node) => node.hidden);
      loss.select.value = problem.loss ?? "logistic";
      loss.select.title = text(lossCode(problem.loss ?? "logistic"));
      steps.show(problem.steps ?? DEFAULT_STEPS);
      train[isJoint ? "both" : "attention"].input.checked = true;
    },
  };
}
