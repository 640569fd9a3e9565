"""Names of optimizers, losses and norms at the command line, in files, in the lab and in sweeps.

A name is the name of a class in kebab case: `NormalizedGD` is "normalized-gd" and `LInf` is "l-inf". This module imports
nothing, so the help of a command can list the names; a class is imported only when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

# spellings of earlier versions, which are still read
EARLIER = {
    "ngd": "normalized-gd",
    "gd": "gradient-descent",
    "sign": "sign-descent",
    "coordinate": "coordinate-descent",
    "steepest": "steepest-descent",
    "mirror": "mirror-descent",
    "correlation": "correlation-loss",
    "log": "log-loss",
    "squared": "squared-loss",
    "linf": "l-inf",
}
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def kebab(class_name: str) -> str:
    """Return the name of a class in kebab case, such as "normalized-gd" for "NormalizedGD"."""
    return _WORD_ENDS.sub("-", class_name).lower()


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the sentence "Did you mean …?" with the known word that is most like this one in any case, or an empty string.

    Examples:
        >>> from marginlens.names import nearest
        >>> nearest("adamw", ["adam", "muon"])
        'Did you mean adam?'
    """
    spelled = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(spelled), 1, 0.5)
    return f"Did you mean {spelled[close[0]]}?" if close else ""


@dataclass(frozen=True)
class Family:
    """Classes that are chosen by name.

    Args:
        argument: the name of the choice in errors.
        module: the module that has the classes.
        classes: the names of the classes, in the order in which they are listed.
    """

    argument: str
    module: str
    classes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all classes."""
        return tuple(map(kebab, self.classes))

    def name(self, word: object) -> str:
        """Return the name that a word stands for: a name, the class's own name, or a spelling of an earlier version."""
        spelled = kebab(word.strip()) if isinstance(word, str) else ""
        name = EARLIER.get(spelled, spelled)
        if name not in self.names:
            from marginlens.errors import InputError

            expected = f"one of {', '.join(self.names)}"
            raise InputError(self.argument, expected, repr(word), nearest(spelled, self.names))
        return name

    def class_named(self, word: object) -> Any:
        """Return the class that a word stands for."""
        class_name = self.classes[self.names.index(self.name(word))]
        return getattr(import_module(self.module), class_name)

    def name_of(self, given: object) -> str:
        """Return the name of an object's class; a subclass has none."""
        kind = type(given)
        if kind.__name__ not in self.classes or kind is not self.class_named(kind.__name__):
            from marginlens.errors import InputError

            raise InputError(
                self.argument, f"one that has a name, of the classes {', '.join(self.classes)}", repr(given)
            )
        return kebab(kind.__name__)


OPTIMIZERS = Family(
    "optimizer",
    "marginlens.optimizers",
    (
        "NormalizedGD",
        "GradientDescent",
        "SignDescent",
        "CoordinateDescent",
        "SteepestDescent",
        "Muon",
        "Adam",
        "MirrorDescent",
    ),
)
LOSSES = Family(
    "loss", "marginlens.losses", ("Logistic", "Exponential", "CorrelationLoss", "LogProbability", "ArcsineLoss")
)
NEXT_TOKEN_LOSSES = Family(
    "loss", "marginlens.losses", ("LogLoss", "SquaredLoss", "CrossEntropy", "SquaredProbability")
)
NORMS = Family("norm", "marginlens.norms", ("L1", "L2", "LInf", "Frobenius", "Spectral", "Nuclear", "MaxRow"))
