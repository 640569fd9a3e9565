"""Both models under AdamW on a torch device, by their exact gradients; autograd is not used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.training.settings import torch_device
from marginlens.embeddings.models import DistinctTokens, Parameters
from marginlens.typing import IntArray
from marginlens_papers.claims.b.embedding_runs import EmbeddingSettings
from marginlens_papers.claims.b.one_layer import ADAMW_BETAS, ADAMW_EPSILON
from marginlens_papers.claims.b.outputs import LAYER_NORM_EPSILON


@dataclass(frozen=True)
class Group:
    """Sequences of a minibatch padded to their longest: `token` and `log_count` (n_sequences, longest), the latter -inf for padding.

    `y` (n_sequences,) are the labels; `first` and `last` are the group's rows among those of its minibatch.
    """

    token: Any
    log_count: Any
    y: Any
    first: int
    last: int


@dataclass(frozen=True)
class DeviceBatch:
    """One minibatch: its groups, `rows` with `bounds` such that token s stands in `rows[bounds[s]:bounds[s + 1]]`, and its size.

    Rows that pad a sequence stand among those of arbitrary tokens, whose sums they leave as they are: their gradients are zero.
    """

    groups: tuple[Group, ...]
    rows: Any
    bounds: Any
    n_samples: Any


_WHOLE_LOADS = 8  # widths are multiples of it, since TF32 products ask for rows of whole 16 bytes


class DeviceEpochs:
    """Lays out epoch after epoch on a device; every operation gives the same bits each time.

    All minibatches of an epoch have arrays of the same shapes: a group is padded to the longest sequence that any minibatch has in it, and
    a last minibatch that is smaller is filled with sequences of label 0, which have no gradient.

    Args:
        pairs: the distinct tokens of all sequences. device: a torch device. dtype: of the logarithms and labels.
        batch: sequences in a minibatch.
        shares: how a minibatch, shortest sequences first, is cut into groups that are padded together: increasing, the last is 1.
    """

    def __init__(self, pairs: DistinctTokens, device: Any, dtype: Any, batch: int, shares: tuple[float, ...]) -> None:
        import torch

        self.pairs, self.batch = pairs, batch
        self.token = torch.from_numpy(pairs.token.astype(np.int64)).to(device)
        self.log_count = torch.from_numpy(np.log(pairs.count)).to(device, dtype)
        self.cuts = np.unique(np.ceil(np.array(shares) * batch).astype(np.int64))

    def lay_out(self, order: IntArray) -> None:
        """Lay out an epoch in which the sequences come in this order."""
        import torch

        S, device, dtype = self.pairs.n_vocabulary, self.token.device, self.log_count.dtype
        self.samples = np.full((-(-len(order) // self.batch), self.batch), -1)  # (n_batches, batch), -1 for padding
        self.samples.flat[: len(order)] = order
        length = np.where(self.samples < 0, 1, self.pairs.lengths[self.samples])
        by_length = np.argsort(length, axis=1, kind="stable")
        self.samples, length = (np.take_along_axis(each, by_length, axis=1) for each in (self.samples, length))
        sizes = np.diff(self.cuts, prepend=0)
        self._widths = -(-length[:, self.cuts - 1].max(axis=0) // _WHOLE_LOADS) * _WHOLE_LOADS
        row = np.cumsum([0, *np.repeat(self._widths, sizes)])  # (batch + 1,) where each sequence's rows begin
        n_batches, n_rows = len(self.samples), int(row[-1])

        def on_device(values: Any) -> Any:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        pair = np.cumsum([0, *length.flat])
        begins = row[:-1] + n_rows * np.arange(n_batches)[:, None]
        shifts = np.stack([self.pairs.offsets[np.maximum(self.samples, 0)].ravel(), begins.ravel()]) - pair[:-1]
        each = torch.repeat_interleave(on_device(shifts), on_device(length.ravel()), dim=1, output_size=int(pair[-1]))
        source, target = each + torch.arange(int(pair[-1]), device=device)
        token = torch.arange(n_batches * n_rows, device=device) % S  # padding is spread over the tokens
        token[target] = self.token[source]
        log_count = torch.full((n_batches * n_rows,), -torch.inf, dtype=dtype, device=device)
        log_count[target] = self.log_count[source]
        first = torch.arange(n_batches, device=device)[:, None]
        key, by_token = torch.sort((first * S + token.view(n_batches, n_rows)).view(-1), stable=True)
        bounds = torch.searchsorted(key, torch.arange(n_batches * S, device=device)).view(n_batches, S)
        y = np.where(self.samples < 0, 0, self.pairs.y[self.samples])
        self._arrays = (
            token.view(n_batches, n_rows),
            log_count.view(n_batches, n_rows),
            on_device(y).to(dtype),
            by_token.view(n_batches, n_rows) - first * n_rows,
            bounds - first * n_rows,
            on_device((self.samples >= 0).sum(axis=1, keepdims=True)).to(dtype),
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> DeviceBatch:
        """The minibatch with this number, which may be a tensor of shape (1,) on the device."""
        import torch

        at = index if isinstance(index, torch.Tensor) else torch.tensor([index], device=self.token.device)
        token, log_count, y, rows, bounds, n_samples = (each.index_select(0, at)[0] for each in self._arrays)
        groups, first, begin = [], 0, 0
        for end, width in zip(self.cuts.tolist(), self._widths.tolist(), strict=True):
            last, shape = first + (end - begin) * width, (end - begin, width)
            groups.append(
                Group(token[first:last].view(shape), log_count[first:last].view(shape), y[begin:end], first, last)
            )
            first, begin = last, end
        return DeviceBatch(tuple(groups), rows, bounds, n_samples)


def sums_by_token(values: Any, batch: DeviceBatch) -> Any:
    """(n_vocabulary, width) the sum of the rows of each token; always added in the same order."""
    import torch

    return torch.nn.functional.embedding_bag(batch.rows, values, batch.bounds, mode="sum")


class DeviceModel(ABC):
    """What the two models share: parameters, AdamW and the epochs' layout.

    On a GPU a step is recorded once in each epoch and then repeated, which spares the time to launch its kernels one by one.
    """

    def __init__(self, pairs: DistinctTokens, start: Parameters, settings: EmbeddingSettings) -> None:
        device = torch_device(settings.device)
        import torch

        self.pairs, self.settings = pairs, settings
        self.E, self.p, self.v = (torch.from_numpy(parameter).to(device) for parameter in (start.E, start.p, start.v))
        self.all = {"E": self.E, "p": self.p, "v": self.v}
        if settings.affine:
            self.all |= {"gain": torch.ones_like(self.p), "bias": torch.zeros_like(self.p)}
        trained = {name: parameter for name, parameter in self.all.items() if name != "v" or settings.train_v}
        self.trained = {name: torch.nn.Parameter(parameter, requires_grad=False) for name, parameter in trained.items()}
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()),
            settings.learning_rate,
            ADAMW_BETAS,
            ADAMW_EPSILON,
            settings.weight_decay,
            fused=True,
            capturable=self.E.is_cuda,
        )
        for parameter in self.trained.values():
            parameter.grad = torch.zeros_like(parameter)
            self.optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.epochs = DeviceEpochs(pairs, device, self.E.dtype, settings.batch, self.shares(device.type))
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)  # the number of the minibatch
        self._recording: Any = None  # a CUDA graph of one step, and the rate that it was recorded with
        self._rate = -1.0
        self._warm = False

    @abstractmethod
    def shares(self, device: str) -> tuple[float, ...]:
        """How a minibatch is cut into groups of similar length, on a kind of device."""

    @abstractmethod
    def gradients(self, batch: DeviceBatch) -> Any:
        """Write the gradients of the mean loss of a minibatch; the outputs f, group after group, come back."""

    @abstractmethod
    def forward(self, batch: DeviceBatch) -> list[Any]:
        """The outputs f of the groups of a minibatch."""

    @property
    def loss(self) -> float:
        """The summed loss of this epoch's sequences so far, each at the parameters it was read with."""
        return float(self._loss)

    @loss.setter
    def loss(self, value: float) -> None:
        self._loss.fill_(value)

    @property
    def taken(self) -> int:
        """Steps taken so far."""
        return int(self.optimizer.state[self.trained["E"]]["step"])

    def begin(self, order: IntArray) -> None:
        """Start an epoch in which the sequences come in this order."""
        self.epochs.lay_out(order)
        self._loss.zero_()
        self._rate = -1.0

    def step(self, first: int, last: int, rate: float) -> None:
        """One AdamW step on the sequences at places `first` to `last` of the order, a minibatch; losses are added to `loss`."""
        self._at.fill_(first // self.settings.batch)
        self.optimizer.param_groups[0]["lr"] = rate
        if not (self.E.is_cuda and self._warm):  # the first step on a GPU loads what a recording may not load
            self._step()
            self._warm = True
            return
        if rate != self._rate:
            self._record()
            self._rate = rate
        self._recording.replay()

    def _step(self) -> None:
        import torch

        batch = self.epochs[self._at]
        outputs = self.gradients(batch)
        y = torch.cat([group.y for group in batch.groups])
        losses = y.abs() * torch.nn.functional.softplus(-y * torch.cat(outputs))
        self._loss += losses.sum(dtype=torch.float64)
        self.optimizer.step()

    def _record(self) -> None:
        """Record a step, on the minibatch of this epoch that `_at` names when it is repeated."""
        import torch

        if self._recording is None:
            self._stream, self._pool = torch.cuda.Stream(self.E.device), torch.cuda.graph_pool_handle()
        recording = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            recording.capture_begin(self._pool)
            self._step()
            recording.capture_end()
        self._recording = recording

    def products(self) -> tuple[Any, Any]:
        """(n_vocabulary,) E p and E v, as NumPy arrays."""
        import torch

        a, b = (self.E @ torch.stack([self.p, self.v], dim=1)).T.cpu().numpy()
        return a, b

    def outputs(self, pairs: DistinctTokens | None = None) -> Any:
        """(n_samples,) f for every sequence at the present parameters, or for every other one in `pairs`."""
        import torch

        others = self.pairs if pairs is None else pairs
        epochs = DeviceEpochs(others, self.E.device, self.E.dtype, self.settings.batch, self.shares(self.E.device.type))
        epochs.lay_out(np.random.default_rng(0).permutation(len(others)))  # minibatches of similar lengths
        f = torch.cat([torch.cat(self.forward(epochs[k])) for k in range(len(epochs))]).cpu().numpy()
        samples = epochs.samples.ravel()
        ordered = np.empty(len(others))
        ordered[samples[samples >= 0]] = f[samples >= 0]
        return ordered

    def parameters(self) -> Parameters:
        """The present parameters as NumPy arrays; on the CPU, later steps change them."""
        return Parameters(*(tensor.cpu().numpy() for tensor in (self.E, self.p, self.v)))

    def state(self) -> dict[str, Any]:
        """All arrays that the next step depends on, by name."""
        arrays = dict(self.all)
        for name, tensor in self.trained.items():
            arrays[f"m_{name}"] = self.optimizer.state[tensor]["exp_avg"]
            arrays[f"s_{name}"] = self.optimizer.state[tensor]["exp_avg_sq"]
        return {name: tensor.cpu().numpy() for name, tensor in arrays.items()}

    def restore(self, arrays: dict[str, Any], taken: int) -> None:
        """Go back to a state, after `taken` steps."""
        import torch

        def put(target: Any, name: str) -> None:
            target.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))

        for name, tensor in self.all.items():
            put(tensor, name)
        for name, tensor in self.trained.items():
            put(self.optimizer.state[tensor]["exp_avg"], f"m_{name}")
            put(self.optimizer.state[tensor]["exp_avg_sq"], f"s_{name}")
            self.optimizer.state[tensor]["step"].fill_(taken)

    def write_gradients(self, by_p: Any, by_v: Any) -> None:
        """Hand the gradients by p and v to AdamW."""
        self.trained["p"].grad.copy_(by_p)
        if "v" in self.trained:
            self.trained["v"].grad.copy_(by_v)


