"""What the site adds to Sphinx: formulas as MathML, links by name and to statements, texts to search, and the pages of lab and report."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import desc, desc_signature, download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autosummary import autosummary_table
from sphinx.transforms import SphinxTransform
from sphinx.util.nodes import make_refnode

import marginlens
from marginlens.papers import SOURCES, natural, registered
from marginlens.plotting.files import with_palette

REPORT = Path(__file__).resolve().parents[2] / "report"
SHOWN = {
    "lab": '<p><a href="lab/index.html"><strong>Open the lab</strong></a> on a page of its own, or use it right here:</p>\n'
    '<iframe class="lab-frame" src="lab/index.html" title="The lab" loading="lazy"></iframe>',
    "ledger": '<p><a href="report/index.html"><strong>Open the report</strong></a></p>',
}  # page -> what it shows behind its first paragraph
PAGES = {
    "CONTRIBUTING": "contributing",
    "CHANGELOG": "changelog",
    "README": "gallery/index",
}  # files outside this folder that are pages
KINDS = {
    "Theorem": "Thm",
    "Proposition": "Prop",
    "Definition": "Def",
    "Equation": "Eq.",
    "Figure": "Fig",
}  # as labels write them
NUMBER = r"\(\d+[a-z]?\)|\d+[a-z]?|[A-D]\b"
STATEMENT = re.compile(
    rf"\b(?P<paper>[A-G]'?|X)\s(?:(?P<kind>Thm|Lemma|Prop|Def|Assumption|Eq\.|Fig|{'|'.join(KINDS)})s?\s"
    rf"(?P<numbers>(?:{NUMBER})(?:(?:,\s|\sand\s|\sto\s)(?:{NUMBER}))*)|(?P<letter>[A-Z]\d))"
)  # "A Thm 3", "C Theorems 1 to 3", "X N7"
registry = cache(registered)


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls when it loads this extension."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.add_transform(LinksToFiles)
    app.add_transform(OneListOfTags)
    app.add_transform(NamesInBackticks)
    app.add_transform(PlacesOfStatements)
    app.add_transform(NamesOfStatements)
    app.connect("autodoc-process-docstring", escape_letters, priority=300)
    app.connect("autodoc-process-docstring", keep_sentence, priority=400)  # before napoleon, which has 500
    app.connect("autodoc-process-docstring", keep_sentence, priority=600)  # and after it
    app.connect("autodoc-process-docstring", add_statements)
    app.connect("autodoc-process-signature", plain_signature)
    app.connect("source-read", show_written_page)
    app.connect("missing-reference", find_name)
    app.connect("missing-reference", find_statement)
    app.connect("html-page-context", level_captions, priority=600)  # after the theme
    app.connect("build-finished", write_pages)
    app.connect("build-finished", write_search_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_formula(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers draw by themselves; one on a line of its own scrolls when the page is narrow."""
    is_block = isinstance(node, nodes.math_block)
    formula = convert(node.astext().strip(), display="block" if is_block else "inline")
    translator.body.append(f'<div class="formula">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


# ---- links


class LinksToFiles(SphinxTransform):
    """Links to files outside this folder: to their pages in the site, to examples in the gallery, and otherwise plain words."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Replace what Sphinx would call an unknown page, or offer as a download."""
        for node in list(self.document.findall(pending_xref)):
            if node["reftype"] == "myst":
                node["reftarget"] = PAGES.get(PurePosixPath(node["reftarget"]).name, node["reftarget"])
        for node in list(self.document.findall(download_reference)):
            path = PurePosixPath(node["reftarget"])
            if path.suffix == ".py" and "examples" in path.parts:
                page = PurePosixPath("/gallery", *path.parts[path.parts.index("examples") + 1 :]).with_suffix("")
                given = {"refdomain": "std", "reftype": "doc", "reftarget": str(page), "refexplicit": True}
                node.replace_self(pending_xref("", *node.children, refdoc=self.env.docname, **given))
            else:
                node.replace_self([child for wrapped in node.children for child in wrapped.children])


class OneListOfTags(SphinxTransform):
    """The gallery writes its list of tags for every group, always with the same id."""

    default_priority = 600

    def apply(self, **_: Any) -> None:
        """Leave the first, which its script looks for."""
        for node in [node for node in self.document.findall(nodes.raw) if "sg-tag-list" in node.astext()][1:]:
            node.parent.remove(node)


class NamesInBackticks(SphinxTransform):
    """Code becomes a link if it is a public name: `ml.descend(data, v)`, `Trajectory.final`, `predict_limit`."""

    default_priority = 700

    def apply(self, **_: Any) -> None:
        """Wrap all code that looks like a name; `find_name` says whether it is one."""
        for node in list(self.document.findall(nodes.literal)):
            match = re.fullmatch(r"(?:ml\.)?([A-Za-z_][\w.]*)(\(.*\))?", node.astext(), flags=re.DOTALL)
            inside = node.parent
            while not isinstance(inside, nodes.reference | pending_xref | desc_signature | nodes.title | None):
                inside = inside.parent
            if match and inside is None:
                link = pending_xref("", refdomain="py", reftype="name", reftarget=match[1], refdoc=self.env.docname)
                node.replace_self(link)
                link += node


def find_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    """The description of a public name, written in any way that means it alone: `att_svm`, `marginlens.att_svm`, `Trajectory.bracket`."""
    target = node["reftarget"].removeprefix("marginlens.")
    names = names_by_ending(env).get(target, ()) if node.get("refdomain") == "py" else ()
    is_word = re.fullmatch("[a-z]+|[A-Z]", target) and target not in vars(marginlens)["_HOMES"]  # such as `data`
    if len(names) != 1 or is_word:
        return None
    entry = env.domains.python_domain.objects[names[0]]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, names[0])


