"""Loading models from local folders, their attention implementation, and their inputs; nothing is downloaded by default."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from marginlens.errors import InputError, require
from marginlens.probe.models.adapters import adapter_for, is_hugging_face
from marginlens.probe.models.inputs import ImageInputs, ImageSettings, Inputs, TextInputs, encode_texts, prepare_images
from marginlens.result import Described
from marginlens.runtime.model_folders import (
    ADAPTER,
    MERGE,
    has_file,
    has_pickled_weights,
    has_safe_weights,
    model_place,
    read_json,
    weight_files,
)
from marginlens.runtime.model_folders import EXPECTED as _MODEL_FOLDER
from marginlens.typing import ArrayLike

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
# No weights; earlier versions saved them too.
_SAVED_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_MAX_SHARED_LAYERS = 1000  # of a model that has fewer weights than layers
_IMAGE_PROCESSOR = "preprocessor_config.json"
_TOKENIZER = ("tokenizer_config.json", "AutoTokenizer")
FUSED = "sdpa"  # torch's own attention, whose masks can be read
Loaded = TypeVar("Loaded")
_EAGER = 'Load the model with attn_implementation="eager".'


@dataclass(frozen=True, repr=False, eq=False)
class LoadedModel(Described):
    """A model with its tokenizer or image settings, which convert a user's inputs."""

    model: PreTrainedModel  # as it was saved, its head included, in evaluation mode, with attn_implementation="eager"
    tokenizer: PreTrainedTokenizerBase | None  # None for a model of images, or if the folder has none
    images: ImageSettings | None  # None for a model of texts
    name: str
    quantities = "{name}: {model.__class__.__name__}"


def load_model(
    path: str | os.PathLike[str], *, trust_pickle: bool = False, download: bool = False, device: str = "cpu"
) -> LoadedModel:
    """Load a model from a folder, or the packaged MiniLM under the name `minilm`.

    Half-precision weights are converted to float32, which keeps the digits of logits. A quantised model stays as it is.

    Args:
        path: a folder with config.json and weights, as `save_pretrained` writes it.

        trust_pickle: whether to accept weights in pickle form, which can run code; transformers still restricts their contents
            to tensors.

        download: whether transformers may fetch a model of this name from the Hugging Face Hub.

        device: the device that the model runs on, as torch names it: cpu, cuda, cuda:1, mps.

    Examples:
        >>> from marginlens.data import write_samples
        >>> from marginlens.probe import load_model
        >>> written = write_samples("samples")
        >>> load_model("samples/tiny-model")
        LoadedModel(tiny-model: BertModel)
    """
    place, name = model_place(path, trust_pickle=trust_pickle, download=download)
    transformers = _transformers()
    _check_device(device)
    local = Path(place)
    options: dict[str, Any] = {"local_files_only": not download or local.is_dir(), "trust_remote_code": False}
    pickled = trust_pickle and local.is_dir() and not has_safe_weights(local) and has_pickled_weights(local)
    safe = None if trust_pickle and not local.is_dir() else not pickled
    with _quiet():
        config = _attempt(path, lambda: transformers.AutoConfig.from_pretrained(place, **options))
        _check_code(path, "config.json", "AutoModel", getattr(config, "auto_map", None))
        loading = {"attn_implementation": "eager", "use_safetensors": safe, "output_loading_info": True}
        kind = _saved_class(transformers, config)
        if local.is_dir() and has_safe_weights(local):
            _check_shapes(path, kind, config, weight_files(local))
        model, info = _attempt(path, lambda: kind.from_pretrained(place, **options, **loading))
        if not _has_head(model, info["missing_keys"]):  # its weights are not in the file, or it is not of this class
            model, info = _attempt(path, lambda: transformers.AutoModel.from_pretrained(place, **options, **loading))
        tokenizer = None
        if not hasattr(config, "image_size") and (not local.is_dir() or has_file(local, _TOKENIZER_FILES)):
            _check_code(path, *_TOKENIZER, (_json(place, _TOKENIZER[0]) or {}).get("auto_map"))
            tokenizer = _attempt(path, lambda: transformers.AutoTokenizer.from_pretrained(place, **options))
    _check_complete(path, local, model, info)
    if model.dtype.itemsize < 4 and not getattr(model, "is_quantized", False):  # transformers refuses to convert those
        model = model.float()
    settings = _image_settings(path, place, config, options)
    return LoadedModel(model.eval().to(device), tokenizer, settings, name)


def _check_complete(
    path: str | os.PathLike[str], local: Path, model: PreTrainedModel, info: Mapping[str, Collection[str]]
) -> None:
    """Raise if the weights of a folder are not those of the model that transformers made from it.

    Args:
        info: the missing and the unexpected weights that transformers reports.
    """
    missing = sorted(name for name in info["missing_keys"] if "pooler." not in name)  # heads save no pooler
    if missing:  # transformers would leave random numbers there
        raise InputError(
            "path", _MODEL_FOLDER, f"{str(path)!r}, which lacks {len(missing)} weights, such as {missing[0]}"
        )
    foreign = _foreign_weights(model, info["unexpected_keys"])
    if foreign:  # transformers leaves them out: it is another attention that has them
        raise InputError(
            "path",
            _MODEL_FOLDER,
            f"{str(path)!r}, whose attention has weights that the {model.config.model_type} family has not, such as {foreign[0]}",
        )
    if (local / ADAPTER).is_file() and not getattr(model, "_hf_peft_config_loaded", False):
        raise InputError("path", _MODEL_FOLDER, f"{str(path)!r}, which also holds an adapter that is not loaded", MERGE)


