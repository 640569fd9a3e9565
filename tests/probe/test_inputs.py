"""Texts and images as a model reads them: their order, their batches, and one sentence for what cannot be used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from marginlens.probe import (
    ImageSettings,
    encode_texts,
    load_model,
    prepare_images,
    read_attention,
    read_images,
    read_texts,
)
from refusals import refused

transformers = pytest.importorskip("transformers")
SAME = 1e-5  # pixel values in float32
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


def test_unusable_text_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    for content in (b"", b"\n  \n", "café\n".encode("latin-1")):
        file.write_bytes(content)
        with refused("text"):
            read_texts(file)
    for path in (tmp_path, tmp_path / "nowhere.txt"):
        with refused("text"):
            read_texts(path)


def test_batches_have_every_text_once_with_little_padding() -> None:
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


def test_minilm_accepts_long_and_short_texts() -> None:
    loaded = load_model("minilm")
    inputs = encode_texts(["Yes, we unwrapped it.", "no " * 600], loaded.tokenizer, loaded.model.config)
    assert inputs.tokens[0] == ("[CLS]", "yes", ",", "we", "un", "##wr", "##app", "##ed", "it", ".", "[SEP]")
    assert inputs.n_truncated == 1
    assert len(inputs.ids[1]) == 512
    for batch in inputs.batches():
        reading = next(read_attention(loaded.model, batch.inputs, layers=[0]))
        assert reading.attention.shape[-1] == len(batch.tokens[0])


def test_byte_tokens_are_shown_as_characters(tmp_path: Path) -> None:
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
    return getattr(transformers, f"{kind}ImageProcessorPil")(size=size or {"height": 4, "width": 4}, **facts)


def test_patches_are_named_by_row_and_column() -> None:
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
def test_images_for_a_flexible_model_have_the_preprocessors_crop_size(config, facts, size) -> None:
    settings = ImageSettings.of(config, processor("Bit", **facts))
    assert (settings.height, settings.width) == size
    assert settings.n_tokens == 1 + size[0] * size[1] // 4


def test_image_files_are_read(tmp_path: Path) -> None:
    settings = ImageSettings.of(VIT)
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    expected = prepare_images(images, settings).pixel_values
    assert np.abs(expected - (np.moveaxis(images, -1, 1) / 127.5 - 1.0)).max() <= SAME  # without a processor
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


def test_unusable_image_files_are_refused(tmp_path: Path) -> None:
    settings = ImageSettings.of(VIT)
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "two.npz", first=np.zeros(1), second=np.zeros(1))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("a.npz", "a.npy", "a.png", "a.jpg"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
    for name in ("nowhere.npz", "two.npz", "objects.npy", "a.npz", "a.npy", "a.png", "a.jpg", "empty", "."):
        with refused("images"):
            read_images(tmp_path / name, settings)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_round_trip_to_bytes(channels: int) -> None:
    made = processor(size={"height": 6, "width": 6}, image_mean=[0.3] * channels, image_std=[0.4] * channels)
    settings = ImageSettings(channels, 6, 6, (2, 2), processor=made)
    images = np.random.default_rng(0).integers(0, 256, size=(2, 6, 6, channels), dtype=np.uint8)
    inputs = prepare_images(images, settings)
    assert np.array_equal([inputs.image(k) for k in range(2)], images)
    levels = np.linspace(-9.0, 9.0, 36 * channels).reshape(1, channels, 6, 6)
    stretched = prepare_images(levels, settings).image(0)
    assert (stretched.min(), stretched.max()) == (0, 255)


# ---- pictures become the numbers that the image processors of transformers make of them


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3}
CROPPED = {"crop_size": {"height": 56, "width": 56}, "do_center_crop": True}
PROCESSORS = {  # family → processor, its options at a quarter of the usual size, the model's sizes
    "vit": ("ViTImageProcessor", {"size": {"height": 56, "width": 56}}, (56, 8)),
    "deit": ("DeiTImageProcessor", {"size": {"height": 64, "width": 64}, **CROPPED}, (56, 8)),
    "dinov2": ("BitImageProcessor", {"size": {"shortest_edge": 64}, **CROPPED, **IMAGENET}, (126, 14)),
    "swin": ("ViTImageProcessor", {"size": {"height": 56, "width": 56}, **IMAGENET}, (56, 4)),
    "clip_vision_model": ("CLIPImageProcessor", {"size": {"shortest_edge": 56}, **CROPPED}, (56, 8)),
}


def config_of(family, channels=3):
    size, patch = PROCESSORS[family][2]
    return SimpleNamespace(model_type=family, image_size=size, patch_size=patch, num_channels=channels)


def processor_of(family, folder):
    """A processor of transformers that works with Pillow, and the one that is read from what it writes into a model's folder."""
    name, options, _ = PROCESSORS[family]
    processor = getattr(transformers, f"{name}Pil")(**options)
    processor.save_pretrained(folder)
    return processor, transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")


