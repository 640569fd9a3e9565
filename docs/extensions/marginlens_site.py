"""What the site adds to Sphinx: formulas as MathML, names in backticks as links, and links from examples into the lab."""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from docutils.parsers.rst import roles
from latex2mathml.converter import convert
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform

from marginlens_papers.documentation.api_pages import FOLDER as API
from marginlens_papers.documentation.api_pages import escaped_docstring, separated_entries, statement_anchor
from marginlens_papers.documentation.gallery import GROUPS, LAB_PRESETS, presets_shown
from marginlens_papers.documentation.public_names import public_names
from marginlens_papers.documentation.site import LAB

MENU_LEVELS = 2
BEFORE_OTHERS, AFTER_OTHERS = 400, 600  # priorities of handlers: napoleon and the theme have 500
_MATHML = "http://www.w3.org/1998/Math/MathML"
ElementTree.register_namespace("", _MATHML)


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls when it loads this extension."""
    app.connect("builder-inited", warm_up)
    app.add_html_math_renderer("mathml", (visit_inline_formula, None), (visit_formula, None))
    app.add_transform(LinkNames)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", plain_signature)
    roles.register_local_role("statement", statement_role)
    app.connect("autodoc-process-docstring", escape_docstring, priority=BEFORE_OTHERS)
    app.connect("autodoc-process-docstring", restore_sentence, priority=AFTER_OTHERS)
    app.connect("html-page-context", reuse_menu, priority=BEFORE_OTHERS)
    app.connect("html-page-context", level_captions, priority=AFTER_OTHERS)
    app.connect("source-read", add_lab_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def warm_up(app: Sphinx) -> None:
    """Import and parse, once, what every process needs that Sphinx forks for a few pages each: they inherit it."""
    analyzed = {entry.defined_in[0] for entry in public_names()}
    for module in sorted(name for name in analyzed if name.partition(".")[0] == "marginlens"):
        ModuleAnalyzer.for_module(module).analyze()
    _pages()
    for name in sorted({preset for presets in LAB_PRESETS.values() for preset in presets}):
        _lab_link(name)


def group_order(folder: str) -> str:
    """The key by which the gallery sorts its groups."""
    name = Path(folder).name
    return f"{GROUPS.index(name) if name in GROUPS else len(GROUPS)} {name}"


# ---- formulas


def mathml(formula: str, display: str) -> str:
    """A formula in LaTeX as MathML that browsers show without a script or a font of ours.

    Letters of another alphabet become characters of their own: browsers do not draw the attribute that LaTeX converters set for them.
    """
    root = ElementTree.fromstring(convert(formula.strip(), display=display))
    for element in root.iter():
        variant = element.attrib.pop("mathvariant", None)
        if variant and element.text:
            element.text = "".join(_styled(letter, variant) for letter in element.text)
            if variant == "normal":
                element.set("mathvariant", "normal")  # the only one that browsers know
    root.set("alttext", " ".join(formula.split()))
    return ElementTree.tostring(root, encoding="unicode")


_VARIANTS = {
    "script": "MATHEMATICAL SCRIPT", "bold-script": "MATHEMATICAL BOLD SCRIPT", "double-struck": "MATHEMATICAL DOUBLE-STRUCK",
    "bold": "MATHEMATICAL BOLD", "fraktur": "MATHEMATICAL FRAKTUR", "sans-serif": "MATHEMATICAL SANS-SERIF",
    "monospace": "MATHEMATICAL MONOSPACE",
}  # fmt: skip
_LETTERLIKE = {
    "MATHEMATICAL SCRIPT": "SCRIPT",
    "MATHEMATICAL DOUBLE-STRUCK": "DOUBLE-STRUCK",
    "MATHEMATICAL FRAKTUR": "BLACK-LETTER",
}


def _styled(letter: str, variant: str) -> str:
    alphabet = _VARIANTS.get(variant)
    if alphabet is None or not (letter.isascii() and letter.isalpha()):
        return letter
    case = "CAPITAL" if letter.isupper() else "SMALL"
    for prefix in filter(None, (alphabet, _LETTERLIKE.get(alphabet))):
        try:
            return unicodedata.lookup(f"{prefix} {case} {letter.upper()}")
        except KeyError:
            continue
    return letter


def visit_inline_formula(translator: Any, node: nodes.math) -> None:
    """Write a formula inside a sentence."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_formula(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, which scrolls where the page is narrow."""
    translator.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


# ---- words


