"""Texts and images as a model reads them: their order, their batches, and one sentence for what cannot be used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe import (
    ImageSettings,
    encode_texts,
    load_model,
    prepare_images,
    read_attention,
    read_images,
    read_texts,
)

BYTES_TO_NUMBERS = 1e-6  # float32 roundings of (byte / 255 - mean) / std
BERT = SimpleNamespace(model_type="bert", vocab_size=50, max_position_embeddings=12)


class Letters:
    """A tokenizer with one token per letter, as transformers' tokenizers are called."""

    pad_token_id: int | None = 0
    model_max_length = int(1e30)

    def __call__(self, texts: list[str], truncation: bool, max_length: int = 0, **_: Any) -> dict[str, Any]:
        ids = [[1, *(ord(letter) - 94 for letter in text), 2] for text in texts]
        return {
            "input_ids": [
                [*text[: max_length - 1], 2] if truncation and len(text) > max_length else text for text in ids
            ]
        }

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [{1: "<s>", 2: "</s>"}.get(one, chr(one + 94)) for one in ids]


def test_lines_are_inputs(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes("\ufeffone\r\n\n  two lines\u2028 in one \n\nthree".encode())
    assert read_texts(file) == ["one", "two lines\u2028 in one", "three"]


def test_text_files_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    for content in (b"", b"\n  \n", "café\n".encode("latin-1")):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"The 'text' argument must be a UTF-8 text file"):
            read_texts(file)
    for path in (tmp_path, tmp_path / "nowhere.txt"):
        with pytest.raises(InputError, match=r"The 'text' argument must be a UTF-8 text file"):
            read_texts(path)


def test_batches_hold_every_text_once_with_little_padding() -> None:
    rng = np.random.default_rng(0)
    texts = ["a" * int(n) for n in rng.integers(1, 300, 400)]
    inputs = encode_texts(texts, Letters(), SimpleNamespace(**{**vars(BERT), "max_position_embeddings": 512}))
    seen, cells = [], 0
    for batch in inputs.batches():
        ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
        for row, place in enumerate(batch.index):
            assert tuple(ids[row, mask[row] == 1]) == inputs.ids[place]
            assert batch.tokens[row] == inputs.tokens[place]
            assert mask[row].sum() == len(texts[place]) + 2
            assert (np.diff(mask[row]) <= 0).all(), "padding stands on the right"
        assert ids.size <= 1024
        seen += batch.index.tolist()
        cells += ids.size
    assert sorted(seen) == list(range(400))
    assert cells <= 1.05 * inputs.lengths.sum()


def test_long_texts_are_truncated_and_counted() -> None:
    inputs = encode_texts(["abc", "a" * 30, "b" * 10, "c" * 11], Letters(), BERT)
    assert inputs.n_truncated == 2
    assert [len(one) for one in inputs.ids] == [5, 12, 12, 12]
    assert inputs.tokens[0] == ("<s>", "a", "b", "c", "</s>")
    assert repr(inputs) == "TextInputs(4 texts, 41 tokens, 2 truncated to 12 tokens)"
    assert repr(encode_texts(["a"], Letters(), BERT)) == "TextInputs(1 texts, 3 tokens)"


def test_minilm_reads_long_and_short_texts() -> None:
    loaded = load_model("minilm")
    inputs = encode_texts(["Yes, we unwrapped it.", "no " * 600], loaded.tokenizer, loaded.model.config)
    assert inputs.tokens[0] == ("[CLS]", "yes", ",", "we", "un", "##wr", "##app", "##ed", "it", ".", "[SEP]")
    assert inputs.n_truncated == 1
    assert len(inputs.ids[1]) == 512
    for batch in inputs.batches():
        reading = next(read_attention(loaded.model, batch.inputs, layers=[0]))
        assert reading.attention.shape[-1] == len(batch.tokens[0])


def test_tokens_of_bytes_are_shown_as_the_letters_they_spell(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import ByteLevelBPETokenizer

    bytes_ = ByteLevelBPETokenizer()
    bytes_.train_from_iterator(["a café by the river"] * 3, vocab_size=300, show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_._tokenizer)
    config = SimpleNamespace(model_type="gpt2", vocab_size=300, max_position_embeddings=9)
    inputs = encode_texts(["a café ö"], tokenizer, config)
    assert inputs.tokens[0] == ("a", " café", " ", "Ã", "¶"), "half a letter stays as it is stored"
    assert inputs.pad_id == 0


VIT = SimpleNamespace(model_type="vit", image_size=4, patch_size=2, num_channels=3)
GREY = SimpleNamespace(model_type="vit", image_size=[4, 6], patch_size=[2, 3], num_channels=1)


def processor(kind: str = "ViT", size: dict[str, int] | None = None, **facts: Any) -> Any:
    """An image processor of transformers that works with Pillow."""
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, f"{kind}ImageProcessorPil")(size=size or {"height": 4, "width": 4}, **facts)


def test_bytes_become_the_numbers_the_settings_say() -> None:
    settings = ImageSettings.of(VIT, processor(image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.25, 1.0]))
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    pixels = prepare_images(images, settings).pixel_values
    assert pixels.shape == (2, 3, 4, 4)
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 0.25), (0.3, 1.0))):
        expected = (images[..., channel] / 255 - mean) / std
        assert np.abs(pixels[:, channel] - expected).max() <= BYTES_TO_NUMBERS


