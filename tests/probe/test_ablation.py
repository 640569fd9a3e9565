"""Silencing a head is to zero the columns of the map that reads it, and the probe ranks heads by what their absence changes."""

import copy

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe import ProbeSettings, probe_model, probe_page
from marginlens.probe.ablation import ablate_heads
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.adapters.attention_only import AttentionOnlyAdapter
from marginlens.probe.models.inputs import TextInputs
from tiny_families import small_model
from tiny_transformers import encoded, tiny_bert

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SAME = 1e-10
JOINING = {  # name → where the map that joins the heads of each layer is
    "bert": lambda model: [layer.attention.output.dense for layer in model.encoder.layer],
    "llama": lambda model: [layer.self_attn.o_proj for layer in model.model.layers],
    "opt": lambda model: [layer.self_attn.out_proj for layer in model.model.decoder.layers],
    "gpt_neox": lambda model: [layer.attention.dense for layer in model.layers],
    "deberta-v2": lambda model: [layer.attention.output.dense for layer in model.encoder.layer],
}


def texts():
    rng = np.random.default_rng(1)
    ids = tuple(tuple(rng.integers(3, 40, n).tolist()) for n in (9, 9, 6))
    return TextInputs(tuple(map(str, ids)), ids, tuple(tuple(map(str, row)) for row in ids), 0, 16, 0)


def output_of(model, batch):
    with torch.no_grad():
        output = model(**{name: torch.as_tensor(value) for name, value in batch.inputs.items()})
    return output.logits.log_softmax(-1) if hasattr(output, "logits") else output.last_hidden_state


@pytest.mark.parametrize("name", JOINING)
def test_a_silent_head_is_one_whose_columns_of_the_joining_map_are_zero(name):
    model, data = small_model(name, torch.float64), texts()
    found = ablate_heads(model, adapter_for(model), data)
    width = 24 // 4
    for layer, head in ((0, 0), (2, 3)):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            JOINING[name](changed)[layer].weight[:, head * width : (head + 1) * width] = 0
        parts = []
        for batch in data.batches():
            p, q = output_of(model, batch), output_of(changed, batch)
            real = torch.as_tensor(batch.inputs["attention_mask"]).bool()
            is_distribution = name in ("llama", "opt")
            apart = (p.exp() * (p - q)).sum(-1) if is_distribution else (p - q).norm(dim=-1) / p.norm(dim=-1)
            parts.append(apart[real])
        values = found.divergence if is_distribution else found.change
        assert values[layer, head] == pytest.approx(float(torch.cat(parts).mean()), rel=SAME)
        assert values[layer, head] > 1e-6
        other = found.change if is_distribution else found.divergence
        assert np.isnan(other).all()


def test_layers_that_share_a_module_are_silenced_one_at_a_time():
    model = small_model("albert in two groups", torch.float64)
    found = ablate_heads(model, adapter_for(model), texts())
    values = found.divergence
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
    assert "changes least without" in page
    assert "output_change" not in probe_model(model, encoded(model)).measures


def test_without_an_adapter_nothing_is_silenced():
    model = small_model("bert", torch.float64)
    with pytest.raises(InputError, match="takes an adapter"):
        ablate_heads(model, AttentionOnlyAdapter(model), texts())
