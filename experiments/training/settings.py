"""Settings of a training run that are checked when they are made, and the device that they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from marginlens.errors import InputError, missing_extra, real_number, whole_number

Check = Callable[[Any, str], Any]  # the value and the name of a setting; the value as it is kept


class RunSettings:
    """Base of all settings, together with a frozen dataclass that has their names and usual values.

    Attributes:
        CHECKS: what each setting may be, by name. FREE: the settings that may change when a run resumes.
    """

    CHECKS: ClassVar[Mapping[str, Check]] = {}
    FREE: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, check in self.CHECKS.items():
            object.__setattr__(self, name, check(getattr(self, name), name))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, by name."""
        values = {name: getattr(self, name) for name in self.CHECKS}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Settings from what `to_dict` gave, or from a part of it."""
        unknown = sorted(set(values) - set(cls.CHECKS))
        if unknown:
            raise InputError("settings", f"some of {', '.join(sorted(cls.CHECKS))}", ", ".join(unknown))
        return cls(**values)

    def differences(self, other: Self) -> list[str]:
        """The settings in which two runs differ so that one cannot resume the other."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [
            f"{name} {theirs[name]} there, {mine[name]} here"
            for name in mine
            if name not in self.FREE and mine[name] != theirs[name]
        ]

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """What each setting is, from the docstring of the dataclass that has it."""
        described = next(base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)).__doc__ or ""
        lines = described.partition("Args:\n")[2].splitlines()
        meanings: dict[str, str] = {}
        for line in lines:
            name, colon, meaning = line.strip().partition(": ")
            if colon and name in cls.CHECKS:
                meanings[name] = meaning
            elif meanings and line.strip():
                meanings[list(meanings)[-1]] += f" {line.strip()}"
        return {name: meaning.rstrip(".") for name, meaning in meanings.items()}


# ---- checks


def whole(at_least: int = 0) -> Check:
    """A whole number."""
    return lambda value, name: whole_number(value, name, at_least=at_least)


def whole_numbers(expected: str) -> Check:
    """A list of whole numbers of at least 0."""

    def check(value: Any, name: str) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            raise InputError(name, expected, repr(value))
        return tuple(whole_number(item, name, at_least=0) for item in value)

    return check


def positive() -> Check:
    """A finite number above zero."""
    return _number("a positive number", lambda value: 0.0 < value < float("inf"))


def non_negative() -> Check:
    """A finite number of at least zero."""
    return _number("a number of at least 0", lambda value: 0.0 <= value < float("inf"))


def flag() -> Check:
    """True or false."""
    return _instance(bool, "true or false")


def text(expected: str) -> Check:
    """Any text, of which something else says whether it will do."""
    return _instance(str, expected)


def choice(*choices: Any) -> Check:
    """One of these, all of one type."""

    def check(value: Any, name: str) -> Any:
        plain = value.item() if isinstance(value, np.generic) else value
        if type(plain) is not type(choices[0]) or plain not in choices:
            raise InputError(name, " or ".join(map(str, choices)), repr(value))
        return plain

    return check


def _number(expected: str, accepts: Callable[[float], bool]) -> Check:
    def check(value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise InputError(name, expected, repr(value))
        number = real_number(value, name, expected)
        if not accepts(number):
            raise InputError(name, expected, repr(value))
        return number

    return check


def _instance(kind: type, expected: str) -> Check:
    def check(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise InputError(name, expected, repr(value))
        return value

    return check


# ---- what goes with settings

Settings = TypeVar("Settings", bound=RunSettings)


def settings_or_default(settings: Any, kind: type[Settings]) -> Settings:
    """Settings of this kind, which are the defaults if none are given."""
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise InputError("settings", kind.__name__, type(settings).__name__)
    return settings


def torch_device(device: str) -> Any:
    """The torch device of that name, which this machine must have."""
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "Training two layers, or on a GPU,") from problem
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as problem:
        raise InputError("device", "cpu or cuda", repr(device)) from problem
    if named.type not in ("cpu", "cuda"):
        raise InputError("device", "cpu or cuda", repr(device))
    if named.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device", "a device that this machine has", f"{device!r}, and torch finds no GPU", "Use cpu.")
    if named.type == "cuda" and (named.index or 0) >= torch.cuda.device_count():
        raise InputError("device", f"one of {torch.cuda.device_count()} GPUs, counted from 0", repr(device))
    return named
