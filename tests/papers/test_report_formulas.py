"""Formulas in texts: plain notation as MathML, and as it is written."""

import pytest
from markupsafe import escape

from marginlens_papers.report.formulas import latex, mathml, plain, rendered


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("p^mm", r"p^{\text{mm}}"),
        ("‖W‖_F", r"\|W\|_{F}"),
        ("e^-7894", "e^{-7894}"),
        ("d^(-1/4)", "d^{-1/4}"),
        ("s_it", "s_{it}"),
        ("x̄ᵀ", r"\bar{x}^{\top }"),
        ("√(a + b)", r"\sqrt{a + b}"),
        ("2 √T_max", r"2 \sqrt{T_{\text{max}}}"),
        ("10⁻³ ≤ 1,000", r"10^{-3} \le  1{,}000"),
        ("log x", r"\log  x"),
    ],
)
def test_plain_notation_has_its_latex(formula, expected):
    assert latex(formula) == expected


def test_a_formula_is_mathml():
    assert mathml("W^cyc") == "<math><msup><mi>W</mi><mtext>cyc</mtext></msup></math>"
    assert mathml("1 < 2") == "<math><mn>1</mn><mo>&lt;</mo><mn>2</mn></math>"


def test_numbers_and_primes_in_texts_are_formatted():
    assert rendered("at most 4e-03, not 1e5x").replace("\N{NO-BREAK SPACE}", " ") == "at most 4 · 10⁻³, not 1e5x"
    assert mathml("p'") == '<math><mi>p</mi><mo lspace="0" rspace="0">′</mo></math>'


def test_a_text_keeps_its_words_and_is_escaped():
    assert rendered("the $p$ of <b>") == "the <math><mi>p</mi></math> of &lt;b&gt;"
    assert plain("the $p^mm$ of $W$") == "the p^mm of W"


@pytest.mark.parametrize("text", ["costs $5 and $6", "a $ b $ c", "$", "${HOME}", "one $p only"])
def test_other_dollar_signs_stay(text):
    assert rendered(text) == escape(text)
    assert plain(text) == text


def test_invalid_formulas_are_shown_as_written():
    assert rendered("$a_{$") == escape("a_{")
