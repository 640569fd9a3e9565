"""Minibatches on a torch device: sequences of similar length side by side, and for each token the rows that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import IntArray
from marginlens.embeddings.minibatches import DistinctTokens, batches_of

_LAYOUTS = (0.75, 0.95, 1.0)  # of minibatches that fixed widths hold
_DRAWN = 2000  # minibatches by which widths are chosen
_MULTIPLE = 8  # widths at which a GPU's matrix units load whole words


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
    """One minibatch: `token` and `log_count` (n_rows,) and `y` (n_samples,), group after group, and where each token stands.

    Token s stands in the rows `rows[bounds[s]:bounds[s + 1]]`. `shapes` are the sizes and widths of the groups. `layout` numbers the
    fixed widths that it is padded to, None where it is padded to its own longest sequences.
    """

    shapes: tuple[tuple[int, int], ...]
    token: Any
    log_count: Any
    y: Any
    rows: Any
    bounds: Any
    layout: int | None = None

    @property
    def n_samples(self) -> int:
        """The sequences in it."""
        return len(self.y)

    @property
    def n_rows(self) -> int:
        """The rows of all groups, padding included."""
        return len(self.token)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, as views."""
        found, row, sample = [], 0, 0
        for size, width in self.shapes:
            here, ours = slice(row, row + size * width), slice(sample, sample + size)
            token, log_count = (one[here].view(size, width) for one in (self.token, self.log_count))
            found.append(Group(token, log_count, self.y[ours], here.start, here.stop))
            row, sample = here.stop, ours.stop
        return tuple(found)


class DeviceEpochs:
    """Lays out epoch after epoch on a device; every operation gives the same bits each time.

    Args:
        pairs: the distinct tokens of all sequences. device: a torch device. dtype: of the logarithms and labels.
        batch: sequences in a minibatch.
        shares: how a minibatch, shortest sequences first, is cut into groups that are padded together: increasing, the last is 1.
        layouts: fixed widths of the groups of a whole minibatch, narrowest first; it is padded to the first that holds it.
    """

    def __init__(
        self,
        pairs: DistinctTokens,
        device: Any,
        dtype: Any,
        batch: int,
        shares: tuple[float, ...],
        layouts: Sequence[IntArray] = (),
    ) -> None:
        import torch

        self.pairs, self.batch, self.shares = pairs, batch, shares
        self.token = torch.from_numpy(pairs.token.astype(np.int64)).to(device)
        self.log_count = torch.from_numpy(np.log(pairs.count)).to(device, dtype)
        self.y = torch.from_numpy(pairs.y.astype(np.float64)).to(device, dtype)
        self.lengths = pairs.lengths
        self.layouts = tuple(layouts)

    def lay_out(self, order: IntArray) -> None:
        """Lay out an epoch in which the sequences come in this order."""
        import torch

        n, S, device = len(order), self.pairs.n_vocabulary, self.token.device
        batch_of = np.arange(n) // self.batch
        order = order[np.lexsort((self.lengths[order], batch_of))]
        length = self.lengths[order]
        self._batches = batches_of(n, self.batch)
        cuts = [first + self._cuts(last - first) for first, last in self._batches]
        closes = np.concatenate(cuts)
        opens = np.concatenate([[0], closes[:-1]])
        widths = np.maximum.reduceat(length, opens)
        self._layout = self._fixed_widths(widths, [len(one) for one in cuts])
        width = np.repeat(widths, closes - opens)
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
        grid = (torch.arange(len(starts), device=device)[:, None] * S + torch.arange(S + 1, device=device)).view(-1)
        bounds = torch.searchsorted(key, grid).view(len(starts), S + 1)
        self._bounds = bounds - on_device(pair[starts])[:, None]

    def _fixed_widths(self, widths: IntArray, n_groups: list[int]) -> list[int | None]:
        """Widen the groups of every whole minibatch, in place, to the first layout that holds them; which one that is."""
        chosen: list[int | None] = []
        end = 0
        for (first, last), count in zip(self._batches, n_groups, strict=True):
            mine = widths[end : end + count]
            end += count
            whole = last - first == self.batch
            fitting = (k for k, fixed in enumerate(self.layouts) if whole and (mine <= fixed).all())
            chosen.append(next(fitting, None))
            if chosen[-1] is not None:
                mine[:] = self.layouts[chosen[-1]]
        return chosen

    def _cuts(self, size: int) -> IntArray:
        return np.unique(np.ceil(np.array(self.shares) * size).astype(np.int64))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> DeviceBatch:
        first, last = self._batches[index]
        opens, closes, widths, row = self._edges
        mine = slice(int(np.searchsorted(opens, first)), int(np.searchsorted(opens, last)))
        shapes = tuple(zip((closes - opens)[mine].tolist(), widths[mine].tolist(), strict=True))
        here = slice(int(row[first]), int(row[last]))
        rows = self._rows[int(self._pair[first]) : int(self._pair[last])]
        values = (self._token[here], self._log_count[here], self._y[first:last])
        return DeviceBatch(shapes, *values, rows, self._bounds[index], self._layout[index])


def sums_by_token(values: Any, batch: DeviceBatch) -> Any:
    """(n_vocabulary, width) the sum of the rows of each token; always added in the same order."""
    import torch

    return torch.nn.functional.embedding_bag(batch.rows, values, batch.bounds, mode="sum", include_last_offset=True)


def usual_widths(
    lengths: IntArray, batch: int, shares: tuple[float, ...], quantiles: Sequence[float] = _LAYOUTS
) -> list[IntArray]:
    """Group widths that hold these shares of all minibatches, group by group, as random minibatches show; multiples of eight.

    The widest hold almost all: minibatches beyond them are padded to their own longest sequences.

    Args:
        lengths: (n_samples,) of the sequences. batch, shares: as `DeviceEpochs` has them. quantiles: one for each layout, increasing.
    """
    if len(lengths) < batch:
        return []
    rng = np.random.default_rng(0)
    drawn = np.sort(np.stack([rng.choice(lengths, batch, replace=False) for _ in range(_DRAWN)]), axis=1)
    widest = drawn[:, np.unique(np.ceil(np.array(shares) * batch).astype(np.int64)) - 1]  # (n_drawn, n_groups)
    widths = np.quantile(widest, quantiles, axis=0, method="higher")
    widths[-1, -1] = lengths.max()
    return [(-(-one // _MULTIPLE) * _MULTIPLE).astype(np.int64) for one in widths]
