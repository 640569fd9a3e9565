"""Error types and argument validation: one sentence with the argument, what was expected, what was got and what to do.

Functions that make arrays import NumPy themselves: a missing folder is then refused before NumPy is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf
from numbers import Integral
from shutil import which
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "CoreError",
    "EngineError",
    "InputError",
    "MissingExtra",
]  # what a user may catch; the rest is for the library itself

_LARGEST = 2**63 - 1
_MAX_GOT = 1000  # letters of what was got that a sentence repeats
_WITH_TORCH = {"torch", "probe", "monitor", "minilm", "report", "all"}  # extras that bring it
NOT_NUMBERS = (TypeError, ValueError, OverflowError, RuntimeError)  # the last by a tensor that requires a gradient


class InputError(ValueError):
    """Raised if an argument cannot be used. The message is one sentence, rendered here and nowhere else.

    Args:
        argument: name of the argument of the function that was called or, if `file` is given, of an entry of that file. Without
            `expected` and `got` it is the whole message.

        expected: what the argument must be, as the end of a sentence, e.g. "a positive number".

        got: what was given instead. Its string is put on one line and cut in the middle if it is very long.

        remedy: a sentence that says what to do. It names other arguments between backticks as Python writes them, such as
            "`drop=True`", which the command line prints as its options.

        file: the file that holds the entry, if it is not an argument.
    """

    def __init__(self, argument: str, expected: str = "", got: object = "", remedy: str = "", file: str = "") -> None:
        received = str(got)
        # Arrays print on several lines.
        received = " ".join(received.split()) if "\n" in received else received
        if len(received) > _MAX_GOT:
            received = f"{received[: _MAX_GOT // 2]} … {received[-_MAX_GOT // 2 :]}"
        # As `args` these come back from other processes.
        super().__init__(argument, expected, received, remedy, file)
        self.argument, self.expected, self.got, self.remedy, self.file = argument, expected, received, remedy, file
        self.sentence = "" if expected else argument
        if not expected:
            self.argument = ""

    def __str__(self) -> str:
        if self.sentence:
            return self.sentence
        kind = f"entry of {self.file!r}" if self.file else "argument"
        return f"The '{self.argument}' {kind} must be {self.expected}; got {self.got} instead. {self.remedy}".rstrip()


class MissingExtra(ImportError):
    """Raised if a feature needs an optional package; the message names the extra to install."""


class CoreError(ImportError):
    """Raised if the compiled core cannot be built or loaded; the message says what to do."""


class EngineError(RuntimeError):
    """Raised if workers, or the machine that distributes the work, are gone; the message says what became of the tasks."""


@contextmanager
def rename_arguments(file: object = "", /, **names: str) -> Iterator[None]:
    """Rename the arguments in errors raised by the block, e.g. `rename_arguments(d_model="d")`.

    Args:
        file: if given, arguments without a new name are reported as entries of this file.

        names: new names by old ones. An empty name keeps the error as it is.
    """
    try:
        yield
    except InputError as problem:
        name = names.get(problem.argument, problem.argument)
        entry = "" if problem.argument in names else str(file)
        if not name or problem.file or (name, entry) == (problem.argument, ""):
            raise
        raise InputError(name, problem.expected, problem.got, problem.remedy, entry) from problem


def missing_extra(package: str, extra: str, feature: str) -> MissingExtra:
    """Make the error for a missing optional package; if it brings torch and there is no GPU, it says how to install a small build."""
    sentence = f"{feature} needs the package {package}: install it with {install_command(extra)}."
    if extra in _WITH_TORCH and find_spec("torch") is None and which("nvidia-smi") is None:
        sentence += " No GPU is seen here: install a CPU build of torch first, which is a fraction of the size."
    return MissingExtra(sentence)


def require(package: str, extra: str, feature: str) -> None:
    """Raise if the optional package of a feature, named as it is imported, is not installed."""
    if find_spec(package) is None:
        raise missing_extra(package, extra, feature)


def install_command(extras: str) -> str:
    """Return the command that installs optional packages, `extras` as named in pyproject.toml, e.g. "probe,minilm"."""
    return f"pip install 'marginlens[{extras}]'"


def float_array(
    value: object, argument: str, expected: str = "real numbers", *, remedy: str = ""
) -> npt.NDArray[np.float64]:
    """Return `value` as a float64 array of any shape. Nan and inf are allowed; complex numbers, times and non-numbers are refused."""
    import numpy as np

    if type(value) is np.ndarray and value.dtype is np.dtype(np.float64):
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind in "cmM" or (array.dtype.kind == "O" and any(one is None for one in array.flat)):
            raise TypeError(f"dtype {array.dtype}")
        return np.asarray(array, dtype=np.float64)
    except NOT_NUMBERS as problem:
        raise InputError(argument, expected, _summary(value), remedy) from problem


def array_of_any(value: object, argument: str, expected: str) -> npt.NDArray[Any]:
    """Return `value` as the array that NumPy makes of it; lists of different lengths and tensors that require a gradient are refused."""
    import numpy as np

    try:
        return np.asarray(value)
    except (ValueError, RuntimeError) as problem:
        got = "lists of different lengths" if isinstance(problem, ValueError) else _summary(value)
        raise InputError(argument, expected, got) from problem


def index_array(
    value: object, argument: str, expected: str, shape: Sequence[int] | None = None, *, below: Any = None
) -> npt.NDArray[np.int64]:
    """Return `value` as an array of whole numbers whose axes are `shape`, -1 for any length; an empty list has no entries.

    Args:
        below: an upper bound, excluded, a number or an array that broadcasts; numbers must then not be negative.
    """
    import numpy as np

    array = array_of_any(value, argument, expected)
    if array.size == 0 and shape is not None and array.ndim == 1 and -1 in shape:
        array = np.empty([max(length, 0) for length in shape], dtype=np.int64)
    wrong = array.dtype.kind not in "iu" and array.size > 0
    if shape is not None and not wrong:
        wrong = array.ndim != len(shape) or any(
            want not in (-1, have) for want, have in zip(shape, array.shape, strict=True)
        )
    if wrong:
        raise InputError(argument, expected, f"shape {array.shape} with dtype {array.dtype}")
    if below is not None and (outside := (array < 0) | (array >= below)).any():
        where = tuple(int(k) for k in np.argwhere(outside)[0])
        raise InputError(argument, expected, f"{array[where]} at index {where if len(where) > 1 else where[0]}")
    return array.astype(np.int64, copy=False)


def real_array(
    value: object, argument: str, shape: Sequence[str | int], *, remedy: str = ""
) -> npt.NDArray[np.float64]:
    """Return `value` as a finite float64 array whose axes are `shape`: a number is an exact length, a word any length."""
    import numpy as np

    expected = f"an array of finite numbers of shape ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    array = float_array(value, argument, expected, remedy=remedy)
    if array.ndim != len(shape) or any(
        isinstance(want, int) and have != want for want, have in zip(shape, array.shape, strict=True)
    ):
        raise InputError(argument, expected, f"shape {array.shape}", remedy)
    if not np.isfinite(array).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise InputError(argument, expected, f"{array[where]} at index {where}", remedy)
    return array


def n_axes(value: Any) -> int:
    """Return the number of axes of `value`, or 0 if it is not an array, which `real_array` then refuses."""
    import numpy as np

    try:
        return int(np.ndim(value))
    except NOT_NUMBERS:
        return 0


def positive_number(value: object, argument: str) -> float:
    """Return `value` as a finite float above zero."""
    return real_number(value, argument, "a positive number", lambda number: 0.0 < number < inf)


def real_number(
    value: Any, argument: str, expected: str, within: Callable[[float], bool] = lambda number: True
) -> float:
    """Return `value` as a float that is `within` bounds; nan and inf are allowed unless the bounds exclude them."""
    if getattr(value, "requires_grad", False):
        raise InputError(argument, expected, _summary(value))
    try:
        number = float(value)
    except NOT_NUMBERS as problem:
        raise InputError(argument, expected, _summary(value)) from problem
    if not within(number):
        raise InputError(argument, expected, f"{number:g}")
    return number


def nonnegative_number(value: object, argument: str) -> float:
    """Return `value` as a finite float of at least zero."""
    return real_number(value, argument, "a number of at least 0", lambda number: 0.0 <= number < inf)


def share_number(value: object, argument: str) -> float:
    """Return `value` as a share or probability from 0 to 1."""
    return real_number(value, argument, "a number from 0 to 1", lambda number: 0.0 <= number <= 1.0)


def whole_number(value: object, argument: str, *, at_least: int) -> int:
    """Return `value` as an int of at least `at_least` that fits in 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < at_least:
        raise InputError(argument, f"a whole number of at least {at_least}", _summary(value))
    if int(value) > _LARGEST:
        raise InputError(argument, f"a whole number of at most {_LARGEST}", _summary(value))
    return int(value)


