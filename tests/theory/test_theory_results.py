"""What the theory hands back: frozen, printed on one line, exported, and tied to a statement that some test checks."""

import re
from dataclasses import FrozenInstanceError, is_dataclass
from pathlib import Path

import numpy as np
import pytest

from marginlens import GradientDescent, theory
from marginlens.data import figure_1b, gaussian_tokens, sphere_tokens
from marginlens.papers import implementations
from marginlens_papers.lemmas.direction_cases import dominance
from marginlens_papers.lemmas.gradient_conditions import key_inequality, local_gradient_bounds
from marginlens_papers.lemmas.separator import constructive_separator

TESTS = Path(__file__).resolve().parents[1]


def results():
    data, v = figure_1b()
    cone = theory.basin_cone(data, v, [1])
    batch, heads = sphere_tokens(3, 2, 3, 3, 0)
    plain, head = gaussian_tokens(1, 2, 3, 3, 0)
    q = np.ones(3)
    yield theory.token_optimality(data, v, [1])
    yield theory.globally_optimal_direction(batch, heads)
    yield theory.locally_optimal_directions(data, v)
    yield theory.directional_margin(data, [1.0, 0.0], v)
    yield theory.directional_margin(batch, q, heads)
    yield dominance(data, v, [1.0, 0.0], [1.0, -0.1])
    yield dominance(batch, heads, q, q)
    yield theory.check_assumption_a(data, v)
    yield theory.check_step(data, v, GradientDescent(0.1))
    yield theory.smoothness(data, v)
    yield theory.smoothness(batch, heads)
    yield cone
    yield key_inequality([-0.1, -2.0], [1.0, 0.0], [1.0, 0.0])
    yield local_gradient_bounds(data, v, cone, [[30.0, 0.0]])
    yield constructive_separator(plain[0], head[0])
    yield theory.predict_limit(data, v)
    yield theory.predict_limit(data, v).verdicts[0]


@pytest.mark.parametrize("result", list(results()), ids=lambda one: type(one).__name__)
def test_a_result_is_frozen_and_prints_on_one_line(result):
    assert is_dataclass(result)
    field = next(iter(vars(result)))
    with pytest.raises(FrozenInstanceError):
        setattr(result, field, None)
    text = repr(result)
    assert text.startswith(type(result).__name__ + "(")
    assert "\n" not in text
    assert len(text) < 200


def test_everything_exported_exists_and_every_function_names_its_statement():
    named = {one.name for one in implementations() if one.module.startswith(("marginlens.theory", "marginlens.risk"))}
    for name in theory.__all__:
        thing = getattr(theory, name)
        assert thing.__doc__
        if not isinstance(thing, type):
            assert name in named


def test_every_statement_of_the_theory_has_a_test():
    marked = set()
    for path in [*TESTS.rglob("test_*.py")]:
        for labels in re.findall(r"mark\.statement\(([^\n]*)\)", path.read_text(encoding="utf-8")):
            marked |= set(re.findall(r'"([^"]+)"', labels))
    cited = {
        one.citation for one in implementations() if one.module.startswith(("marginlens.theory", "marginlens.risk"))
    }
    assert len(cited) > 25
    assert cited <= marked
