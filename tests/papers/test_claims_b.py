"""Kept training runs: what goes into a file and comes back, the runs that come with the package, and the claims that read them."""

import json
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import spearmanr

from marginlens.data.random_sequences import Levels, level_sequences
from marginlens.embeddings import run
from marginlens.embeddings.sequence_file import write_labelled
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.embeddings.train import RankCorrelations, TrainingSettings
from marginlens.errors import InputError
from marginlens_papers.archive import archive_run, archived_runs, command_without_paths, read_run
from marginlens_papers.archive import keep_embeddings as keep
from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims.b import levels as b_f2
from marginlens_papers.claims.b import text_runs as b_f3
from marginlens_papers.claims.b import text_runs as b_f14
from marginlens_papers.claims.b import text_runs as embedding_points
from marginlens_papers.claims.b.text_runs import (
    by_setting,
    deciding,
    is_stated,
    order,
    ranks_of,
    spearman,
    spearman_interval,
)
from tolerances import KEPT_RANKS, ROUNDING

LAW = Levels(deltas=(0.2,), sizes=(4,), n_irrelevant=6, share=0.5)
SMALL = json.dumps({"d_model": 8, "epochs": 30, "batch": 16, "seed": 5})
MID_EPOCH = 0.05  # how far a correlation may move in part of an epoch
PACKAGED = sorted(
    one.name for one in (files("marginlens_papers") / "results").iterdir() if one.name.startswith("embeddings-")
)


@pytest.fixture
def trained(tmp_path):
    """A data file, and the folder of a run on it."""
    data = level_sequences(60, 9, 0, LAW)
    write_labelled(tmp_path / "tiny.npz", data, [f"t{s}" for s in range(14)])
    common = ["--data", str(tmp_path / "tiny.npz"), "--settings", SMALL]
    assert run.main([*common, "--out", str(tmp_path / "run"), "--checkpoint", str(tmp_path / "point.npz")]) == 0
    return tmp_path / "tiny.npz", tmp_path / "run"


# ---- files


def test_a_kept_run_holds_what_its_figure_shows(trained, tmp_path):
    encoded, folder = trained
    found = read_run(archive_run(folder, "tiny-1", data=encoded, into=tmp_path))
    data = level_sequences(60, 9, 0, LAW)
    facts = json.loads((folder / "run.json").read_text())
    table = np.genfromtxt(folder / "tokens.csv", delimiter=",", skip_header=1, usecols=(2, 3))
    assert (found.name, found.source, found.finished) == ("tiny-1", "tiny", True)
    assert found.settings == TrainingSettings(d_model=8, epochs=30, batch=16, seed=5)
    assert found.names == tuple(f"t{s}" for s in range(14))
    assert np.allclose(np.column_stack([found.a, found.b]), table, rtol=1e-4, atol=0.0)
    statistics = token_statistics(data)
    assert np.array_equal(found.statistics.in_positive, statistics.in_positive)
    assert np.array_equal(found.statistics.in_negative, statistics.in_negative)
    assert found.statistics.n_positions == 60 * 9
    assert (found.loss, found.accuracy) == (facts["loss"], facts["accuracy"])
    assert found.facts["data"]["sha256"] == data.fingerprint
    assert str(tmp_path) + "/run" not in found.facts["command"]
    assert found.facts["versions"] == facts["versions"]


def test_curves_are_thinned_and_keep_their_ends(trained, tmp_path):
    encoded, folder = trained
    found = read_run(archive_run(folder, "tiny", data=encoded, into=tmp_path))
    history = json.loads((folder / "run.json").read_text())["history"]
    assert found.epochs[:20].tolist() == list(range(1, 21))
    assert found.epochs[-1] == 30
    assert len(found.epochs) < 30
    places = found.epochs.astype(int) - 1
    assert np.allclose(found.curves["loss"], np.array(history["loss"])[places], rtol=1e-4, atol=0.0)


def test_a_stopped_run_says_so(trained, tmp_path):
    encoded, folder = trained
    facts = json.loads((folder / "run.json").read_text())
    facts["history"]["seconds"] = [4.0 * k for k in range(30)]
    (folder / "run.json").write_text(json.dumps({**facts, "ending": "TIME_LIMIT"}))
    found = read_run(archive_run(folder, "tiny", data=encoded, into=tmp_path))
    assert not found.finished
    assert "then stopped" in repr(found)
    assert found.facts["seconds"] == 116.0


