"""Both models under AdamW on a torch device, by their exact gradients; autograd is not used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.embeddings.models import DistinctTokens, Parameters
from marginlens.papers import implements
from marginlens.typing import IntArray
from marginlens_papers.embeddings.outputs import LAYER_NORM_EPSILON
from marginlens_papers.embeddings.settings import ADAMW_BETAS, ADAMW_EPSILON, TrainingSettings, batches_of
from marginlens_papers.training.settings import torch_device


@dataclass(frozen=True)
class Group:
    """Sequences of a minibatch padded to their longest: `token` and `log_count` (n_sequences, longest), the latter -inf where empty.

    `y` (n_sequences,) are the labels; `first` and `last` are the group's rows among those of its minibatch.
    """

    token: Any
    log_count: Any
    y: Any
    first: int
    last: int


@dataclass(frozen=True)
class DeviceBatch:
    """One minibatch: its groups, and `rows` with `bounds` such that token s stands in `rows[bounds[s]:bounds[s + 1]]`."""

    groups: tuple[Group, ...]
    rows: Any
    bounds: Any
    n_samples: int
    n_rows: int


class DeviceEpochs:
    """Lays out epoch after epoch on a device; every operation gives the same bits each time.

    Args:
        pairs: the distinct tokens of all sequences. device: a torch device. dtype: of the logarithms and labels.
        batch: sequences in a minibatch.
        shares: how a minibatch, shortest sequences first, is cut into groups that are padded together: increasing, the last is 1.
    """

    def __init__(self, pairs: DistinctTokens, device: Any, dtype: Any, batch: int, shares: tuple[float, ...]) -> None:
        import torch

        self.pairs, self.batch, self.shares = pairs, batch, shares
        self.token = torch.from_numpy(pairs.token.astype(np.int64)).to(device)
        self.log_count = torch.from_numpy(np.log(pairs.count)).to(device, dtype)
        self.y = torch.from_numpy(pairs.y.astype(np.float64)).to(device, dtype)
        self.lengths = pairs.lengths

    def lay_out(self, order: IntArray) -> None:
        """Lay out an epoch in which the sequences come in this order."""
        import torch

        n, S, device = len(order), self.pairs.n_vocabulary, self.token.device
        batch_of = np.arange(n) // self.batch
        order = order[np.lexsort((self.lengths[order], batch_of))]
        length = self.lengths[order]
        self._batches = batches_of(n, self.batch)
        closes = np.concatenate([first + self._cuts(last - first) for first, last in self._batches])
        opens = np.concatenate([[0], closes[:-1]])
        width = np.repeat(np.maximum.reduceat(length, opens), closes - opens)
        row = np.concatenate([[0], np.cumsum(width)])  # (n + 1,) where each sequence's rows begin
        pair = np.concatenate([[0], np.cumsum(length)])
        starts = np.arange(0, n, self.batch)
        self._edges = opens, closes, width[opens], row
        self._pair = pair

        def on_device(values: Any) -> Any:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        shifts = on_device(np.stack([self.pairs.offsets[order] - pair[:-1], row[:-1] - pair[:-1], batch_of]))
        each = torch.repeat_interleave(shifts, on_device(length), dim=1, output_size=int(pair[-1]))  # (3, n_pairs)
        pair_index = torch.arange(int(pair[-1]), device=device)
        source, target = each[0] + pair_index, each[1] + pair_index
        token = self.token[source]
        self._token = torch.zeros(int(row[-1]), dtype=torch.int64, device=device)
        self._token[target] = token
        self._log_count = torch.full((int(row[-1]),), -torch.inf, dtype=self.log_count.dtype, device=device)
        self._log_count[target] = self.log_count[source]
        self._y = self.y[on_device(order)]
        key, by_token = torch.sort(each[2] * S + token, stable=True)
        first_row = on_device(row[starts])
        self._rows = target[by_token] - first_row[each[2][by_token]]
        grid = torch.arange(len(starts) * S, device=device)
        self._bounds = torch.searchsorted(key, grid).view(len(starts), S) - on_device(pair[starts])[:, None]

    def _cuts(self, size: int) -> IntArray:
        return np.unique(np.ceil(np.array(self.shares) * size).astype(np.int64))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> DeviceBatch:
        first, last = self._batches[index]
        opens, closes, widths, row = self._edges
        base = int(row[first])
        groups = []
        for k in range(int(np.searchsorted(opens, first)), int(np.searchsorted(opens, last))):
            begin, end, width = int(opens[k]), int(closes[k]), int(widths[k])
            rows_of_group = slice(int(row[begin]), int(row[end]))
            groups.append(
                Group(
                    self._token[rows_of_group].view(end - begin, width),
                    self._log_count[rows_of_group].view(end - begin, width),
                    self._y[begin:end],
                    rows_of_group.start - base,
                    rows_of_group.stop - base,
                )
            )
        rows = self._rows[int(self._pair[first]) : int(self._pair[last])]
        return DeviceBatch(tuple(groups), rows, self._bounds[index], last - first, int(row[last]) - base)


def sums_by_token(values: Any, batch: DeviceBatch) -> Any:
    """(n_vocabulary, width) the sum of the rows of each token; always added in the same order."""
    import torch

    return torch.nn.functional.embedding_bag(batch.rows, values, batch.bounds, mode="sum")


class DeviceModel(ABC):
    """What the two models share: parameters, AdamW and the epochs' layout."""

    def __init__(self, pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> None:
        device = torch_device(settings.device)
        import torch

        self.pairs, self.settings = pairs, settings
        self.E, self.p, self.v = (torch.from_numpy(parameter).to(device) for parameter in (start.E, start.p, start.v))
        trained = {"E": self.E, "p": self.p, **({"v": self.v} if settings.train_v else {})}
        self.trained = {name: torch.nn.Parameter(parameter, requires_grad=False) for name, parameter in trained.items()}
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()),
            settings.learning_rate,
            ADAMW_BETAS,
            ADAMW_EPSILON,
            settings.weight_decay,
            fused=True,
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

    def step(self, first: int, last: int, rate: float) -> None:
        """One AdamW step on the sequences at places `first` to `last` of the order, a minibatch; losses are added to `loss`."""
        import torch

        batch = self.epochs[first // self.settings.batch]
        outputs = self.gradients(batch)
        margins = torch.cat([group.y * f for group, f in zip(batch.groups, outputs, strict=True)])
        self._loss += torch.nn.functional.softplus(-margins).sum(dtype=torch.float64)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()

    def products(self) -> tuple[Any, Any]:
        """(n_vocabulary,) E p and E v, as NumPy arrays."""
        import torch

        a, b = (self.E @ torch.stack([self.p, self.v], dim=1)).T.cpu().numpy()
        return a, b

    def outputs(self, pairs: DistinctTokens | None = None) -> Any:
        """(n_samples,) f for every sequence at the present parameters, or for every other one in `pairs`."""
        import torch

        others = self.pairs if pairs is None else pairs
        order = np.argsort(others.lengths, kind="stable")  # within a minibatch the layout leaves this order as it is
        epochs = DeviceEpochs(others, self.E.device, self.E.dtype, self.settings.batch, self.epochs.shares)
        epochs.lay_out(order)
        f = np.empty(len(others))
        f[order] = torch.cat([torch.cat(self.forward(epochs[k])) for k in range(len(epochs))]).cpu().numpy()
        return f

    def parameters(self) -> Parameters:
        """The present parameters as NumPy arrays; on the CPU, later steps change them."""
        return Parameters(*(tensor.cpu().numpy() for tensor in (self.E, self.p, self.v)))

    def state(self) -> dict[str, Any]:
        """All arrays that the next step depends on, by name."""
        arrays = {"E": self.E, "p": self.p, "v": self.v}
        for name, tensor in self.trained.items():
            arrays[f"m_{name}"] = self.optimizer.state[tensor]["exp_avg"]
            arrays[f"s_{name}"] = self.optimizer.state[tensor]["exp_avg_sq"]
        return {name: tensor.cpu().numpy() for name, tensor in arrays.items()}

    def restore(self, arrays: dict[str, Any], taken: int) -> None:
        """Go back to a state, after `taken` steps."""
        import torch

        def put(target: Any, name: str) -> None:
            target.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))

        for name, tensor in (("E", self.E), ("p", self.p), ("v", self.v)):
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
        return (1.0,)  # padding costs two numbers per token here

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
            rows_of_group = slice(group.first, group.last)
            torch.bmm(by_logits + by_logits.mT + 2.0 * by_G, X, out=by_X[rows_of_group].view(X.shape))
            out = by_table[rows_of_group].view(*group.token.shape, 3)
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
