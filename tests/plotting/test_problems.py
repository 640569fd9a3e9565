"""The picture of problems in the plane, and films of runs there."""

import numpy as np

from marginlens import plotting
from marginlens.arithmetic.directions import angle, correlation
from marginlens.data import TokenDataset, figure_1b, scored_tokens
from marginlens.dynamics import Record, descend
from marginlens.optimizers import NormalizedGD
from marginlens.plotting import plane
from marginlens.theory import globally_optimal_direction, token_optimality


def rows_of(data, v, selected=None):
    """The rows that the commands draw: the GMM's, or those of a selection for each problem."""
    batch = data.as_batch()
    found = globally_optimal_direction(batch, v) if selected is None else token_optimality(batch, v, selected)
    kinds = ["GMM" if best else "LMM" for best in found.is_globally_optimal]
    columns = zip(kinds, found.selected, found.direction, strict=True)
    return [[dict(zip(("kind", "selected", "direction"), row, strict=True))] for row in columns]


def points_of(ax, marker_size):
    """Where marks of one size stand."""
    return [
        tuple(point)
        for one in ax.collections
        if one.get_sizes().tolist() == [marker_size]
        for point in one.get_offsets().tolist()
    ]


def test_a_run_is_drawn_to_its_predicted_limit():
    data, v = figure_1b()
    run = descend(data, v, n_steps=1000, record=Record(1))
    fig = plane.problem_figure(data, v, rows_of(data, v, run.selected), run.saved["x"][None])
    _, disc = fig.axes
    path = max((line.get_xydata() for line in disc.lines if line.get_color() == plotting.INK and line.get_linestyle() == "-"
                and line.get_linewidth() == 1.8), key=len)  # fmt: skip
    assert len(path) == 1001
    assert angle(path[-1], run.final) < 1e-6  # as the squeezed plane keeps directions
    assert np.linalg.norm(path[-1]) > 0.9 * max(np.hypot(*line.get_xydata().T).max(initial=0.0) for line in disc.lines)
    names = {text.get_text(): text.get_position() for text in disc.texts}
    assert angle(names["best"], run.final) < 0.1
    legend = [text.get_text() for text in fig.legends[0].get_texts()]
    assert {
        "starts that go to the best direction",
        "starts that go to the local direction",
        "training",
        "end of training",
    } <= set(legend)


def test_drawn_basins_agree_with_descent():
    data, v = figure_1b()
    limits = plane._Limits.of(data, data.as_batch().head(v)[0], None, None)
    rng = np.random.default_rng(0)
    checked = 0
    for k, j in zip(rng.integers(8, 28, 12), rng.integers(0, 96, 12), strict=True):
        run = descend(
            data,
            v,
            n_steps=60_000,
            start=limits.starts[k, j],
            optimizer=NormalizedGD(0.05 + 1e-3 * np.hypot(*limits.starts[k, j])),
        )
        reached = np.argmax(correlation(run.final, limits.optima.directions))
        if limits.ends[k, j] >= 0:
            assert reached == limits.ends[k, j]
            checked += 1
    assert checked >= 9


def test_tokens_carry_index_and_score_and_padding_is_not_drawn():
    data = TokenDataset([[[1.0, 1.0], [2.0, 1.0]], [[3.0, 1.0]]], [1.0, 1.0])
    fig = plane.problem_figure(data, [1.0, 0.0], rows_of(data, [1.0, 0.0]))
    tokens = fig.axes[0]
    assert sorted(points_of(tokens, 60.0) + points_of(tokens, 252.0)) == [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]
    assert sorted(points_of(tokens, 252.0)) == [(2.0, 1.0), (3.0, 1.0)]
    assert sorted(text.get_text() for text in tokens.texts) == ["0: 1", "0: 3", "1: 2"]


def test_separating_lines_are_halfway_between_tokens():
    data, v = scored_tokens([[(0.0, 2.0), (0.0, 0.0), (5.0, -1.0)]], [[1.0, 0.0, 0.0]])
    tokens = plane.problem_figure(data, v, rows_of(data, v)).axes[0]
    (line,) = (line for line in tokens.lines if line.get_linestyle() == ":" and len(line.get_xdata()) == 2)
    direction = rows_of(data, v)[0][0]["direction"]
    heights = data.K[0] @ direction
    np.testing.assert_allclose(
        line.get_xydata() @ direction, 0.5 * (heights[0] + heights[1:].max()), rtol=0.0, atol=1e-9
    )


def test_each_problem_has_its_own_two_panels():
    keys = np.random.default_rng(0).normal(size=(3, 1, 3, 2))
    data, v = scored_tokens(keys, np.tile([1.0, 0.0, 0.5], (3, 1, 1)))
    rows = rows_of(data, v)
    fig = plane.problem_figure(data, v, rows)
    assert [ax.get_title() for ax in fig.axes] == [
        *(f"Problem {j}: tokens (index: score)" for j in range(3)),
        *(f"Problem {j}: where descent leads" for j in range(3)),
    ]
    for j in range(3):
        assert points_of(fig.axes[j], 252.0) == [tuple(keys[j, 0, 0])]
