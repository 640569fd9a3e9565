"""Pictures of any size, shape and kind become the numbers that the image processors of transformers make of them."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from marginlens.errors import InputError
from marginlens.probe.models.inputs import ImageSettings, prepare_images, read_images

transformers = pytest.importorskip("transformers")

SAME = 1e-5
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
def test_a_picture_of_odd_size_becomes_what_the_processor_makes_of_it(family, shape, tmp_path):
    processor, read = processor_of(family, tmp_path)
    Image.fromarray(picture(*shape)).save(tmp_path / "a.png")
    expected = np.asarray(processor(Image.open(tmp_path / "a.png"), return_tensors="np")["pixel_values"])
    found = read_images(tmp_path / "a.png", ImageSettings.of(config_of(family), read)).pixel_values
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= SAME


@pytest.mark.parametrize("family", PROCESSORS)
def test_a_folder_of_grey_transparent_and_turned_pictures(family, tmp_path):
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


def test_arrays_of_another_size_or_kind_are_brought_to_the_models(tmp_path):
    settings = ImageSettings.of(config_of("vit"), processor_of("vit", tmp_path)[1])
    for channels in (1, 3, 4):
        array = picture(61, 93, channels)
        Image.fromarray(array[..., 0] if channels == 1 else array).save(tmp_path / "a.png")
        expected = read_images(tmp_path / "a.png", settings).pixel_values
        assert np.array_equal(prepare_images(array[None], settings).pixel_values, expected)
    grey = ImageSettings.of(config_of("vit", channels=1))
    assert prepare_images(picture(61, 93)[None], grey).pixel_values.shape == (1, 1, 56, 56)
    assert prepare_images(np.zeros((2, 61, 93), dtype=np.uint8), settings).pixel_values.shape == (2, 3, 56, 56)
    with pytest.raises(InputError, match="bytes of shape"):
        prepare_images(np.zeros((2, 61, 93, 5), dtype=np.uint8), settings)
