// Elements of the page: made with attributes and children in a single call.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Set attributes: functions named on… become listeners, `dataset` and `style` take objects, true is the empty attribute, and false, null
 * and undefined remove it; `value`, `checked` and other state of form fields are properties.
 */
export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name === "style" && typeof value === "object") for (const [key, entry] of Object.entries(value)) node.style.setProperty(key, entry);
    else if (name === "value" || name === "checked" || name === "selected" || name === "indeterminate") node[name] = value;
    else if (value === false || value === null || value === undefined) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

function filled(node, attributes, children) {
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return setAttributes(node, attributes ?? {});
}

/** An HTML element; children are nodes, strings or lists of them, and null is left out. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Put children in the place of what a node holds. */
export function replace(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Set a node's text where it differs, so that nothing is announced or laid out again for nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
  return node;
}

const KEPT_STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "paint-order",
  "font-family", "font-size", "font-weight", "text-anchor", "display", "visibility",
];

/** A copy of an SVG picture that looks the same without the page: with the styles of its nodes written into them. */
export function styledCopy(svg) {
  const copy = svg.cloneNode(true);
  const nodes = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, k) => {
    const style = getComputedStyle(nodes[k]);
    for (const name of node.getAttributeNames()) if (/^(aria-.*|data-.*|tabindex|role|class)$/.test(name)) node.removeAttribute(name);
    if (node !== copy) node.setAttribute("style", KEPT_STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  });
  const { width, height } = svg.viewBox.baseVal;
  return setAttributes(copy, { xmlns: SVG, width, height });
}
