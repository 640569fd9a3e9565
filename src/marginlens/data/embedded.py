"""Labelled sequences of embedded tokens as a token dataset, so that everything about p serves paper B's setting too."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.labelled import as_labelled
from marginlens.data.tokens import TokenDataset
from marginlens.errors import real_array, reject
from marginlens.papers import implements


@implements("B", "Eq. (1)")
def embedding_tokens(E: Any, sequences: Any, y: Any = None) -> TokenDataset:
    r"""The token dataset whose inputs are the embedded sequences; a token that occurs twice is two rows.

    .. math:: X_i = K_i = E_{X_i} = [E_{x_{i1}}, \dots, E_{x_{iT_i}}]^\top

    Args:
        E: embeddings (n_vocabulary, d_model). sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        A dataset of n_samples inputs. With the head v its risk as a function of p is the loss of Eq. (2) with E fixed, so that
        `gradient_flow(embedding_tokens(E, sequences, y), v, start=p)` is the flow of Eq. (7).
    """
    data, table = as_labelled(sequences, y), real_array(E, "E", ("n_vocabulary", "d_model"))
    if len(table) < data.n_vocabulary:
        raise reject("E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(table)} rows")
    rows = table[data.tokens]  # (n_positions, d_model)
    if (data.lengths == data.lengths[0]).all():
        return TokenDataset(rows.reshape(len(data), -1, table.shape[1]), data.y)
    return TokenDataset(np.split(rows, data.offsets[1:-1]), data.y)
