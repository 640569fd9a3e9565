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
    example_sentences,
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
    with pytest.raises(
        InputError, match=r"The 'text' argument must be a UTF-8 text file .*lines\.txt', which is not there"
    ):
        read_texts(file)
    with pytest.raises(InputError, match="which is a folder"):
        read_texts(tmp_path)
    file.write_bytes(b"")
    with pytest.raises(InputError, match=r"lines\.txt', which is empty instead"):
        read_texts(file)
    file.write_bytes(b"\n  \n")
    with pytest.raises(InputError, match="which is empty but for blank lines instead"):
        read_texts(file)
    file.write_bytes("café\n".encode("latin-1"))
    with pytest.raises(InputError, match="whose byte 3 is not UTF-8"):
        read_texts(file)


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


def test_texts_and_tokenizers_that_cannot_be_used() -> None:
    for texts in ([], "one", [1]):
        with pytest.raises(InputError, match="The 'texts' argument must be a list of at least one text"):
            encode_texts(texts, Letters(), BERT)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="The 'tokenizer' argument must be the tokenizer of the model; got None"):
        encode_texts(["a"], None, BERT)
    with pytest.raises(InputError, match="ids below 50; got one that gives the id 8138"):
        encode_texts(["a\u2028"], Letters(), BERT)
    with pytest.raises(InputError, match="ids below 50; got one that gives the id 50"):
        encode_texts([chr(50 + 94)], Letters(), BERT)
    assert max(encode_texts([chr(49 + 94)], Letters(), BERT).ids[0]) == 49


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


def test_bytes_become_the_numbers_the_settings_say() -> None:
    settings = ImageSettings.of(VIT, {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 1.0]})
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
        (DINOV2, {}, (4, 4)),
        (VIT, CROP, (4, 4)),  # which reads images of one size alone
    ],
)
def test_a_model_that_reads_any_size_is_given_what_its_preprocessor_crops_to(config, facts, size) -> None:
    settings = ImageSettings.of(config, facts)
    assert (settings.height, settings.width) == size
    assert settings.n_tokens == 1 + size[0] * size[1] // 4


@pytest.mark.parametrize("kind", [np.uint8, np.float32, int])
@pytest.mark.parametrize("shape", [(2, 5, 4, 3), (4, 4, 3), (2, 4, 4), (0, 4, 4, 3), (0, 3, 4, 4)])
def test_images_of_the_wrong_shape(shape: tuple[int, ...], kind: Any) -> None:
    message = rf"bytes of shape \(n_images, 4, 4, 3\), as the model asks; got shape \({', '.join(map(str, shape))}\)"
    with pytest.raises(InputError, match=message):
        prepare_images(np.zeros(shape, dtype=kind), ImageSettings.of(VIT))


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
    with pytest.raises(InputError, match=r"4 by 4 pixels, as the model asks; got '.*grey\.png' with 6 by 4"):
        read_images(tmp_path / "grey.png", settings)


def test_image_files_that_cannot_be_used(tmp_path: Path) -> None:
    settings = ImageSettings.of(VIT)
    with pytest.raises(InputError, match=r"a \.npz, \.npy or \.png file of images; got '.*', which is not there"):
        read_images(tmp_path / "a.npz", settings)
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"a \.npz, \.npy or \.png file of images; got '.*a\.jpg' instead"):
        read_images(tmp_path / "a.jpg", settings)
    for name in ("a.npz", "a.npy", "a.png"):
        for content in (b"", b"PK\x03\x04 nothing", b"\x93NUMPY"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(InputError, match="which cannot be read as one"):
                read_images(tmp_path / name, settings)
    np.savez(tmp_path / "two.npz", first=np.zeros(1), second=np.zeros(1))
    with pytest.raises(InputError, match=r"images under one of images, .*; got one that holds 'first', 'second'"):
        read_images(tmp_path / "two.npz", settings)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="which cannot be read as one"):
        read_images(tmp_path / "objects.npy", settings)


def test_the_sentences_are_two_hundred_different_ones() -> None:
    sentences = example_sentences()
    assert len(sentences) == len(set(sentences)) == 200
    assert all(5 <= len(sentence.split()) <= 25 for sentence in sentences)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_bytes_again(channels: int) -> None:
    settings = ImageSettings(channels, 6, 6, (2, 2), mean=(0.3,) * channels, std=(0.4,) * channels)
    images = np.random.default_rng(0).integers(0, 256, size=(2, 6, 6, channels), dtype=np.uint8)
    inputs = prepare_images(images, settings)
    assert np.array_equal([inputs.image(k) for k in range(2)], images)
    levels = np.linspace(-9.0, 9.0, 36 * channels).reshape(1, channels, 6, 6)
    stretched = prepare_images(levels, settings).image(0)
    assert (stretched.min(), stretched.max()) == (0, 255)