def test_a_run_on_a_part_of_a_file_is_kept_with_the_counts_of_that_part(tmp_path):
    data, parts = level_sequences(60, 9, 0, LAW), np.where(np.arange(60) % 3 == 0, "test", "train")
    write_labelled(tmp_path / "tiny.npz", data, split=parts)
    common = ["--data", str(tmp_path / "tiny.npz"), "--settings", '{"d_model": 4, "epochs": 1}', "--split", "train"]
    assert run.main([*common, "--out", str(tmp_path / "run")]) == 0
    found = read_run(archive_run(tmp_path / "run", "part", data=tmp_path / "tiny.npz", into=tmp_path))
    assert np.array_equal(found.statistics.count, token_statistics(data.subset(parts == "train")).count)


def test_k_level_runs_need_no_file(tmp_path, capsys):
    settings = json.dumps({"d_model": 4, "epochs": 1})
    assert run.main(["--levels", "40", "--length", "12", "--settings", settings, "--out", str(tmp_path / "run")]) == 0
    assert keep.main([str(tmp_path / "run"), "small", "--into", str(tmp_path)]) == 0
    assert "ArchivedRun(small: levels, one layer, rate 0.01, 1 epochs)" in capsys.readouterr().out
    found = read_run(tmp_path / "embeddings-small.json")
    assert found.names is None
    assert np.array_equal(found.statistics.count, token_statistics(level_sequences(40, 12, 0)).count)


def test_places_are_left_out_of_a_command():
    command = "python -m x --data d.npz --out /elsewhere/o --settings '{\"layers\": 2}' --checkpoint=/elsewhere/c.npz --every 3"
    assert command_without_paths(command) == "python -m x --data d.npz --settings '{\"layers\": 2}' --every 3"


def test_what_cannot_be_kept_is_refused_in_one_sentence(trained, tmp_path, capsys):
    encoded, folder = trained
    write_labelled(tmp_path / "other.npz", level_sequences(60, 9, 1, LAW))
    write_labelled(tmp_path / "wider.npz", level_sequences(60, 9, 0))
    for data, sentence in ((tmp_path / "other.npz", "occurrences of token"), (tmp_path / "wider.npz", "2048 tokens")):
        with pytest.raises(InputError, match=f"'data' argument must be the sequences that .* {sentence}"):
            archive_run(folder, "x", data=data, into=tmp_path)
    with pytest.raises(InputError, match=r"'data' argument must be the file tiny.npz .*; got none instead"):
        archive_run(folder, "x", into=tmp_path)
    with pytest.raises(InputError, match="'name' argument must be letters"):
        archive_run(folder, "../x", data=encoded, into=tmp_path)
    with pytest.raises(InputError, match="'into' argument must be a file in a folder that exists"):
        archive_run(folder, "x", data=encoded, into=tmp_path / "nowhere")
    assert keep.main([str(tmp_path / "none"), "x"]) == 2
    assert "must be a folder with tokens.csv and run.json" in capsys.readouterr().err
    (folder / "run.json").write_text("{}")
    with pytest.raises(InputError, match="where something is missing"):
        archive_run(folder, "x", data=encoded, into=tmp_path)
    assert not list(tmp_path.glob("embeddings-*"))


@pytest.mark.parametrize(
    "change",
    [
        {"ending": "NOPE"},
        {"settings": [1]},
        {"settings": {"pace": 1}},
        {"history": 3},
        {"history": {"loss": [1.0], "correlation_v": [], "correlation_p": [], "seconds": []}},
        {"data": None},
        {"command": None},
        {"command": "a 'b"},
        {"loss": "low"},
        {"accuracy": []},
        {"table": "0" * 64},
        *({name: ...} for name in ("ending", "accuracy", "versions", "data")),  # which is left out
    ],
)
def test_a_run_of_other_contents_is_refused_and_nothing_is_written(trained, tmp_path, change):
    encoded, folder = trained
    told = {**json.loads((folder / "run.json").read_text()), **change}
    (folder / "run.json").write_text(json.dumps({name: one for name, one in told.items() if one is not ...}))
    with pytest.raises(InputError, match=r"'(folder|settings|command)' argument must be"):
        archive_run(folder, "x", data=encoded, into=tmp_path)
    assert not list(tmp_path.glob("embeddings-*"))


