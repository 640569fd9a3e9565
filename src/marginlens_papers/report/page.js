"use strict";
{
  const filters = document.querySelector(".filters");
  const rows = [...document.querySelectorAll(".ledger [data-claim]")];
  const claims = [...document.querySelectorAll("article[data-claim]")].map((article) => ({ article, details: article.firstElementChild }));
  const texts = new Map(rows.map((row) => [row.dataset.claim, row.textContent]));
  for (const { article } of claims) texts.set(article.id, `${texts.get(article.id)} ${article.textContent}`);
  for (const [name, text] of texts) texts.set(name, text.toLowerCase());

  const show = () => {
    const { paper, verdict, words } = Object.fromEntries(new FormData(filters));
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const isShown = ({ dataset }) =>
      (!paper || dataset.paper === paper) &&
      (!verdict || dataset.verdict === verdict) &&
      wanted.every((word) => texts.get(dataset.claim).includes(word));
    for (const row of rows) row.hidden = !isShown(row);
    for (const { article } of claims) article.hidden = !isShown(article);
    const count = rows.filter((row) => !row.hidden).length;
    filters.querySelector("output").value = count === rows.length ? `${count} claims` : `${count} of ${rows.length} claims`;
  };
  filters.addEventListener("input", show);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;
  show();

  const openTarget = () => {
    const claim = claims.find(({ article }) => article.id === decodeURIComponent(location.hash.slice(1)));
    if (!claim) return;
    if (claim.article.hidden) {
      filters.reset();
      show();
    }
    claim.details.open = true;
    claim.article.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  for (const row of rows) row.querySelector("a")?.addEventListener("click", () => setTimeout(openTarget));
  openTarget();

  const all = document.querySelector(".all");
  all.addEventListener("click", () => {
    const isOpen = all.textContent === "Open all";
    for (const { details } of claims) details.open = isOpen;
    all.textContent = isOpen ? "Close all" : "Open all";
  });
  all.hidden = claims.length === 0;
  addEventListener("beforeprint", () => {
    for (const { details } of claims) details.open = true;
  });
}