class DeviceOneLayer(DeviceModel):
    """The one-layer model, on two numbers per token."""

    def shares(self, device: str) -> tuple[float, ...]:
        return 0.6, 0.9, 1.0  # padding costs two numbers per token here

    def forward(self, batch: DeviceBatch) -> list[Any]:
        products = self._products()
        return [self._attend(group, products)[2] for group in batch.groups]

    def gradients(self, batch: DeviceBatch) -> Any:
        import torch

        products = self._products()
        outputs, slopes = [], []
        for group in batch.groups:
            q, b, f = self._attend(group, products)
            x = q * loss_slope(group.y, f, batch.n_samples)[:, None]
            slopes.append(torch.stack([x * (b - f[:, None]), x], dim=-1).view(-1, 2))
            outputs.append(f)
        weights = sums_by_token(torch.cat(slopes), batch)  # (n_vocabulary, 2)
        by_directions = self.E.T @ weights
        torch.mm(weights, torch.stack([self.p, self.v]), out=self.trained["E"].grad)
        self.write_gradients(by_directions[:, 0], by_directions[:, 1])
        return outputs

    def _products(self) -> Any:
        import torch

        return self.E @ torch.stack([self.p, self.v], dim=1)  # (n_vocabulary, 2)

    @staticmethod
    def _attend(group: Group, products: Any) -> tuple[Any, Any, Any]:
        import torch

        a, b = products[group.token].unbind(-1)  # (n_sequences, longest)
        q = torch.softmax(a + group.log_count, dim=-1)
        return q, b, (q * b).sum(-1)


