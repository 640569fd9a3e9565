"""A risk of a user's own, and risks and optimizers of every kind."""

import numpy as np

import marginlens as ml


class Quadratic:
    """|x - 1|²/2 + 1/10 over three unknowns, with its minimum at (1, 1, 1); it selects the largest of them."""

    shape = (3,)

    def value(self, x):
        return 0.5 * float(np.sum((x - 1.0) ** 2)) + 0.1

    def log_value(self, x):
        return np.log(self.value(x))

    def gradient(self, x):
        return ml.risk.LogScaled(np.asarray(x) - 1.0, np.asarray(0.0))

    def select(self, x):
        return np.array([int(np.argmax(x))])

    def margin_rows(self, selected):
        unit = np.eye(3)
        others = [k for k in range(3) if k != selected[0]]
        return ml.risk.MarginRows(unit[selected[0]] - unit[others], np.ones(2))

    def smoothness(self):
        return 1.0


def risks_of_every_kind():
    """Small ones by name: of p, of W, of its factors, of head and attention together, of next tokens, of a decoder, and a user's own."""
    rng = np.random.default_rng(0)
    data, v = ml.TokenDataset(rng.normal(size=(3, 4, 3)), [1.0, -1.0, 1.0]), rng.normal(size=3)
    of_p = ml.AttentionRisk(data, v)
    return {
        "p": of_p,
        "W": of_p.as_matrix([1.0, -0.5]),
        "factors": of_p.as_factors([1.0, -0.5], 2),
        "joint": ml.JointRisk(data),
        "next token": ml.NextTokenRisk(ml.data.cyclic_sequences(5, 4, 6, 4, 0)),
        "contexts": ml.ContextRisk(ml.ContextDataset(data.X[:, 0], [[2, 1, 0, 0], [0, 3, 1, 0], [0, 0, 0, 2]])),
        "a user's own": Quadratic(),
    }


def optimizers_of_every_kind(**decay):
    """Every optimizer of vectors, most of them with momentum."""
    return [
        ml.GradientDescent(0.3, momentum=0.9, **decay),
        ml.NormalizedGD(0.2, momentum=0.9, **decay),
        ml.SteepestDescent(ml.Lp(3), 0.1, **decay),
        ml.SignDescent(0.1, 0.9, **decay),
        ml.CoordinateDescent(0.1, **decay),
        ml.MirrorDescent(3, 0.1, **decay),
        ml.MirrorDescent(1.5, 0.1, True, momentum=0.5, **decay),
        ml.Adam(0.1, **decay),
    ]
