"""What the plane draws, before it is drawn: maps between plane and pixels, ticks, paths, separating lines and the painting of basins."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import as_json, needs_node, run_in_page

pytestmark = needs_node

WINDOW, DISC = {"map": "window", "half": 4, "far": 1e6}, {"map": "disc", "half": 4, "far": 1e6}
POINTS = [[0.0, 0.0], [1.0, -2.0], [-3.5, 0.25], [0.0, 3.999]]


def scaled(code: str, view: dict[str, Any], **given: Any) -> Any:
    """What the code answers about `scale`, the map of a view onto 500 × 500 pixels."""
    opening = 'import * as plane from "./plane/plane_scale.js";\nconst scale = plane.planeScale(given.view, 500);\n'
    return run_in_page(opening + code, {"view": view, **given})


@pytest.mark.parametrize("view", [WINDOW, DISC], ids=["window", "disc"])
def test_pixels_go_back_to_their_points(view: dict[str, Any]) -> None:
    points = POINTS if view is WINDOW else [*POINTS, [3e4, -9e5], [1e-3, 1e-3]]
    code = "answer(given.points.map((p) => scale.toPlane(scale.toPixel(p))));"
    assert np.array(scaled(code, view, points=points)) == pytest.approx(np.array(points), rel=1e-9, abs=1e-12)


def test_the_window_is_upright_and_the_disc_by_log_radius() -> None:
    ask = "answer(given.points.map((p) => scale.toPixel(p)));"
    assert scaled(ask, WINDOW, points=[[0, 0], [4, 4], [-4, 2]]) == [[250, 250], [500, 0], [0, 125]]
    centre, near, far = np.array(scaled(ask, DISC, points=[[0, 0], [99.0, 0], [1e6, 0]]))
    assert centre == pytest.approx([250, 250])
    assert (near[0] - 250) / (far[0] - 250) == pytest.approx(2 / math.log10(1 + 1e6))
    assert far[0] < 500


def test_what_is_outside_is_brought_to_the_edge() -> None:
    ask = "answer(scale.toPlane([900, 250]));"
    assert scaled(ask, WINDOW) == [4, 0]
    assert scaled(ask, DISC)[0] == pytest.approx(1e6)


def test_arrow_keys_move_by_a_share_of_the_view() -> None:
    ask = "answer(plane.moved(scale, given.p, 0.01, -0.1));"
    assert scaled(ask, WINDOW, p=[1, 1]) == pytest.approx([1.08, 0.2])
    x, y = scaled("answer(plane.moved(scale, given.p, 0.01, 0));", DISC, p=[1e4, 0])
    assert math.log10(1 + x) - math.log10(1 + 1e4) == pytest.approx(0.02 * math.log10(1 + 1e6))
    assert y == pytest.approx(0, abs=1e-6)


def test_dragged_points_have_few_digits_and_stay_within_a_pixel() -> None:
    points = scaled("answer([1.23456789, 0.00123456, -3.9].map((x) => plane.rounded(scale, [x, -x])));", WINDOW)
    assert [len(str(x)) <= 6 for x, _ in points] == [True] * 3
    assert [x for x, _ in points] == pytest.approx([1.23456789, 0.00123456, -3.9], abs=4 / 500)


def test_zooming_in_and_out_ends_where_it_began_and_stops_at_bounds() -> None:
    code = """
    const zoom = (view, factor, times) => (times === 0 ? view : zoom({ ...view, ...plane.zoomed(view, factor) }, factor, times - 1));
    const near = zoom(given.view, 1.5, 1);
    answer({ pair: [near, zoom(near, 1 / 1.5, 1)], ends: [zoom(given.view, 2, 200), zoom(given.view, 0.5, 200)] });
    """
    for view, name in ((WINDOW, "half"), (DISC, "far")):
        found = scaled(code, view)
        near, back = found["pair"]
        assert near[name] < view[name]
        assert back[name] == pytest.approx(view[name], rel=2e-3)
        low, high = (end[name] for end in found["ends"])
        assert 0 < low < view[name] < high <= 1e12


@pytest.mark.parametrize("half", [0.05, 0.8, 1, 3, 4, 7.3, 60, 1e6])
def test_ticks_are_few_round_and_inside(half: float) -> None:
    ticks = run_in_page('import { axisTicks } from "./plane/plane_scale.js"; answer(axisTicks(given));', half)
    assert 4 <= len(ticks) <= 12
    assert all(abs(tick) < half for tick in ticks)
    assert sorted(ticks) == ticks
    step = min(b - a for a, b in itertools.pairwise(ticks))
    assert float(f"{step:.0e}") == pytest.approx(step)


def test_a_window_that_fits_shows_all_points() -> None:
    ask = 'import { fittingHalf } from "./plane/plane_scale.js"; answer(given.map(fittingHalf));'
    points = [[[0.3, -0.2]], [[5, 1], [-9.5, 0]], [[0, 0]], [[123.4, 77]]]
    halves = run_in_page(ask, points)
    for half, inside in zip(halves, points, strict=True):
        largest = max(abs(entry) for point in inside for entry in point)
        assert largest < half
        assert half <= max(1, 2.5 * largest)


def test_paths_are_drawn_up_to_a_step() -> None:
    code = """
    const points = Array.from({ length: 200 }, (_, k) => [0.03 * k, 0.01 * k]);
    const steps = points.map((_, k) => 10 * k);
    const drawn = plane.drawnPath(scale, points, steps);
    answer([0, 5, 500, 5000].map((step) => plane.pathUpTo(drawn, step)));
    """
    start, same, half, whole = scaled(code, WINDOW)
    assert start == same == "M250.0 250.0"
    assert whole.startswith(half)
    assert half.startswith(start)
    assert whole.endswith("L623.1 125.6")


def test_points_closer_than_a_pixel_are_left_out_of_a_path() -> None:
    code = """
    const points = Array.from({ length: 1000 }, (_, k) => [1e-3 * k, 0]);
    answer(plane.drawnPath(scale, points, points.map((_, k) => k)).pieces.length);
    """
    assert scaled(code, WINDOW) < 100


def test_straight_lines_bend_in_the_disc_and_stay_straight_in_the_window() -> None:
    ask = "answer(plane.linePixels(scale, [0, 1], [1, 0]));"
    (x1, y1), (x2, y2) = scaled(ask, WINDOW)
    assert y1 == y2 == pytest.approx(250 - 62.5)
    assert x1 < 0
    assert x2 > 500
    pixels = np.array(scaled(ask, DISC))
    heights = 250 - pixels[:, 1]
    assert np.all(heights >= -1e-9)
    assert heights[len(heights) // 2] > 10 * heights[0]


# ---- what belongs to a limit


def test_lines_stand_through_the_selected_and_the_closest_other_token() -> None:
    code = """
    import { readProblem } from "../kernels/problem.js";
    import { locallyOptimalDirections } from "../kernels/optimality.js";
    import { separations, supportShares } from "./plane/plane.js";
    const problem = readProblem(given);
    const limits = locallyOptimalDirections(problem);
    answer(limits.map((limit) => ({
      margin: limit.margin, direction: Array.from(limit.direction), selected: limit.selected,
      lines: separations(given.keys, { ...limit, direction: Array.from(limit.direction) }),
      shares: supportShares(limit, problem.lengths, null),
    })));
    """
    rng = np.random.default_rng(3)
    keys, scores = rng.standard_normal((2, 4, 2)).round(2).tolist(), rng.uniform(size=(2, 4)).round(2).tolist()
    found = run_in_page(code, {"keys": keys, "scores": scores})
    assert found
    for limit in found:
        widths = [line["top"] - line["next"] for line in limit["lines"]]
        assert min(widths) == pytest.approx(limit["margin"])  # the margin is that of the tightest input
        for line in limit["lines"]:
            along = np.array(keys[line["input"]]) @ np.array(limit["direction"])
            assert line["top"] == pytest.approx(along[limit["selected"][line["input"]]])
        assert sum(map(sum, limit["shares"])) == pytest.approx(2)  # each row of weight counts for both of its tokens


# ---- the painting of basins

PAINTING = """
import { Painting, basinSentence } from "./plane/basin_picture.js";
const painting = new Painting(32);
const labelOf = (pixel) => (pixel % 32 < 16 ? 0 : 1);
const paintAll = (label) => {
  for (let pixels = painting.take(); pixels !== null; pixels = painting.take()) painting.add(pixels, pixels.map(label));
};
"""


def test_coarse_labels_fill_their_squares_until_finer_ones_come() -> None:
    code = """
    const first = painting.take();
    painting.add(first, first.map(labelOf));
    const coarse = Array.from(painting.labels);
    paintAll((pixel) => labelOf(pixel + 4));
    answer({ first, coarse, fine: Array.from(painting.labels), isDone: painting.isDone, shares: painting.shares() });
    """
    found = run_in_page(PAINTING + code)
    assert len(found["first"]) == 4
    columns = np.arange(32)
    assert np.array_equal(np.array(found["coarse"]).reshape(32, 32), np.tile(columns >= 16, (32, 1)))
    fine = np.array(found["fine"]).reshape(32, 32)
    others = np.ones_like(fine, dtype=bool)
    others[::16, ::16] = False
    assert np.array_equal(fine[others], np.tile((columns + 4) % 32 >= 16, (32, 1))[others])
    assert found["isDone"]
    assert sum(share for _, share in found["shares"]) == pytest.approx(1)


def test_shares_are_of_pixels_that_lie_evenly_and_of_none_until_there_are_such() -> None:
    code = """
    const stages = [painting.shares()];
    const lower = (pixel) => (pixel < 512 ? 0 : 1); // half of each, and rows come from below
    for (let pixels = painting.take(); pixels !== null; pixels = painting.take()) {
      painting.add(pixels, pixels.map(lower));
      stages.push(painting.shares());
    }
    answer(stages);
    """
    first, *others = run_in_page(PAINTING + code)
    assert first == []
    assert len(others) > 10
    assert all(shares == [[0, 0.5], [1, 0.5]] for shares in others)


def test_every_pixel_has_the_colour_of_its_limit_and_the_top_row_the_largest_second_coordinate() -> None:
    code = """
    paintAll((pixel) => (pixel >= 512 ? 0 : pixel % 32 === 0 ? -2 : 1));
    answer(Array.from(painting.colours([[200, 0, 0], [0, 0, 200]])));
    """
    pixels = np.array(run_in_page(PAINTING + code)).reshape(32, 32, 4)
    assert np.all(pixels[:16, :, 0] == 200)
    assert np.all(pixels[16:, 1:, 2] == 200)
    assert np.all(pixels[16:, 0, 3] == 0)  # outside the disc


def test_workers_answer_for_the_present_picture_alone() -> None:
    data, v = ml.data.figure_1b()
    code = """
    import { startWorker } from "./plane/basin_worker.js";
    const said = [];
    const scope = { postMessage: (message) => said.push(message) };
    startWorker(scope);
    const optima = [{ direction: [0, 1], selected: [0] }, { direction: [1, 0], selected: [1] }];
    const request = { problem: given, optima, settings: { side: 8, half: 4, steps: 300 } };
    scope.onmessage({ data: { generation: 1, request } });
    scope.onmessage({ data: { generation: 1, pixels: [0, 60] } });
    scope.onmessage({ data: { generation: 2, request } });
    scope.onmessage({ data: { generation: 1, pixels: [1] } });
    scope.onmessage({ data: { generation: 2, pixels: [63] } });
    answer(said.map(({ generation, pixels, labels }) => ({ generation, pixels, labels: Array.from(labels) })));
    """
    first, second = run_in_page(code, as_json(data, v))
    assert (first["generation"], first["pixels"]) == (1, [0, 60])
    assert (second["generation"], second["pixels"]) == (2, [63])
    assert first["labels"][1] == 0  # a start near the top flows to the first limit


@pytest.mark.parametrize(
    ("optimizer", "n_basins"), [("SignDescent", 1), ("CoordinateDescent", 2), ("SteepestDescent", 2)]
)
def test_basins_of_other_norms_have_the_tokens_that_their_descent_selects(optimizer: str, n_basins: int) -> None:
    data, v = ml.data.figure_1b()
    code = """
    import { analyse } from "./analysis.js";
    import { requestedField } from "./plane/basin_worker.js";
    import { stateOfProblem } from "./state.js";
    import { labelPixels, pixelStart } from "../kernels/basins.js";
    import { Descent, loopOf, measurePoint } from "../kernels/descent.js";
    import { readProblem } from "../kernels/problem.js";
    const { limits } = analyse(stateOfProblem(given));
    const field = requestedField({ problem: given, optima: limits, settings: { side: 5, half: 4, steps: 3000 } });
    const pixels = Array.from({ length: 25 }, (_, k) => k);
    const labels = labelPixels(field, pixels);
    answer(pixels.map((pixel, k) => {
      const run = new Descent(loopOf(readProblem({ ...given, start: pixelStart(field, pixel) })));
      run.advance(3000);
      return { painted: limits[labels[k]]?.selected ?? null, run: measurePoint(field.problem, run.point).selected };
    }));
    """
    found = run_in_page(code, {**as_json(data, v), "optimizer": {"name": optimizer, "size": 0.1}})
    settled = [pixel for pixel in found if pixel["painted"] is not None]
    assert len(settled) >= 23
    assert all(pixel["painted"] == pixel["run"] for pixel in settled)
    assert len({tuple(pixel["run"]) for pixel in settled}) == n_basins


@pytest.mark.parametrize("optimizer", ["NormalizedGD", "SignDescent", "CoordinateDescent", "SteepestDescent"])
def test_sectors_that_catch_runs_change_no_label(optimizer: str) -> None:
    rng = np.random.default_rng(11)
    losses = ("Logistic", "Exponential", "CorrelationLoss", "Logistic", "Logistic", "Exponential")
    problems = [
        {"keys": rng.standard_normal((n, 4, 2)).tolist(), "scores": rng.standard_normal((n, 4)).tolist(), "loss": loss}
        | {"optimizer": {"name": optimizer}}
        for n, loss in zip((1, 2, 3, 2, 1, 3), losses, strict=True)
    ]
    code = """
    import { basinField, labelPixels } from "../kernels/basins.js";
    import { normOfOptimizer, planeNormSvm } from "../kernels/norms.js";
    import { locallyOptimalDirections } from "../kernels/optimality.js";
    import { readProblem } from "../kernels/problem.js";
    const pixels = Array.from({ length: 64 }, (_, k) => k);
    answer(given.flatMap((json) => {
      const problem = readProblem(json);
      const power = normOfOptimizer(problem.optimizer);
      const optima = locallyOptimalDirections(problem).map(({ selected, direction }) => {
        return { selected, direction: power === 2 ? direction : planeNormSvm(problem, selected, power).direction };
      });
      return [{ side: 8, half: 5, steps: 1500 }, { side: 8, far: 1e5 }].map((settings) => {
        const field = basinField(problem, optima, settings);
        const plain = { ...basinField(problem, optima, settings), sectors: optima.map(() => null) };
        const labelled = (one) => Array.from(labelPixels(one, pixels));
        return { proved: field.sectors.filter((sector) => sector !== null).length, quick: labelled(field), slow: labelled(plain) };
      });
    }));
    """
    found = run_in_page(code, problems)
    assert sum(picture["proved"] for picture in found) > 0
    for picture in found:
        assert picture["quick"] == picture["slow"]
