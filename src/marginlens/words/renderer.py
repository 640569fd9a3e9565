"""The renderer, which looks up a code in `texts.toml` and fills in the numbers.

A text is a template whose placeholders name numbers. "{norm:.4g}" is formatted as in Python; six more formats are:

- `{log_bound:exp}` is e to the power of the number, even beyond the range of a double;
- `{share:percent}` is a share in percent, as `percent` writes it, and `{value:short}` a number as `short` writes it;
- `{tokens:list}` is "1, 2 and 3";
- `{minima:minimum|minima}` is the noun that fits the number, without the number;
- `{minima:# minimum|minima}` is the number with its noun.

A floating-point number without a format has four digits, a list without a format is a `list`, and a fact is rendered in place.
The lab renders the same texts by the same rules (`lab/page/words.js`).
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import exp, inf, isfinite
from typing import Any, Protocol

MAX_LOG = 700.0  # of a number that a double holds
OUTCOMES = {True: "yes", False: "no", None: "open"}  # of a check: the forms of its text
CASE = "case"  # the number that names one of several texts of a form
DEFAULT = "default"  # the case that is meant if none is named
FORMS = ("en", *OUTCOMES.values())
SIGNIFICANT = ".4g"
TINY_SHARE = 5e-4  # below it a tenth of a percent says nothing
HEADING = re.compile(r"^# ---- (.*)\n", re.MULTILINE)  # of a section of the file


class Stated(Protocol):
    """Anything with a code and numbers: a `Fact`, a `Check`, an alarm."""

    @property
    def code(self) -> str: ...
    @property
    def numbers(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Fact:
    """A code with the numbers of its sentence; `str` of it is the sentence.

    Args:
        code: an entry of `texts.toml`, such as "status.completed".

        numbers: the values of its placeholders: numbers, names, lists of them, or other facts.

    Examples:
        >>> from marginlens.words import Fact
        >>> fact = Fact("status.completed")
        >>> fact.code
        'status.completed'
    """

    code: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return render(self)

    def __bool__(self) -> bool:
        return bool(self.code)

    def to_dict(self) -> dict[str, Any]:
        """Return the code, the numbers and the sentence."""
        return {"code": self.code, **self.numbers, "sentence": render(self)}


def render(fact: Stated) -> str:
    """Render a fact as a sentence.

    Args:
        fact: anything with a `code` and `numbers`. If it also has `holds`, as a check does, this chooses the form.

    Returns:
        The text of `texts.toml` with the numbers filled in.
    """
    entry = _entry(fact.code)
    form = OUTCOMES[getattr(fact, "holds", None)] if hasattr(fact, "holds") else "en"
    return _TEMPLATES.vformat(_chosen(fact.code, entry, form, fact.numbers), (), fact.numbers)


def text(code: str, /, **numbers: Any) -> str:
    """Render the text of a code: `render(Fact(code, numbers))`."""
    return render(Fact(code, numbers))


def title(code: str) -> str:
    """Return the short name of a check, as shown in tables."""
    return str(_entry(code)["title"])


@cache
def texts() -> dict[str, dict[str, Any]]:
    """Return the entries of `texts.toml` by their codes. An entry is a table with a form ("en", "yes", "no" or "open")."""
    return dict(sorted(_entries("", tomllib.loads(_source())).items()))


def sections() -> dict[str, list[str]]:
    """List the codes of `texts.toml` by the heading above them, in the order of the file."""
    _, *parts = HEADING.split(_source())
    return {
        heading: list(_entries("", tomllib.loads(part))) for heading, part in zip(parts[::2], parts[1::2], strict=True)
    }


def rendered_examples(code: str) -> Iterator[tuple[str, str, str]]:
    """Return the sentences of a code with the numbers of its example.

    Args:
        code: an entry of `texts.toml`.

    Yields:
        The form, the case, empty if there is only one, and the sentence.
    """
    entry = _entry(code)
    for form in FORMS:
        template = entry.get(form, {})
        for case, one in {"": template}.items() if isinstance(template, str) else template.items():
            yield form, case, _TEMPLATES.vformat(one, (), example(code, form, case))


def example(code: str, form: str = "", case: str = "") -> dict[str, Any]:
    """Return the numbers of the example of a code. A table `{code = "…"}` in it is a fact with the numbers of its own example.

    Numbers that fit only one form, or one case of it, are in a table of that name: a check that fails has other numbers than one
    that holds.
    """
    given = _entry(code).get("example", {})
    of_form = given.get(form, {})
    of_case = of_form.get(case, {})
    numbers = {
        name: value for name, value in {**given, **of_form, **of_case}.items() if not _is_table_of_numbers(value)
    }
    return {name: _with_facts(value) for name, value in numbers.items()}


def _is_table_of_numbers(value: Any) -> bool:
    return isinstance(value, dict) and "code" not in value


def _with_facts(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_facts(item) for item in value]
    if not isinstance(value, dict):
        return value
    numbers = {name: _with_facts(item) for name, item in value.items() if name != "code"}
    return Fact(value["code"], {**example(value["code"]), **numbers})


def _source() -> str:
    return files("marginlens.words").joinpath("texts.toml").read_text(encoding="utf-8")


def _entries(prefix: str, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries of a table and of the tables in it, by their codes."""
    entries: dict[str, dict[str, Any]] = {}
    for name, entry in table.items():
        code = f"{prefix}{name}"
        is_entry = any(form in entry for form in FORMS)
        entries |= {code: entry} if is_entry else _entries(f"{code}.", entry)
    return entries


