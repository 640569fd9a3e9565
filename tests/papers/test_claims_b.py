"""Claims on embeddings trained on K-level data and on text: rank correlations, and how verdicts follow from archived runs."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from marginlens.embeddings.statistics import TokenStatistics
from marginlens_papers.archive import archived_runs
from marginlens_papers.claim import Effort, Progress, Verdict
from marginlens_papers.claims.b import levels, text_runs
from marginlens_papers.embeddings import TrainingSettings
from tolerances import ROUNDING

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


def test_what_is_proportional_has_a_linear_correlation_of_one_and_what_is_only_ordered_has_not():
    d = np.linspace(-1.0, 1.0, 101)
    found = text_runs.ranks_of(d, np.abs(d) ** 9, 3.0 * d, np.arange(101))
    assert (found.v[0], found.linear_v, found.p[0]) == pytest.approx((1.0, 1.0, 1.0))
    assert found.linear_p < 0.8


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

    monkeypatch.setattr(text_runs, "archived_runs", pick)
    return runs


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
def test_stated_runs_of_the_papers_orders_in_excellent_agreement_miss_nothing(shelf, module):
    shelf += both(1, 0.12) + both(2, 9e-6)
    verdict, finding = judged(module)
    assert missed(module)[0] == set()
    assert verdict is Verdict.HOLDS_IN_PART  # stored runs alone carry no more
    assert finding.numbers["imdb_stated_loss"] == (0.12 if module is text_runs.B_F3 else 9e-6)
    assert finding.numbers["imdb_v_at_least"] < finding.numbers["imdb_v"]


@pytest.mark.parametrize("loss", [6e-5, 0.5])
def test_a_loss_of_another_order_than_the_papers_is_a_miss_on_either_side(shelf, loss):
    shelf += both(1, 0.12)
    shelf[1] = replace(shelf[1], loss=loss)
    failed, finding = missed(text_runs.B_F3)
    assert failed == {"yelp_stated_loss_order"}
    assert (
        f"Yelp ends at loss {text_runs.loss_text(loss)}, {'below' if loss < 0.1 else 'above'} the paper's"
        in finding.note
    )


def test_a_contrast_that_is_reversed_is_a_miss_whatever_a_smaller_rate_reaches(shelf):
    slow = TrainingSettings(2, learning_rate=3e-4)
    shelf += both(1, 5e-5) + both(2, 0.4)
    shelf += [replace(one, name=f"{one.name}-slow", loss=6e-6, settings=slow) for one in both(2, 0.4)]
    failed, finding = missed(text_runs.B_F14)
    assert {"imdb_contrast", "yelp_contrast"} <= failed
    assert finding.numbers["yelp_contrast"] == pytest.approx(np.log10(5e-5 / 0.4))
    assert "IMDB 5.0e-05 with one layer and 0.400 with two" in finding.note
    assert "Yelp is judged by the runs at rate 0.0003, whose loss 6.0e-06 is nearest." in finding.note


def test_one_seed_that_does_not_follow_is_enough_to_miss(shelf):
    shelf += both(1, 0.12)
    for seed in (1, 2):
        shelf.append(replace(shelf[1], name=f"yelp1-{seed}", settings=TrainingSettings(1, seed=seed), loss=0.1 * seed))
    failed, finding = missed(text_runs.B_F3)
    assert failed == set()
    assert (finding.numbers["imdb_seeds"], finding.numbers["yelp_seeds"]) == (1, 3)
    assert finding.numbers["yelp_stated_loss"] == 0.12  # the median of three
    assert "(3 seeds): training loss 0.100–0.200" in finding.measured
    shelf[-1] = replace(shelf[-1], a=-shelf[-1].a)
    failed, finding = missed(text_runs.B_F3)
    assert failed == {"yelp_p", "yelp_p_linear"}
    assert finding.numbers["yelp_p_at_least"] < 0.0 < finding.numbers["yelp_v_at_least"]


def test_a_stopped_run_is_not_taken_as_the_papers(shelf):
    done = fake_run("x", "imdb", 1, loss=0.3)
    stopped, short = replace(done, finished=False), replace(done, settings=TrainingSettings(1, epochs=2))
    seeded = replace(done, settings=TrainingSettings(1, seed=7, device="cuda", tf32=True))
    assert [text_runs.is_stated(one) for one in (done, stopped, short, seeded)] == [True, False, False, True]
    assert not text_runs.by_setting([done, replace(stopped, settings=seeded.settings)])[0].stated
    wide = replace(done, loss=0.1, settings=TrainingSettings(1, spread=3.0))
    assert (
        text_runs.deciding(text_runs.by_setting([wide, replace(done, loss=0.9)]), -1).loss == 0.9
    )  # another start decides nothing
    groups = text_runs.by_setting([replace(short, loss=0.1), done, seeded])
    assert [len(one.runs) for one in groups] == [1, 2]
    assert text_runs.order(0.3) == -1
    # at the stated settings and of the paper's order, though the other is nearer
    assert text_runs.deciding(groups, -1) is groups[1]
    assert text_runs.deciding(text_runs.by_setting([replace(short, loss=0.1), replace(done, loss=0.5)]), -1).loss == 0.1
    shelf += [
        *both(1, 0.1),
        replace(fake_run("imdb2", "imdb", 2), finished=False),
        fake_run("yelp2", "yelp", 2, loss=1e-5),
    ]
    failed, finding = missed(text_runs.B_F14)
    assert {"imdb_contrast", "imdb_stated_loss_order"} == failed
    assert np.isnan(finding.numbers["imdb_contrast"])
    assert "No run on IMDB is finished at the stated settings" in finding.note


@pytest.mark.parametrize("module", [text_runs.B_F3, text_runs.B_F14])
def test_claims_on_text_measure_every_packaged_run(module):
    verdict, finding = judged(module)
    assert verdict is module.known is Verdict.DOES_NOT_HOLD  # none of the paper's words holds in them
    assert "Tried: " in finding.note
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


def test_claim_on_levels_reaches_its_bars_with_the_kept_run_and_a_live_one():
    verdict, finding = judged(levels.B_F2)
    assert verdict is Verdict.HOLDS_WITH_CARE
    assert finding.numbers["full_offset"] > 5.0  # the irrelevant tokens of the kept run do not lie around zero
    assert finding.arrays["full"].settings.d_model == 2048
    assert finding.arrays["live"].settings.d_model == 256
    assert finding.numbers["full_p_by_law"] < finding.numbers["full_p"]
