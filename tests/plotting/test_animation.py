"""Films of runs in the plane."""

import pytest
from PIL import Image

import marginlens as ml

DATA, HEAD = ml.data.figure_1b()


def test_runs_in_the_plane_become_a_film(tmp_path):
    starts = [[-1.0, 0.5], [0.5, 1.0], [1.0, -1.0]]
    runs = ml.descend(DATA.repeat(3), HEAD, n_steps=50, start=starts, record=ml.Record(keep="x"))
    for run in (runs[0], runs):
        ml.plotting.animate(run, tmp_path / "run.gif", seconds=0.4, frames_per_second=10)
        with Image.open(tmp_path / "run.gif") as film:
            assert film.n_frames == 4
            first = film.convert("RGB").tobytes()
            film.seek(3)
            assert film.convert("RGB").tobytes() != first


@pytest.mark.parametrize(("keep", "name"), [("norm", "run.gif"), ((), "run.gif"), ("x", "run.avi")])
def test_a_run_without_its_iterates_and_a_name_that_is_no_film_are_refused(keep, name, tmp_path):
    run = ml.descend(DATA, HEAD, n_steps=5, record=ml.Record(keep=keep))
    with pytest.raises(ml.InputError):
        ml.plotting.animate(run, tmp_path / name)
