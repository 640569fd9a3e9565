// Figures, but for the film with its large letters, get a frame in which they scroll where the page is too narrow for their letters.
for (const image of document.querySelectorAll("article img:not([src$='start_decides.svg'])")) {
  if (image.closest(".sphx-glr-thumbcontainer")) continue;
  const frame = document.createElement("span"); // which a paragraph may hold
  frame.className = "figure";
  image.replaceWith(frame);
  frame.append(image);
}

// Whoever uses the keyboard can scroll what does not fit: code, tables, figures and formulas that are wider than the page get a tab stop.
const WIDE = "pre, .table-wrapper, .formula, .highlight, .figure";

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
