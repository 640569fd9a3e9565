"""Reading attention: what it refuses, what it leaves behind, and that layers come one at a time."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe.models.adapters import adapter_for, check_family, supported_families
from marginlens.probe.models.adapters.base import hidden_by
from marginlens.probe.models.reading import InputBatch, batch_size, read_attention

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8}
SINGLE = 1e-5  # relative, between rows of one batch in float32
TEXT = {**SIZES, "vocab_size": 20, "max_position_embeddings": 16}


def bert(implementation: str = "eager") -> Any:
    config = transformers.BertConfig(**TEXT)
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return transformers.BertModel(config).eval()


def batch(n_inputs: int = 2, seed: int = 0) -> dict[str, Any]:
    return {"input_ids": np.random.default_rng(seed).integers(1, 20, (n_inputs, 5))}


# ---- what is refused


def test_a_family_without_an_adapter_names_the_supported_ones_and_the_guide() -> None:
    model = transformers.OPTModel(
        transformers.OPTConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=8,
            vocab_size=20,
            word_embed_proj_dim=8,
            max_position_embeddings=8,
        )
    )
    message = rf"The model family 'opt' has no adapter: .*{', '.join(supported_families())}, and docs/adapters\.md says in five steps"
    with pytest.raises(InputError, match=message):
        adapter_for(model)


def test_models_that_normalise_queries_are_refused_by_name() -> None:
    config = transformers.Qwen3Config(**TEXT, num_key_value_heads=1, head_dim=4)
    with pytest.raises(InputError, match=r"The model family 'qwen3' has no adapter \(it normalises queries and keys"):
        adapter_for(transformers.Qwen3Model(config))


def test_models_that_cap_their_logits_are_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"The model family 'gemma2' has no adapter \(it caps its logits, so a logit is"
    ):
        check_family(transformers.Gemma2Config())


def test_a_llama_with_normalised_queries_is_refused() -> None:
    config = transformers.LlamaConfig(**TEXT)
    config._attn_implementation = "eager"
    model = transformers.LlamaModel(config)
    model.layers[1].self_attn.q_norm = torch.nn.LayerNorm(4)
    with pytest.raises(InputError, match="whose queries are linear in its inputs; got one that normalises"):
        adapter_for(model)


def test_hidden_attention_says_how_to_load_the_model() -> None:
    message = re.escape(
        "attn_implementation='sdpa', which hides it instead. "
        'Load it with attn_implementation="eager", or call model.set_attn_implementation("eager").'
    )
    model = bert("sdpa")
    with pytest.raises(InputError, match=message):
        read_attention(model, batch())
    model.set_attn_implementation("eager")
    assert len(list(read_attention(model, batch()))) == 3


def test_relative_positions_are_refused() -> None:
    model = bert()
    model.config.position_embedding_type = "relative_key"
    with pytest.raises(InputError, match="positions are part of its inputs; got one with 'relative_key' positions"):
        adapter_for(model)


@pytest.mark.parametrize("model", [object(), torch.nn.Linear(2, 2)], ids=["object", "module"])
def test_what_is_not_a_hugging_face_model(model: Any) -> None:
    with pytest.raises(InputError, match="must be a loaded Hugging Face model; got"):
        adapter_for(model)


def test_a_model_inside_a_wrapper_is_pointed_at() -> None:
    with pytest.raises(InputError, match=r"got DataParallel instead\. Pass the model that it holds as \.module\.$"):
        adapter_for(torch.nn.DataParallel(bert()))


def test_unusable_layers_heads_and_batches() -> None:
    model = bert()
    with pytest.raises(InputError, match="The 'layer' argument must be a layer from 0 to 2; got 3 instead"):
        read_attention(model, batch(), layers=[0, 3])
    with pytest.raises(InputError, match="The 'head' argument must be a head from 0 to 1; got 2 instead"):
        adapter_for(model).key_query(0, 2)
    with pytest.raises(InputError, match="The 'batch' argument must be a mapping with input_ids"):
        read_attention(model, {"attention_mask": np.ones((1, 2))})
    with pytest.raises(InputError, match="must be whole inputs; got past_key_values instead"):
        read_attention(model, {**batch(), "past_key_values": ()})
    with pytest.raises(
        InputError, match=r"mask \(B, T\) of ones and zeros, or one that is added to logits; got torch.bool"
    ):
        read_attention(model, {**batch(), "attention_mask": np.ones((2, 1, 5, 5), dtype=bool)})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"input_ids": [[1, 2, 3], [1, 2]]}, r"numbers of one shape under 'input_ids'; got .* Pad texts to one length"),
        ({"input_ids": [[1, 2]], "adapter_names": ["one"]}, "numbers of one shape under 'adapter_names'"),
        ({"input_ids": [1, 2, 3]}, r"input_ids of shape \(n_inputs, n_tokens\), none of them 0; got shape \(3,\)"),
        ({"input_ids": np.zeros((2, 0), dtype=int)}, r"none of them 0; got shape \(2, 0\)"),
        (
            {"inputs_embeds": np.zeros((0, 5, 8))},
            r"\(n_inputs, n_tokens, d_model\), none of them 0; got shape \(0, 5, 8\)",
        ),
    ],
)
def test_batches_that_are_no_arrays_of_inputs(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_attention(bert(), given)


def test_rotary_models_have_no_matrix_without_an_offset() -> None:
    config = transformers.LlamaConfig(**TEXT)
    config._attn_implementation = "eager"
    adapter = adapter_for(transformers.LlamaModel(config))
    with pytest.raises(
        InputError, match=r"The 'offset' argument .* a key-query matrix for each offset but none that is free"
    ):
        adapter.key_query(0, 0)
    with pytest.raises(InputError, match=r"The 'offset' argument must be a whole number of positions; got 1\.5"):
        adapter.key_query(0, 0, 1.5)  # type: ignore[arg-type]
    assert adapter.key_query(0, 0, 0).matrix.shape == (8, 8)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_frequencies_that_change_with_the_length_have_no_matrix_but_a_reading(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 100.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0], "original_max_position_embeddings": 8}
    config = transformers.LlamaConfig(**TEXT, rope_parameters=rope)
    config._attn_implementation = "eager"
    model = transformers.LlamaModel(config).eval()
    with pytest.raises(InputError, match="frequencies stay the same; got the rotary type " + repr(kind)):
        adapter_for(model).key_query(0, 0, 1)
    assert len(list(read_attention(model, batch()))) == 3


# ---- what it does


def test_the_model_is_left_as_it_was_found() -> None:
    model = bert().train()
    model.encoder.layer[1].eval()
    before = [module.training for module in model.modules()]
    readings = list(read_attention(model, batch()))
    again = list(read_attention(model, batch()))
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(a.attention, b.attention) for a, b in zip(readings, again, strict=True)), "dropout was on"
    assert not readings[0].attention.requires_grad
    assert torch.is_grad_enabled()


def test_a_model_that_fails_is_left_without_hooks() -> None:
    model = bert()
    with pytest.raises(IndexError):
        read_attention(model, {"input_ids": np.full((1, 3), 99)})
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_gradients_between_two_readings_are_the_callers() -> None:
    for _ in read_attention(bert(), batch()):
        assert torch.is_grad_enabled()


def test_layers_come_in_the_order_asked_and_the_rest_is_not_run() -> None:
    model, calls = bert(), []
    for place, layer in enumerate(model.encoder.layer):
        layer.attention.self.register_forward_hook(lambda *_, place=place: calls.append(place))
    everything = {reading.layer: reading for reading in read_attention(model, batch())}
    assert calls == [0, 1], "the last layer needs its inputs only"
    calls.clear()
    chosen = list(read_attention(model, batch(), layers=[1, 0, 1, 1]))
    assert calls == [0]
    assert [reading.layer for reading in chosen] == [1, 0, 1, 1]
    for reading in chosen:
        assert torch.equal(reading.attention, everything[reading.layer].attention)
    assert list(read_attention(model, batch(), layers=[])) == []


def test_several_threads_read_one_model() -> None:
    model, batches = bert(), [batch(4, seed) for seed in range(40)]

    def logits(one: dict[str, Any]) -> list[Any]:
        return [reading.logits for reading in read_attention(model, one)]

    one_by_one = [logits(one) for one in batches]
    with ThreadPoolExecutor(4) as pool:
        for ours, expected in zip(pool.map(logits, batches), one_by_one, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_labels_and_output_options_are_not_the_base_models() -> None:
    readings = list(read_attention(bert(), {**batch(), "labels": np.zeros(2, dtype=int), "output_attentions": True}))
    assert repr(readings[0]) == "LayerReading(layer 0: 2 inputs, 2 heads, 5 tokens)"


def test_a_token_that_one_head_hides_from_itself_is_no_padding() -> None:
    mask = torch.zeros((1, 2, 5, 5))
    mask[:, 0, 2, 2] = mask[:, 1, 3, 1] = mask[:, :, 4, 0] = mask[:, :, :, 3] = torch.finfo(torch.float32).min
    for reading in read_attention(bert(), {**batch(1), "attention_mask": mask}, layers=[0, 1]):
        expected = torch.ones((5, 5), dtype=torch.bool)
        expected[:, 3] = expected[3] = expected[4, 0] = False  # token 3 does not see itself in any head: it is padding
        assert torch.equal(reading.visible[0], expected)
        assert (reading.attention[0, :, 2, 2] > 0.0).tolist() == [False, True]


@pytest.mark.parametrize("made", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_lowest_number_hides_a_token_and_what_a_bias_may_hold_does_not(made: Any) -> None:
    lowest = torch.finfo(made).min
    assert hidden_by(torch.tensor([lowest, -math.inf, -1e4, 0.0], dtype=made)).tolist() == [True, True, False, False]
    if made is torch.bfloat16:  # a mask made in half precision and used in single
        assert bool(hidden_by(torch.tensor([lowest], dtype=made).float()).all())


def test_what_stands_in_the_padding_does_not_move_the_bound_of_ties() -> None:
    ids, mask = np.tile(batch(1)["input_ids"], (19, 1)), np.ones((19, 5), dtype=np.int64)
    ids[:, 3:], mask[:, 3:] = np.arange(1, 20)[:, None], 0
    reading = next(read_attention(bert(), {"input_ids": ids, "attention_mask": mask}))
    lengths = reading.keys.norm(dim=-1)
    assert bool((lengths[:, :, 3:].amax() > lengths[:, :, :3].amax()).all())
    found = reading.rounding[:, :, :3]
    assert torch.allclose(found, found[:1].expand_as(found), rtol=SINGLE, atol=0.0)


def test_images_take_the_models_precision() -> None:
    config = transformers.ViTConfig(**SIZES, image_size=4, patch_size=2)
    config._attn_implementation = "eager"
    model = transformers.ViTModel(config).double().eval()
    reading = next(read_attention(model, {"pixel_values": np.zeros((1, 3, 4, 4), dtype=np.float32)}))
    assert reading.inputs.dtype == torch.float64


def test_batches_stay_within_memory() -> None:
    assert [batch_size(n) for n in (1, 10, 128, 512, 724, 5000)] == [1024, 102, 8, 2, 1, 1]
    made = InputBatch(np.arange(2), batch(), (("a",), ("b",)))
    assert len(made.index) == len(made.tokens) == 2
