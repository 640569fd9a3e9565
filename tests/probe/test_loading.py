"""Loading models: folders only, safetensors only unless asked, one sentence for whatever is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe import ProbeSettings, probe_model
from marginlens.probe.models.inputs import prepare_images
from marginlens.probe.models.loading import load_model
from marginlens.probe.models.reading import read_attention
from refusals import refused
from tiny_families import IMAGES, MODELS, batch_for, small_model, three_texts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
load_file, save_file = safetensors.load_file, safetensors.save_file
WEIGHTS = "model.safetensors"
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def saved_bert(folder: Path, dtype: Any = None) -> Any:
    torch.manual_seed(1)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, vocab_size=9, max_position_embeddings=16)).to(
        dtype or torch.float32
    )
    model.save_pretrained(folder)
    return model


def test_a_saved_vit_is_loaded_with_its_image_settings(tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_channels=1, num_labels=10)
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(tmp_path / "epoch-3")
    facts = {"image_mean": [0.1], "image_std": [0.4], "rescale_factor": 0.0625}
    (tmp_path / "epoch-3" / "preprocessor_config.json").write_text(json.dumps(facts))
    loaded = load_model(tmp_path / "epoch-3")
    assert repr(loaded) == "LoadedModel(epoch-3: ViTForImageClassification)"
    assert loaded.tokenizer is None
    assert loaded.images is not None
    assert (loaded.images.channels, loaded.images.height, loaded.images.width) == (1, 8, 8)
    pixels = prepare_images(np.full((1, 8, 8), 16, dtype=np.uint8), loaded.images).pixel_values
    assert np.allclose(pixels, (16 * 0.0625 - 0.1) / 0.4, rtol=1e-6, atol=0.0)
    assert not loaded.model.training
    pixels = {"pixel_values": np.random.default_rng(0).normal(size=(2, 1, 8, 8))}
    model.set_attn_implementation("eager")
    for ours, own in zip(read_attention(loaded.model, pixels), read_attention(model, pixels), strict=True):
        assert torch.equal(ours.attention, own.attention)


@pytest.mark.parametrize(("stored", "read"), [("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_half_precision_models_are_loaded_in_single(tmp_path: Path, stored: str, read: str) -> None:
    saved_bert(tmp_path, getattr(torch, stored))
    assert load_model(tmp_path).model.dtype == getattr(torch, read)


class _Opens:
    """What a hostile pickle would do: open a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def hostile(folder: Path) -> None:
    pickled(folder)
    torch.save({"x": _Opens(str(folder / "ran"))}, folder / "pytorch_model.bin")


def beside_other_tensors(folder: Path) -> None:
    pickled(folder)
    save_file({"x": torch.ones(2)}, folder / "optimizer.safetensors")


def pointing(outside: str) -> Callable[[Path], None]:
    """An index of weights in several files, one of which lies elsewhere."""

    def spoil(folder: Path) -> None:
        load_model(folder).model.save_pretrained(folder, max_shard_size="2KB")
        (folder / WEIGHTS).unlink(missing_ok=True)
        load_model(folder)
        index = folder / f"{WEIGHTS}.index.json"
        facts = json.loads(index.read_text())
        facts["weight_map"][next(iter(facts["weight_map"]))] = outside
        index.write_text(json.dumps(facts))

    return spoil


def with_config(file: str = "config.json", **changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
        facts = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(facts | changes))
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")

    return spoil


def with_weights(**changes: Any) -> Callable[[Path], None]:
    """Other weights in the attention of the second layer; those that are None are left out."""
    names = {f"bert.encoder.layer.1.attention.self.{name.replace('__', '.')}": made for name, made in changes.items()}

    def spoil(folder: Path) -> None:
        weights = {**load_file(folder / WEIGHTS), **names}
        made = {name: weight for name, weight in weights.items() if weight is not None}
        save_file(made, folder / WEIGHTS, metadata={"format": "pt"})

    return spoil


