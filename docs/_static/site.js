// Whoever uses the keyboard can scroll what does not fit: code, tables, figures and formulas that are wider than the page get a tab stop.
const WIDE = "pre, .table-wrapper, .formula, .highlight, p:has(> img), figure:has(> img)";

function addTabStops() {
  for (const element of document.querySelectorAll(WIDE)) {
    const isWide = element.scrollWidth > element.clientWidth && getComputedStyle(element).overflowX !== "visible";
    if (isWide) element.setAttribute("tabindex", "0");
    else element.removeAttribute("tabindex");
  }
}

addTabStops();
addEventListener("load", addTabStops);
addEventListener("resize", addTabStops);