class LinkNames(SphinxTransform):
    """Code that is a public name becomes a link to its page: `ml.descend(data, v)` anywhere, and `predict_limit` without a prefix."""

    default_priority = 700

    def apply(self, **_: Any) -> None:
        """Wrap each such piece of code in a link."""
        for node in list(self.document.findall(nodes.literal)):
            address = address_of(node.astext())
            inside = node.parent
            while inside is not None and not isinstance(
                inside, nodes.reference | pending_xref | desc_signature | nodes.title
            ):
                inside = inside.parent
            if address is None or inside is not None or address.startswith(f"{self.env.docname}.html"):
                continue
            up = "../" * self.env.docname.count("/")
            link = nodes.reference("", "", refuri=f"{up}{address}", internal=True)
            node.replace_self(link)
            link += node


@cache
def _pages() -> dict[str, str]:
    """Public names with their addresses: by every path, and by the bare name where it is one thing's alone and no plain word."""
    names = public_names()
    pages = {path: f"{API}/{entry.address}" for entry in names for path in (entry.path, *entry.aliases)}
    times = Counter(entry.name for entry in names)
    return pages | {
        entry.name: f"{API}/{entry.address}"
        for entry in names
        if times[entry.name] == 1 and re.search(r"_|[A-Z]", entry.name)
    }


def address_of(code: str) -> str | None:
    """Where the API describes a piece of code such as `ml.descend(data, v)`, `Trajectory.final` or `att_svm`."""
    match = re.fullmatch(r"(ml\.)?([A-Za-z_][\w.]*)(\(.*\))?", code, flags=re.DOTALL)
    if match is None:
        return None
    name = f"marginlens.{match[2]}" if match[1] else match[2]
    return _pages().get(name) or _pages().get(name.rpartition(".")[0])


def statement_role(role, rawtext, text, lineno, inliner, options=None, content=None):
    """A statement's label as a link to its row on the page of statements."""
    return [nodes.reference(rawtext, text, refuri=f"../theorems.html#{statement_anchor(text)}", internal=True)], []


_sentences: dict[str, list[str]] = {}  # docstrings of attributes and properties, which napoleon would split at a colon


def escape_docstring(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Give each argument its entry, and leave stars, bars and underscores of sentences as they are written."""
    lines[:] = escaped_docstring(separated_entries(lines, described_names(value)))
    if what in ("attribute", "property", "data"):
        _sentences[name] = list(lines)


def described_names(value: Any) -> set[str]:
    """What a docstring can describe: the parameters of a function, and the attributes and parameters of a class."""
    if not inspect.isclass(value):
        return _parameters(value)
    return {
        *dir(value),
        *(name for base in value.__mro__ for name in inspect.get_annotations(base)),
        *_parameters(value),
    }


def _parameters(value: Any) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return set()


def plain_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Names of types as they are written, and dots for a default that is made anew for each object."""

    def plain(text: str | None) -> str | None:
        return text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text).replace("<factory>", "...")

    return plain(signature), plain(returned)


def restore_sentence(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Give attributes and properties back what napoleon took for a type: the words before a colon."""
    if name in _sentences:
        lines[:] = _sentences.pop(name)


def skip_member(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what other packages put into a class, such as scikit-learn's `set_fit_request`."""
    return True if name.startswith("set_") and name.endswith("_request") else None


# ---- examples in the plane


@cache
def _lab_link(name: str) -> tuple[str, str]:
    """The title of a preset, and the hash that opens the lab with it."""
    from marginlens.lab import permalink, preset

    found = preset(name)
    return found.title, permalink(found)


def add_lab_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let the page of an example whose problem lies in the plane lead to the same problem in the lab."""
    parts = docname.split("/")
    if parts[0] != "gallery" or parts[-1] == "index":
        return
    shown = presets_shown(source[0])
    if shown:
        up = "../" * (len(parts) - 1)
        links = [f'<a href="{up}{LAB}{place}">{title}</a>' for title, place in map(_lab_link, shown)]
        source[0] += (
            "\n\n.. raw:: html\n\n"
            f'    <p class="lab-link">Move its tokens and watch it train in the lab: {", ".join(links)}.</p>\n'
        )


# ---- the menu

_menus: dict[tuple[int, tuple[tuple[str, Any], ...]], str] = {}


def reuse_menu(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the menu two levels, and let the pages of names share one: making it takes as long as the rest of the page.

    A third level, the scripts of the gallery, would be a third of every page's bytes.
    """
    depth = pagename.count("/")
    is_shared = pagename.startswith(f"{API}/") and not pagename.endswith((".module", "/index"))
    make = context["toctree"]

    def toctree(**options: Any) -> str:
        options["maxdepth"] = MENU_LEVELS
        if not is_shared:
            return make(**options)
        key = depth, tuple(sorted(options.items()))
        if key not in _menus:
            _menus[key] = make(**options)
        return _menus[key]

    context["toctree"] = toctree


def level_captions(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Say which level the captions of the menu have, which screen readers need of a heading that is no <h2>."""
    name = "furo_navigation_tree"
    context[name] = context.get(name, "").replace('role="heading"', 'role="heading" aria-level="2"')
