"""Which token types a head prefers over which: counts, rule, graphs and the table of the strongest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError
from marginlens.graphs import priority_graphs
from marginlens.probe.heads.preferences import POOLED, HeadPreferences, PreferenceRule, head_preferences, visible_types
from marginlens.probe.models.image_inputs import ImageInputs, ImageSettings
from marginlens.probe.run import probe_model
from marginlens.probe.run_preferences import KeptSelections
from tiny_transformers import encoded

EVERY_WIN = PreferenceRule(least=1, share=0.0)


def random_choices(seed: int, n_inputs: int = 40, *, causal: bool = False) -> tuple[list, list, list]:
    """Inputs of ids, masks, and a visible position for every query."""
    rng = np.random.default_rng(seed)
    ids = [10 * rng.integers(1, 7, size=int(n)) for n in rng.integers(1, 7, size=n_inputs)]
    masks = [np.tri(len(one), dtype=bool) if causal else np.ones((len(one), len(one)), dtype=bool) for one in ids]
    selected = [np.array([rng.choice(np.flatnonzero(row)) for row in mask]) for mask in masks]
    return ids, masks, selected


def counted_by_hand(ids: list, masks: list, selected: list) -> dict[tuple[int, int, int], int]:
    """(query id, winner, loser) → in how many queries, by loops over sets."""
    wins: dict[tuple[int, int, int], int] = {}
    for tokens, mask, chosen in zip(ids, masks, selected, strict=True):
        for q, winner in enumerate(chosen):
            for loser in {int(t) for t in tokens[mask[q]]} - {int(tokens[winner])}:
                key = (int(tokens[q]), int(tokens[winner]), loser)
                wins[key] = wins.get(key, 0) + 1
    return wins


def edges_of(found: HeadPreferences) -> dict[tuple[int, int, int], int]:
    return {
        (q, int(i), int(j)): int(n)
        for q, graph in found.by_query.items()
        for (i, j), n in zip(graph.edges, graph.counts, strict=True)
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_loops_over_queries(seed: int, causal: bool) -> None:
    ids, masks, selected = random_choices(seed, causal=causal)
    found = head_preferences(visible_types(ids, masks), selected, EVERY_WIN)
    expected = counted_by_hand(ids, masks, selected)
    assert edges_of(found) == expected
    pooled: dict[tuple[int, int], int] = {}
    for (_, i, j), n in expected.items():
        pooled[i, j] = pooled.get((i, j), 0) + n
    assert {(int(i), int(j)): int(n) for (i, j), n in zip(found.pairs, found.wins, strict=True)} == pooled
    for (i, j), losses in zip(found.pairs.tolist(), found.losses.tolist(), strict=True):
        assert losses == pooled.get((j, i), 0)
    both = {frozenset(pair) for pair in pooled if pair[::-1] in pooled}
    assert found.contested_share == pytest.approx(len(both) / len({frozenset(pair) for pair in pooled}))


def test_with_every_win_an_edge_the_graphs_are_those_of_the_next_token_data() -> None:
    rng = np.random.default_rng(3)
    sequences = [rng.choice(6, size=4, replace=False) for _ in range(50)]
    labels = np.array([rng.choice(one) for one in sequences])
    data = priority_graphs(SequenceDataset(sequences, labels, np.eye(6)))
    last = [np.arange(4)[:, None] == 3] * 50  # only the last token is a query
    selected = [
        np.where(np.arange(4) == 3, int(np.argmax(one == y)), -1) for one, y in zip(sequences, labels, strict=True)
    ]
    found = head_preferences(visible_types(sequences, [np.repeat(row, 4, axis=1) for row in last]), selected, EVERY_WIN)
    assert found.by_query.keys() == data.keys()
    for k, graph in data.items():
        ours = found.by_query[k]
        np.testing.assert_array_equal(ours.edges, graph.edges)
        np.testing.assert_array_equal(ours.component_of, graph.component_of)
        np.testing.assert_array_equal(ours.nodes, graph.nodes)


def test_the_rule_decides_at_its_own_bounds() -> None:
    # 7 wins over 8 nine times and loses once
    ids, selected = [np.array([7, 8])] * 5, [np.array([0, 0])] * 4 + [np.array([0, 1])]
    seen = visible_types(ids)
    for share, expected in ((0.9, [[7, 8]]), (0.91, [])):
        found = head_preferences(seen, selected, PreferenceRule(least=9, share=share))
        assert found.pooled.edges.tolist() == expected
    assert head_preferences(seen, selected, PreferenceRule(least=10, share=0.0)).pooled.edges.tolist() == []
    assert head_preferences(seen, selected, EVERY_WIN).pooled.edges.tolist() == [[7, 8], [8, 7]]
    assert head_preferences(seen, selected, EVERY_WIN).strict_share == 0.0
    assert head_preferences(seen, selected).contested_share == 1.0


def test_a_cycle_of_three_is_not_strict_and_an_order_is() -> None:
    pairs = [np.array([1, 2]), np.array([2, 3]), np.array([3, 1])]
    beats_next = [np.array([0, 0])] * 3
    cyclic = head_preferences(visible_types(pairs), beats_next)
    assert cyclic.pooled.last == POOLED
    assert cyclic.strict_share == 0.0
    assert [one.tolist() for one in cyclic.pooled.components] == [[1, 2, 3]]
    ordered = head_preferences(visible_types(pairs), [*beats_next[:2], np.array([1, 1])])
    assert ordered.strict_share == 1.0
    assert [one.tolist() for one in ordered.pooled.components] == [[1], [2], [3]]
    assert ordered.contested_share == 0.0
    # for each single query id the cyclic head is consistent: one win is one edge, and none is reversed
    assert head_preferences(visible_types(pairs), beats_next, EVERY_WIN).strict_share_by_query == 1.0


def test_the_strongest_preferences_come_first_with_how_often_the_two_met() -> None:
    ids = [np.array([1, 2, 3])] * 3 + [np.array([2, 3])]
    selected = [np.array([0, 0, 0])] * 3 + [np.array([0, 0])]
    found = head_preferences(visible_types(ids), selected)
    rows = [(one.preferred, one.over, one.wins, one.losses, one.met) for one in found.strongest(5)]
    assert rows == [(1, 2, 9, 0, 9), (1, 3, 9, 0, 9), (2, 3, 2, 0, 11)]
    assert len(found.strongest(1)) == 1
    assert found.seen.met(1, 99) == 0
    assert repr(found) == "HeadPreferences(3 pairs, 3 preferences, strict 1, 3 query graphs)"


def test_losses_take_from_the_strength_of_a_preference() -> None:
    ids = [np.array([1, 2])] * 11 + [np.array([3, 4])] * 10
    selected = [np.array([0, 0])] * 10 + [np.array([1, 1])] + [np.array([0, 0])] * 9 + [np.array([0, -1])]
    rows = head_preferences(visible_types(ids), selected).strongest(2)
    assert [(one.preferred, one.wins, one.losses) for one in rows] == [(3, 19, 0), (1, 20, 2)]


def test_repeated_tokens_count_once_and_queries_without_a_choice_not_at_all() -> None:
    found = head_preferences(visible_types([np.array([5, 6, 6, 5])]), [np.array([0, 3, -1, 0])], EVERY_WIN)
    assert found.pairs.tolist() == [[5, 6]]
    assert found.wins.tolist() == [3]
    alone = head_preferences(visible_types([np.array([5, 5])]), [np.array([0, 1])])
    assert len(alone.pairs) == len(alone.by_query) == len(alone.strongest(3)) == 0
    assert np.isnan([alone.strict_share, alone.contested_share, alone.strict_share_by_query]).all()


def test_what_does_not_fit_is_named() -> None:
    seen = visible_types([np.array([1, 2])])
    with pytest.raises(InputError, match="one position for each token of each input"):
        head_preferences(seen, [np.array([0])])
    for place in (2, -2):
        with pytest.raises(InputError, match="positions in the query's own input, or -1"):
            head_preferences(seen, [np.array([0, place])])
    with pytest.raises(InputError, match="one array of token ids for each input"):
        visible_types([np.array([0.5])])
    with pytest.raises(InputError, match="one mask"):
        visible_types([np.array([1, 2])], [np.ones((3, 3))])
    with pytest.raises(InputError, match="'share' argument must be a number from 0 to 1; got 2"):
        PreferenceRule(share=2)


@pytest.mark.parametrize(("edge", "n_images", "count"), [(14, 5, 3), (14, 2, 2), (15, 5, 2), (7, 99, 24)])
def test_selections_of_a_few_long_inputs_are_kept(edge: int, n_images: int, count: int) -> None:
    settings = ImageSettings(1, edge, edge)  # 197, 226 or 50 tokens
    inputs = ImageInputs(np.zeros((n_images, 1, edge, edge), dtype=np.float32), settings)
    assert KeptSelections(inputs, 1, 1).count == count


def test_preferences_are_counted_among_the_tokens_that_a_layer_sees() -> None:
    """A window in the second layer changes nothing in the first."""
    import torch
    from transformers import Qwen2Config, Qwen2Model

    shape: dict[str, Any] = {"vocab_size": 15, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 2, "intermediate_size": 24, "initializer_range": 0.3}
    found = []
    windows: list[dict[str, Any]] = [{}, {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1}]
    for window in windows:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Qwen2Model(Qwen2Config(**shape, **window, attn_implementation="eager")).eval()
        found.append(probe_model(model, encoded(model)))
    whole, windowed = found
    for head in range(2):
        assert windowed.preferences[0, head] == whole.preferences[0, head]
        assert windowed.preferences[1, head] != whole.preferences[1, head]
        # a query that sees two tokens and both of a pair chooses between these
        assert all(one.met == one.wins + one.losses for one in windowed.preferences[1, head])
    assert np.array_equal(windowed.heads.contested_share[0], whole.heads.contested_share[0])
    assert windowed.mean_tokens < whole.mean_tokens
