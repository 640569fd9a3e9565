"""Budgets of keys and bits: those of a loop over inputs, kept by new ones, and one sentence for what cannot be asked."""

import json

import numpy as np
import pytest
import torch

from marginlens.errors import InputError
from marginlens.probe import BudgetSettings, certify_rounding, key_budgets, rotation_matrix, round_keys
from marginlens.probe.budgets import conformal_bound
from marginlens.probe.models.reading import read_attention
from tiny_transformers import TEXT, drawn, encoded, tiny_bert, tiny_llama


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])
def test_budgets_are_those_of_a_loop_over_inputs_and_maps(make):
    model = make()
    inputs = encoded(model)
    settings = BudgetSettings(tolerance=0.05, bits=(3, 8), confidence=0.5)
    found = key_budgets(model, inputs, settings)
    shape = found.keys.shape
    needed, variation, certified = [], np.zeros((len(inputs), 2, 2, *shape)), np.zeros((2, 2, *shape))
    missing, decided = np.zeros((len(inputs), 2, 2, *shape)), np.zeros(shape)
    for place in range(len(inputs)):
        (batch,) = inputs.subset([place]).batches()
        keys = np.zeros(shape)
        for reading in read_attention(model, batch.inputs):
            maps, layer = reading.attention[0].double().numpy(), reading.layer
            sees = reading.visible[0].numpy()
            for head, query in np.ndindex(*maps.shape[:2]):
                seen = np.sort(maps[head, query][sees[query]])
                if len(seen) > 1:
                    keys[layer, head] = max(keys[layer, head], len(seen) - int((np.cumsum(seen) <= 0.05).sum()))
            for turned, rotation in enumerate((None, rotation_matrix(reading.queries.shape[-1]))):
                for k, bits in enumerate(settings.bits):
                    centre = reading.grouped_keys.mean(dim=2, keepdim=True)  # of this input alone, without padding
                    rounded = round_keys(reading.grouped_keys, bits, rotation, centre=centre)
                    one = certify_rounding(reading.queries, reading.grouped_keys, rounded, reading.rule)
                    counted = torch.from_numpy(sees.sum(axis=1) >= 2)
                    certified[turned, k, layer] += (one.certified[0] & counted).sum(dim=1).numpy()
                    missing[place, turned, k, layer] = (~one.certified[0] & one.decided[0]).sum(dim=1) / one.decided[
                        0
                    ].sum(dim=1)
                    variation[place, turned, k, layer] = one.variation[0].masked_fill(~counted, 0.0).amax(dim=1)
            decided[layer] += one.decided[0].sum(dim=1).numpy()
        needed.append(keys)
    np.testing.assert_allclose(found.keys, conformal_bound(np.stack(needed), 0.5))
    rotated = missing[::2, 1].mean(axis=0) < missing[::2, 0].mean(axis=0)
    np.testing.assert_array_equal(found.rotated, rotated)
    np.testing.assert_allclose(found.certified, np.where(rotated, certified[1], certified[0]) / decided, atol=1e-6)
    bound = conformal_bound(variation[1::2], 0.5)
    np.testing.assert_allclose(found.variation, np.where(rotated, bound[1], bound[0]), rtol=1e-4)
    assert (found.robust <= found.certified + 1e-12).all()
    assert (found.certified[1] >= found.certified[0]).all()
    assert found.bits.shape == shape
    assert len(found.rows()) == shape[0]
    assert "selections" in found.sentences()[0]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["n_inputs"] == len(inputs)


def test_new_inputs_keep_a_conformal_bound_as_often_as_it_says():
    """Over 4,000 draws of nine scores and a tenth: not below 80%, and not far above, since scores are continuous."""
    scores = np.random.default_rng(0).standard_cauchy(size=(10, 4000))
    share = np.mean(scores[9] <= conformal_bound(scores[:9], 0.8))
    assert 0.8 - 0.02 <= share <= 0.8 + 0.02
    assert np.isinf(conformal_bound(scores[:3], 0.8)).all()


def test_too_few_inputs_are_said_to_be_too_few():
    model = tiny_bert()
    found = key_budgets(model, encoded(model).subset([0, 1]), BudgetSettings(bits=(8,)))
    assert np.isinf(found.variation).all()
    assert np.isinf(found.bits).all()
    assert any("too few" in sentence for sentence in found.sentences())
    assert found.rows()[0]["safe keys"] == "all"


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"tolerance": 0.0}, "tolerance"),
        ({"confidence": 1.0}, "confidence"),
        ({"bits": ()}, "bits"),
        ({"bits": (8, 4)}, "bits"),
        ({"bits": (1, 4)}, "bits"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, argument):
    with pytest.raises(InputError, match=f"'{argument}' argument"):
        BudgetSettings(**options)


def test_a_model_that_shows_attention_alone_is_refused():
    model = drawn("Ernie", {**TEXT, "num_attention_heads": 2})
    with pytest.raises(InputError, match="attention alone"):
        key_budgets(model, encoded(model), BudgetSettings(bits=(8,)))
