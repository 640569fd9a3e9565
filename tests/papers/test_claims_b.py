"""Claims on embeddings trained on K-level data and on text: rank correlations, and how verdicts follow from archived runs."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from marginlens.embeddings.statistics import TokenStatistics
from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims.b import levels, text_runs
from marginlens_papers.claims.b.embedding_runs import EmbeddingSettings, embedding_runs
from tolerances import ROUNDING, SIX_DIGITS

# ---- numbers


def test_rank_correlations_agree_with_scipy_also_with_ties():
    rng = np.random.default_rng(0)
    x, y = rng.integers(6, size=(2, 5, 40)).astype(float)
    expected = [spearmanr(one, other)[0] for one, other in zip(x, y, strict=True)]
    assert np.abs(text_runs.spearman(x, y) - expected).max() < ROUNDING
    assert np.isnan(text_runs.spearman(np.ones(4), np.arange(4.0)))


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(1)
    for r, n in ((0.0, 40), (0.6, 150), (0.9, 150)):
        truth = 6.0 / np.pi * np.arcsin(0.5 * r)  # Spearman's correlation of a Gaussian pair with correlation r
        d, noise = rng.standard_normal((2, 1000, n))
        found = text_runs.spearman(d, r * d + np.sqrt(1.0 - r * r) * noise)
        ends = np.array([text_runs.spearman_interval(float(one), n) for one in found])
        assert ((ends[:, 0] < found) & (found < ends[:, 1])).all()
        assert 0.93 < np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])) < 0.97


def test_linear_correlation_is_one_only_for_proportional_data():
    d = np.linspace(-1.0, 1.0, 101)
    found = text_runs.ranks_of(d, np.abs(d) ** 9, 3.0 * d, np.arange(101))
    assert (found.v[0], found.linear_v, found.p[0]) == pytest.approx((1.0, 1.0, 1.0), rel=SIX_DIGITS, abs=ROUNDING)
    assert found.linear_p < 0.8


def test_bin_means_ignore_scatter_and_empty_bins():
    rng = np.random.default_rng(8)
    d, noise = rng.uniform(-0.8, 0.9, 4000), rng.standard_normal(4000)
    edges = np.linspace(d.min(), d.max(), 21)
    inside = [(edges[k] <= d) & ((d < edges[k + 1]) if k < 19 else (d <= edges[k + 1])) for k in range(20)]
    expected = np.array([noise[each].mean() for each in inside])
    assert np.abs(text_runs.bin_means(d, noise) - expected).max() < ROUNDING
    assert len(text_runs.bin_means(np.array([0.0, 0.01, 1.0]), np.ones(3))) == 2
    found = text_runs.ranks_of(d, np.abs(d) + noise, d + 2.0 * noise, np.arange(4000))
    assert found.linear_v < 0.4 < 0.9 < found.trend_v
    assert found.linear_p < 0.4 < 0.9 < found.trend_p
    nothing = text_runs.ranks_of(d, noise, noise, np.arange(4000))
    assert abs(nothing.trend_v) < 0.7


# ---- claims

READING_SETTINGS = {
    "fixed": {"train_v": False},
    "trained": {"train_v": True},
    "affine_fixed": {"train_v": False, "affine": True},
    "affine_trained": {"train_v": True, "affine": True},
}


def fake_run(name, source, layers, noise=0.02, settings=None, **changes):
    """A run on 300 made-up tokens that follow the posterior difference, at the paper's settings unless `settings` say otherwise."""
    rng = np.random.default_rng(len(name))
    positive, negative = rng.integers(150, 900, size=(2, 300))
    known = TokenStatistics(positive, negative, int(positive.sum() + negative.sum()))
    d = known.posterior_difference
    apart = noise * rng.standard_normal((2, 300))
    base = embedding_runs("yelp", 1)[0]
    curves = {one: np.array([0.5, 0.2]) for one in base.curves}
    names = tuple(f"word{chr(97 + s % 26)}" for s in range(300))
    chosen = EmbeddingSettings(layers, **(settings or {}))
    made = replace(base, name=name, source=source, settings=chosen, names=names, statistics=known)
    made = replace(made, a=np.abs(d) + apart[0], b=d + apart[1], epochs=np.array([1.0, 500.0]), curves=curves)
    return replace(made, finished=True, **changes)


