"""Probing on a GPU gives the numbers that the CPU gives: measures, norms, from Python and from the command line."""

import numpy as np
import pytest

from marginlens.probe import ProbeSettings, load_model, probe_model
from marginlens.probe.models.inputs import TextInputs, prepare_images
from one_command import command
from tiny_families import IMAGES, batch_for, small_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

RTOL, ATOL = 1e-4, 1e-5  # the families of which most take their softmax in float32
FAMILIES = ["bert", "gpt2", "llama", "qwen3", "gemma2", "deberta-v2", "bloom", "t5", "bart", "vit", "swin"]


def three_texts():
    rng = np.random.default_rng(1)
    ids = tuple(tuple(rng.integers(3, 40, n).tolist()) for n in (9, 9, 6))
    return TextInputs(tuple(map(str, ids)), ids, tuple(tuple(map(str, row)) for row in ids), 0, 16, 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_probe_on_the_gpu_has_the_numbers_of_the_cpu(name, tmp_path):
    small_model(name, torch.float64).save_pretrained(tmp_path)
    settings = ProbeSettings(offset=1, max_margin=True)
    results = []
    for device in ("cpu", "cuda"):
        loaded = load_model(tmp_path, device=device)
        assert loaded.model.device.type == device
        inputs = three_texts()
        if name in IMAGES:
            inputs = prepare_images(batch_for(name, torch.float64)["pixel_values"].numpy(), loaded.images)
        results.append(probe_model(loaded, inputs, settings))
    cpu, gpu = results
    for measure, values in cpu.measures.items():
        if measure != "residual":  # of a solver, at rounding
            assert np.allclose(gpu[measure], values, rtol=RTOL, atol=ATOL, equal_nan=True), measure


def test_the_command_line_runs_on_the_given_device(tmp_path):
    small_model("vit", torch.float32).save_pretrained(tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    _, numbers = command("probe")
    asked = (tmp_path / "model", "--images", tmp_path / "images.npy", "--no-max-margin", "--quiet")
    cpu, gpu = (numbers(*asked, "--device", device)["measures"]["nnz"] for device in ("cpu", "cuda"))
    assert np.allclose(cpu, gpu, rtol=1e-2, atol=0.0)  # convolutions round to ten bits there
