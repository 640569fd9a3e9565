"""How results show themselves in a notebook: how it ended, the numbers, a picture, and closed details; on light and dark grounds."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from html import escape
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from markupsafe import Markup

from marginlens.errors import missing_extra
from marginlens.result.frames import Tabular, plain_column
from marginlens.result.palette import FAINT, GROUND, INK
from marginlens.result.quantities import Described, counted, labelled, tally
from marginlens.typing import Figure

MAX_SHOWN = 8  # entries of an array up to which a cell shows them all
MAX_FACTS = 8  # rows of the table of numbers; further fields stand in the details
MAX_ROWS = 10  # rows of a table that the details show
MAX_COLUMNS = 12  # columns of such a table
MAX_CELL = 160  # characters of a cell
PICTURE_INCHES = (4.4, 2.7)
MAX_SVG = 120_000  # characters of a picture beyond which its curves and points are drawn as an image inside it

# The ground of Jupyter, VS Code or a page in Furo's theme, which pictures take over.
_GROUND = "var(--jp-layout-color0,var(--vscode-editor-background,var(--color-background-primary,Canvas)))"


class Headline(NamedTuple):
    """What stands on top: a word or two, the sentence behind them, and whether that is good; None where nothing is good or bad."""

    word: str
    sentence: str = ""
    ok: bool | None = None


class Displayed(Described):
    """What shows itself in Jupyter and VS Code as one short element: a headline, numbers, a picture, and details that are closed.

    `table_quantities` declares numbers that stand in the table behind those of `quantities`, in the same form.
    """

    table_quantities: ClassVar[str] = ""

    def _headline(self) -> Headline:
        """How it ended: by its status, else by what it says of itself."""
        return headline_of(self)

    def _facts(self) -> Mapping[str, Any]:
        """The numbers to show, the most asked for first; the first few stand open."""
        return labelled(self, self.quantities) | labelled(self, self.table_quantities)

    def _text_html(self) -> str:
        """A text that stands between headline and numbers, as HTML whose words are escaped; none by default."""
        return ""

    def _repr_html_(self) -> str:
        return element(self)


# ---- the element


@cache
def _style() -> Markup:
    """The rules of notebook.css without its comment and its line ends, since every element has them."""
    rules = Path(__file__).with_name("notebook.css").read_text(encoding="utf-8")
    return Markup(re.sub(r"/\*.*?\*/|\n\s*", "", rules, flags=re.DOTALL))


def element(shown: Any) -> str:
    """The HTML of anything `Displayed`: without script, with every colour taken from the page around it."""
    from marginlens.pages import render  # with Jinja2, which only displays need

    n_rows, table = shown._preview(MAX_ROWS) if isinstance(shown, Tabular) else (0, {})
    return render(
        "marginlens.result",
        "notebook.html",
        {"cell": cell, "counted": counted, "number_class": _number_class},
        style=_style(),
        kind=type(shown).__name__,
        head=shown._headline(),
        text=Markup(shown._text_html() if hasattr(shown, "_text_html") else ""),
        facts=[(name, value) for name, value in shown._facts().items() if value is not None],
        max_facts=MAX_FACTS,
        picture=Markup(_picture(shown)),
        n_rows=n_rows,
        rows_of=f"the first {MAX_ROWS} of {n_rows:,} rows" if n_rows > MAX_ROWS else counted(n_rows, "row"),
        columns={name: plain_column(values[:MAX_ROWS]) for name, values in list(table.items())[:MAX_COLUMNS]},
        columns_of=f", {MAX_COLUMNS} of {len(table)} columns" if len(table) > MAX_COLUMNS else "",
        zip=zip,
    ).strip()


def _number_class(values: Sequence[Any]) -> Markup:
    """The attribute that puts numbers, and the names of their columns, to the right."""
    numbers = int | float | np.integer | np.floating
    is_number = all(isinstance(value, numbers) and not isinstance(value, bool | np.bool_) for value in values)
    return Markup(" class='ml-number'" if is_number else "")


def cell(value: Any) -> str:
    """A value in few characters: short arrays entry by entry, long ones by shape, range and first entries, statuses with their sentence."""
    if isinstance(value, Enum):
        return f"{value.name}: {value.value}" if isinstance(value.value, str) else value.name
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}".replace("-", "−")
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, np.ndarray):
        return _array_cell(value)
    if isinstance(value, Mapping):
        return _cut(", ".join(f"{name}: {cell(entry)}" for name, entry in value.items()))
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return _cut("[" + ", ".join(cell(entry) for entry in value) + "]" if value else "none")
    return _cut(repr(value))


def _array_cell(value: Any) -> str:
    if value.dtype == object:
        return _cut(tally(value.ravel()))
    if value.ndim == 0:
        return cell(value.item())
    if value.size <= MAX_SHOWN:
        text = np.array2string(value, separator=", ", formatter={"float_kind": lambda entry: f"{entry:.4g}"})
        return text.replace("\n", "").replace("-", "−")
    first = ", ".join(cell(entry) for entry in value.ravel()[:3].tolist())
    shape = " × ".join(map(str, value.shape))
    if value.dtype.kind in "iuf" and np.isfinite(value).any():
        finite = value[np.isfinite(value)]
        return f"{shape}, {cell(finite.min().item())} to {cell(finite.max().item())}: {first}, …"
    return f"{shape}: {int(value.sum())} yes" if value.dtype.kind == "b" else f"{shape}: {first}, …"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


_VERDICTS = (  # attributes that say whether all is well, and the words for yes and no
    ("holds", "holds", "does not hold"),
    ("applies", "applies", "does not apply"),
    ("certified", "certified", "refused"),
)


def headline_of(shown: Any) -> Headline:
    """By a status, a verdict (`holds`, `applies`) or a sentence (`why`, `sentence`, its `str`), whichever there is."""
    status = getattr(shown, "status", None)
    if isinstance(status, Enum):
        return Headline(status.name, str(status.value), getattr(status, "ok", None))
    if isinstance(status, np.ndarray) and status.size and isinstance(status.flat[0], Enum):
        worst = next((entry for entry in status if not getattr(entry, "ok", True)), status[0])
        return Headline(tally(status), str(worst.value), bool(all(getattr(entry, "ok", True) for entry in status)))
    sentence = next((text for name in ("why", "sentence") if isinstance(text := getattr(shown, name, None), str)), "")
    if not sentence and type(shown).__str__ is not object.__str__:
        sentence = str(shown)
    for name, yes, no in _VERDICTS:
        verdict = getattr(shown, name, None)
        if isinstance(verdict, bool | np.bool_):
            return Headline(f"{getattr(shown, 'name', '')} {yes if verdict else no}".strip(), sentence, bool(verdict))
        if isinstance(verdict, np.ndarray) and verdict.dtype == bool and verdict.ndim == 1:
            return Headline(f"{yes} in {int(verdict.sum())} of {len(verdict)}", sentence, bool(verdict.all()))
    inside = re.fullmatch(r"\w+\((.*)\)", repr(shown), re.DOTALL)
    return Headline("", sentence or _cut(inside[1] if inside else repr(shown)))


# ---- the picture


def _picture(shown: Any) -> str:
    """`plot` as inline SVG; a sentence in its place where drawing fails."""
    if not hasattr(shown, "plot"):
        return ""
    if find_spec("matplotlib") is None:
        return f"<p>There is no picture: {escape(str(missing_extra('matplotlib', 'plot', 'A figure')))}</p>"
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=PICTURE_INCHES, layout="constrained")
    try:
        with mpl.rc_context(_picture_style()), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # of letters that the font lacks, and of names that leave little room
            ax = figure.add_subplot()
            shown.plot(ax)
            words = " against ".join(text for text in (ax.get_ylabel(), ax.get_xlabel()) if text)
            return inline_svg(figure, f"{type(shown).__name__}: {words}")
    except Exception as problem:  # the numbers are worth showing without their picture
        return f"<p>There is no picture: {escape(_cut(f'{type(problem).__name__}: {problem}'))}</p>"


def _picture_style() -> dict[str, Any]:
    colours = dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK)
    return {
        **colours,
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "grid.color": FAINT,
    }


def inline_svg(figure: Figure, description: str) -> str:
    """A figure as an SVG element for a page whose ink and ground it takes over; its texts are texts, in the page's font."""
    drawing = _svg(figure)
    if len(drawing) > MAX_SVG:
        marks = [mark for ax in figure.axes for mark in (*ax.lines, *ax.collections, *ax.patches)]
        for mark in marks:
            mark.set_rasterized(True)
        drawing = _svg(figure)
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(
        r"<defs>\s*<style.*?</style>\s*</defs>", "", drawing, count=1, flags=re.DOTALL
    )  # would rule the whole page
    drawing = re.sub(r"\s*\n\s*", " ", _themed(_with_unique_ids(drawing)))
    label = escape(description, quote=True)
    return drawing.replace(
        "<svg ", f'<svg role="img" aria-label="{label}" style="stroke-linejoin:round;stroke-linecap:butt" ', 1
    ).strip()


