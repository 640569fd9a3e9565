"""Measurements of a vision transformer: sparsity of its CLS maps and norms of its key-query matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, logsumexp, softmax

from marginlens.papers import implements
from marginlens.probe.heads.sparsity import relative_sparsity
from marginlens.probe.models.adapters.vision import ViTAdapter
from marginlens.probe.models.reading import read_attention
from marginlens.typing import FloatArray

_IMAGES_AT_ONCE = 64  # (64, 12, 257, 257) numbers of one layer of ViT-base are 200 MB


@dataclass(frozen=True, repr=False, eq=False)
class ClsAttention:
    """The CLS token's attention in every layer, over a batch of images; all means are over the images.

    Attributes:
        sparsity: (n_layers,) mean of nnz(s)/T, s the mean over heads of the CLS row, without CLS itself and scaled to sum 1.
        head_sparsity: (n_layers,) mean of nnz/T over images and heads, of each head's own row, treated alike.
        own_share: (n_layers,) mean attention of CLS to itself, which both leave out.
        maps: (n_chosen, n_patches) s in the last layer for the first `n_chosen` images, patches row by row.
    """

    sparsity: FloatArray
    head_sparsity: FloatArray
    own_share: FloatArray
    maps: FloatArray


@implements("A", "Fig 6", "Fig 7")
def cls_attention(model: Any, pixels: Any, n_chosen: int = 0) -> ClsAttention:
    r"""How sparse the map is with which the CLS token attends to the T patches of an image.

    .. math:: \bar a = \frac1H \sum_h a_h,\quad s = \bar a_{1:T} / \|\bar a_{1:T}\|_1,\quad \mathrm{nnz}(s)/T = 1 / (T \|s\|_2^2)

    In logarithms, since a CLS token that attends only to itself leaves the patches less than any number can represent.

    Args:
        model: a ViT with a CLS token first. pixels: (n_images, channels, height, width), scaled, on the model's device.
        n_chosen: of so many images, the first ones, the map in the last layer comes back.
    """
    n_layers = ViTAdapter(model).n_layers
    sums = np.zeros((3, n_layers))
    maps: list[FloatArray] = []
    with _eager_attention(model):
        for first in range(0, len(pixels), _IMAGES_AT_ONCE):
            batch = pixels[first : first + _IMAGES_AT_ONCE]
            for reading in read_attention(model, {"pixel_values": batch}):
                logits = reading.logits[:, :, 0, :].double().cpu().numpy()  # (images, heads, 1 + patches)
                rows = log_softmax(logits, axis=-1)
                mean = logsumexp(rows, axis=1) - np.log(rows.shape[1])
                s = softmax(mean[:, 1:], axis=-1)
                measured = (
                    relative_sparsity(s).sum(),
                    relative_sparsity(softmax(logits[:, :, 1:], axis=-1)).mean(axis=1).sum(),
                    np.exp(mean[:, 0]).sum(),
                )
                sums[:, reading.layer] += measured
                if reading.layer == n_layers - 1:
                    maps.append(s[: max(0, n_chosen - first)])
    sparsity, head_sparsity, own_share = sums / len(pixels)
    return ClsAttention(sparsity, head_sparsity, own_share, np.concatenate(maps))


@implements("A", "Fig 7")
def key_query_norms(model: Any) -> tuple[FloatArray, FloatArray]:
    r"""‖W‖_F of the combined key-query matrix of every layer, its heads taken together in two ways.

    .. math:: W_h = W_{K,h} W_{Q,h}^\top / \sqrt{d_h}, \quad \Big(\sum_h \|W_h\|_F^2\Big)^{1/2}, \quad \Big\|\sum_h W_h\Big\|_F

    Returns:
        (n_layers,) the norm of all W_h side by side, and (n_layers,) the norm of their sum. Both come from products of the factors on
        the model's device; `KeyQueryMap.frobenius` of the probe is the same for one head.
    """
    import torch

    adapter = ViTAdapter(model)
    heads, width = adapter.n_heads, adapter.shape(0).d_head
    by_layer = []
    with torch.no_grad():
        for layer in range(adapter.n_layers):
            maps = adapter.projection(layer)
            K, Q = (W.double().T for W in (maps.W_K, maps.W_Q))  # (heads · d_head, d_model)
            k, q = (W.reshape(heads, width, -1) for W in (K, Q))
            each = (torch.bmm(k, k.mT) * torch.bmm(q, q.mT)).sum()  # Σ_h tr(W_hᵀ W_h), by the factors' Gram matrices
            by_layer.append(torch.stack([each, (K.T @ Q).square().sum()]).sqrt() * adapter.scale(layer))
        norms = torch.stack(by_layer).cpu().numpy()
    return norms[:, 0], norms[:, 1]


# ---- parts


@contextmanager
def _eager_attention(model: Any) -> Iterator[None]:
    """The model in evaluation mode, in full float32 and with attention that shows its weights; afterwards it is as it was before.

    Tensor cores round what they multiply to 10 bits, which moves logits of several hundred by as much as their margins.
    """
    import torch

    hidden, training = model.config._attn_implementation, model.training
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    rounded = matrices.allow_tf32, convolutions.allow_tf32
    model.set_attn_implementation("eager")
    model.eval()
    matrices.allow_tf32 = convolutions.allow_tf32 = False
    try:
        with torch.autocast(model.device.type, enabled=False):
            yield
    finally:
        matrices.allow_tf32, convolutions.allow_tf32 = rounded
        model.set_attn_implementation(hidden)
        model.train(training)
