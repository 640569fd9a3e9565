"""Loading models: folders only, safetensors only unless asked, one sentence for whatever is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe.models.loading import load_model
from marginlens.probe.models.reading import read_attention

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
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


def pickled(folder: Path) -> Any:
    """A model whose weights are in pickle form only."""
    model = saved_bert(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return model


def test_a_saved_vit_comes_back_with_its_image_settings(tmp_path: Path) -> None:
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
    assert (loaded.images.mean, loaded.images.std, loaded.images.rescale) == ((0.1,), (0.4,), 0.0625)
    assert not loaded.model.training
    pixels = {"pixel_values": np.random.default_rng(0).normal(size=(2, 1, 8, 8))}
    model.set_attn_implementation("eager")
    for ours, own in zip(read_attention(loaded.model, pixels), read_attention(model, pixels), strict=True):
        assert torch.equal(ours.attention, own.attention)


@pytest.mark.parametrize(("stored", "read"), [("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_half_precision_is_read_as_single(tmp_path: Path, stored: str, read: str) -> None:
    saved_bert(tmp_path, getattr(torch, stored))
    assert load_model(tmp_path).model.dtype == getattr(torch, read)


def test_pickled_weights_are_refused_unless_asked(tmp_path: Path) -> None:
    model = pickled(tmp_path)
    message = r"pytorch_model\.bin, a pickle, which can run code .* give `trust_pickle=True`"
    with pytest.raises(InputError, match=message):
        load_model(tmp_path)
    loaded = load_model(tmp_path, trust_pickle=True)
    own = model.bert.encoder.layer[0].attention.self.query.weight
    assert torch.equal(loaded.model.bert.encoder.layer[0].attention.self.query.weight, own)


class _Opens:
    """What a hostile pickle would do: open a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_even_a_trusted_pickle_runs_no_code(tmp_path: Path) -> None:
    pickled(tmp_path)
    torch.save({"x": _Opens(str(tmp_path / "ran"))}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="hold more than tensors and are not loaded") as caught:
        load_model(tmp_path, trust_pickle=True)
    assert "weights_only" not in str(caught.value)  # torch's advice, which would run the code
    assert not (tmp_path / "ran").exists()


def test_a_pickle_beside_weights_that_are_not_the_models_is_loaded(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    pickled(tmp_path)
    save_file({"x": torch.ones(2)}, tmp_path / "optimizer.safetensors")
    assert load_model(tmp_path, trust_pickle=True).model.config.model_type == "bert"
    with pytest.raises(InputError, match="a pickle, which can run code"):
        load_model(tmp_path)


@pytest.mark.parametrize("outside", ["../other/model.safetensors", "sub/../../model.safetensors"])
def test_an_index_that_points_outside_of_the_folder_is_refused(tmp_path: Path, outside: str) -> None:
    folder = tmp_path / "model"
    saved_bert(folder).save_pretrained(folder, max_shard_size="2KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    index = folder / "model.safetensors.index.json"
    load_model(folder)
    facts = json.loads(index.read_text())
    facts["weight_map"][next(iter(facts["weight_map"]))] = outside
    index.write_text(json.dumps(facts))
    with pytest.raises(InputError, match=rf"names '{re.escape(outside)}', which is outside of it"):
        load_model(folder)


def test_code_of_a_tokenizer_is_named(tmp_path: Path) -> None:
    saved_bert(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    auto_map = {"auto_map": {"AutoTokenizer": ["words.Words", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Words"} | auto_map))
    with pytest.raises(InputError, match=r"whose tokenizer_config\.json names code of its own \(words\.Words\)"):
        load_model(tmp_path)


def test_a_model_without_attention_is_not_told_to_change_it(tmp_path: Path) -> None:
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=9, state_size=2)
    model = transformers.MambaModel(config).eval()
    with pytest.raises(InputError, match="It has no attention") as caught:
        list(read_attention(model, {"input_ids": np.array([[1, 2, 3]])}))
    assert "eager" not in str(caught.value)


def test_a_name_of_the_hub_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = re.escape(
        "got 'bert-base-uncased', which is not a folder on this machine instead. "
        "Nothing is downloaded unless `download=True` is given."
    )
    with pytest.raises(InputError, match=message):
        load_model("bert-base-uncased")


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"which has no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"which has no weights \(model.safetensors\)"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="of which transformers says"):
        load_model(tmp_path)
    with pytest.raises(InputError, match="which is a file"):
        load_model(tmp_path / "config.json")


def test_weights_that_are_not_all_there(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["bert.encoder.layer.1.attention.self.key.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        InputError, match=r"which lacks 1 weights, bert\.encoder\.layer\.1\.attention\.self\.key\.weight among"
    ):
        load_model(tmp_path)


def test_code_in_a_folder_is_not_run(tmp_path: Path) -> None:
    saved_bert(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    facts |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError):
        load_model(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_code_that_would_be_replaced_by_the_familys_is_named(tmp_path: Path) -> None:
    saved_bert(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    for auto_map in ({"AutoTokenizer": ["own.Own", None]}, {"AutoModel": "own.Own"}):
        (tmp_path / "config.json").write_text(json.dumps(facts | {"auto_map": auto_map}))
        if "AutoModel" not in auto_map:
            load_model(tmp_path)
    with pytest.raises(
        InputError, match=r"names code of its own \(own\.Own\), which is not run instead\. If you trust it"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("extra", "fits"), [("rotary_emb.inv_freq", True), ("q_norm.weight", False), ("key.lora_A.weight", False)]
)
def test_weights_of_another_attention_are_not_left_out_silently(tmp_path: Path, extra: str, fits: bool) -> None:
    from safetensors.torch import load_file, save_file

    saved_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = f"bert.encoder.layer.1.attention.self.{extra}"
    save_file(weights | {name: torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    if fits:
        load_model(tmp_path)
        return
    with pytest.raises(
        InputError, match=rf"whose attention has weights that the bert family has not, .*{extra} among them"
    ):
        load_model(tmp_path)


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    saved_bert(tmp_path)
    for device in ("abacus", "cuda:97"):
        with pytest.raises(InputError, match=rf"'device' argument must be a device of this machine .* got '{device}'"):
            load_model(tmp_path, device=device)
    assert load_model(tmp_path, device="cpu").model.device.type == "cpu"