def loss_slope(y: Any, f: Any, n_samples: int) -> Any:
    """The derivative of the mean logistic loss by f."""
    import torch

    return -y * torch.sigmoid(-y * f) / n_samples


_SHARES = {  # the long tail of lengths is padded in groups of its own; more groups pad less and launch more kernels
    "cuda": (0.5, 0.8, 0.93, 0.984, 1.0),
    "cpu": (44 / 128, 76 / 128, 100 / 128, 116 / 128, 124 / 128, 1.0),
}


class DeviceTwoLayer(DeviceModel):
    r"""Attention among the tokens of a sequence with a skip connection and a layer norm, then attention by p, then the head v.

    .. math:: E'_X = \mathrm{LayerNorm}(\mathrm{Softmax}(E_X E_X^\top) E_X + E_X),\quad f = \mathrm{Softmax}(p^\top E_X'^\top) E'_X v

    With N = Softmax(E_X E_Xᵀ) + I, rows centred by C = I - 11ᵀ/d and the Gram matrix of the centred
    embeddings G, the variance of row i of N E_X is (N G Nᵀ)_ii / d and its product with p is (N E_X C p)_i; so f needs E_X only through
    G, the means of its rows, E_X C p and E_X C v. Repeated tokens have equal rows, so a sequence stands for its distinct tokens, with
    log multiplicities added to the logits of both softmaxes.

    A layer norm with gain g and bias c has g ⊙ p and g ⊙ v in place of p and v, and adds ⟨c, v⟩ to f; ⟨c, p⟩ is the same for all tokens.
    """

    def shares(self, device: str) -> tuple[float, ...]:
        return _SHARES[device]

    def forward(self, batch: DeviceBatch) -> list[Any]:
        table, _ = self._table()
        with self._rounding():
            return [self._attend(group, table)[-1] + self._shift() for group in batch.groups]

    def gradients(self, batch: DeviceBatch) -> Any:
        import torch

        table, directions = self._table()
        with self._rounding():
            by_X, by_table, outputs = self._by_rows(batch, table)
        weights = sums_by_token(by_table, batch)  # (n_vocabulary, 3)
        by_directions = self.E.T @ weights[:, :2]
        by_directions = by_directions - by_directions.mean(dim=0)
        by_p, by_v = by_directions.unbind(1)
        torch.addmm(sums_by_token(by_X, batch), weights, directions, out=self.trained["E"].grad)
        if self.settings.affine:
            gain, bias = self.all["gain"], self.all["bias"]
            slopes = [loss_slope(group.y, f, batch.n_samples) for group, f in zip(batch.groups, outputs, strict=True)]
            by_shift = torch.cat(slopes).sum()
            self.trained["gain"].grad.copy_(self.p * by_p + self.v * by_v)
            self.trained["bias"].grad.copy_(by_shift * self.v)
            by_p, by_v = gain * by_p, gain * by_v + by_shift * bias
        self.write_gradients(by_p, by_v)
        return outputs

    def layer_norm(self) -> tuple[Any, Any]:
        """(d_model,) gain and bias of the layer norm, if the settings ask for them."""
        return self.all["gain"].cpu().numpy(), self.all["bias"].cpu().numpy()

    def _shift(self) -> Any:
        """What the bias of the layer norm adds to every output."""
        return self.all["bias"] @ self.v if self.settings.affine else 0.0

    @contextmanager
    def _rounding(self) -> Iterator[None]:
        """The products of a sequence with itself in TF32, if the settings say so and the device has it."""
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

        d, shift, outputs = self.E.shape[1], self._shift(), []
        by_X = torch.empty(len(batch.rows), d, dtype=self.E.dtype, device=self.E.device)
        by_table = torch.empty(len(batch.rows), 3, dtype=self.E.dtype, device=self.E.device)
        for group in batch.groups:
            X, A, N, NG, local, Z, r, q, f = self._attend(group, table)
            # (n, T): by the second number of a row
            slope = loss_slope(group.y, f + shift, batch.n_samples)[:, None] * q
            b = Z[..., 1] * r
            by_products = torch.stack([slope * (b - f[:, None]), slope], dim=-1)  # (n, T, 2)
            by_variance = -0.5 * r**3 * (by_products * Z).sum(-1) / d  # (n, T), over d
            by_Z = by_products * r[..., None]
            by_N = torch.baddbmm(2.0 * by_variance[..., None] * NG, by_Z, local[..., :2].mT)
            by_G = torch.bmm((N * by_variance[..., None]).mT, N)
            by_logits = A * (by_N - (A * by_N).sum(-1, keepdim=True))
            rows_of_group = slice(group.first, group.last)
            torch.bmm(by_logits + by_logits.mT + 2.0 * by_G, X, out=by_X[rows_of_group].view(X.shape))
            out = by_table[rows_of_group].view(*group.token.shape, 3)
            out[..., :2] = torch.bmm(N.mT, by_Z)
            out[..., 2] = -2.0 * torch.bmm(by_G, local[..., 2:])[..., 0]  # the mean's part of the centred Gram matrix
            outputs.append(f + shift)
        return by_X, by_table, outputs

    def _table(self) -> tuple[Any, Any]:
        """(n_vocabulary, 3) products of every embedding with centred p and v, and its mean; and what its gradient is made of."""
        import torch

        p, v = (self.all["gain"] * each if self.settings.affine else each for each in (self.p, self.v))
        p, v = p - p.mean(), v - v.mean()
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
