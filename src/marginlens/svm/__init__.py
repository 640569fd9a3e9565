"""The hard-margin problems of the papers, one file each, over one core solver with certificates."""

from typing import TYPE_CHECKING

from marginlens.removed import no_attribute
from marginlens.svm.attention import att_svm, label_svm, relaxed_svm
from marginlens.svm.bilinear import BilinearSolution, bilinear_svm
from marginlens.svm.contexts import ContextSolution, ntp_svm
from marginlens.svm.graph import GraphConflict, GraphSolution, graph_conflict, graph_svm
from marginlens.svm.mixtures import MixtureSolution, mixture_svm
from marginlens.svm.sets import SetSolution, set_svm
from marginlens.svm.solution import Bracket, MarginSolution, Status
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.svm.vocabulary import closed_form_candidate, vocabulary_svm

__all__ = [
    "BilinearSolution",
    "Bracket",
    "ContextSolution",
    "GraphConflict",
    "GraphSolution",
    "MarginSolution",
    "MixtureSolution",
    "SetSolution",
    "Status",
    "att_svm",
    "bilinear_svm",
    "closed_form_candidate",
    "graph_conflict",
    "graph_svm",
    "label_svm",
    "least_distance",
    "mixture_svm",
    "ntp_svm",
    "relaxed_svm",
    "set_svm",
    "vocabulary_svm",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
