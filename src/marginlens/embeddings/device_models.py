"""Both models under AdamW on a torch device, by their exact gradients; autograd is not used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from marginlens.data.tokens import IntArray
from marginlens.embeddings.device_batches import DeviceBatch, DeviceEpochs, Group, sums_by_token
from marginlens.embeddings.minibatches import DistinctTokens
from marginlens.embeddings.parameters import Parameters
from marginlens.embeddings.settings import BETAS, EPSILON, TrainingSettings
from marginlens.training.settings import torch_device


class DeviceModel(ABC):
    """What the two models share: parameters, AdamW and the epochs' layout."""

    def __init__(self, pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> None:
        device = torch_device(settings.device)
        import torch

        self.pairs, self.settings = pairs, settings
        self.E, self.p, self.v = (torch.from_numpy(one).to(device) for one in (start.E, start.p, start.v))
        trained = {"E": self.E, "p": self.p, **({"v": self.v} if settings.train_v else {})}
        self.trained = {name: torch.nn.Parameter(one, requires_grad=False) for name, one in trained.items()}
        self.optimiser = torch.optim.AdamW(
            list(self.trained.values()), settings.learning_rate, BETAS, EPSILON, settings.weight_decay, fused=True
        )
        for one in self.trained.values():
            one.grad = torch.zeros_like(one)
            self.optimiser.state[one] = {
                "step": torch.zeros((), dtype=torch.float32, device=device),
                "exp_avg": torch.zeros_like(one),
                "exp_avg_sq": torch.zeros_like(one),
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
        return int(self.optimiser.state[self.trained["E"]]["step"])

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
        self.optimiser.param_groups[0]["lr"] = rate
        self.optimiser.step()

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
        return Parameters(*(one.cpu().numpy() for one in (self.E, self.p, self.v)))

    def state(self) -> dict[str, Any]:
        """All arrays that the next step depends on, by name."""
        arrays = {"E": self.E, "p": self.p, "v": self.v}
        for name, one in self.trained.items():
            arrays[f"m_{name}"] = self.optimiser.state[one]["exp_avg"]
            arrays[f"s_{name}"] = self.optimiser.state[one]["exp_avg_sq"]
        return {name: one.cpu().numpy() for name, one in arrays.items()}

    def restore(self, arrays: dict[str, Any], taken: int) -> None:
        """Go back to a state, after `taken` steps."""
        import torch

        def put(target: Any, name: str) -> None:
            target.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))

        for name, one in (("E", self.E), ("p", self.p), ("v", self.v)):
            put(one, name)
        for name, one in self.trained.items():
            put(self.optimiser.state[one]["exp_avg"], f"m_{name}")
            put(self.optimiser.state[one]["exp_avg_sq"], f"s_{name}")
            self.optimiser.state[one]["step"].fill_(taken)

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