def _image_settings(
    path: str | os.PathLike[str], place: str, config: PretrainedConfig, options: dict[str, Any]
) -> ImageSettings | None:
    """Return what a model of images expects, with its image processor if it has one; None for a model of texts."""
    import transformers

    if not (hasattr(config, "image_size") or hasattr(config, "vision_config")):
        return None
    sizes = getattr(config, "vision_config", config)
    settings, stated = ImageSettings.of(sizes), _json(place, _IMAGE_PROCESSOR)
    if stated is None:
        return settings
    size = {} if stated.get("size") else {"size": {"height": settings.height, "width": settings.width}}
    load = partial(transformers.AutoImageProcessor.from_pretrained, place, backend="pil", **size, **options)
    with _quiet():
        return ImageSettings.of(sizes, _attempt(path, load))


def _check_device(device: str) -> None:
    """Raise if torch does not know a device or this machine does not have it."""
    import torch

    expected = "a device of this machine as torch names it, such as cpu or cuda"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as problem:
        raise InputError("device", expected, repr(device)) from problem


def as_loaded(model: PreTrainedModel | LoadedModel) -> LoadedModel:
    """Return a model as a `LoadedModel`; a bare Hugging Face model gets no tokenizer."""
    if isinstance(model, LoadedModel):
        return model
    adapter_for(model)
    name = str(getattr(model.config, "name_or_path", "") or type(model).__name__)
    return LoadedModel(model, None, None, name.rstrip("/").rsplit("/", 1)[-1])


def tower_for(model: PreTrainedModel, inputs: Inputs) -> PreTrainedModel:
    """Return the part of a model that reads such inputs: of CLIP, the tower of texts or that of images; else the model."""
    if getattr(model.config, "model_type", "") != "clip":
        return model
    return model.base_model.text_model if isinstance(inputs, TextInputs) else model.base_model.vision_model


def as_inputs(loaded: LoadedModel, inputs: Inputs | ArrayLike) -> Inputs:
    """Return texts or images as the model reads them.

    Args:
        inputs: the result of `encode_texts` or `prepare_images`; or texts, for a model with a tokenizer; or an array of images,
            for a model loaded with its image settings.
    """
    if isinstance(inputs, TextInputs | ImageInputs):
        return inputs
    texts = [text for text in inputs if isinstance(text, str)] if isinstance(inputs, list | tuple) else []
    is_texts = isinstance(inputs, list | tuple) and len(texts) == len(inputs) and loaded.tokenizer is not None
    if is_texts:
        return encode_texts(texts, loaded.tokenizer, loaded.model.config)
    if loaded.images is not None:
        return prepare_images(inputs, loaded.images)
    raise InputError(
        "inputs",
        "TextInputs, ImageInputs, or texts together with a model from load_model, which has a tokenizer",
        type(inputs).__name__,
    )


def _check_code(path: str | os.PathLike[str], file: str, kind: str, auto_map: object) -> None:
    """Raise if transformers would silently replace the code of a model or tokenizer by that of its family."""
    named = auto_map if isinstance(auto_map, dict) else {}
    code = [code for name, code in named.items() if name.startswith(kind)]
    if code:
        shown = code[0] if isinstance(code[0], str) else next(filter(None, code[0]), "")
        raise InputError(
            "path",
            _MODEL_FOLDER,
            f"{str(path)!r}, whose {file} names code of its own ({shown}), which is not run",
            "If you trust it, load the model yourself and probe what you loaded.",
        )


