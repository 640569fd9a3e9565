"""Settings of a training run: frozen dataclasses whose fields declare which values they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from marginlens.errors import missing_extra, real_number, reject, whole_number

_CHECK = "check"


@dataclass(frozen=True)
class RunSettings:
    """Base of all settings: a frozen dataclass of the fields below, which names in `FREE` what may change when a run resumes."""

    FREE: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, field.metadata[_CHECK](getattr(self, field.name), field.name))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, by name."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Settings from what `to_dict` gave, or from a part of it."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise reject("settings", f"some of {', '.join(sorted(known))}", ", ".join(unknown))
        return cls(**values)

    def differences(self, other: Self) -> list[str]:
        """The settings in which two runs differ so that one cannot resume the other."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [
            f"{name} {theirs[name]} there, {mine[name]} here"
            for name in mine
            if name not in self.FREE and mine[name] != theirs[name]
        ]


# ---- fields, each with its default first


def whole(default: int, *, at_least: int = 0) -> Any:
    """A whole number."""
    return _field(default, lambda value, name: whole_number(value, name, at_least=at_least))


def whole_numbers(default: tuple[int, ...], expected: str) -> Any:
    """A list of whole numbers of at least 0."""

    def check(value: Any, name: str) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            raise reject(name, expected, repr(value))
        return tuple(whole_number(item, name, at_least=0) for item in value)

    return _field(default, check)


def positive(default: float) -> Any:
    """A finite number above zero."""
    return _field(default, _number("a positive number", lambda value: 0.0 < value < float("inf")))


def non_negative(default: float) -> Any:
    """A finite number of at least zero."""
    return _field(default, _number("a number of at least 0", lambda value: 0.0 <= value < float("inf")))


def flag(default: bool) -> Any:
    """True or false."""
    return _field(default, _instance(bool, "true or false"))


def text(default: str, expected: str) -> Any:
    """Any text, of which something else says whether it will do."""
    return _field(default, _instance(str, expected))


def choice(default: Any, *others: Any) -> Any:
    """The default or one of the others, all of one type."""
    choices = (default, *others)

    def check(value: Any, name: str) -> Any:
        plain = value.item() if isinstance(value, np.generic) else value
        if type(plain) is not type(default) or plain not in choices:
            raise reject(name, " or ".join(map(str, choices)), repr(value))
        return plain

    return _field(default, check)


def _field(default: Any, check: Callable[[Any, str], Any]) -> Any:
    return dataclasses.field(default=default, metadata={_CHECK: check})


def _number(expected: str, accepts: Callable[[float], bool]) -> Callable[[Any, str], float]:
    def check(value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise reject(name, expected, repr(value))
        number = real_number(value, name, expected)
        if not accepts(number):
            raise reject(name, expected, repr(value))
        return number

    return check


def _instance(kind: type, expected: str) -> Callable[[Any, str], Any]:
    def check(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise reject(name, expected, repr(value))
        return value

    return check


# ---- what goes with settings

Settings = TypeVar("Settings", bound=RunSettings)


def settings_or_default(settings: Any, kind: type[Settings]) -> Settings:
    """Settings of this kind, which are the defaults where none are given."""
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise reject("settings", kind.__name__, type(settings).__name__)
    return settings


def torch_device(device: str) -> Any:
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
