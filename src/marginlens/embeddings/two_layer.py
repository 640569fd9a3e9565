"""The two-layer model of paper B on the Gram matrix of each sequence: two products of width d per step, all else of width T."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from marginlens.embeddings.device_batches import DeviceBatch, Group, sums_by_token
from marginlens.embeddings.device_models import DeviceModel, loss_slope
from marginlens.embeddings.forward import LAYER_NORM_EPSILON
from marginlens.papers import implements

_SHARES = {  # the long tail of lengths is padded apart; more groups pad less and launch more kernels
    "cuda": (0.8, 1.0),
    "cpu": (44 / 128, 76 / 128, 100 / 128, 116 / 128, 124 / 128, 1.0),
}


@implements("B", "Eq. (36)")
class DeviceTwoLayer(DeviceModel):
    r"""Attention among the tokens of a sequence with a skip connection and a layer norm, then attention by p, then the head v.

    .. math:: E'_X = \mathrm{LayerNorm}(\mathrm{Softmax}(E_X E_X^\top) E_X + E_X),\quad f = \mathrm{Softmax}(p^\top E_X'^\top) E'_X v

    The layer norm has no parameters. With N = Softmax(E_X E_Xᵀ) + I, rows centred by C = I - 11ᵀ/d and the Gram matrix of the centred
    embeddings G, the variance of row i of N E_X is (N G Nᵀ)_ii / d and its product with p is (N E_X C p)_i; so f needs E_X only through
    G, the means of its rows, E_X C p and E_X C v. Repeated tokens have equal rows, so a sequence stands for its distinct tokens, with
    log multiplicities added to the logits of both softmaxes.
    """

    def shares(self, device: str) -> tuple[float, ...]:
        return _SHARES[device]

    def forward(self, batch: DeviceBatch) -> list[Any]:
        table, _ = self._table()
        with self._rounding():
            return [self._attend(group, table)[-1] for group in batch.groups]

    def gradients(self, batch: DeviceBatch) -> Any:
        import torch

        table, directions = self._table()
        with self._rounding():
            by_X, by_table, outputs = self._by_rows(batch, table)
        weights = sums_by_token(by_table, batch)  # (n_vocabulary, 3)
        by_directions = self.E.T @ weights[:, :2]
        by_directions = by_directions - by_directions.mean(dim=0)
        torch.addmm(sums_by_token(by_X, batch), weights, directions, out=self.trained["E"].grad)
        self.write_gradients(by_directions[:, 0], by_directions[:, 1])
        return outputs

    @contextmanager
    def _rounding(self) -> Iterator[None]:
        """The products of a sequence with itself in TF32, where the settings say so and the device has it."""
        import torch

        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.settings.tf32 and self.E.is_cuda
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _by_rows(self, batch: DeviceBatch, table: Any) -> tuple[Any, Any, list[Any]]:
        """Gradients by the embedding and by the three table entries of every row, and the outputs f, group after group."""
        import torch

        d = self.E.shape[1]
        by_X = torch.empty(batch.n_rows, d, dtype=self.E.dtype, device=self.E.device)
        by_table = torch.empty(batch.n_rows, 3, dtype=self.E.dtype, device=self.E.device)
        outputs = []
        for group in batch.groups:
            X, A, N, NG, local, Z, r, q, f = self._attend(group, table)
            slope = loss_slope(group.y, f, batch.n_samples)[:, None] * q  # (n, T): by the second number of a row
            b = Z[..., 1] * r
            by_products = torch.stack([slope * (b - f[:, None]), slope], dim=-1)  # (n, T, 2)
            by_variance = -0.5 * r**3 * (by_products * Z).sum(-1) / d  # (n, T), over d
            by_Z = by_products * r[..., None]
            by_N = torch.baddbmm(2.0 * by_variance[..., None] * NG, by_Z, local[..., :2].mT)
            by_G = torch.bmm((N * by_variance[..., None]).mT, N)
            by_logits = A * (by_N - (A * by_N).sum(-1, keepdim=True))
            here = slice(group.first, group.last)
            torch.bmm(by_logits + by_logits.mT + 2.0 * by_G, X, out=by_X[here].view(X.shape))
            out = by_table[here].view(*group.token.shape, 3)
            out[..., :2] = torch.bmm(N.mT, by_Z)
            out[..., 2] = -2.0 * torch.bmm(by_G, local[..., 2:])[..., 0]  # the mean's part of the centred Gram matrix
            outputs.append(f)
        return by_X, by_table, outputs

    def _table(self) -> tuple[Any, Any]:
        """(n_vocabulary, 3) products of every embedding with centred p and v, and its mean; and what its gradient is made of."""
        import torch

        p, v = self.p - self.p.mean(), self.v - self.v.mean()
        ones = torch.ones_like(p)
        return self.E @ torch.stack([p, v, ones / len(ones)], dim=1), torch.stack([p, v, ones])

    def _attend(self, group: Group, table: Any) -> tuple[Any, ...]:
        """Embeddings, attention and all that the gradients take up again, for padded sequences; f comes last."""
        import torch

        d = self.E.shape[1]
        X = self.E[group.token]  # (n, T, d)
        local = table[group.token]  # (n, T, 3)
        gram = torch.bmm(X, X.mT)
        A = torch.softmax(gram + group.log_count[:, None, :], dim=-1)
        N = A + torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        NG = torch.bmm(N, torch.baddbmm(gram, local[..., 2:], local[..., 2:].mT, alpha=-float(d)))
        r = torch.rsqrt((N * NG).sum(-1) / d + LAYER_NORM_EPSILON)
        Z = torch.bmm(N, local[..., :2].contiguous())  # (n, T, 2)
        q = torch.softmax(Z[..., 0] * r + group.log_count, dim=-1)
        return X, A, N, NG, local, Z, r, q, (q * Z[..., 1] * r).sum(-1)