def batch_index(index: object, count: int, elements: str) -> int | npt.NDArray[np.int64]:
    """Return which of the `count` elements of a batch `index` picks: a whole number picks one; a slice, a mask (count,) or a list several.

    Args:
        elements: the name of the elements in the message, in the plural.
    """
    import numpy as np

    if isinstance(index, Integral) and not isinstance(index, bool):
        places = np.array([index])
    elif isinstance(index, slice):
        places = np.arange(count)[index]
    elif isinstance(index, list | tuple | np.ndarray):
        places = array_of_any(index, "index", f"a mask ({count},) or a list that picks {elements}")
    else:
        raise InputError("index", "a whole number, a slice, a mask or a list of whole numbers", repr(index))
    if places.dtype == np.bool_ and places.shape == (count,):
        places = np.flatnonzero(places)
    if places.ndim != 1 or (places.dtype.kind not in "iu" and places.size):
        raise InputError("index", f"a slice, a mask ({count},) or a list that picks {elements}", repr(index))
    if places.size == 0:
        raise InputError("index", f"one that picks at least one of the {elements}", "none")
    if places.min() < -count or places.max() >= count:
        wrong = int(places[(places < -count) | (places >= count)][0])
        raise IndexError(f"index {wrong} of a batch of {count} {elements}")
    places = places.astype(np.int64) % count
    return int(places[0]) if isinstance(index, Integral) else places


def _summary(value: object) -> str:
    if getattr(value, "requires_grad", False):
        return "a tensor that requires a gradient"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"shape {tuple(shape)} with dtype {getattr(value, 'dtype', '?')}"
    return brief_repr(value)


def brief_repr(value: object) -> str:
    """Return the repr of an object, cut to 60 characters: that of a `tokenizers.Tokenizer` lists its whole vocabulary."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
