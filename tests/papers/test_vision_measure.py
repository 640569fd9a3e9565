"""What is measured of a vision transformer, against the model's own attention and against one head at a time."""

import numpy as np
import pytest
import torch

from marginlens.probe.models.adapters.vision import ViTAdapter
from marginlens_papers.claims.a.cls_attention import cls_attention, key_query_norms
from marginlens_papers.claims.a.vision_runs import VisionSettings
from marginlens_papers.claims.a.vision_training import LabelledImages, vision_transformer
from tolerances import ROUNDING

SINGLE = 1e-5  # float32 attention, averaged: two ways to add the same numbers
DOUBLE = 1e-10  # norms in float64 from Gram matrices against QR factors, relative

SETTINGS = VisionSettings(width=12, layers=3, heads=3, mlp=8, patch=2, spread=0.4, seed=3)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (70, 8, 8, 3), dtype=np.uint8)
    return LabelledImages("made up", x, np.arange(70) % 4, x, np.arange(70) % 4, ("a", "b", "c", "d"))


@pytest.fixture(scope="module")
def model(images):
    return vision_transformer(SETTINGS, images)


@pytest.fixture(scope="module")
def pixels(images):
    return torch.from_numpy(images.x_test).permute(0, 3, 1, 2).float() / 255.0


@pytest.mark.statement("A Fig 6", "A Fig 7")
def test_sparsity_equals_that_of_the_models_cls_rows(model, pixels):
    found = cls_attention(model, pixels, n_chosen=66)  # more than are read at once
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(pixel_values=pixels, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    assert len(attentions) == 3
    for layer, attention in enumerate(attentions):
        rows = attention[:, :, 0, :].double().numpy()
        s = rows.mean(axis=1)[:, 1:]
        s /= s.sum(axis=1, keepdims=True)
        heads = rows[:, :, 1:] / rows[:, :, 1:].sum(axis=2, keepdims=True)
        assert found.sparsity[layer] == pytest.approx(np.mean(1.0 / (16 * (s**2).sum(axis=1))), abs=SINGLE, rel=0.0)
        assert found.head_sparsity[layer] == pytest.approx(
            np.mean(1.0 / (16 * (heads**2).sum(axis=2))), abs=SINGLE, rel=0.0
        )
        assert found.own_share[layer] == pytest.approx(rows[:, :, 0].mean(), abs=SINGLE, rel=0.0)
    assert found.head_sparsity[-1] < found.sparsity[-1] - 0.01  # the mean over heads is denser than a head
    assert found.maps.shape == (66, 16)
    assert np.abs(found.maps - s[:66]).max() < SINGLE


@pytest.mark.statement("A Fig 7")
def test_norms_equal_those_of_the_head_matrices(model):
    norm, norm_of_sum = key_query_norms(model)
    adapter = ViTAdapter(model)
    for layer in range(3):
        heads = [adapter.key_query(layer, head) for head in range(3)]
        assert norm[layer] == pytest.approx(np.sqrt(sum(one.frobenius**2 for one in heads)), rel=DOUBLE, abs=ROUNDING)
        whole = np.linalg.norm(sum(one.matrix for one in heads))
        assert norm_of_sum[layer] == pytest.approx(whole, rel=DOUBLE, abs=ROUNDING)
        assert abs(norm[layer] - norm_of_sum[layer]) > 1e-3


@pytest.mark.statement("A Fig 6")
def test_maps_follow_the_layout_of_image_patches(images):
    """A head whose keys are the brightness of a patch attends to the one bright patch, which is in row 1 and column 2."""
    settings = VisionSettings(width=4, layers=1, heads=1, mlp=4, patch=2)
    model = vision_transformer(settings, images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        vit = model.vit
        vit.embeddings.patch_embeddings.projection.weight[0] = 1.0  # brightness along the first axis
        vit.embeddings.cls_token[0, 0, 1] = 1.0
        ViTAdapter(model).attention_module(0).q_proj.weight[0, 1] = 10.0
        ViTAdapter(model).attention_module(0).k_proj.weight[0, 0] = 10.0
        for name, parameter in model.named_parameters():
            if "layernorm_before.weight" in name:
                parameter.fill_(1.0)
    pixels = torch.zeros(1, 3, 8, 8)
    pixels[0, :, 2:4, 4:6] = 1.0
    s = cls_attention(model, pixels, 1).maps[0].reshape(4, 4)
    assert s[1, 2] > 0.99
