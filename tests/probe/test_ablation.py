"""Silencing a head is to zero the columns of the map that reads it, and the probe ranks heads by what their absence changes."""

import copy

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe import ProbeSettings, probe_model, probe_page
from marginlens.probe.ablation import PRUNED_SHARES, ablate_heads, has_distribution
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.adapters.attention_only import AttentionOnlyAdapter
from marginlens.probe.models.inputs import ImageSettings, prepare_images
from tiny_families import IMAGES, batch_for, small_model, three_texts
from tiny_transformers import encoded, tiny_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SAME = 1e-10
JOINING = {  # name → where the map that joins the heads of each layer is, and whether it is a distribution that changes
    "bert": (lambda model: [layer.attention.output.dense for layer in model.encoder.layer], False),
    "llama": (lambda model: [layer.self_attn.o_proj for layer in model.model.layers], True),
    "opt": (lambda model: [layer.self_attn.out_proj for layer in model.model.decoder.layers], True),
    "gpt_neox": (lambda model: [layer.attention.dense for layer in model.layers], False),
    "deberta-v2": (lambda model: [layer.attention.output.dense for layer in model.encoder.layer], False),
    "gpt2": (lambda model: [layer.attn.c_proj for layer in model.transformer.h], True),
    "t5": (
        lambda model: [
            *(block.layer[0].SelfAttention.o for block in model.encoder.block),
            *(
                part.o
                for block in model.decoder.block
                for part in (block.layer[0].SelfAttention, block.layer[1].EncDecAttention)
            ),
        ],
        True,
    ),
    "vit": (lambda model: [layer.attention.o_proj for layer in model.vit.layers], True),
    "swin": (lambda model: [layer.attention.o_proj for stage in model.encoder.layers for layer in stage.blocks], False),
}


def inputs_of(name, model):
    if name not in IMAGES:
        return three_texts()
    return prepare_images(batch_for(name, torch.float64)["pixel_values"].numpy(), ImageSettings.of(model.config))


def output_of(model, batch):
    """(n, d) logarithms of probabilities, or hidden states, of every real token or of every image."""
    inputs = {name: torch.as_tensor(value) for name, value in batch.inputs.items()}
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    if model.config.is_encoder_decoder:
        ids = inputs["input_ids"]
        start = torch.full((len(ids), 1), model.config.decoder_start_token_id)
        inputs |= {
            "decoder_input_ids": torch.cat((start, ids[:, :-1]), dim=1),
            "decoder_attention_mask": inputs["attention_mask"],
        }
    with torch.no_grad():
        output = model(**inputs)
    values = output.logits.log_softmax(-1) if hasattr(output, "logits") else output.last_hidden_state
    return values[inputs["attention_mask"].bool()] if "attention_mask" in inputs else values.flatten(0, -2)


def without_columns(name, model, heads):
    """The mean change of the output where the joining maps have zeros in the place of these heads."""
    find, is_distribution = JOINING[name]
    changed = copy.deepcopy(model)
    adapter = adapter_for(changed)
    with torch.no_grad():
        for layer, head in heads:
            joining = find(changed)[layer]
            width = adapter.shape(layer).d_head
            columns = slice(head * width, (head + 1) * width)
            if name == "gpt2":  # whose maps have their inputs first
                joining.weight[columns] = 0
            else:
                joining.weight[:, columns] = 0
    parts = []
    for batch in inputs_of(name, model).batches():
        p, q = output_of(model, batch), output_of(changed, batch)
        parts.append((p.exp() * (p - q)).sum(-1) if is_distribution else (p - q).norm(dim=-1) / p.norm(dim=-1))
    return float(torch.cat(parts).mean())


@pytest.mark.parametrize("name", JOINING)
def test_a_silent_head_is_one_whose_columns_of_the_joining_map_are_zero(name):
    model, is_distribution = small_model(name, torch.float64), JOINING[name][1]
    adapter = adapter_for(model)
    found = ablate_heads(model, adapter, inputs_of(name, model))
    values = found.values
    assert found.measure == ("output_divergence" if is_distribution else "output_change")
    last = adapter.n_layers - 1
    for layer, head in ((0, 0), (1, 1), (last, adapter.shape(last).n_heads - 1)):
        assert values[layer, head] == pytest.approx(without_columns(name, model, [(layer, head)]), rel=SAME)
        assert values[layer, head] > 1e-6
    n_heads = int(np.isfinite(values).sum())
    assert [len(row.heads) for row in found.pruned] == sorted({max(1, round(k * n_heads)) for k in PRUNED_SHARES})
    for row in found.pruned:
        assert row.change == pytest.approx(without_columns(name, model, row.heads), rel=SAME)
        assert max(values[at] for at in row.heads) <= np.sort(values[np.isfinite(values)])[len(row.heads) - 1]
    assert not any("forward" in vars(module) for module in model.modules())


def with_head(kind, **options):
    """A BERT or ELECTRA with the weights of the suite's and another head."""
    family = "electra" if kind.startswith("Electra") else "bert"
    config = copy.deepcopy(small_model(family, torch.float64).config)
    config.update(options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, kind)(config).double().eval()


@pytest.mark.parametrize(
    ("kind", "options", "is_distribution"),
    [
        ("BertForSequenceClassification", {"num_labels": 3}, True),
        ("BertForTokenClassification", {"num_labels": 3}, True),
        ("BertForSequenceClassification", {"num_labels": 1}, False),  # a number, which has no distribution
        ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}, False),
        ("BertForQuestionAnswering", {}, False),
        ("ElectraForPreTraining", {}, False),  # a number for each token
    ],
)
def test_logits_that_are_no_distribution_leave_the_hidden_states_to_be_compared(kind, options, is_distribution):
    model = with_head(kind, **options)
    assert has_distribution(model) is is_distribution
    found = ablate_heads(model, adapter_for(model), three_texts())
    assert found.measure == ("output_divergence" if is_distribution else "output_change")
    assert (found.values > 0.0).all()


def test_layers_that_share_a_module_are_silenced_one_at_a_time():
    model = small_model("albert in two groups", torch.float64)
    found = ablate_heads(model, adapter_for(model), three_texts())
    values = found.values
    assert values.shape == (4, 4)
    assert len(np.unique(values.round(12))) == values.size


def test_a_model_is_left_as_it_was_and_a_probe_names_the_heads_that_change_least():
    model = tiny_bert()
    before = output_of(model, next(encoded(model).batches()))
    result = probe_model(model, encoded(model), ProbeSettings(ablation=True))
    assert torch.equal(before, output_of(model, next(encoded(model).batches())))
    assert np.isfinite(result["output_change"]).all()
    layer, head = divmod(int(np.argmin(result["output_change"])), 2)
    page = probe_page(result)
    assert f"L{layer}H{head}" in page
    assert "the least missed head" in page
    assert "output_change" not in probe_model(model, encoded(model)).measures


def test_without_an_adapter_nothing_is_silenced():
    model = small_model("bert", torch.float64)
    with pytest.raises(InputError, match="takes an adapter"):
        ablate_heads(model, AttentionOnlyAdapter(model), three_texts())