OWN = {"auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
TWO = torch.ones(2)
REFUSED: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {  # what is done to a folder, options, a word
    "weights in a pickle": (pickled, {}, "trust_pickle=True"),
    "a pickle beside tensors of something else": (beside_other_tensors, {}, "trust_pickle=True"),
    "a pickle that is trusted and holds code": (hostile, {"trust_pickle": True}, "more than tensors"),
    "an index that leads outside": (pointing("../other/model.safetensors"), {}, "outside of it"),
    "an index that leads outside by a detour": (pointing("sub/../../model.safetensors"), {}, "outside of it"),
    "code of a tokenizer": (
        with_config("tokenizer_config.json", tokenizer_class="Words", auto_map={"AutoTokenizer": ["own.Own", None]}),
        {}, "own.Own",
    ),
    "code of a family of its own": (with_config(model_type="own", **OWN), {}, ""),
    "code in the place of the family's": (with_config(auto_map={"AutoModel": "own.Own"}), {}, "own.Own"),
    "no config": (lambda folder: (folder / "config.json").unlink(), {}, "config.json"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), {}, WEIGHTS),
    "weights that are none": (lambda folder: (folder / WEIGHTS).write_bytes(b"no tensors"), {}, "transformers says"),
    "a weight missing": (with_weights(key__weight=None), {}, "layer.1.attention.self.key.weight"),
    "a norm of queries": (with_weights(q_norm__weight=TWO), {}, "q_norm.weight"),
    "adapters of low rank": (with_weights(key__lora_A__weight=TWO), {}, "key.lora_A.weight"),
    "a size beyond its weights": (with_config(intermediate_size=30_000_000), {}, "while config.json states"),
    "layers beyond its weights": (with_config(num_hidden_layers=40_000_000), {}, "40000000 layers"),
    "no such device": (lambda folder: None, {"device": "abacus"}, "device"),
    "no such GPU": (lambda folder: None, {"device": "cuda:97"}, "device"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_not_models_or_run_code_are_refused(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "model"
    saved_bert(folder)
    spoil, options, word = REFUSED[case]
    spoil(folder)
    with pytest.raises(InputError) as refused:
        load_model(folder, **options)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value)  # torch's advice, which would run the code
    assert not (folder / "ran").exists()


@pytest.mark.posix("measure of a process's memory in its standard library")
def test_a_config_larger_than_the_weights_allocates_no_memory(tmp_path: Path) -> None:
    """Without a look at the file's header, weights of the stated size are made, 1 GB here."""
    folder = tmp_path / "model"
    saved_bert(folder)
    with_config(vocab_size=30_000_000)(folder)
    script = f"""
import resource
from marginlens.errors import InputError
from marginlens.probe import load_model
load_model({str(tmp_path / "honest")!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_model({str(folder)!r})
except InputError as problem:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, problem)
"""
    saved_bert(tmp_path / "honest")
    grown, sentence = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split(" ", 1)
    assert "word_embeddings.weight" in sentence
    assert int(grown) < 200_000  # kilobytes


@pytest.mark.parametrize("case", ["missing", "empty", "no weights"])
def test_missing_paths_are_reported_before_torch_is_imported(tmp_path: Path, case: str) -> None:
    if case != "missing":
        (tmp_path / "model").mkdir()
    if case == "no weights":
        (tmp_path / "model" / "config.json").write_text("{}")
    script = f"""
import sys
from marginlens.errors import InputError
from marginlens.probe import load_model
try:
    load_model({str(tmp_path / "model")!r})
except InputError:
    print(sorted({{"torch", "transformers"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("model", ["missing", "empty"])
def test_a_path_without_a_model_is_refused_before_numpy_is_imported(tmp_path: Path, model: str) -> None:
    (tmp_path / "empty").mkdir()
    script = f"""
import sys
from pathlib import Path
from marginlens.errors import InputError, whole_number
from marginlens.runtime.files import check_writable
from marginlens.runtime.model_folders import model_place
whole_number(3, "limit", at_least=1)
check_writable(Path({str(tmp_path)!r}) / "page", "out")
try:
    model_place({str(tmp_path / model)!r})
except InputError as problem:
    print(problem.argument, "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "path False\n"


FITTING: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "a pickle that is trusted": (pickled, {"trust_pickle": True}),
    "a pickle beside tensors of something else": (beside_other_tensors, {"trust_pickle": True}),
    "code of a tokenizer that is not there": (with_config(auto_map={"AutoTokenizer": ["own.Own", None]}), {}),
    "numbers that weights are made of": (with_weights(rotary_emb__inv_freq=TWO), {}),
    "a device": (lambda folder: None, {"device": "cpu"}),
}


@pytest.mark.parametrize("case", FITTING)
def test_unusual_but_valid_models_are_loaded(tmp_path: Path, case: str) -> None:
    model = saved_bert(tmp_path)
    spoil, options = FITTING[case]
    spoil(tmp_path)
    loaded = load_model(tmp_path, **options).model
    queries = [one.bert.encoder.layer[0].attention.self.query.weight for one in (loaded, model)]
    assert torch.equal(*queries)
    assert not (tmp_path / "ran").exists()


def test_no_model_is_downloaded_and_a_file_is_not_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("{")
    for place, word in (("bert-base-uncased", "download=True"), (tmp_path / "file", "a file")):
        with refused("path") as caught:
            load_model(place)
        assert word in str(caught.value)


def test_a_model_without_attention_gets_no_attention_setting() -> None:
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=9, state_size=2)
    model = transformers.MambaModel(config).eval()
    with refused("model") as caught:
        list(read_attention(model, {"input_ids": np.array([[1, 2, 3]])}))
    assert "eager" not in str(caught.value)


# ---- models that were saved


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_has_the_numbers_of_the_model_in_memory(name, tmp_path):
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


def test_a_class_unknown_to_transformers_is_loaded_as_its_family(tmp_path):
    class Mine(transformers.BertModel):
        pass

    model = Mine(small_model("bert", torch.float32).config)
    model.save_pretrained(tmp_path)
    assert type(load_model(tmp_path).model) is transformers.BertModel


def test_a_head_without_weights_is_left_out(tmp_path):
    model = small_model("vit", torch.float32)
    model.save_pretrained(tmp_path)
    weights = {name: weight for name, weight in load_file(tmp_path / WEIGHTS).items() if "classifier" not in name}
    save_file(weights, tmp_path / WEIGHTS, metadata={"format": "pt"})
    assert type(load_model(tmp_path).model) is transformers.ViTModel