@pytest.mark.parametrize("text", ["", "[" * 100_000, "null", "\0"])
def test_facts_that_are_no_facts_are_refused(trained, tmp_path, text):
    encoded, folder = trained
    (folder / "run.json").write_text(text)
    with pytest.raises(InputError, match="'folder' argument must be"):
        archive_run(folder, "x", data=encoded, into=tmp_path)


def test_a_table_that_is_no_table_is_refused(trained, tmp_path):
    encoded, folder = trained
    told = json.loads((folder / "run.json").read_text())
    del told["table"]  # as earlier versions wrote them
    (folder / "run.json").write_text(json.dumps(told))
    whole = (folder / "tokens.csv").read_text()
    head = whole.splitlines()[0]
    for text in (
        "",
        head,
        whole[: len(whole) // 2],
        f"{head}\n{'a' * 200_000}",
        whole.replace("t3,", "t3,x"),
        whole + "1",
    ):
        (folder / "tokens.csv").write_text(text)
        with pytest.raises(InputError, match=r"'(folder|data)' argument must be"):
            archive_run(folder, "x", data=encoded, into=tmp_path)
    (folder / "tokens.csv").write_text(whole)
    assert archive_run(folder, "x", data=encoded, into=tmp_path).is_file()


def test_a_run_without_a_loss_is_kept_without_one(trained, tmp_path):
    encoded, folder = trained
    told = {**json.loads((folder / "run.json").read_text()), "ending": "DIVERGED", "loss": None}
    (folder / "run.json").write_text(json.dumps(told))
    found = read_run(archive_run(folder, "x", data=encoded, into=tmp_path))
    assert np.isnan(found.loss)
    assert not found.finished


@pytest.mark.parametrize("content", ["", "[]", '{"form": "other"}', '{"form": "marginlens kept training run 1"}'])
def test_a_file_that_is_no_kept_run_is_refused(tmp_path, content):
    (tmp_path / "embeddings-x.json").write_text(content)
    with pytest.raises(InputError, match="'path' argument must be a file that archive_run wrote"):
        read_run(tmp_path / "embeddings-x.json")


# ---- the runs that come with the package


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_runs_are_whole_small_and_free_of_text(name):
    place = files("marginlens_papers") / "results" / name
    found = read_run(str(place))
    assert len(place.read_bytes()) < 400_000
    assert int(found.statistics.count.sum()) == found.statistics.n_positions
    assert np.isfinite(found.a).all()
    assert np.isfinite(found.b).all()
    assert found.epochs[-1] == found.facts["epochs_done"] <= found.settings.epochs
    assert found.finished == (found.epochs[-1] == found.settings.epochs)
    assert len(found.facts["data"]["sha256"]) == 64
    assert " /" not in found.facts["command"]
    assert {"numpy", "torch", "device"} <= set(found.facts["versions"])
    assert found.names is None or not any(set(one) & set(" \t\n") or len(one) > 20 for one in found.names)


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_tables_have_the_correlations_of_their_last_epoch(name):
    found = read_run(str(files("marginlens_papers") / "results" / name))
    ranks = RankCorrelations(found.statistics)(found.a, found.b)
    recorded = [found.curves[one][-1] for one in ("correlation_v", "correlation_p")]
    apart = (
        KEPT_RANKS if found.finished else MID_EPOCH
    )  # a stopped run's table is of the moment, its curves of whole epochs
    assert np.abs(np.array(ranks) - recorded).max() < apart


def test_packaged_runs_are_found_by_data_and_depth():
    for source, layers in (("imdb", 1), ("imdb", 2), ("yelp", 1), ("yelp", 2), ("levels", 1)):
        found = archived_runs(source, layers)
        assert found
        assert {(one.source, one.settings.layers) for one in found} == {(source, layers)}
        rates = [one.settings.learning_rate for one in found]
        assert rates == sorted(rates, reverse=True)
    assert archived_runs("imdb", 3) == ()


# ---- numbers


def test_rank_correlations_agree_with_scipy_also_with_ties():
    rng = np.random.default_rng(0)
    x, y = rng.integers(6, size=(2, 5, 40)).astype(float)
    expected = [spearmanr(one, other)[0] for one, other in zip(x, y, strict=True)]
    assert np.abs(spearman(x, y) - expected).max() < ROUNDING
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_tokens_that_never_occur_are_not_ranked():
    known = TokenStatistics(np.array([5, 0, 3, 0, 1]), np.array([1, 0, 3, 4, 1]), 18)
    a, b = np.array([3.0, 9.0, 1.0, 2.0, 0.0]), np.array([2.0, -9.0, 0.5, -1.0, 0.4])
    there, difference = known.count > 0, known.posterior_difference[known.count > 0]
    expected = spearmanr(b[there], difference)[0], spearmanr(a[there], np.abs(difference))[0]
    for least in (0, 1):
        assert RankCorrelations(known, least)(a, b) == pytest.approx(expected)
    assert np.isnan(RankCorrelations(known, 7)(a, b)).all()


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(1)
    for r, n in ((0.0, 40), (0.6, 150), (0.9, 150)):
        truth = 6.0 / np.pi * np.arcsin(0.5 * r)  # Spearman's correlation of a Gaussian pair with correlation r
        d, noise = rng.standard_normal((2, 1000, n))
        found = spearman(d, r * d + np.sqrt(1.0 - r * r) * noise)
        ends = np.array([spearman_interval(float(one), n) for one in found])
        assert ((ends[:, 0] < found) & (found < ends[:, 1])).all()
        assert 0.93 < np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])) < 0.97


