"""Films of runs in the plane."""

import pytest
from PIL import Image

import marginlens as ml

DATA, HEAD = ml.data.figure_1b()


def test_a_run_in_the_plane_becomes_a_film(tmp_path):
    run = ml.descend(DATA, HEAD, n_steps=50, start=[-1.0, 0.5], record=ml.Record(keep="x"))
    ml.plotting.animate(run, tmp_path / "run.gif", seconds=0.4, frames_per_second=10)
    with Image.open(tmp_path / "run.gif") as film:
        assert film.n_frames == 4
        first = film.convert("RGB").tobytes()
        film.seek(3)
        assert film.convert("RGB").tobytes() != first


def test_a_batch_of_runs_shares_a_film(tmp_path):
    starts = [[-1.0, 0.5], [0.5, 1.0], [1.0, -1.0]]
    run = ml.descend(DATA.repeat(3), HEAD, n_steps=20, start=starts, record=ml.Record(keep="x"))
    ml.plotting.animate(run, tmp_path / "runs.gif", seconds=0.2, frames_per_second=10)
    assert (tmp_path / "runs.gif").stat().st_size > 1000


@pytest.mark.parametrize("keep", ["norm", ()])
def test_a_run_without_its_iterates_is_refused(keep, tmp_path):
    run = ml.descend(DATA, HEAD, n_steps=5, record=ml.Record(keep=keep))
    with pytest.raises(ml.InputError, match=r"record=ml\.Record"):
        ml.plotting.animate(run, tmp_path / "run.gif")


def test_a_name_that_is_no_film_is_refused(tmp_path):
    run = ml.descend(DATA, HEAD, n_steps=5, record=ml.Record(keep="x"))
    with pytest.raises(ml.InputError, match="gif"):
        ml.plotting.animate(run, tmp_path / "run.avi")
