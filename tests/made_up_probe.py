"""Made-up results of a probe, with a name in them that tries to become markup."""

import numpy as np

from marginlens.graphs import graphs_of_edges
from marginlens.probe.heads.plane import QueryPlane
from marginlens.probe.heads.preferences import Preference, PreferenceGraph
from marginlens.probe.measures import HEAD_MEASURES, MEASURES
from marginlens.probe.result import CheckpointCurves, Example, MarginCounts, ProbeResult, ProbeSettings
from marginlens.words import Fact

EVIL = '</script><script>alert("1")</script>&amp;<b>'
LAYERS, HEADS = 3, 4
N_CHECKPOINTS = 7
STEPS = np.arange(float(N_CHECKPOINTS))


def preference_graph(names, edges):
    head, tail = np.array(edges).T
    return PreferenceGraph(tuple(names), graphs_of_edges(np.zeros_like(head), head, tail, len(names))[0])


def made_up_result(measures=None, *, max_margin=True, **changes):
    """`measures` replaces some of them by name."""
    rng = np.random.default_rng(0)
    counts = MarginCounts.empty(LAYERS, HEADS)
    for layer in range(LAYERS):
        counts.add(layer, rng.lognormal(size=(HEADS, 200)))
    tokens = ("[CLS]", EVIL, "two", "[SEP]")
    attention = rng.dirichlet(np.ones(4), size=(LAYERS, HEADS, 4)).astype(np.float32)
    planes = {(1, 2): QueryPlane(1, np.array([2, 0, 3]), np.array([[0.0, 0.0], [-1.0, 0.5], [-2.0, -1.0]]))}
    margins = rng.random((LAYERS, HEADS, 4))
    example = Example(EVIL, tokens, np.arange(4), attention, attention.argmax(axis=-1), margins, planes=planes)
    names = [measure.name for measure in (MEASURES if max_margin else HEAD_MEASURES)]
    known = {
        "model": EVIL,
        "family": "bert",
        "n_inputs": 7,
        "n_queries": 90,
        "mean_tokens": 12.0,
        "measures": {name: rng.random((LAYERS, HEADS)) for name in names} | (measures or {}),
        "margins": counts,
        "settings": ProbeSettings(max_margin=True),
        "examples": (example,),
        "preferences": {(1, 2): (Preference(EVIL, "two", 5, 1, 8),)},
        "graphs": {(1, 2): preference_graph((EVIL, "two"), [(1, 0)])},
        "notes": (Fact("note.recorded", {"sentence": EVIL}),),
        "seconds": 3.0,
    }
    return ProbeResult(**{**known, **changes})


def made_up_curves(*, without=(), **changes):
    """Seven checkpoints of three layers of two heads; a change is one curve, or one for each layer."""
    rng = np.random.default_rng(0)
    measures = {measure.name: rng.random((N_CHECKPOINTS, 3, 2)) for measure in MEASURES if measure.name not in without}
    for name, curves in changes.items():
        by_layer = np.broadcast_to(np.asarray(curves, dtype=float), (3, N_CHECKPOINTS))
        measures[name] = by_layer.T[:, :, None] + np.array([-0.01, 0.01])  # two heads around their mean
    names = (*(f"epoch-{k}" for k in range(N_CHECKPOINTS - 1)), EVIL)
    return CheckpointCurves(
        "vit, 3 layers of 2 heads", names, STEPS, measures, 60, (Fact("note.recorded", {"sentence": EVIL}),)
    )