def numbered(count: int, one: str, several: str) -> str:
    """Write a count with the noun that fits it, e.g. "1 minimum" and "3 minima".

    Examples:
        >>> from marginlens.words import numbered
        >>> numbered(3, "minimum", "minima")
        '3 minima'
    """
    return f"{count:,} {one if count == 1 else several}"


def listed(items: Sequence[object]) -> str:
    """Join items as a list in prose.

    Examples:
        >>> from marginlens.words import listed
        >>> listed(["one", "two", "three"])
        'one, two and three'
    """
    rendered = [_TEMPLATES.format_field(item, "") for item in items]
    return " and ".join([", ".join(rendered[:-1]), rendered[-1]] if len(rendered) > 1 else rendered)


def exponential(logarithm: float) -> str:
    """Write e to the power of a number: with four digits if a double can hold it, otherwise as a power.

    Examples:
        >>> from marginlens.words import exponential
        >>> exponential(-1000.0)
        'e^-1000'
    """
    in_range = logarithm == -inf or abs(logarithm) < MAX_LOG
    return f"{exp(logarithm):.4g}" if in_range else f"e^{logarithm:.4g}"


def percent(share: float) -> str:
    """Write a share in whole percent, with more digits if rounding would turn a part into all or nothing.

    Examples:
        >>> from marginlens.words import percent
        >>> percent(0.5), percent(0.068), percent(0.996)
        ('50%', '6.8%', '99.6%')
    """
    if 0.0 < share < TINY_SHARE:
        return f"{100.0 * share:.2g}%"
    return f"{share:.0%}" if share in (0.0, 1.0) or 0.095 <= share < 0.995 else f"{share:.1%}"


def short(value: float) -> str:
    """Write a number in three digits, with a minus sign; write a dash if there is none.

    Examples:
        >>> from marginlens.words import short
        >>> short(0.0341), short(-12345.0), short(float("nan"))
        ('0.0341', '−1.2e+04', '–')
    """
    if not isfinite(value):
        return "–"
    written = f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 or value == 0.0 else f"{value:.1e}"
    return written.replace("-", "−")


class Templates(string.Formatter):
    """Templates with the formats of this module."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if hasattr(value, "code") and hasattr(value, "numbers"):
            return render(value)
        if format_spec == "exp":
            return exponential(float(value))
        if format_spec in ("percent", "short"):
            return percent(float(value)) if format_spec == "percent" else short(float(value))
        if "|" in format_spec:
            one, several = format_spec.removeprefix("# ").split("|")
            if format_spec.startswith("# "):
                return numbered(int(value), one, several)
            return one if value == 1 else several
        if format_spec == "list" or isinstance(value, list | tuple):
            return listed(list(value))
        if not format_spec and isinstance(value, float):
            format_spec = SIGNIFICANT
        return str(super().format_field(value, format_spec))


_TEMPLATES = Templates()


def _entry(code: str) -> dict[str, Any]:
    try:
        return texts()[code]
    except KeyError:
        raise KeyError(f"texts.toml has no entry {code!r}") from None


def _chosen(code: str, entry: dict[str, Any], form: str, numbers: Mapping[str, object]) -> str:
    """Return the template of a form, of the case that the numbers name if there are several."""
    try:
        template = entry[form]
        return str(template if isinstance(template, str) else template[numbers.get(CASE, DEFAULT)])
    except KeyError:
        raise KeyError(f"{code!r} in texts.toml has no text for {form!r}, case {numbers.get(CASE)!r}") from None
