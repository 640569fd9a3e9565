"""What an explanation shows of its tokens: which is selected, in which order, in which colour, and which words share a pair."""

import numpy as np
import pytest

from marginlens.colours import GLOBAL, LOCAL
from marginlens.embeddings.classifier_tokens import Place, fit_words
from marginlens.embeddings.explaining import Explanation, TokenRow
from marginlens.text import TextPipeline


def row(token, contribution, a=0.0, attention=0.1):
    return TokenRow(token, 1, attention, a, 1.0, contribution, 0.0, 0.0)


def explained(*rows, text="dull superb", words=()):
    return Explanation(text, "good", ("bad", "good"), 1.0, 0.5, rows, words)


def test_the_selected_token_has_the_highest_score_not_the_most_attention():
    told = explained(row("film", 0.1, a=1.0, attention=0.6), row("superb", 0.3, a=1.2, attention=0.4))
    assert told.selected == "superb"
    assert told.verdict.endswith("selected token: superb")


def test_the_table_shows_the_largest_contributions_of_both_signs_and_counts_the_rest():
    told = explained(*(row(f"t{k}", 0.01 * k * (-1) ** k) for k in range(20)))
    assert [cells["token"] for cells in told.table()] == [f"t{k}" for k in range(19, 4, -1)]
    assert str(told).splitlines()[-1] == "and 5 tokens that contribute less"
    assert "contribute less" not in str(explained(row("a", 1.0)))


def test_words_have_the_colour_of_the_class_they_speak_for():
    words = ((Place(0, 4, (0,), (1.0,)), -1.0), (Place(5, 11, (1,), (1.0,)), 1.0))
    page = explained(row("dull", -1.0), row("superb", 1.0), words=words).to_html()
    for word, colour in (("dull", LOCAL), ("superb", GLOBAL)):
        channels = ",".join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))
        assert f"rgba({channels}," in page[: page.index(f">{word}<")].rpartition("<span")[2]


def test_a_pair_is_shared_by_the_two_words_it_joins():
    pipeline = TextPipeline(stop_words=None, min_count=1)
    tokens, _, _ = fit_words(["not dull", "not dull"], np.array([1.0, -1.0]), pipeline, 2)
    found = [
        (place.start, place.end, *map(tokens.names.__getitem__, place.tokens)) for place in tokens.places("not dull")
    ]
    assert found == [(0, 3, "not", "not dull"), (4, 8, "dull", "not dull")]
    assert [place.shares for place in tokens.places("not dull")] == [pytest.approx((1.0, 0.5))] * 2