def every_reading(layers, loss):
    """A run at the stated settings on each dataset in each reading."""
    readings = READING_SETTINGS if layers == 2 else ("fixed", "trained")
    return [
        fake_run(f"{source}{layers}-{reading}", source, layers, settings=READING_SETTINGS[reading], loss=loss)
        for source in ("imdb", "yelp")
        for reading in readings
    ]


@pytest.fixture
def shelf(monkeypatch):
    """A list that stands for the kept runs."""
    runs = []

    def pick(source, layers):
        return tuple(one for one in runs if (one.source, one.settings.layers) == (source, layers))

    monkeypatch.setattr(text_runs, "embedding_runs", pick)
    return runs


def change(shelf, name, **changes):
    """Change the run of this name."""
    at = [one.name for one in shelf].index(name)
    shelf[at] = replace(shelf[at], **changes)


def judged(module):
    claim = module()
    finding = claim.compute(Effort.QUICK, Progress())
    return claim.judge(finding), finding


def missed(module):
    """What of the paper's words fails in the stored runs, and the finding."""
    _, finding = judged(module)
    assert set(finding.archived) == set(finding.numbers)
    return {name for name, bound in module.as_stated.items() if not bound.holds(finding.numbers[name])}, finding


@pytest.mark.parametrize("module", [text_runs.B_F3, text_runs.B_F14])
def test_stated_runs_in_full_agreement_miss_nothing(shelf, module):
    shelf += every_reading(1, 0.12) + every_reading(2, 9e-6)
    verdict, finding = judged(module)
    assert missed(module)[0] == set()
    assert verdict is Verdict.HOLDS_IN_PART  # stored runs alone carry no more
    assert finding.numbers["imdb_trained_loss"] == (0.12 if module is text_runs.B_F3 else 9e-6)
    assert finding.numbers["imdb_trained_v_at_least"] < finding.numbers["imdb_trained_v"]
    assert finding.numbers["yelp_trained_p_trend"] > 0.98


@pytest.mark.parametrize(
    ("loss", "of_the_order"), [(6e-5, False), (0.031, False), (0.04, True), (0.9, True), (1.2, False)]
)
def test_the_order_of_a_loss_is_its_nearest_power_or_first_digit(shelf, loss, of_the_order):
    shelf += every_reading(1, 0.12)
    change(shelf, "yelp1-fixed", loss=loss)
    failed, finding = missed(text_runs.B_F3)
    assert failed == (set() if of_the_order else {"yelp_fixed_loss"})
    assert (f"Yelp, rate 0.01, v fixed ({text_runs.loss_text(loss)}: 1e" in finding.note) == of_the_order
    assert f"in {4 if of_the_order else 3} of 4 pairs" in finding.note


def test_the_one_layer_verdict_is_the_same_by_both_conventions(monkeypatch):
    _, finding = judged(text_runs.B_F3)
    for low, high in ((10**-1.5, 10**-0.5), (0.1, 1.0)):  # the nearest power of ten alone, the first digit alone
        bounds = {
            name: replace(bound, low=low, high=high) if name.endswith("_loss") else bound
            for name, bound in text_runs.B_F3.as_stated.items()
        }
        monkeypatch.setattr(text_runs.B_F3, "as_stated", bounds)
        assert text_runs.B_F3().judge(finding) is Verdict.HOLDS_IN_PART


def test_a_reversed_contrast_is_a_miss(shelf):
    shelf += every_reading(1, 5e-5) + every_reading(2, 0.4)
    slow = [replace(one, name=f"{one.name}-slow", loss=6e-6) for one in every_reading(2, 0.4)]
    shelf += [replace(one, settings=replace(one.settings, learning_rate=3e-4)) for one in slow]
    failed, finding = missed(text_runs.B_F14)
    contrasts = {name for name in text_runs.B_F14.as_stated if name.endswith("_contrast")}
    assert contrasts | {name.replace("contrast", "loss") for name in contrasts} == failed
    assert finding.numbers["yelp_fixed_contrast"] == pytest.approx(np.log10(5e-5 / 0.4), rel=SIX_DIGITS, abs=ROUNDING)
    assert "5.0e-05 with one layer and 0.400 with two" in finding.note


def test_two_layers_are_compared_with_one_by_the_same_v(shelf):
    shelf += every_reading(1, 0.12) + every_reading(2, 9e-6)
    change(shelf, "yelp1-fixed", loss=9e-4)
    failed, finding = missed(text_runs.B_F14)
    assert failed == {"yelp_fixed_contrast", "yelp_affine_fixed_contrast"}
    assert "below one layer in 6 of 8" in finding.note


