"""Formulas in the claims' texts: written between dollar signs in plain notation, shown as MathML or as they are written."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from markupsafe import Markup, escape

_FORMULA = re.compile(r"\$(?=\S)([^$\n]+)(?<=\S)\$(?!\d)")
_SYMBOLS = {
    "‖": r"\|", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∉": r"\notin ", "→": r"\to ", "∞": r"\infty ", "·": r"\cdot ",
    "×": r"\times ", "−": "-", "±": r"\pm ", "≈": r"\approx ", "≪": r"\ll ", "∇": r"\nabla ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "⊥": r"\perp ", "ℓ": r"\ell ", "∫": r"\int ", "Σ": r"\sum ", "…": r"\ldots ", "~": r"\sim ", "⇒": r"\Rightarrow ", "≍": r"\asymp ",
    "½": r"\frac{1}{2}", "%": r"\%", "#": r"\#", "&": r"\&",
}  # fmt: skip
_SCIENTIFIC = re.compile(r"(?<![\w.])\d+(?:\.\d+)?e[+-]?\d+(?!\w)")
_RAISED_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SPACE = "\N{NO-BREAK SPACE}"
_PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<m[io]>′</m[io]></msup>")
_ACCENTS = {"\u0304": "bar", "\u0302": "hat", "\u0303": "tilde"}
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ", [*"0123456789+-", r"\top "], strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_FUNCTIONS = {"log", "exp", "max", "min", "sin", "cos"}
_INDICES = set("ijknthsyαβτ")  # letters that are indices even if two of them stand together


def rendered(text: str) -> Markup:
    """The text as HTML: its formulas as MathML, numbers such as 2.5e-11 with powers of ten, everything else escaped."""
    parts, end = [], 0
    for found in _FORMULA.finditer(text):
        parts += [escape(_with_powers(text[end : found.start()])), mathml(found[1])]
        end = found.end()
    return Markup("").join([*parts, escape(_with_powers(text[end:]))])


def power_of_ten(number: str) -> str:
    """A number such as "2.5e-11" as "2.5 · 10⁻¹¹", and any minus sign as it is printed."""
    digits, _, exponent = number.replace("-", "−").partition("e")
    if not exponent:
        return digits
    digits, exponent = digits.removesuffix(".0"), exponent.replace("−", "-")
    power = f"10{str(int(exponent)).translate(_RAISED_DIGITS)}"
    return power if digits == "1" else f"{digits}{_SPACE}·{_SPACE}{power}"


def _with_powers(text: str) -> str:
    return _SCIENTIFIC.sub(lambda found: power_of_ten(found[0]), text)


def plain(text: str) -> str:
    """The text for a terminal or an attribute: its formulas as they are written, without the dollar signs."""
    return _FORMULA.sub(r"\1", text)


@cache
def mathml(formula: str) -> Markup:
    """A formula in plain notation, such as "‖W‖_F", "p^mm" or "e^(−R·margin)", as MathML; escaped text if it is not a formula."""
    from latex2mathml.converter import convert

    try:
        element = convert(latex(formula))
    except Exception:  # the converter has no common error; a text that it refuses is still a text
        return escape(formula)
    inner = re.sub(r"^<math[^>]*><mrow>|</mrow></math>$", "", element)
    inner = re.sub(r"&#x0*([0-9A-F]+);", lambda found: str(escape(chr(int(found[1], 16)))), inner)
    inner = re.sub(r"<mrow>(<m[ion]>[^<]*</m[ion]>|<mtext>[^<]*</mtext>)</mrow>", r"\1", inner)  # a row of one
    inner = _PRIME.sub(r'\1<mo lspace="0" rspace="0">′</mo>', inner)  # the sign is raised in every font already
    return Markup(f"<math>{inner}</math>")


def latex(formula: str) -> str:
    """The LaTeX of a formula in plain notation.

    `^` and `_` take the number, word or parenthesis that follows; √ takes a parenthesis or a letter; raised and lowered digits, letters
    with a bar, hat or tilde and the signs of mathematics stand for themselves; a word of three letters or more is upright.
    """
    text = _accented(unicodedata.normalize("NFD", formula))
    text = _runs(_runs(text, _RAISED, "^"), _LOWERED, "_")
    text = re.sub(r"([\^_])(?=[^{])", lambda found: found[1] + "\0", text)
    while "\0" in text:
        before, after = text.split("\0", 1)
        script, rest = _script(after)
        text = f"{before}{{{script}}}{rest}"
    text = re.sub(r"(?<![A-Za-z\\{])[A-Za-z]{3,}(?![A-Za-z}])", _word, text)
    while "√(" in text:
        before, after = text.split("√(", 1)
        end = _closing(after)
        text = rf"{before}\sqrt{{{after[:end]}}}{after[end + 1 :]}"
    text = re.sub(r"√([^\W\d_](_\{[^{}]*(\{[^{}]*\})?\})?)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<=\d),(?=\d{3})", "{,}", text)
    return "".join(_SYMBOLS.get(letter, letter) for letter in text)


def _accented(text: str) -> str:
    for mark, name in _ACCENTS.items():
        text = re.sub(rf"(\w){mark}", rf"\\{name}{{\1}}", text)
    return text


def _runs(text: str, letters: dict[str, str], sign: str) -> str:
    """Runs of raised or lowered letters as an exponent or an index."""
    run = f"[{''.join(letters)}]+"
    return re.sub(run, lambda found: f"{sign}{{{''.join(letters[letter] for letter in found[0])}}}", text)


def _script(text: str) -> tuple[str, str]:
    """What an exponent or index takes from the text that follows its sign, and what is left."""
    if text.startswith("("):
        end = _closing(text[1:]) + 1
        return text[1:end], text[end + 1 :]
    found = re.match(r"[−-]?(\d[\d.,]*\d|\d|[^\W\d_]+|[*∞])", text)
    taken = found[0] if found else text[:1]
    letters = [letter for letter in taken if letter.isalpha()]
    if len(letters) > 1 and not set(letters) <= _INDICES:
        return rf"\text{{{taken}}}", text[len(taken) :]
    return taken, text[len(taken) :]


def _word(found: re.Match[str]) -> str:
    return rf"\{found[0]} " if found[0] in _FUNCTIONS else rf"\operatorname{{{found[0]}}}"


def _closing(text: str) -> int:
    """The position at which the parenthesis that was open before `text` closes, or the end if it does not close."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(text)
