"""Minibatches on a torch device: sequences of similar length side by side, and for each token the rows that hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import IntArray
from marginlens.embeddings.minibatches import DistinctTokens, batches_of


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
        here = torch.arange(int(pair[-1]), device=device)
        source, target = each[0] + here, each[1] + here
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
            here = slice(int(row[begin]), int(row[end]))
            groups.append(
                Group(
                    self._token[here].view(end - begin, width),
                    self._log_count[here].view(end - begin, width),
                    self._y[begin:end],
                    here.start - base,
                    here.stop - base,
                )
            )
        rows = self._rows[int(self._pair[first]) : int(self._pair[last])]
        return DeviceBatch(tuple(groups), rows, self._bounds[index], last - first, int(row[last]) - base)


def sums_by_token(values: Any, batch: DeviceBatch) -> Any:
    """(n_vocabulary, width) the sum of the rows of each token; always added in the same order."""
    import torch

    return torch.nn.functional.embedding_bag(batch.rows, values, batch.bounds, mode="sum")