@cache
def names_by_ending(env: BuildEnvironment) -> dict[str, list[str]]:
    """The described names by what they end in: `Trajectory.bracket`, `bracket`."""
    endings: dict[str, list[str]] = {}
    for name, entry in env.domains.python_domain.objects.items():
        parts = name.split(".")
        for k in range(1, 1 if entry.aliased else len(parts)):
            endings.setdefault(".".join(parts[k:]), []).append(name)
    return endings


class PlacesOfStatements(SphinxTransform):
    """Places that links to a statement can name, such as "a-thm-3": rows of the tables of statements, and headings of proofs."""

    default_priority = 710

    def apply(self, **_: Any) -> None:
        """Name the rows of the page of statements, and the sections that prove one."""
        for section in self.document.findall(nodes.section):
            title = section[0].astext()
            paper = title.partition(":")[0]
            if self.env.docname == "theorems" and paper in SOURCES:
                for row in section.findall(nodes.row):
                    row[0]["ids"].append(row_of(f"{paper} {row[0].astext()}"))
            elif self.env.docname.startswith("proofs/"):
                section["ids"] += [row_of(citation) for _, citation in statements_in(title)]


class NamesOfStatements(SphinxTransform):
    """Statements that a text names become links: ours to their proofs, those of papers to their rows; once in a paragraph."""

    default_priority = 720
    left_alone = (
        nodes.title,
        nodes.reference,
        pending_xref,
        desc_signature,
        nodes.literal,
        nodes.math,
        nodes.FixedTextElement,
    )

    def apply(self, **_: Any) -> None:
        """Split the texts that name a statement."""
        linked: set[tuple[nodes.Node, str]] = set()
        for text in list(self.document.findall(nodes.Text)):
            around = [text.parent]
            while around[-1].parent is not None:
                around.append(around[-1].parent)
            if any(isinstance(node, self.left_alone) for node in around):
                continue
            parts: list[nodes.Node] = []
            end = 0
            for (first, last), citation in statements_in(text):
                if (text.parent, citation) in linked or place_of(citation)[0] == self.env.docname:
                    continue
                linked.add((text.parent, citation))
                given = {"refdomain": "", "reftype": "statement", "reftarget": citation, "refdoc": self.env.docname}
                link = pending_xref("", nodes.inline("", text[first:last]), **given)
                parts += [nodes.Text(text[end:first]), link]
                end = last
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def statements_in(text: str) -> Iterator[tuple[tuple[int, int], str]]:
    """The statements that a text names and that are in the registry: where, and as they are cited."""
    for match in STATEMENT.finditer(text):
        if match["letter"]:
            places = [(match.span(), match["letter"])]
        else:
            offset = match.start("numbers")
            numbers = list(re.finditer(NUMBER, match["numbers"]))
            places = [((number.start() + offset, number.end() + offset), number[0]) for number in numbers]
            places[0] = (match.start(), places[0][0][1]), places[0][1]
        for span, number in places:
            citation = citations().get(key_of(f"{match['paper']} {match['kind'] or ''} {number}"))
            if citation is not None:
                yield span, citation


def key_of(citation: str) -> str:
    """A citation without what is written in several ways: "B Def 16" for "B Definition 16", "A Eq. 10" for "A Eq. (10)"."""
    words = re.sub("[()]", "", citation).split()
    return " ".join(KINDS.get(word, word) for word in words)


@cache
def citations() -> dict[str, str]:
    """The statements of the registry as they are cited, by key."""
    return {key_of(one.citation): one.citation for one in registry()}


