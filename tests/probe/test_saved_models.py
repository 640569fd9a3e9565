"""A model of every family, saved to a folder and loaded from there, has the numbers that it has in memory."""

import numpy as np
import pytest

from marginlens.probe import ProbeSettings, probe_model, read_attention
from marginlens.probe.models.inputs import prepare_images
from marginlens.probe.models.loading import load_model
from tiny_families import IMAGES, MODELS, batch_for, small_model, three_texts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def silent():
    """Without the bars of transformers."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(level)
    logging.enable_progress_bar()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_has_the_numbers_of_the_one_in_memory(name, tmp_path):
    model = small_model(name, torch.float32)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    if name == "whisper":  # which reads sound, from Python
        batch = batch_for(name, torch.float32)
        pairs = zip(read_attention(model, batch), read_attention(loaded.model, batch), strict=True)
        for before, after in pairs:
            assert torch.equal(before.attention, after.attention)
        return
    inputs = three_texts()
    if name in IMAGES:
        inputs = prepare_images(batch_for(name, torch.float32)["pixel_values"].numpy(), loaded.images)
    settings = ProbeSettings(offset=1, examples=1)
    before, after = probe_model(model, inputs, settings), probe_model(loaded, inputs, settings)
    assert before.layer_names == after.layer_names
    assert before.notes == after.notes
    for measure, values in before.measures.items():
        assert np.array_equal(values, after[measure], equal_nan=True), measure


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gpt2", "GPT2LMHeadModel"), ("vit", "ViTForImageClassification"), ("t5 encoder", "T5EncoderModel")],
)
def test_a_model_is_loaded_as_it_was_saved(name, kind, tmp_path):
    small_model(name, torch.float32).save_pretrained(tmp_path)
    assert type(load_model(tmp_path).model).__name__ == kind


def test_a_class_that_transformers_does_not_know_is_loaded_as_its_family(tmp_path):
    class Mine(transformers.BertModel):
        pass

    model = Mine(small_model("bert", torch.float32).config)
    model.save_pretrained(tmp_path)
    assert type(load_model(tmp_path).model) is transformers.BertModel


def test_a_head_without_weights_is_left_out(tmp_path):
    from safetensors.torch import load_file, save_file

    model = small_model("vit", torch.float32)
    model.save_pretrained(tmp_path)
    weights = {
        name: weight for name, weight in load_file(tmp_path / "model.safetensors").items() if "classifier" not in name
    }
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert type(load_model(tmp_path).model) is transformers.ViTModel