def test_intervals_of_few_tokens_and_of_perfect_order_are_no_numbers_beyond_one():
    assert spearman_interval(0.5, 3) == (-1.0, 1.0)
    assert spearman_interval(float("nan"), 100) == (-1.0, 1.0)
    assert spearman_interval(1.0, 100) == (1.0, 1.0)


def test_what_is_proportional_has_a_linear_correlation_of_one_and_what_is_only_ordered_has_not():
    d = np.linspace(-1.0, 1.0, 101)
    found = ranks_of(d, np.abs(d) ** 9, 3.0 * d, np.arange(101))
    assert (found.v[0], found.linear_v, found.p[0]) == pytest.approx((1.0, 1.0, 1.0))
    assert found.linear_p < 0.8


def test_the_order_of_a_loss_is_its_nearest_power_of_ten():
    assert [order(loss) for loss in (0.31, 0.32, 0.04, 5.8e-6, 2e-5, 0.0)] == [-1, 0, -1, -5, -5, -300]


# ---- claims


def fake_run(name, source, layers, noise=0.02, **changes):
    """A run on 300 made-up tokens that follow the posterior difference, at the paper's settings unless `changes` say otherwise."""
    rng = np.random.default_rng(len(name))
    positive, negative = rng.integers(150, 900, size=(2, 300))
    known = TokenStatistics(positive, negative, int(positive.sum() + negative.sum()))
    d = known.posterior_difference
    apart = noise * rng.standard_normal((2, 300))
    base = archived_runs("yelp", 1)[0]
    curves = {one: np.array([0.5, 0.2]) for one in base.curves}
    names = tuple(f"word{chr(97 + s % 26)}" for s in range(300))
    made = replace(base, name=name, source=source, settings=TrainingSettings(layers), names=names, statistics=known)
    made = replace(made, a=np.abs(d) + apart[0], b=d + apart[1], epochs=np.array([1.0, 500.0]), curves=curves)
    return replace(made, finished=True, **changes)


def both(layers, loss, **changes):
    """A run at the stated settings on each dataset."""
    return [fake_run(f"{source}{layers}", source, layers, loss=loss, **changes) for source in ("imdb", "yelp")]


@pytest.fixture
def shelf(monkeypatch):
    """A list that stands for the kept runs."""
    runs = []

    def pick(source, layers):
        return tuple(one for one in runs if (one.source, one.settings.layers) == (source, layers))

    monkeypatch.setattr(embedding_points, "archived_runs", pick)
    return runs


def judged(module):
    claim = module()
    finding = claim.compute(Effort.QUICK, Progress())
    return claim.judge(finding), finding


