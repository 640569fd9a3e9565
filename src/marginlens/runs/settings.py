"""The settings of a training run as plain values and back, and the device they name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from marginlens.errors import missing_extra, reject


@dataclass(frozen=True)
class RunSettings:
    """What the settings of all runs can do; a frozen dataclass takes it as its base and names in `FREE` what may change in a run."""

    FREE: ClassVar[tuple[str, ...]] = ()

    def told(self) -> dict[str, Any]:
        """The settings as plain values, by name."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def of(cls, told: dict[str, Any]) -> Self:
        """Settings from what `told` gave, or from a part of it."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(told) - known)
        if unknown:
            raise reject("settings", f"some of {', '.join(sorted(known))}", ", ".join(unknown))
        for field in dataclasses.fields(cls):
            if field.name in told:
                _check_kind(field.name, told[field.name], field.default)
        return cls(**told)

    def differences(self, other: Self) -> list[str]:
        """The settings in which two runs differ so that one cannot go on where the other stopped."""
        mine, theirs = self.told(), other.told()
        return [
            f"{name} {theirs[name]} there, {mine[name]} here"
            for name in mine
            if name not in self.FREE and mine[name] != theirs[name]
        ]


Settings = TypeVar("Settings", bound=RunSettings)


def given_settings(settings: Any, kind: type[Settings]) -> Settings:
    """Settings of this kind, which are the defaults where none are given."""
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise reject("settings", kind.__name__, type(settings).__name__)
    return settings


def _plain(value: Any) -> Any:
    """A setting as JSON takes it."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _check_kind(name: str, value: Any, default: Any) -> None:
    """Refuse a value of another kind than the default's; which values of its kind will do, the settings themselves say."""
    kinds: tuple[tuple[Any, tuple[type, ...], str], ...] = (
        (bool, (bool,), "true or false"),
        (int | float, (int, float), "a number"),
        (str, (str,), "text"),
        (tuple, (list, tuple), "a list"),
    )
    for kind, allowed, told in kinds:
        if isinstance(default, kind):
            if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
                raise reject(name, told, repr(value))
            return


def check_device(device: str) -> Any:
    """The torch device of that name, which this machine must have."""
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "Training two layers, or on a GPU,") from problem
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as problem:
        raise reject("device", "cpu or cuda", repr(device)) from problem
    if found.type not in ("cpu", "cuda"):
        raise reject("device", "cpu or cuda", repr(device))
    if found.type == "cuda" and not torch.cuda.is_available():
        raise reject("device", "a device that this machine has", f"{device!r} where torch finds no GPU", "Use cpu.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise reject("device", f"one of {torch.cuda.device_count()} GPUs, counted from 0", repr(device))
    return found
