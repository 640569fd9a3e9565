"""Bags of patches: the inputs of attention pooling in multiple-instance learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, float_array, rename_arguments
from marginlens.typing import ArrayLike

BAG = "bag"  # the kind of these datasets


def bags(
    patches: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    *,
    names: Sequence[str] | Sequence[Sequence[str]] | None = None,
    keys: ArrayLike | Sequence[ArrayLike] | None = None,
) -> TokenDataset:
    r"""Make a dataset of bags of patches, for attention pooling of frozen features in multiple-instance learning.

    .. math:: f(B_i) = v^\top \sum_t \mathrm{softmax}_t(k_{it}^\top p)\, x_{it}, \qquad B_i = (x_{i1}, \dots, x_{iT_i})

    Patches are the tokens and bags the inputs of all that the library computes, and verdicts say "patch" and "bag".

    Args:
        patches: the features of the patches, a list with one array (n_patches_i, d) per bag, or an array (n_bags, n_patches, d).

        labels: (n_bags,), each 0 or 1, or each -1 or +1.

        names: the names of the patches, one list of texts per bag; an empty text names nothing.

        keys: what attention reads in place of the features, in the same form as `patches`; the features themselves by
            default.

    Returns:
        A dataset with labels ±1.

    Examples:
        >>> import marginlens as ml
        >>> slides = [[[0.0, 2.0], [1.0, 0.0], [-1.0, 0.0]], [[0.0, -2.0], [1.0, 0.0]]]
        >>> data = ml.data.bags(slides, [1, 0])
        >>> data.y.tolist()
        [1.0, -1.0]
        >>> print(ml.predict_limit(data, [0.5, 1.0]).outcome.ends_at)
        patch 1 wins in bag 0, patch 0 in bag 1
    """
    expected = "labels of bags, each 0 or 1, or each -1 or +1"
    given = float_array(labels, "labels", expected)
    wrong = given[~np.isin(given, (-1.0, 0.0, 1.0))]
    if wrong.size or {-1.0, 0.0} <= set(given.ravel().tolist()):
        raise InputError("labels", expected, f"the label {wrong[0]:g}" if wrong.size else "labels -1 and 0")
    with rename_arguments(X="patches", y="labels", K="keys", tokens="names"):
        return TokenDataset(patches, np.where(given == 0.0, -1.0, given), K=keys, tokens=names, kind=BAG)