@pytest.mark.parametrize("module", [b_f3.B_F3, b_f14.B_F14])
def test_stated_runs_of_the_papers_orders_in_excellent_agreement_reproduce(shelf, module):
    shelf += both(1, 0.12) + both(2, 9e-6)
    verdict, finding = judged(module)
    assert verdict is Verdict.REPRODUCED_WITH_NOTE
    assert finding.numbers["imdb_stated_loss"] == (0.12 if module is b_f3.B_F3 else 9e-6)
    assert finding.numbers["imdb_v_at_least"] < finding.numbers["imdb_v"]


@pytest.mark.parametrize("loss", [6e-5, 0.5])
def test_a_loss_of_another_order_than_the_papers_is_partly_reproduced_on_either_side(shelf, loss):
    shelf += both(1, 0.12)
    shelf[1] = replace(shelf[1], loss=loss)
    verdict, finding = judged(b_f3.B_F3)
    assert verdict is Verdict.PARTLY_REPRODUCED
    assert (
        f"Yelp ends at loss {embedding_points.loss_text(loss)}, {'below' if loss < 0.1 else 'above'} the paper's"
        in finding.note
    )


def test_a_contrast_that_is_reversed_is_partly_reproduced_whatever_a_smaller_rate_reaches(shelf):
    slow = TrainingSettings(2, learning_rate=3e-4)
    shelf += both(1, 5e-5) + both(2, 0.4)
    shelf += [replace(one, name=f"{one.name}-slow", loss=6e-6, settings=slow) for one in both(2, 0.4)]
    verdict, finding = judged(b_f14.B_F14)
    assert verdict is Verdict.PARTLY_REPRODUCED
    assert finding.numbers["yelp_contrast"] == pytest.approx(np.log10(5e-5 / 0.4))
    assert "IMDB 5.0e-05 with one layer and 0.400 with two" in finding.note
    assert "Yelp is judged by the runs at rate 0.0003, whose loss 6.0e-06 is nearest." in finding.note
    assert set(b_f14.B_F14().draw(finding)) == {"imdb2", "imdb2_slow", "yelp2", "yelp2_slow", "training"}


@pytest.mark.parametrize(("noise", "verdict"), [(0.5, Verdict.PARTLY_REPRODUCED), (50.0, Verdict.NOT_REPRODUCED)])
def test_moderate_agreement_is_not_excellent_and_none_is_no_agreement(shelf, noise, verdict):
    shelf += both(1, 0.12, noise=noise)
    assert judged(b_f3.B_F3)[0] is verdict


def test_one_seed_that_does_not_follow_is_enough_to_miss(shelf):
    shelf += both(1, 0.12)
    for seed in (1, 2):
        shelf.append(replace(shelf[1], name=f"yelp1-{seed}", settings=TrainingSettings(1, seed=seed), loss=0.1 * seed))
    verdict, finding = judged(b_f3.B_F3)
    assert verdict is Verdict.REPRODUCED_WITH_NOTE
    assert (finding.numbers["imdb_seeds"], finding.numbers["yelp_seeds"]) == (1, 3)
    assert finding.numbers["yelp_stated_loss"] == 0.12  # the median of three
    assert "(3 seeds): training loss 0.100–0.200" in finding.measured
    shelf[-1] = replace(shelf[-1], a=-shelf[-1].a)
    verdict, finding = judged(b_f3.B_F3)
    assert verdict is Verdict.NOT_REPRODUCED
    assert finding.numbers["yelp_p_at_least"] < 0.0 < finding.numbers["yelp_v_at_least"]


def test_the_fall_of_the_agreement_and_held_out_numbers_are_said(shelf):
    shelf += both(1, 0.12, held_out_loss=0.44, held_out_accuracy=0.81)
    high, low = np.array([0.999, 0.4]), np.array([0.1, 0.2])
    shelf[0] = replace(
        shelf[0], b=shelf[0].b[::-1] * 0.3 + shelf[0].b, curves={**shelf[0].curves, "correlation_v": high}
    )
    shelf[1] = replace(shelf[1], curves={**shelf[1].curves, "correlation_v": low})
    _, finding = judged(b_f3.B_F3)
    assert finding.numbers["imdb_v_peak"] == 0.999
    assert "IMDB: v falls from 1.00 (epoch 1) to 0." in finding.note
    assert "Yelp: v stays at" in finding.note
    assert "training loss 0.120 and accuracy" in finding.measured
    assert "held-out loss 0.440 and accuracy 0.810" in finding.measured
    assert finding.numbers["yelp_held_out_accuracy"] == 0.81