@cache
def proofs() -> dict[str, str]:
    """The pages whose headings name a statement, by its citation."""
    pages = {}
    for path in sorted((Path(__file__).parents[1] / "proofs").glob("*.md")):
        for heading in re.findall("^#+ (.*)", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            pages.update({citation: f"proofs/{path.stem}" for _, citation in statements_in(heading)})
    return pages


def place_of(citation: str) -> tuple[str, str]:
    """The page of a statement, and the place there."""
    return proofs().get(citation, "theorems"), row_of(citation)


def row_of(citation: str) -> str:
    """The name of the place of a statement."""
    return nodes.make_id(citation.replace("'", "-earlier"))


def find_statement(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """The link from a statement's name to its place."""
    if node["reftype"] != "statement":
        return None
    page, place = place_of(node["reftarget"])
    return make_refnode(app.builder, node["refdoc"], page, place, content, node["reftarget"])


# ---- docstrings

_sentences: dict[str, list[str]] = {}


def keep_sentence(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Give attributes and properties their own words back: napoleon takes those before a colon for a type, and "a, b:" for "a b:"."""
    if what in ("attribute", "property", "data"):
        lines[:] = _sentences.setdefault(name, list(lines))
    elif what == "class":
        lines[:] = [re.sub(r"^ +\w+(, \w+)+(?=: )", lambda names: names[0].replace(", ", ","), line) for line in lines]


def escape_letters(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Keep "d_model: d." from being read as an item of a list that counts in letters."""
    lines[:] = [re.sub(r"(?<=: )(?=\w\.$)", r"\\", line) for line in lines]


def add_statements(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Say at the end of a docstring which statements of the papers it implements, with links to their rows."""
    place = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    mine = {one.citation for one in registry() if (one.module, one.name) == place and not one.inside}
    if mine:
        links = ", ".join(f"`{label} <../theorems.html#{row_of(label)}>`__" for label in sorted(mine, key=natural))
        lines += ["", f"Implements {links}.", ""]


def plain_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, given: str | None, returned: str | None
) -> Any:
    """Names of types as they are written, and dots for a default that is made anew for each object."""
    texts = (text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (given, returned))
    return tuple(text and text.replace("<factory>", "...") for text in texts)


def is_described_in(room: str, name: str) -> bool:
    """Whether the page of a part describes a name in full: only that of the part which defines it, if several offer it."""
    home = ".".join(getattr(import_module(room), name).__module__.split(".")[:2])
    return home == room or name not in getattr(import_module(home), "__all__", ())


def is_alias(room: str, name: str) -> str:
    """The name of the function that is offered under another name too, or nothing."""
    own = getattr(getattr(import_module(room), name), "__name__", name)
    return own if own != name else ""


# ---- pages


def show_written_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show the lab in the page about it, and lead from the ledger to the report if there is one."""
    if docname == "lab" or (docname == "ledger" and REPORT.is_dir()):
        title, first, rest = source[0].split("\n\n", 2)
        source[0] = "\n\n".join([title, first, SHOWN[docname], rest])


def level_captions(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Say which level the captions of the menu have, which screen readers need of a heading that is no <h2>."""
    name = "furo_navigation_tree"
    context[name] = context.get(name, "").replace('role="heading"', 'role="heading" aria-level="2"')


def write_pages(app: Sphinx, exception: Exception | None) -> None:
    """Write the lab, and copy the report that `make reproduce` wrote, without its data."""
    if exception is not None or app.builder.format != "html":
        return
    (app.outdir / "lab").mkdir(exist_ok=True)
    (app.outdir / "lab" / "index.html").write_text(marginlens.lab.lab_page(), encoding="utf-8")
    shutil.rmtree(app.outdir / "report", ignore_errors=True)
    if REPORT.is_dir():
        copy_report(REPORT, app.outdir / "report")
    for path in (app.outdir / "_images").glob("*.png"):
        path.write_bytes(with_palette(path.read_bytes()))


def copy_report(report: Path, place: Path) -> None:
    """Copy a report without its data, and without the figures that its page does not show, such as those for print."""
    shown = set(re.findall(r'="figures/([^"]+)"', (report / "index.html").read_text(encoding="utf-8")))

    def left_out(folder: str, names: list[str]) -> set[str]:
        unseen = set(names) - shown if Path(folder) == report / "figures" else set()
        return unseen | {name for name in names if name.endswith((".npz", ".parquet"))}

    shutil.copytree(report, place, ignore=left_out)


def write_search_texts(app: Sphinx, exception: Exception | None) -> None:
    """Write what search.js ranks pages by and takes excerpts from, as a script, which also loads from a file."""
    if exception is not None or app.builder.format != "html":
        return
    texts = {name: list(search_parts(app.env.get_doctree(name))) for name in sorted(app.env.found_docs)}
    written = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    (app.outdir / "searchtexts.js").write_text(f"Search.texts = {written};\n", encoding="utf-8")


def search_parts(document: nodes.document) -> Iterator[tuple[str, str, str]]:
    """The sections and the described names of a page: the id, the heading and the paragraphs of each, without those of its parts."""
    owners: dict[nodes.Node, list[str]] = {}
    for node in document.findall(lambda node: isinstance(node, nodes.section | desc | nodes.paragraph)):
        if not isinstance(node, nodes.paragraph):
            owners[node] = []
            continue
        owner = node.parent
        while owner is not None and owner not in owners and not isinstance(owner, autosummary_table):
            owner = owner.parent
        if owner in owners:
            plain = node.deepcopy()
            for formula in list(plain.findall(lambda part: isinstance(part, nodes.math | nodes.raw | nodes.image))):
                formula.replace_self(nodes.Text("…"))
            owners[owner].append(" ".join(plain.astext().split()))
    for owner, paragraphs in owners.items():
        is_name = isinstance(owner, desc)
        ids = owner[0]["ids"] if is_name else owner["ids"]
        if ids:
            yield ids[0], "" if is_name else owner[0].astext(), "\n".join(filter(None, paragraphs))