def test_one_contradicting_seed_is_a_miss(shelf):
    shelf += every_reading(1, 0.12)
    last = shelf[-1]
    for seed in (1, 2):
        shelf.append(
            replace(last, name=f"{last.name}-{seed}", settings=replace(last.settings, seed=seed), loss=0.1 * seed)
        )
    failed, finding = missed(text_runs.B_F3)
    assert failed == set()
    assert (finding.numbers["imdb_trained_seeds"], finding.numbers["yelp_trained_seeds"]) == (1, 3)
    assert finding.numbers["yelp_trained_loss"] == 0.12  # the median of three
    assert "(3 seeds): training loss 0.100–0.200" in finding.measured
    shelf[-1] = replace(shelf[-1], a=-shelf[-1].a)
    failed, finding = missed(text_runs.B_F3)
    assert failed == {"yelp_trained_p", "yelp_trained_p_linear"}
    assert finding.numbers["yelp_trained_p_at_least"] < 0.0 < finding.numbers["yelp_trained_v_at_least"]


def test_a_stopped_run_does_not_count(shelf):
    done = fake_run("x", "imdb", 1, loss=0.3)
    stopped, short = replace(done, finished=False), replace(done, settings=EmbeddingSettings(1, epochs=2))
    seeded = replace(done, settings=EmbeddingSettings(1, seed=7, device="cuda", tf32=True, train_v=False))
    wide = replace(done, settings=EmbeddingSettings(1, spread=3.0))
    runs = (done, stopped, short, seeded, wide)
    assert [text_runs.is_stated(one) for one in runs] == [True, False, False, True, False]
    groups = text_runs.by_setting(runs)
    assert [len(one.runs) for one in groups] == [1, 1, 1, 1, 1]
    assert text_runs.by_setting([done, replace(stopped, settings=replace(done.settings, seed=3))])[0].stated
    assert {name: group.runs[0] for name, group in text_runs.stated_runs(groups).items()} == {
        "trained": done,
        "fixed": seeded,
    }
    shelf += [*every_reading(1, 0.1), *every_reading(2, 1e-5)]
    change(shelf, "yelp2-affine_fixed", finished=False)
    failed, finding = missed(text_runs.B_F14)
    measures = [*text_runs.SENTENCES, "contrast"]
    assert failed == {f"yelp_affine_fixed_{name}" for name in measures}
    assert "0.100 with one layer and not finished" in finding.note
    assert "1 of them stopped before the last epoch" in finding.note


@pytest.mark.parametrize("module", [text_runs.B_F3, text_runs.B_F14])
def test_claims_on_text_measure_every_packaged_run(module):
    verdict, finding = judged(module)
    assert verdict is Verdict.HOLDS_IN_PART
    assert module.known is None
    groups = finding.arrays["groups"]
    packaged = [kept for source in ("imdb", "yelp") for kept in embedding_runs(source, module.layers)]
    assert f"Kept: {len(packaged)} runs" in finding.note
    assert sorted(kept.name for one in groups for kept in one.runs) == sorted(kept.name for kept in packaged)
    # every reading of which finished runs are kept is judged, and no other
    stated = {(one.source, text_runs.reading_of(one.settings)) for one in packaged if text_runs.is_stated(one)}
    assert stated == {(source, reading) for source, readings in module.judged.items() for reading in readings}
    for one in groups:
        for kept, found in zip(one.runs, one.ranks, strict=True):
            frequent = kept.statistics.count >= 200
            difference = kept.statistics.posterior_difference[frequent]
            expected = [spearmanr(kept.b[frequent], difference)[0], spearmanr(kept.a[frequent], np.abs(difference))[0]]
            assert np.abs(np.array([found.v[0], found.p[0]]) - expected).max() < ROUNDING
        assert one.sentence() in finding.measured


def test_claim_on_levels_reaches_its_bars_with_the_kept_run_and_a_live_one():
    verdict, finding = judged(levels.B_F2)
    assert verdict is Verdict.HOLDS_WITH_CAVEATS
    assert finding.numbers["full_offset"] > 5.0  # the irrelevant tokens of the kept run do not lie around zero
    assert finding.arrays["full"].settings.d_model == 2048
    assert finding.arrays["live"].settings.d_model == 256
    assert finding.numbers["full_p_by_law"] < finding.numbers["full_p"]
