// Search results in the order in which they help: exact names, then pages by how much they say about the words, then other names; each with an
// excerpt. Sphinx finds them; the texts are in searchtexts.js, a script, because a page opened from a file may not fetch others.

// Pages that tell more than they explain come later.
const WEIGHTS = [
  [/^(changelog|texts|theorems|releasing|differences|decisions\/|proofs\/)/, 0.4],
  [/^(api|gallery)\//, 0.7],
];
const EXCERPT_LENGTH = 220; // characters

const lower = (text) => text.toLowerCase();

/** What finds the words of a query in a text: beginnings of words, as typed or without their endings. */
function patternOf(words) {
  const escaped = [...words].map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${escaped.join("|")})`, "giu");
}

const countOf = (pattern, text) => (text.match(pattern) ?? []).length;

/** How much a page says about the words: in its title, in its headings, in its text. */
function scoreOf(name, title, pattern) {
  const parts = Search.texts[name] ?? [];
  const headings = parts.filter(([, heading]) => countOf(pattern, heading)).length;
  const mentions = parts.reduce((sum, [, , text]) => sum + countOf(pattern, text), 0);
  const weight = WEIGHTS.find(([names]) => names.test(name))?.[1] ?? 1;
  return weight * ((countOf(pattern, title) ? 8 : 0) + Math.min(headings, 4) + 2 * Math.log2(1 + mentions));
}

/** The part of a page that says most about the words. */
function bestPart(name, pattern) {
  const parts = Search.texts[name] ?? [];
  const counts = parts.map(([, heading, text]) => 2 * countOf(pattern, heading) + countOf(pattern, text));
  return parts[counts.indexOf(Math.max(...counts))] ?? ["", "", ""];
}

/** Some words around the first match, with the matches marked. */
function excerpt(text, pattern) {
  const paragraphs = text.split("\n");
  const paragraph = paragraphs.find((each) => countOf(pattern, each)) ?? paragraphs[0];
  const first = Math.max(paragraph.search(pattern), 0);
  const begin = first < EXCERPT_LENGTH / 2 ? 0 : paragraph.indexOf(" ", first - EXCERPT_LENGTH / 3) + 1;
  const cut = paragraph.slice(begin, begin + EXCERPT_LENGTH);
  const isWhole = begin + EXCERPT_LENGTH >= paragraph.length;
  const shown = (begin ? "… " : "") + (isWhole ? cut : `${cut.slice(0, cut.lastIndexOf(" "))} …`);
  const element = document.createElement("p");
  element.className = "context";
  let end = 0;
  for (const match of shown.matchAll(pattern)) {
    const mark = document.createElement("mark");
    mark.textContent = match[0];
    element.append(shown.slice(end, match.index), mark);
    end = match.index + match[0].length;
  }
  element.append(shown.slice(end));
  return element;
}

/** One page, or one name, of the list. */
function itemOf({ name, anchor, title, about, text }, pattern) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = name + DOCUMENTATION_OPTIONS.LINK_SUFFIX + anchor;
  link.textContent = title;
  item.append(link);
  if (about) item.append(` ${about}`);
  if (text) item.append(excerpt(text, pattern));
  return item;
}

Search.query = (query) => {
  const words = query.trim().replace(/^ml\.|\(.*$/g, "") || query; // of a call, its name
  const [, terms, excluded, typed, names] = Search._parseQuery(words);
  const found = Search._performSearch(words, terms, excluded, typed, names);
  const pattern = patternOf(typed.size || terms.size ? new Set([...typed, ...terms]) : names);
  const wanted = lower(words);

  const pages = new Map();
  const others = [];
  for (const [name, title, anchor, about, , , kind] of found) {
    if (kind !== SearchResultKind.object) {
      const plain = Search._index.titles[Search._index.docnames.indexOf(name)];
      pages.set(name, { name, title: plain, score: scoreOf(name, plain, pattern) });
    } else if (!anchor.startsWith("#module-")) {
      const room = title.split(".").slice(0, 2).join(".");
      const isMember = title.split(".").length > 3;
      const isExact = lower(title) === wanted || lower(title).endsWith(`.${wanted}`);
      const [, , text] = (Search.texts[name] ?? []).find(([id]) => `#${id}` === anchor) ?? [];
      others.push({ name, anchor, title: title.slice(room.length + 1), about: `in ${room}`, text, isMember, isExact });
    }
  }
  const isIdentifier = /[_.]/.test(wanted);
  const [first, rest] = [[], []];
  for (const other of others) (other.isExact && (isIdentifier || !other.isMember) ? first : rest).push(other);
  rest.sort((a, b) => a.isMember - b.isMember || b.isExact - a.isExact || a.title.localeCompare(b.title));
  const ranked = [...pages.values()].sort((a, b) => b.score - a.score || a.title.localeCompare(b.title));
  const results = [
    ...first,
    ...ranked.map((page) => {
      const [id, heading, text] = bestPart(page.name, pattern);
      const isSection = heading && heading !== page.title;
      return { ...page, anchor: isSection ? `#${id}` : "", about: isSection ? `› ${heading}` : "", text };
    }),
    ...rest,
  ];

  const unique = new Map(results.map((result) => [result.name + result.anchor + result.title, result]));
  Search.stopPulse();
  Search.title.textContent = unique.size ? `Results for “${query}”` : `Nothing is found for “${query}”`;
  Search.status.textContent = unique.size ? `${unique.size} places` : "Try fewer or other words.";
  Search.output.append(...[...unique.values()].map((result) => itemOf(result, pattern)));
};
