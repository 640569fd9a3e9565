"""What the commands say in the terminal in few words, and the picture of problems in the plane."""

import numpy as np
import pytest

from marginlens.commands import answers, plane, probe_work
from marginlens.data import TokenDataset, figure_1b, scored_tokens, sphere_tokens
from marginlens.experiments import drawing


def test_sizes_in_words():
    one = TokenDataset(np.ones((1, 1, 3)), [1.0], K=np.ones((1, 1, 2)))
    ragged = TokenDataset([[[1.0], [2.0]], [[3.0]]], [1.0, 1.0])
    assert answers.size_of(one) == "1 input with 1 token, d_model = 3, d_key = 2"
    assert answers.size_of(ragged) == "2 inputs with up to 2 tokens, d_model = 1, d_key = 1"
    many = "3 problems of 2 inputs with 5 tokens, d_model = 4, d_key = 4"
    assert answers.size_of(sphere_tokens(3, 2, 5, 4, 0)[0]) == many


def test_numbers_vectors_and_selections_in_words():
    told = [answers.number(one) for one in (None, np.nan, np.inf, -np.inf, 0.123456)]
    assert told == ["–", "–", "∞", "-∞", "0.1235"]
    assert answers.vector([1, 2, 3, -4]) == "(1.000, 2.000, 3.000, -4.000)"
    assert answers.vector(range(5)) == "(0.000, 1.000, … 5 in all)"
    assert answers.vector([1.0, np.nan]) == "–"
    assert answers.selection(range(7)) == "0,1,2,3,4,5,6"
    assert answers.selection(range(8)) == "0,1,2,3,4,5,…,7"


def test_heads_are_told_from_the_sparsest_or_from_the_most_max_margin_on():
    values = np.array([[0.3, np.nan, 0.7], [0.1, 0.2, 0.5]])
    order = [(1, 0), (1, 1), (0, 0), (1, 2), (0, 2)]
    assert probe_work._order(values, largest=False) == order
    assert probe_work._order(values, largest=True) == order[::-1]
    assert len(probe_work._order(np.zeros((3, 4)), largest=True)) == probe_work._HEADS


# ---- the picture


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw problems, and tell the rays and the marks of tokens: panel by panel, (direction, colour) and (marker, points)."""

    def draw(data, v, rows):
        rays, marks, axes = {}, {}, []
        monkeypatch.setattr(
            drawing,
            "ray",
            lambda ax, direction, reach, color, label: rays.setdefault(ax, []).append((list(direction), color)),
        )
        figure = drawing.figure

        def watched(*sizes, **more):
            made, panels = figure(*sizes, **more)
            axes.extend(panels)
            for ax in panels:
                scatter = ax.scatter

                def seen(x, y, *, ax=ax, scatter=scatter, marker="o", **look):
                    marks.setdefault(ax, []).extend((marker, (a, b)) for a, b in zip(x, y, strict=True))
                    return scatter(x, y, marker=marker, **look)

                monkeypatch.setattr(ax, "scatter", seen)
            return made, panels

        monkeypatch.setattr(drawing, "figure", watched)
        plane.draw_problems(tmp_path / "p.png", data, v, rows)
        return [rays.get(ax, []) for ax in axes], [marks[ax] for ax in axes]

    return draw


def test_each_panel_has_the_directions_of_its_own_problem_in_their_colours(drawn):
    keys = np.random.default_rng(0).normal(size=(4, 1, 3, 2))  # as many problems as one figure holds
    data, v = scored_tokens(keys, np.tile([1.0, 0.0, 0.5], (4, 1, 1)))
    plane.check_plot(data, plane.Path("p.png"))
    kinds = ("GMM", "LMM", "LMM", "neither")
    directions = [([1.0, j], [np.nan, j], [0.0, j + 1.0], [j + 1.0, 0.0]) for j in range(4)]
    rows = [[{"kind": kind, "direction": one} for kind, one in zip(kinds, own, strict=True)] for own in directions]
    rays, marks = drawn(data, v, rows)
    for j in range(4):
        gmm, _, lmm, neither = directions[j]  # what is not a number is left out
        assert rays[j] == [(gmm, drawing.GLOBAL), (lmm, drawing.LOCAL), (neither, drawing.INK)]
        shown = {point: marker for marker, point in marks[j]}
        assert [shown[tuple(key)] for key in keys[j, 0]] == ["*", "o", "o"]


def test_one_problem_is_one_panel(drawn):
    rays, marks = drawn(*figure_1b(), [[{"kind": "GMM", "direction": [0.0, 1.0]}]])
    assert rays == [[([0.0, 1.0], drawing.GLOBAL)]]
    assert [point for marker, point in marks[0] if marker == "*"] == [(-0.1, 1.0)]