def _saved_class(transformers: ModuleType, config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the class that was saved, with its head of classes or next tokens; the family's base model if transformers does
    not know it.
    """
    names = getattr(config, "architectures", None) or [""]
    kind: Any = getattr(transformers, str(names[0]), None)
    is_of_family = getattr(kind, "config_class", None) is type(config)
    return kind if is_of_family and hasattr(kind, "base_model_prefix") else transformers.AutoModel


def _check_shapes(
    path: str | os.PathLike[str], kind: type[PreTrainedModel], config: PretrainedConfig, files: list[Path]
) -> None:
    """Raise, before memory is taken, if weights have other shapes than the configuration states.

    The model is built on torch's meta device. Weights that a family saves under other names are left to transformers.
    """
    import torch
    from safetensors import safe_open

    if getattr(config, "quantization_config", None) is not None:  # packed weights have shapes of their own
        return
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with _attempt(path, partial(safe_open, file, framework="np")) as weights:
            shapes |= {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    n_layers = getattr(config.get_text_config(), "num_hidden_layers", None) or 0
    if n_layers > max(_MAX_SHARED_LAYERS, len(shapes)):
        raise InputError(
            "path",
            _MODEL_FOLDER,
            f"{str(path)!r}, whose config.json states {n_layers} layers, for {len(shapes)} weights",
        )

    try:
        with torch.device("meta"):
            copied = copy.deepcopy(config)
            model = kind.from_config(copied) if hasattr(kind, "from_config") else kind(copied)
    except Exception:  # of any kind; when transformers loads the model it says what is wrong
        return
    prefix = f"{model.base_model_prefix}."
    for name, weight in model.state_dict().items():
        names = (name, name.removeprefix(prefix), prefix + name)  # a file may hold the base model, or a larger one
        saved = next((shapes[other] for other in names if other in shapes), weight.shape)
        if math.prod(saved) != weight.numel():
            raise InputError(
                "path",
                _MODEL_FOLDER,
                f"{str(path)!r}, whose {name} has shape {saved}, while config.json states {tuple(weight.shape)}",
            )


def _has_head(model: PreTrainedModel, missing: Collection[str]) -> bool:
    """Return whether all weights of a model that lie outside its base model were found."""
    inside = "" if model.base_model is model else f"{model.base_model_prefix}."
    return all(name.startswith(inside) for name in missing)


def _foreign_weights(model: PreTrainedModel, unexpected: Collection[str]) -> list[str]:
    """Return the left-out weights of a file that belong to attention layers; the file may name these inside a larger model."""
    weights = [weight for weight in unexpected if not weight.endswith(_SAVED_BUFFERS)]
    modules = adapter_for(model).module_names if weights else ()
    return sorted(weight for weight in weights if any(f".{module}." in f".{weight}" for module in modules))


def _json(place: str, name: str) -> dict[str, Any] | None:
    """Read a JSON file of a model, here or on the Hub; None if it has none."""
    file = Path(place) / name if Path(place).is_dir() else _fetched(place, name)
    return None if file is None else read_json(file)


def _fetched(name: str, file: str) -> Path | None:
    """Fetch a file of a model from the Hub, which `download=True` asked for; None if the model has none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(_attempt(name, lambda: hf_hub_download(name, file)))
    except InputError as problem:
        if isinstance(problem.__cause__, EntryNotFoundError):
            return None
        raise


def _transformers() -> ModuleType:
    for package in ("torch", "transformers"):
        require(package, "probe", "Loading a model")
    import transformers

    return transformers


def _attempt(path: str | os.PathLike[str], load: Callable[[], Loaded]) -> Loaded:
    """Return what transformers loads, or raise one sentence on why it could not."""
    try:
        return load()
    except InputError:
        raise
    except Exception as problem:  # transformers, safetensors and torch each raise kinds of their own
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        if "ignore_mismatched_sizes" in lines[0]:  # the report that it points to is not shown
            raise InputError(
                "path", _MODEL_FOLDER, f"{str(path)!r}, whose weights have other shapes than config.json states"
            ) from problem
        if "weights_only" in str(problem):  # what torch advises would run the code
            raise InputError(
                "path", _MODEL_FOLDER, f"{str(path)!r}, whose pickled weights hold more than tensors and are not loaded"
            ) from problem
        said = lines[0] if not lines[0].endswith(":") else " ".join(" ".join(lines).split())  # a list follows
        raise InputError(
            "path", _MODEL_FOLDER, f"{str(path)!r}, of which transformers says: {said.rstrip('.')}"
        ) from problem


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings, the loading report and its bar: heads that are not probed are left out on purpose."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


# ---- which attention a model runs with


@contextmanager
def attention_implementation(model: PreTrainedModel | LoadedModel, name: str) -> Iterator[None]:
    """Use an attention implementation (sdpa, flash_attention_2, …) inside the block, and the earlier one afterwards.

    Raise for a model that cannot change its implementation; objects other than Hugging Face models are not checked here.

    Args:
        model: a model, or the result of `load_model`.

        name: `FUSED`, or "eager", which returns attention maps.
    """
    model = model.model if isinstance(model, LoadedModel) else model
    configs = _configs(model) if is_hugging_face(model) else []
    before = [(config, config._attn_implementation) for config in configs if hasattr(config, "_attn_implementation")]
    if all(found == name for _, found in before):
        yield
        return
    try:
        with _quiet(), suppress(AttributeError, ValueError, ImportError):  # said below, in our words
            model.set_attn_implementation(name)
        found = getattr(model.config, "_attn_implementation", None)
        if found != name:
            raise InputError(
                "model",
                f"a model that can attend by {name!r}, so that its attention can be read",
                f"attn_implementation={found!r}, which this model cannot change",
                _EAGER,
            )
        yield
    finally:
        for config, found in before:
            config._attn_implementation_internal = found


def _configs(model: PreTrainedModel) -> list[Any]:
    """Return the configurations of a model and of all models in it, each once."""
    waiting = [module.config for module in model.modules() if is_hugging_face(module)] + [model.config]
    found: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(found.values())
