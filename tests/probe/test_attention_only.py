"""Models without an adapter: the measures of their attention are those that an adapter reads, and the result says why W is missing."""

import numpy as np
import pytest

from marginlens.probe import (
    ProbeSettings,
    encode_texts,
    probe_model,
    probe_page,
    read_attention,
    register_adapter,
    select_tokens,
)
from marginlens.probe.models.adapters import _REGISTERED, adapter_for
from marginlens.probe.models.adapters.attention_only import AttentionOnlyAdapter
from marginlens.probe.models.adapters.encoders import BertAdapter
from marginlens.words import Fact
from refusals import refused
from tiny_families import batch_for, small_model
from tiny_transformers import TEXT, drawn, encoded

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TWO_HEADS = {**TEXT, "num_attention_heads": 2}
SAME = 1e-9  # of logits and their logarithms, in float64


@pytest.fixture(scope="module")
def ernie():
    """A model whose family has no adapter; its layers are BERT's."""
    return drawn("Ernie", TWO_HEADS)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "swin"])
def test_attention_only_reading_equals_an_adapters(name):
    dtype = torch.float32 if name == "swin" else torch.float64
    model, batch = small_model(name, dtype), batch_for(name, dtype, "right")
    plain = AttentionOnlyAdapter(model)
    found = list(plain.readings(dict(batch)))
    read = {adapter_for(model).layer_names[one.layer]: one for one in read_attention(model, batch)}
    if name == "swin":  # whose output has the last map of each stage
        assert [len(one.attention) for one in found] == [3 * 4, 3]
        return
    assert len(found) == len(read)
    for reading in found:
        theirs = read[plain.layer_names[reading.layer]]
        assert torch.equal(reading.visible, theirs.visible)
        assert reading.kind is theirs.kind
        visible = theirs.visible.numpy()
        ours, expected = (select_tokens(one.logits.double().numpy(), visible) for one in (reading, theirs))
        assert np.array_equal(ours.selected, expected.selected)
        known = np.isfinite(expected.margin)
        tolerance = SAME if name in ("bert", "t5") else 1e-3  # a softmax in float32 rounds small probabilities
        assert (
            np.abs(ours.margin[known] - expected.margin[known]).max()
            <= tolerance * np.abs(expected.margin[known]).max()
        )


def test_a_probe_of_attention_only_has_a_reason_for_no_w(ernie):
    result = probe_model(ernie, encoded(ernie), ProbeSettings(max_margin=True))
    assert result.weights_missing == "the model family 'ernie' has no adapter"
    (note,) = (note for note in result.notes if note.code == "note.weights_not_read")
    assert note.numbers["guide"] == "docs/adapters.md"
    assert np.isnan(result["frobenius"]).all()
    assert not result.has_max_margin
    for name in (
        "nnz",
        "entropy",
        "top_probability",
        "negligible_share",
        "sink_share",
        "decisive_share",
        "margin_median",
    ):
        assert np.isfinite(result[name]).all(), name
    assert len(result.examples) > 0
    assert "W is not read" in probe_page(result)


def test_cross_attention_inside_one_model_is_measured():
    alone = small_model("bert decoder", torch.float64)
    assert "note.without_cross" in [note.code for note in probe_model(alone, encoded(alone)).notes]
    encoder = small_model("bert", torch.float64).config
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, alone.config)
    config.decoder_start_token_id = config.pad_token_id = 0
    with torch.random.fork_rng():
        both = transformers.EncoderDecoderModel(config).double().eval()
    inputs = encode_texts(["the cat sat", "a dog barked at it"], letters(), both.config)
    result = probe_model(both, inputs)
    assert result.layer_names == tuple(f"{tower} {k}" for tower in ("encoder", "decoder", "cross") for k in range(3))
    assert np.isfinite(result["sink_share"]).all()
    assert "note.without_cross" not in [note.code for note in result.notes]


def letters():
    """A tokenizer of words by their lengths."""

    class ByLength:
        pad_token_id, model_max_length = 0, 99

        def __call__(self, texts, **options):
            return {"input_ids": [[3 + len(word) for word in text.split()] for text in texts]}

        def convert_ids_to_tokens(self, ids):
            return [f"{token - 3} letters" for token in ids]

    return ByLength()


def with_normalised_queries():
    """A Phi that normalises queries and keys, norms and all other weights away from where they begin."""
    return shaken(drawn("Phi", {**TWO_HEADS, "qk_layernorm": True}))


def with_relative_positions():
    """A BERT that says of itself that its logits have relative positions."""
    model = shaken(drawn("Bert", TWO_HEADS))
    model.config.position_embedding_type = "relative_key"
    return model


def shaken(model):
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_normalised_queries, Fact("no_weights.normalised")),
        (with_relative_positions, Fact("no_weights.positions", {"kind": "relative_key"})),
    ],
)
def test_a_model_with_other_logits_than_its_family_has_no_w(make, reason):
    model = make()
    result = probe_model(model, encoded(model), ProbeSettings(max_margin=True, offset=1))
    assert result.weights_missing == str(reason)
    assert sum(note.numbers.get("reason") == reason for note in result.notes) == 1
    assert np.isnan(result["frobenius"]).all()
    batch = next(encoded(model).batches())
    with torch.no_grad():
        inputs = {name: torch.as_tensor(value) for name, value in batch.inputs.items()}
        own = model(**inputs, output_attentions=True).attentions
    for reading in read_attention(model, batch.inputs):
        assert float(own[reading.layer].std()) > 0.02
        assert torch.equal(reading.attention, own[reading.layer])


@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention"])
def test_fused_attention_is_disabled_during_a_probe(implementation, ernie):
    expected = probe_model(ernie, encoded(ernie))
    ernie.set_attn_implementation(implementation)
    try:
        found = probe_model(ernie, encoded(ernie))
        assert ernie.config._attn_implementation == implementation
    finally:
        ernie.set_attn_implementation("eager")
    assert np.array_equal(found["nnz"], expected["nnz"])


def test_a_user_adapter_takes_precedence(ernie):
    class ErnieAdapter(BertAdapter):
        families = ("ernie",)

    without = probe_model(ernie, encoded(ernie))
    try:
        assert register_adapter(ErnieAdapter) is ErnieAdapter
        result = probe_model(ernie, encoded(ernie))
    finally:
        _REGISTERED.remove(ErnieAdapter)
    assert np.isfinite(result["frobenius"]).all()
    assert result.weights_missing == ""
    for name in ("nnz", "negligible_share", "margin_median", "self_share"):
        assert np.allclose(result[name], without[name], rtol=0.01 if name == "margin_median" else 1e-9, atol=0.0), name


@pytest.mark.parametrize("given", [BertAdapter.families, type("Nameless", (BertAdapter,), {"families": ()})])
def test_an_invalid_adapter_is_refused(given):
    with refused("adapter"):
        register_adapter(given)
