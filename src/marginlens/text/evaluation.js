"use strict";
{
  const form = document.querySelector("#tokens form");
  const table = document.querySelector("#tokens table");
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const rows = [...body.rows];
  const names = new Map(rows.map((row) => [row, row.cells[0].textContent.toLowerCase()]));

  const step = 200; // rows that are laid out at once
  let limit = step;

  const show = () => {
    const wanted = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => wanted.every((word) => names.get(row).includes(word)));
    const shown = new Set(found.slice(0, limit));
    for (const row of rows) row.hidden = !shown.has(row);
    const [count, all, most] = [found.length, rows.length, shown.size].map((number) => number.toLocaleString("en"));
    const said = `${wanted.length ? `${count} of ${all}` : all} tokens`;
    form.querySelector("output").value = most === count ? said : `${said}, the first ${most} shown`;
    form.more.hidden = most === count;
  };

  const sortBy = (column) => {
    const values = new Map(rows.map((row) => [row, row.cells[column].textContent]));
    const numbers = new Map([...values].map(([row, text]) => [row, text === "–" ? NaN : Number(text.replaceAll(",", ""))]));
    const areNumbers = column > 0 && [...values].every(([row, text]) => text === "–" || !Number.isNaN(numbers.get(row)));
    const earlier = headers[column].getAttribute("aria-sort");
    const isFalling = earlier ? earlier === "ascending" : areNumbers;
    const sign = isFalling ? -1 : 1;
    const byNumber = (one, other) => {
      const [x, y] = [numbers.get(one), numbers.get(other)];
      return Number.isNaN(x) - Number.isNaN(y) || sign * (x - y) || 0;
    };
    const byWord = (one, other) => sign * values.get(one).localeCompare(values.get(other));
    rows.sort(areNumbers ? byNumber : byWord);
    body.append(...rows);
    for (const header of headers) header.removeAttribute("aria-sort");
    headers[column].setAttribute("aria-sort", isFalling ? "descending" : "ascending");
    table.parentElement.scrollTop = 0;
    show();
  };

  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(column));
    header.append(button);
  });
  form.addEventListener("input", () => {
    limit = step;
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.more.addEventListener("click", () => {
    limit += step;
    show();
  });
  form.hidden = false;
  show();
}
