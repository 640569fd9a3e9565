"""A probe leaves a user's model as it found it, whatever its precision and mode, and says why a head has no correlation."""

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe.models import inputs
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.reading import read_attention
from marginlens.probe.pages.page import probe_page
from marginlens.probe.run import probe_model
from marginlens.probe.settings import ProbeSettings
from tiny_transformers import TEXTS, encoded, tiny_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
HALF = 5e-3  # of nnz/T between float16 and float32 weights; float16 has three digits


def in_training(dtype):
    """A classifier with much dropout, half of whose modules are in training mode."""
    config = tiny_bert().config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.5
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).to(dtype).train()
    model.gradient_checkpointing_enable()
    model.bert.encoder.layer[0].eval()
    return model


def state(model):
    hooks = sum(len(one._forward_pre_hooks) + len(one._forward_hooks) for one in model.modules())
    return [one.training for one in model.modules()], hooks, torch.is_grad_enabled()


def test_a_half_precision_classifier_in_training_mode():
    half, single = in_training(torch.float16), in_training(torch.float32)
    before = state(half)
    found = probe_model(half, encoded(half))
    assert state(half) == before
    again = probe_model(half, encoded(half))  # dropout would make every run another
    assert np.array_equal(found.heads.relative_nnz, again.heads.relative_nnz)
    expected = probe_model(single, encoded(single))
    assert np.allclose(found.heads.relative_nnz, expected.heads.relative_nnz, rtol=0.0, atol=HALF)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_what_interrupts_a_run_leaves_the_model_as_it_was(problem):
    model = in_training(torch.float32)

    def stop(*arguments):
        raise problem

    handle = model.bert.encoder.layer[0].register_forward_pre_hook(stop)
    before = state(model)
    (batch,) = encoded(model, TEXTS[:1]).batches()
    with pytest.raises(problem):
        read_attention(model, batch.inputs)
    assert state(model) == before
    handle.remove()


def test_a_head_without_weights_is_not_said_to_have_impossible_selections():
    model = tiny_bert()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "encoder.layer.0.attention.self.query" in name:
                weights.zero_()
    result = probe_model(model, encoded(model), ProbeSettings(max_margin=True))
    assert np.isnan(result.max_margin.correlation[0]).all()
    assert np.isfinite(result.max_margin.correlation[1]).all()
    assert np.isnan(result.max_margin.margin_ratio[0]).all()
    assert (
        "For 2 heads there is no max-margin solution: all their queries are tied, and select nothing." in result.notes
    )


def test_an_input_whose_maps_exceed_the_memory_is_refused_before_the_model_runs(monkeypatch):
    model = tiny_bert()
    longest = max(len(text.split()) for text in TEXTS) + 2
    monkeypatch.setattr(inputs, "machine_memory", lambda: 2 * 48 * longest**2 - 1)
    with pytest.raises(InputError, match=f"Input 5 has {longest} tokens: to measure the maps of 2 heads would take"):
        probe_model(model, encoded(model))
    for enough in (2 * 48 * longest**2, None):  # None: a system that does not say
        monkeypatch.setattr(inputs, "machine_memory", lambda bytes_=enough: bytes_)
        assert probe_model(model, encoded(model)).n_inputs == len(TEXTS)


def test_logits_that_overflow_in_the_last_layer_leave_the_others_measured():
    model = tiny_bert(sharpness=1e4).half()
    for layer in model.encoder.layer[:1]:
        layer.attention.self.key.weight.data.mul_(1e-4)
        layer.attention.self.key.bias.data.mul_(1e-4)
    with pytest.raises(
        InputError, match="attention that is not finite in its layer 1 on this batch: its weights are not"
    ):
        list(read_attention(model, next(iter(encoded(model).batches())).inputs))
    result = probe_model(model, encoded(model))
    assert np.isfinite(result.heads.nnz[0]).all()
    assert not np.isfinite(result.heads.nnz[1]).all()
    assert any("not finite" in note for note in result.notes)


def test_weights_between_layers_that_are_not_finite_leave_the_layers_before_them_measured():
    model = tiny_bert()
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="not finite before its layer 1 on this batch: its weights are not finite, or"):
        read_attention(model, next(iter(encoded(model).batches())).inputs)
    result = probe_model(model, encoded(model))
    assert np.isfinite(result.heads.nnz[0]).all()
    assert np.isnan(result.heads.nnz[1]).all()
    assert np.isfinite(result.heads.frobenius).all()
    assert any(note.startswith("Layer 1: what the heads read") for note in result.notes)


def test_a_head_with_one_nan_is_named_and_the_rest_is_measured_as_before():
    model, broken = tiny_bert(), tiny_bert()
    with torch.no_grad():
        name = next(
            name for name, _ in broken.named_parameters() if "layer.1" in name and name.endswith("query.weight")
        )
        dict(broken.named_parameters())[name][3, 5] = float("nan")  # rows 0 to 7 make the queries of head 0
    settings = ProbeSettings(max_margin=True, queries=1)
    sound, found = (probe_model(one, encoded(one), settings) for one in (model, broken))
    for measure in ("nnz", "frobenius", "margin_median", "decisive_share", "self_share", "contested_share"):
        whole, rest = sound.measure(measure), found.measure(measure)
        assert np.isnan(rest[1, 0]), measure
        rest[1, 0] = whole[1, 0]
        np.testing.assert_array_equal(rest, whole)
    assert np.isnan(found.max_margin.correlation[1, 0])
    assert np.isfinite(found.max_margin.correlation[[0, 0, 1], [0, 1, 1]]).all()
    assert found.notes[0].startswith("Head L1H0: weights that are not finite")
    page = probe_page(found)
    assert "Head L1H0" in page
    with pytest.raises(InputError, match="Head 0 of layer 1 has no key-query map"):
        adapter_for(broken).key_query(1, 0)


def test_a_model_without_any_finite_attention_is_refused():
    model = tiny_bert()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="No head can be measured"):
        probe_model(model, encoded(model))