def test_controls_on_other_sizes_are_told_from_their_kept_runs(shelf):
    shelf += both(1, 0.12)
    assert "11,408 of IMDB's" not in judged(b_f3.B_F3)[1].note
    shelf.append(fake_run("imdb-part", "imdb-11408", 1, loss=2e-7))
    assert "a random 11,408 of IMDB's reviews: 2.0e-07." in judged(b_f3.B_F3)[1].note


def test_a_stopped_run_is_not_taken_as_the_papers(shelf):
    done = fake_run("x", "imdb", 1, loss=0.3)
    stopped, short = replace(done, finished=False), replace(done, settings=TrainingSettings(1, epochs=2))
    seeded = replace(done, settings=TrainingSettings(1, seed=7, device="cuda", tf32=True))
    assert [is_stated(one) for one in (done, stopped, short, seeded)] == [True, False, False, True]
    assert not by_setting([done, replace(stopped, settings=seeded.settings)])[0].stated
    wide = replace(done, loss=0.1, settings=TrainingSettings(1, spread=3.0))
    assert deciding(by_setting([wide, replace(done, loss=0.9)]), -1).loss == 0.9  # another start decides nothing
    groups = by_setting([replace(short, loss=0.1), done, seeded])
    assert [len(one.runs) for one in groups] == [1, 2]
    assert order(0.3) == -1
    assert (
        deciding(groups, -1) is groups[1]
    )  # at the stated settings and of the paper's order, though the other is nearer
    assert deciding(by_setting([replace(short, loss=0.1), replace(done, loss=0.5)]), -1).loss == 0.1
    shelf += [
        *both(1, 0.1),
        replace(fake_run("imdb2", "imdb", 2), finished=False),
        fake_run("yelp2", "yelp", 2, loss=1e-5),
    ]
    verdict, finding = judged(b_f14.B_F14)
    assert verdict is Verdict.PARTLY_REPRODUCED
    assert np.isnan(finding.numbers["imdb_contrast"])
    assert "No run on IMDB is finished at the stated settings" in finding.note


@pytest.mark.parametrize("module", [b_f3.B_F3, b_f14.B_F14])
def test_claims_on_text_measure_every_packaged_run_and_draw_it(module):
    _, finding = judged(module)
    groups = finding.arrays["groups"]
    assert {kept.source for one in groups for kept in one.runs} == {"imdb", "yelp"}
    packaged = [kept.name for source in ("imdb", "yelp") for kept in archived_runs(source, module.layers)]
    assert sorted(kept.name for one in groups for kept in one.runs) == sorted(packaged)
    for one in groups:
        for kept, found in zip(one.runs, one.ranks, strict=True):
            frequent = kept.statistics.count >= 200
            difference = kept.statistics.posterior_difference[frequent]
            expected = [spearmanr(kept.b[frequent], difference)[0], spearmanr(kept.a[frequent], np.abs(difference))[0]]
            assert np.abs(np.array([found.v[0], found.p[0]]) - expected).max() < ROUNDING
        assert one.sentence() in finding.measured
    figures = module().draw(finding)
    assert len(figures) == len(groups) + 1
    for name in [*list(figures)[:1], "training"]:
        FigureCanvasAgg(figures[name]).draw()


def test_claim_on_levels_counts_levels_out_of_order():
    means = b_f2.level_means(Levels().level * 1.0)
    assert means.tolist() == list(range(9))
    assert b_f2.out_of_order(means) == 0
    assert b_f2.out_of_order(np.array([0.0, 2.0, 1.0, 1.0])) == 2


def test_claim_on_levels_reaches_its_bars_with_the_kept_run_and_a_live_one():
    verdict, finding = judged(b_f2.B_F2)
    assert verdict is Verdict.REPRODUCED_WITH_NOTE
    assert finding.numbers["full_offset"] > 5.0  # the irrelevant tokens of the kept run do not lie around zero
    assert finding.arrays["full"].settings.d_model == 2048
    assert finding.arrays["live"].settings.d_model == 256
    assert finding.numbers["full_p_by_law"] < finding.numbers["full_p"]
