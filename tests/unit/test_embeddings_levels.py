"""K-level data and balanced data: sizes that add up, chances that sum to one, counts that balance."""

import numpy as np
import pytest

from marginlens.data.random_sequences import Levels, balanced_sequences, level_sequences
from marginlens.embeddings import check_assumption_4, token_statistics
from marginlens.errors import InputError
from tolerances import ROUNDING


@pytest.mark.statement("B Eq. (33)")
def test_the_parts_of_figure_2_add_up_to_its_vocabulary():
    law = Levels()
    assert law.n_vocabulary == 2048
    assert law.sizes == (6, 8, 12, 20, 36, 68, 132, 260)
    assert np.bincount(law.level).tolist() == [964, *(2 * size for size in law.sizes)]
    for k, size in enumerate(law.sizes, start=1):
        assert np.sum(law.sign[law.level == k] == 1) == np.sum(law.sign[law.level == k] == -1) == size
    assert (law.sign[law.level == 0] == 0).all()


@pytest.mark.statement("B Eq. (34)", "B Eq. (35)")
def test_chances_sum_to_one_and_bayes_gives_the_posterior():
    law = Levels(deltas=(0.4, 0.1, 0.0), sizes=(2, 3, 5), n_irrelevant=7, share=0.3)
    up, down = law.chances(1), law.chances(-1)
    assert abs(up.sum() - 1.0) < ROUNDING
    assert abs(down.sum() - 1.0) < ROUNDING
    np.testing.assert_allclose((up - down) / (up + down), law.posterior_difference, rtol=0, atol=ROUNDING)
    assert law.posterior_difference[law.level == 2].tolist() == [0.8] * 3 + [-0.8] * 3
    assert up[law.sign == 0].sum() == pytest.approx(0.7, abs=ROUNDING)


@pytest.mark.statement("B Eq. (34)")
def test_frequencies_of_drawn_sequences_follow_the_law():
    law = Levels(deltas=(0.3, 0.05), sizes=(2, 3), n_irrelevant=4, share=0.4)
    data = level_sequences(4000, 25, 3, law)
    assert len(data) == 4000
    assert data.lengths.tolist() == [25] * 4000
    known = token_statistics(data)
    for counts, label in ((known.in_positive, 1), (known.in_negative, -1)):
        expected = law.chances(label) * counts.sum()
        assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 1)
    again = level_sequences(4000, 25, 3, law)
    assert np.array_equal(data.tokens, again.tokens)
    assert repr(law) == "Levels(2 levels of 5 + 5 tokens, 4 irrelevant)"


@pytest.mark.statement("B Assumption 4")
@pytest.mark.parametrize(("n", "T", "important", "irrelevant"), [(2, 2, 1, 1), (10, 4, 5, 15), (64, 9, 3, 20)])
def test_balanced_data_obey_assumption_4_to_the_count(n, T, important, irrelevant):
    data = balanced_sequences(n, T, important, irrelevant, 1)
    known = token_statistics(data)
    assert check_assumption_4(data).holds
    assert known.kind.tolist() == [2] * important + [-2] * important + [0] * irrelevant
    assert (known.count > 0).all()
    assert data.n_vocabulary == 2 * important + irrelevant
    assert data.y.sum() == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Levels(deltas=()), "'deltas' argument must be at least one number"),
        (lambda: Levels(deltas=(1.5,)), "'deltas' argument must be at least one number, each from 0 to 1"),
        (lambda: Levels(sizes=(3,)), "'sizes' argument must be one size for each of the 8 levels; got 1 sizes"),
        (lambda: Levels(share=1.0), "'share' argument must be between 0 and 1, and 1 exactly when"),
        (lambda: level_sequences(0, 5, 0), "'n_samples' argument must be a whole number of at least 1"),
        (lambda: balanced_sequences(5, 4, 1, 1, 0), "'n_samples' argument must be even"),
        (lambda: balanced_sequences(4, 4, 3, 1, 0), "'n_important' argument must be at most n_samples / 2 = 2"),
        (lambda: balanced_sequences(4, 3, 1, 5, 0), "'n_irrelevant' argument must be at most 4"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
