"""Models of sequences by torch, sample by sample from the formulas of the papers."""

import pytest


def autograd(ds, W, C, loss_name):
    """(risk, gradient) of next tokens at W with the head C, or with C Eᵀ = I where it is None."""
    torch = pytest.importorskip("torch")
    losses = {
        "LogLoss": lambda u, y: -torch.log(u[y]),
        "SquaredLoss": lambda u, y: (1.0 - u[y]) ** 2,
        "CrossEntropy": lambda u, y: -torch.log_softmax(u, dim=0)[y],
        "SquaredProbability": lambda u, y: (1.0 - torch.softmax(u, dim=0)[y]) ** 2,
        "Decay": lambda u, y: torch.exp(-u[y]),
    }
    E, point = torch.tensor(ds.E), torch.tensor(W, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(ds)):
        ids, y = torch.tensor(ds[i][0]), int(ds[i][1])
        s = torch.softmax(E[ids] @ point @ E[int(ds.last[i])], dim=0)
        identity = torch.zeros(ds.n_vocabulary, dtype=torch.float64).index_add(0, ids, s)
        total = total + losses[loss_name](identity if C is None else torch.tensor(C) @ (E[ids].T @ s), y)
    risk = total / len(ds)
    risk.backward()
    return risk.item(), point.grad.numpy()


def written_out(sequences, E, p, v, layers, gain=None, bias=None):
    """f of each sequence by paper B's model of one or two layers, with a row for every position; gain and bias are the layer norm's."""
    torch = pytest.importorskip("torch")
    outputs = []
    for ids in sequences:
        X = E[torch.as_tensor(ids)]
        if layers == 2:
            X = torch.nn.functional.layer_norm(torch.softmax(X @ X.T, dim=-1) @ X + X, (X.shape[1],), gain, bias)
        outputs.append(torch.softmax(X @ p, dim=0) @ (X @ v))
    return torch.stack(outputs)
