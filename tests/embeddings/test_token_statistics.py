"""Counts of tokens by label: signed frequencies, posterior differences, kinds, Assumption 4."""

import numpy as np
import pytest

from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings import TokenKind, check_assumption_4, token_statistics
from marginlens_papers.claims.random_data import balanced_sequences

SEQUENCES = [[0, 0, 1], [1, 2, 4, 4], [0, 2], [3]]
LABELS = [1, -1, -1, 1]


@pytest.mark.statement("B Eq. (3)", "B Eq. (37)")
def test_statistics_of_ragged_sequences_follow_their_definitions():
    known = token_statistics(SEQUENCES, LABELS)
    positions = sum(map(len, SEQUENCES))
    for s in range(5):
        signed = sum(y * ids.count(s) for ids, y in zip(SEQUENCES, LABELS, strict=True))
        count = sum(ids.count(s) for ids in SEQUENCES)
        assert known.count[s] == count
        assert known.alpha[s] == signed / positions
        assert known.posterior_difference[s] == signed / count


@pytest.mark.statement("B Eq. (3)")
def test_equal_lengths_give_the_papers_average():
    rng = np.random.default_rng(0)
    X, y = rng.integers(6, size=(40, 7)), rng.choice([-1, 1], size=40)
    expected = [np.mean(y * np.count_nonzero(np.equal(X, s), axis=1)) / 7 for s in range(6)]
    np.testing.assert_allclose(token_statistics(X, y).alpha, expected, rtol=0, atol=1e-16)


@pytest.mark.statement("B Definition 1")
def test_token_kinds_follow_sign_and_purity():
    kinds = token_statistics([[0, 1, 1, 2], [3, 1, 2, 4, 4], [4]], [1, -1, 1]).kind
    assert [TokenKind(k).name for k in kinds] == [
        "COMPLETELY_POSITIVE",
        "POSITIVE",
        "IRRELEVANT",
        "COMPLETELY_NEGATIVE",
        "NEGATIVE",
    ]


def test_an_absent_token_is_irrelevant_without_posterior():
    known = token_statistics(LabelledSequences([[0, 2]], [1], 4))
    assert known.count.tolist() == [1, 0, 1, 0]
    assert np.isnan(known.posterior_difference[[1, 3]]).all()
    assert known.kind.tolist() == [2, 0, 2, 0]
    assert repr(known) == "TokenStatistics(4 tokens, 2 positions, kinds: 2 completely positive, 2 irrelevant)"


@pytest.mark.statement("B Assumption 4")
def test_assumption_4_names_the_sequences_that_break_it():
    good = balanced_sequences(12, 5, 2, 6, 0)
    verdict = check_assumption_4(good)
    assert verdict.holds
    assert verdict.offending.tolist() == []
    assert verdict.why == "Assumption 4 holds for all 12 sequences."
    broken = [list(good[i][0]) for i in range(12)]
    place = next(t for t, s in enumerate(broken[7]) if s < 4)
    decisive = broken[7][place]
    broken[7][(place + 1) % 5] = decisive  # twice the decisive token, and an irrelevant one has lost its balance
    verdict = check_assumption_4(broken, good.y)
    assert not verdict.holds
    assert verdict.decisive[7] == 2
    assert 7 in verdict.offending
    unbalanced = [i for i in range(12) if i != 7 and not verdict.fulfilled[i]]
    assert unbalanced
    assert all(verdict.misleading[i] > 0 for i in unbalanced)
    assert "Assumption 4 fails for" in verdict.why
    assert "decisive" in repr(verdict)


@pytest.mark.statement("B Assumption 4")
def test_assumption_4_fails_for_a_repeated_decisive_token():
    verdict = check_assumption_4([[0, 0, 1], [2, 1]], [1, -1])
    assert verdict.misleading.tolist() == [0, 0]
    assert verdict.offending.tolist() == [0]
    told = "sequence 0 has 2 decisive and 0 other relevant positions"
    assert verdict.why == f"Assumption 4 fails for 1 of 2 sequences: {told}."