def _svg(figure: Figure) -> str:
    import matplotlib as mpl

    stream = StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "marginlens", "savefig.transparent": True}):
        figure.savefig(stream, format="svg", transparent=True, dpi=150, metadata={"Date": None})
    return stream.getvalue()


def _with_unique_ids(drawing: str) -> str:
    """The drawing with ids that no other on the page has, and only those that are referred to."""
    referred = set(re.findall(r"#([A-Za-z][\w.-]*)", drawing)) & set(re.findall(r'id="([^"]+)"', drawing))
    salt = hashlib.sha256(drawing.encode()).hexdigest()[:8]
    drawing = re.sub(
        r' id="([^"]+)"', lambda found: f' id="ml{salt}{found[1]}"' if found[1] in referred else "", drawing
    )
    return re.sub(
        r"#([A-Za-z][\w.-]*)", lambda found: f"#ml{salt}{found[1]}" if found[1] in referred else found[0], drawing
    )


def _themed(drawing: str) -> str:
    """Ink, grid and ground in the page's colours, and its font."""
    drawing = re.sub(r"(fill|stroke): (#000000|black)\b", r"\1: currentColor", drawing)
    drawing = re.sub(rf"(fill|stroke): {INK}\b", r"\1: currentColor", drawing, flags=re.IGNORECASE)
    drawing = re.sub(rf"(fill|stroke): {FAINT}\b", r"\1: currentColor; \1-opacity: 0.2", drawing, flags=re.IGNORECASE)
    drawing = re.sub(rf"(fill|stroke): {GROUND}\b", rf"\1: {_GROUND}", drawing, flags=re.IGNORECASE)
    drawing = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", drawing)
    return re.sub(r"<text (?![^>]*fill)", '<text fill="currentColor" ', drawing)