def picture(height, width, channels=3):
    """Slopes in two channels and noise in the others."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 256, (channels, height, width))
    planes = [255 * columns / width, 255 * rows / height, *noise][:channels]
    return np.stack(planes, axis=-1).astype(np.uint8)


@pytest.mark.parametrize("family", PROCESSORS)
@pytest.mark.parametrize("shape", [(61, 93), (93, 61), (23, 31), (56, 56), (64, 57)])
def test_an_image_of_odd_size_equals_the_processors(family, shape, tmp_path):
    processor, read = processor_of(family, tmp_path)
    Image.fromarray(picture(*shape)).save(tmp_path / "a.png")
    expected = np.asarray(processor(Image.open(tmp_path / "a.png"), return_tensors="np")["pixel_values"])
    found = read_images(tmp_path / "a.png", ImageSettings.of(config_of(family), read)).pixel_values
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= SAME


@pytest.mark.parametrize("family", PROCESSORS)
def test_gray_transparent_and_rotated_images_are_read(family, tmp_path):
    processor, read = processor_of(family, tmp_path)
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.fromarray(picture(61, 93, 1)[..., 0]).save(folder / "a.png")
    Image.fromarray(picture(61, 93, 4)).save(folder / "b.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    Image.fromarray(picture(61, 93)).save(folder / "c.JPG", format="JPEG", exif=exif, quality=95)
    Image.fromarray(picture(61, 93)).convert("P").save(folder / "d.png")
    shown = [Image.open(file) for file in sorted(folder.iterdir())]
    shown[2] = shown[2].rotate(-90, expand=True)
    colours = [one.convert("RGB") for one in shown]
    expected = np.concatenate([np.asarray(processor(one, return_tensors="np")["pixel_values"]) for one in colours])
    found = read_images(folder, ImageSettings.of(config_of(family), read)).pixel_values
    assert np.abs(found - expected).max() <= SAME


def test_arrays_of_another_size_or_type_are_converted(tmp_path):
    settings = ImageSettings.of(config_of("vit"), processor_of("vit", tmp_path)[1])
    for channels in (1, 3, 4):
        array = picture(61, 93, channels)
        Image.fromarray(array[..., 0] if channels == 1 else array).save(tmp_path / "a.png")
        expected = read_images(tmp_path / "a.png", settings).pixel_values
        assert np.array_equal(prepare_images(array[None], settings).pixel_values, expected)
    grey = ImageSettings.of(config_of("vit", channels=1))
    assert prepare_images(picture(61, 93)[None], grey).pixel_values.shape == (1, 1, 56, 56)
    assert prepare_images(np.zeros((2, 61, 93), dtype=np.uint8), settings).pixel_values.shape == (2, 3, 56, 56)
    with refused("images"):
        prepare_images(np.zeros((2, 61, 93, 5), dtype=np.uint8), settings)
