"""The two panels of token products: what is drawn, which tokens are named, that names keep apart, and how it refuses."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.text import Annotation, Text

from marginlens_papers.claims.b.token_panels import TokenPoints, draw_tokens, informative_tokens


def points(n=400, seed=0):
    rng = np.random.default_rng(seed)
    difference = rng.uniform(-1.0, 1.0, n)
    names = ["".join(chr(97 + int(d)) for d in f"{s:04d}") for s in range(n)]
    noise = rng.normal(0.0, 0.3, (2, n))
    return TokenPoints.of(
        difference, np.abs(difference) + noise[0], difference + noise[1], rng.integers(1, 5000, n), names
    )


def test_both_panels_show_every_token_that_occurs():
    found = points()
    left, right = draw_tokens(found, title="Both").axes
    for ax, values in ((left, found.a), (right, found.b)):
        drawn = np.asarray(ax.collections[0].get_offsets())
        order = np.argsort(found.count, kind="stable")
        assert np.array_equal(drawn[:, 0], found.posterior_difference[order])
        assert np.array_equal(drawn[:, 1], values[order])
        assert ax.get_xlabel() == "posterior difference"
    unseen = TokenPoints.of([0.5, np.nan], [1.0, 2.0], [1.0, 2.0], [3, 0], ["seen", "unseen"])
    assert (len(unseen), unseen.names) == (1, ["seen"])


def test_color_is_sign_and_shade_is_frequency():
    found = TokenPoints.of([0.5, 0.5, -0.5, -0.5], [0.0, 1.0, 2.0, 3.0], [0.0] * 4, [10, 1000, 10, 1000])
    left = draw_tokens(found).axes[0]
    marks = left.collections[0]
    colour = {
        tuple(xy): rgb for xy, rgb in zip(np.asarray(marks.get_offsets()), marks.get_facecolors()[:, :3], strict=True)
    }
    assert colour[0.5, 0.0][0] > colour[0.5, 0.0][2]  # red more than blue
    assert colour[-0.5, 2.0][2] > colour[-0.5, 2.0][0]
    assert colour[0.5, 1.0].sum() < colour[0.5, 0.0].sum()  # the frequent one is darker
    assert colour[-0.5, 3.0].sum() < colour[-0.5, 2.0].sum()


@pytest.mark.parametrize("seed", [0, 1])
def test_names_do_not_overlap_or_leave_their_panel(seed):
    fig = draw_tokens(points(seed=seed), n_names=12)
    fig.draw_without_rendering()
    renderer = fig.canvas.get_renderer()
    for ax in fig.axes:
        named = [one for one in ax.texts if isinstance(one, Annotation)]
        assert len(named) >= 10
        boxes = [Text.get_window_extent(one, renderer) for one in named]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        panel = ax.get_window_extent(renderer)
        assert all(panel.x0 <= b.x0 and b.x1 <= panel.x1 and panel.y0 <= b.y0 and b.y1 <= panel.y1 for b in boxes)


def test_named_tokens_are_frequent_words_of_both_signs():
    found = points()
    chosen = informative_tokens(found, found.a, 12, at_least=200)
    assert len(set(chosen.tolist())) == 12
    assert (found.count[chosen] >= 200).all()
    assert np.sum(found.posterior_difference[chosen] > 0) == 6
    scraps = TokenPoints.of([0.5] * 3, [0.0] * 3, [0.0] * 3, [900] * 3, ["##ing", "42", "word"])
    assert informative_tokens(scraps, scraps.a, 12).tolist() == [2]


def test_deciding_tokens_of_small_data_are_named_with_class_names():
    frequent = ["the", "film", "was", "with", "and", "for", "this", "that", "acting", "music", "plot", "scene"]
    deciding = ["wonderful", "superb", "boring", "dull"]
    difference = np.array([0.02, -0.03] * 6 + [0.9, 0.8, -0.9, -0.8])
    count = np.array([900] * 12 + [60, 50, 60, 50])  # a few hundred texts
    values = np.where(np.abs(difference) > 0.5, 3.0, 0.1)
    points = replace(
        TokenPoints.of(difference, values, np.sign(difference) * values, count, [*frequent, *deciding]),
        classes=("rotten", "fresh"),
    )
    for shown in (points.a, points.b):
        named = {points.names[s] for s in informative_tokens(points, shown, 6)}
        assert set(deciding) <= named
    legend = [text.get_text() for text in draw_tokens(points).legends[0].get_texts()]
    assert {"more in fresh", "more in rotten"} <= set(legend)
