"use strict";
{
  const filters = document.querySelector(".filters");
  const tiles = [...document.querySelectorAll("#wall article")];
  const claims = tiles.map((tile) => tile.querySelector("details.claim")).filter(Boolean);
  const texts = new Map(tiles.map((tile) => [tile, tile.textContent.toLowerCase()]));

  const show = () => {
    const { paper, verdict, words } = Object.fromEntries(new FormData(filters));
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    for (const tile of tiles) {
      const { dataset } = tile;
      tile.hidden = (paper && dataset.paper !== paper) || (verdict && dataset.verdict !== verdict) || !wanted.every((word) => texts.get(tile).includes(word));
    }
    for (const part of document.querySelectorAll("#wall .part")) part.hidden = !part.querySelector("article:not([hidden])");
    const count = tiles.filter((tile) => !tile.hidden).length;
    filters.querySelector("output").value = count === tiles.length ? `${count} claims` : `${count} of ${tiles.length} claims`;
  };
  filters.addEventListener("input", show);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;
  show();

  const openTarget = () => {
    const tile = tiles.find((one) => one.id === decodeURIComponent(location.hash.slice(1)));
    const claim = tile?.querySelector("details.claim");
    if (!claim) return;
    if (tile.hidden) {
      filters.reset();
      show();
    }
    claim.open = true;
    tile.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  const all = document.querySelector(".all");
  all.addEventListener("click", () => {
    const isOpen = all.textContent === "Open all";
    for (const claim of claims) claim.open = isOpen;
    all.textContent = isOpen ? "Close all" : "Open all";
  });
  addEventListener("beforeprint", () => {
    for (const claim of claims) claim.open = true;
  });
}