def test_tokens_are_named_by_row_and_column() -> None:
    assert ImageSettings.of(VIT).tokens == ("[CLS]", "0,0", "0,1", "1,0", "1,1")
    deit = ImageSettings.of(SimpleNamespace(**{**vars(VIT), "model_type": "deit"}))
    assert deit.tokens[:3] == ("[CLS]", "[DIST]", "0,0")
    grey = ImageSettings.of(GREY)
    assert (grey.grid, grey.n_tokens) == ((2, 2), 5)
    inputs = prepare_images(np.zeros((250, 4, 6), dtype=np.uint8), grey)
    batches = list(inputs.batches())
    assert [len(batch.index) for batch in batches] == [204, 46]
    assert np.concatenate([batch.index for batch in batches]).tolist() == list(range(250))
    assert repr(inputs) == "ImageInputs(250 images of shape (1, 4, 6))"


DINOV2 = SimpleNamespace(**{**vars(VIT), "model_type": "dinov2"})
CROP = {"crop_size": {"height": 6, "width": 8}}


@pytest.mark.parametrize(
    ("config", "facts", "size"),
    [
        (DINOV2, CROP, (6, 8)),
        (DINOV2, {"crop_size": 8}, (8, 8)),
        (DINOV2, {**CROP, "do_center_crop": False}, (4, 4)),
        (VIT, CROP, (4, 4)),  # which reads images of one size alone
    ],
)
def test_a_model_that_reads_any_size_is_given_what_its_preprocessor_crops_to(config, facts, size) -> None:
    settings = ImageSettings.of(config, processor("Bit", **facts))
    assert (settings.height, settings.width) == size
    assert settings.n_tokens == 1 + size[0] * size[1] // 4


def test_images_from_files(tmp_path: Path) -> None:
    from PIL import Image

    settings = ImageSettings.of(VIT)
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    expected = prepare_images(images, settings).pixel_values
    np.save(tmp_path / "a.npy", images)
    np.savez(tmp_path / "b.npz", anything=images)
    np.savez(tmp_path / "c.npz", y_test=np.arange(3), x_test=images)
    for name in ("a.npy", "b.npz", "c.npz"):
        assert (read_images(tmp_path / name, settings).pixel_values == expected).all()
    Image.fromarray(images[1]).save(tmp_path / "d.png")
    assert (read_images(tmp_path / "d.png", settings).pixel_values == expected[1:2]).all()
    Image.fromarray(np.zeros((4, 6), dtype=np.uint8)).save(tmp_path / "grey.png")
    assert read_images(tmp_path / "grey.png", ImageSettings.of(GREY)).pixel_values.shape == (1, 1, 4, 6)
    assert read_images(tmp_path / "grey.png", settings).pixel_values.shape == (1, 3, 4, 4)


def test_image_files_that_cannot_be_used(tmp_path: Path) -> None:
    settings = ImageSettings.of(VIT)
    np.savez(tmp_path / "two.npz", first=np.zeros(1), second=np.zeros(1))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("a.npz", "a.npy", "a.png", "a.jpg"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
    for name in ("nowhere.npz", "two.npz", "objects.npy", "a.npz", "a.npy", "a.png", "a.jpg"):
        with pytest.raises(InputError, match="The 'images' argument must be"):
            read_images(tmp_path / name, settings)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_bytes_again(channels: int) -> None:
    made = processor(size={"height": 6, "width": 6}, image_mean=[0.3] * channels, image_std=[0.4] * channels)
    settings = ImageSettings(channels, 6, 6, (2, 2), processor=made)
    images = np.random.default_rng(0).integers(0, 256, size=(2, 6, 6, channels), dtype=np.uint8)
    inputs = prepare_images(images, settings)
    assert np.array_equal([inputs.image(k) for k in range(2)], images)
    levels = np.linspace(-9.0, 9.0, 36 * channels).reshape(1, channels, 6, 6)
    stretched = prepare_images(levels, settings).image(0)
    assert (stretched.min(), stretched.max()) == (0, 255)


def test_a_folder_of_pictures_of_any_size_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    from PIL import Image

    tall = np.zeros((40, 20, 3), dtype=np.uint8)
    tall[10:30] = 255  # what is left when the middle is cut out
    Image.fromarray(tall).save(tmp_path / "b.png")
    Image.fromarray(np.full((30, 90, 3), 128, dtype=np.uint8)).save(tmp_path / "a.jpg", quality=95)
    (tmp_path / "notes.txt").write_text("no picture")
    config, half = SimpleNamespace(model_type="vit", image_size=4, num_channels=3, patch_size=2), [0.5] * 3
    cut = read_images(
        tmp_path, ImageSettings.of(config, processor("Bit", {"shortest_edge": 4}, image_mean=half, image_std=half))
    )
    stretched = read_images(tmp_path, ImageSettings.of(config, processor()))
    assert cut.pixel_values.shape == stretched.pixel_values.shape == (2, 3, 4, 4)
    assert np.abs(cut.pixel_values[0]).max() < 0.05  # grey
    assert cut.pixel_values[1].min() > 0.5
    assert stretched.pixel_values[1, :, 0].max() < -0.5 < 0.5 < stretched.pixel_values[1, :, 1:3].min()
    (tmp_path / "c.jpg").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"c\.jpg', which cannot be read"):
        read_images(tmp_path, ImageSettings.of(config))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a folder without such files"):
        read_images(tmp_path / "empty", ImageSettings.of(config))
