"""Token problems whose arrays are on a GPU: made there, solved there, and brought over only when asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenArrays, TokenDataset, as_dataset
from marginlens.errors import reject
from marginlens.gpu.device import Device, Layout, as_device, device_of, to_host
from marginlens.result import Described


class DeviceTokens(TokenArrays, Described):
    r"""A batch of problems :math:`(Y_i, X_i, K_i)_{i=1}^n` in arrays on a device; what `TokenDataset` is for arrays of NumPy.

    Args:
        X: tokens (batch, n_inputs, n_tokens, d_model), a float64 array of CuPy. y: labels (batch, n_inputs), each -1 or +1.
        K: keys (batch, n_inputs, n_tokens, d_key); X by default.
        lengths: (batch, n_inputs) real tokens of each input, int64; all of them by default. Tokens beyond are not read.
        device: of the arrays; found from X by default.
    """

    is_batch = True
    quantities = (
        "{self:#} problems of {n_inputs} inputs × {n_tokens} tokens, d_model={d_model}, d_key={d_key}, on {device.name}"
    )

    def __init__(self, X: Any, y: Any, K: Any = None, lengths: Any = None, device: Device | None = None) -> None:
        if getattr(X, "ndim", 0) != 4 or 0 in X.shape:
            shape = getattr(X, "shape", type(X).__name__)
            raise reject("X", "a CuPy array of shape (batch, n_inputs, n_tokens, d_model)", f"shape {shape}")
        self.device = device_of(X) if device is None else device
        xp = self.device.xp
        with self.device.active():
            self.X = xp.ascontiguousarray(X, dtype=np.float64)
            self.K = self.X if K is None else xp.ascontiguousarray(K, dtype=np.float64)
            self.y = xp.ascontiguousarray(y, dtype=np.float64)
            self.lengths = None if lengths is None else xp.ascontiguousarray(lengths, dtype=np.int64)
        if self.K.shape[:3] != self.X.shape[:3]:
            raise reject("K", f"keys for tokens of shape {self.X.shape[:3]}", f"shape {self.K.shape[:3]}")
        for name, array in (("y", self.y), ("lengths", self.lengths)):
            if array is not None and array.shape != self.X.shape[:2]:
                raise reject(name, f"of shape {self.X.shape[:2]}", f"shape {array.shape}")

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, index: slice | Any) -> DeviceTokens:
        """The problems that a slice, a mask or a list of indices picks, as a batch."""
        if isinstance(index, int | np.integer):
            index = [int(index)]
        with self.device.active():
            X = self.X[index]
            K = None if self.K is self.X else self.K[index]
            lengths = None if self.lengths is None else self.lengths[index]
            return DeviceTokens(X, self.y[index], K, lengths, self.device)

    def head(self, head: Any) -> Any:
        """A head v as an array on the device, (d_model,) or (batch, d_model)."""
        with self.device.active():
            v = self.device.xp.asarray(head, dtype=np.float64)
        if v.shape not in ((self.d_model,), (len(self), self.d_model)):
            raise reject("head", f"of shape ({self.d_model},) or ({len(self)}, {self.d_model})", f"shape {v.shape}")
        return v

    def selection(self, selected: Any) -> Any:
        """The token index of each input as an array (batch, n_inputs) on the device."""
        xp, shape = self.device.xp, (len(self), self.n_inputs)
        alpha = xp.asarray(selected)
        if alpha.dtype.kind not in "iu" or alpha.shape not in ((self.n_inputs,), shape):
            expected = f"whole numbers of shape {shape}: one token index per input"
            raise reject("selected", expected, f"shape {alpha.shape} with dtype {alpha.dtype}")
        alpha = xp.ascontiguousarray(xp.broadcast_to(alpha, shape).astype(np.int64))
        beyond = self.n_tokens if self.lengths is None else self.lengths
        if bool(((alpha < 0) | (alpha >= beyond)).any()):
            expected = f"token indices from 0 to the length of each input, at most {self.n_tokens - 1}"
            raise reject("selected", expected, "others")
        return alpha

    def scores(self, head: Any) -> Any:
        r"""Token scores :math:`\gamma_{it} = Y_i v^\top x_{it}`, (batch, n_inputs, n_tokens) on the device; zero for no token."""
        v, sizes = self.head(head), (self.n_inputs, self.n_tokens, self.d_model)
        with self.device.active():
            scores = self.device.xp.empty(self.X.shape[:3])
            kernel = self.device.kernel("scores.cu", "token_scores", {}, Layout(warps_per_block=8))
            kernel(
                len(self),
                self.X,
                self.y,
                self.device.xp.ascontiguousarray(v),
                v.ndim == 1,
                self.lengths,
                *sizes,
                scores,
            )
        return scores

    def to_host(self) -> TokenDataset:
        """The same problems as a `TokenDataset`."""
        X, y = to_host(self.X), to_host(self.y)
        K = None if self.K is self.X else to_host(self.K)
        if self.lengths is None:
            return TokenDataset(X, y, K=K)
        lengths = to_host(self.lengths)

        def ragged(tokens: Any) -> Any:
            return [[tokens[b, i, :length] for i, length in enumerate(row)] for b, row in enumerate(lengths)]

        return TokenDataset(ragged(X), y, K=None if K is None else ragged(K))


class PlacedTokens(NamedTuple):
    """A dataset of NumPy whose problems a device takes, as many at a time as it holds."""

    data: TokenDataset
    device: Device


def placed(data: Any, device: str) -> Any:
    """Tokens where their problems are solved: a dataset itself on the CPU, else with its device; `DeviceTokens` are on theirs."""
    if isinstance(data, DeviceTokens):
        return data
    where = as_device(device)
    return data if where is None else PlacedTokens(as_dataset(data), where)
