"""The difference of two models beside the probes of both, and maps by hand; its page, and what is refused."""

import json

import numpy as np
import pytest

from marginlens.probe import ProbeSettings, compare_models, difference_page, probe_model
from refusals import refused
from tiny_transformers import encoded, tiny_bert, tiny_gpt2, tiny_llama, tiny_vit

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROUNDING = 1e-9
SINGLE = 1e-6  # two runs of a model in float32


@pytest.fixture(scope="module")
def found():
    return compare_models(tiny_gpt2(seed=0), tiny_gpt2(seed=1), encoded(tiny_gpt2()))


def test_differences_equal_those_of_two_probes():
    model, other = tiny_gpt2(seed=0), tiny_gpt2(seed=1)
    inputs, settings = encoded(model), ProbeSettings(max_margin=True)
    found = compare_models(model, other, inputs, settings)
    probes = [probe_model(network, inputs, settings) for network in (model, other)]
    assert {"entropy", "relative_nnz", "frobenius", "correlation", "sink_share"} <= set(found.measures)
    for name in set(found.measures) - {"total_variation"}:
        np.testing.assert_allclose(
            found[name], probes[0][name] - probes[1][name], rtol=0.0, atol=ROUNDING, err_msg=name
        )
    moved, n_queries = 0.0, 0
    for ids in inputs.ids:
        with torch.no_grad():
            one, two = (
                np.stack(
                    [maps[0] for maps in network(input_ids=torch.tensor([ids]), output_attentions=True).attentions]
                )
                for network in (model, other)
            )
        moved = moved + 0.5 * np.abs(one - two)[:, :, 1:].sum(axis=(2, 3))  # the first query sees one token
        n_queries += len(ids) - 1
    np.testing.assert_allclose(found["total_variation"], moved / n_queries, rtol=0.0, atol=SINGLE)
    assert 0.0 < found["total_variation"].min() <= found["total_variation"].max() < 1.0


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])
def test_a_model_has_no_difference_from_itself(make):
    model = make()
    found = compare_models(model, make(), encoded(model))
    assert all(not np.nan_to_num(values).any() for values in found.measures.values())
    assert [finding.code for finding in found.findings()] == ["difference.none"]


def test_fused_attention_is_disabled_during_a_comparison():
    model, fused = tiny_gpt2(), tiny_gpt2(seed=1)
    expected = compare_models(model, fused, encoded(model))["total_variation"]
    fused.set_attn_implementation("sdpa")
    np.testing.assert_array_equal(compare_models(model, fused, encoded(model))["total_variation"], expected)
    assert fused.config._attn_implementation == "sdpa"


def test_a_changed_head_has_the_largest_difference():
    model, other = tiny_bert(), tiny_bert()
    with torch.no_grad():
        layer = other.encoder.layer[1].attention.self
        layer.key.weight[: layer.attention_head_size] *= -3.0  # head 0 of the last layer
    found = compare_models(model, other, encoded(model))
    assert found.changed_heads(1) == [(1, 0)]
    assert np.flatnonzero(found["total_variation"]).tolist() == [2]
    assert np.flatnonzero(np.abs(found["frobenius"]) > ROUNDING).tolist() == [2]
    assert found["frobenius"][1, 0] < 0.0  # `model` minus `against`, whose norm is larger
    assert [row["head"] for row in found.rows(2)] == ["L1H0", "L0H0"]
    assert found.findings()[0].numbers["heads"][0].numbers["head"] == "L1H0"


def test_a_difference_has_displays_and_frames(found):
    frame = found.to_frame()
    assert len(frame) == found.n_layers * found.n_heads
    assert {"layer", "head", "total_variation", "entropy"} <= set(frame.columns)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["changed_heads"][0] == list(
        found.changed_heads(1)[0]
    )
    np.testing.assert_array_equal(found.plot(measure="entropy").images[0].get_array(), found["entropy"])
    assert "against" in repr(found)


def test_images_are_compared_too():
    from marginlens.probe import ImageSettings, prepare_images

    rng = np.random.default_rng(0)
    pictures = prepare_images(rng.integers(0, 255, (4, 6, 6), dtype=np.uint8), ImageSettings(1, 6, 6, (2, 2)))
    found = compare_models(tiny_vit(seed=0), tiny_vit(seed=1), pictures)
    assert np.isfinite(found["total_variation"]).all()


def test_the_page_has_the_numbers_of_both_models(found):
    text = difference_page(found)
    data = json.loads(text.split('id="difference">')[1].split("</script>")[0])
    assert data["start"] == list(found.changed_heads(1)[0])
    (entropy,) = (measure for measure in data["measures"] if measure["name"] == "entropy")
    for name in ("probed", "against"):
        np.testing.assert_allclose(np.array(entropy[name]), getattr(found, name)["entropy"], rtol=1e-5, atol=0.0)
    assert "The heads that changed most" in text


def test_models_of_two_architectures_are_refused():
    model = tiny_bert()
    with refused("against") as caught:
        compare_models(model, tiny_gpt2(), encoded(model))
    assert "bert with 2 layers" in caught.value.expected
    assert "gpt2 with 2 layers" in caught.value.got
    smaller = tiny_bert()
    smaller.config.vocab_size = 3
    with refused("against"):
        compare_models(model, smaller, encoded(model))
