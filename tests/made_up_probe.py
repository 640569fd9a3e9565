"""Made-up results of a probe, with a name in them that tries to become markup."""

import dataclasses

import numpy as np

from marginlens.graphs import graphs_of_edges
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.heads.preference_graph import NamedGraph
from marginlens.probe.margins import MarginCounts
from marginlens.probe.measures import MEASURES, HeadMeasures, MaxMarginMeasures
from marginlens.probe.result import Example, NamedPreference, ProbeResult
from marginlens.probe.settings import ProbeSettings

EVIL = '</script><script>alert("1")</script>&amp;<b>'
LAYERS, HEADS = 3, 4
N_CHECKPOINTS = 7
STEPS = np.arange(float(N_CHECKPOINTS))


def named_graph(names, edges):
    head, tail = np.array(edges).T
    return NamedGraph(tuple(names), graphs_of_edges(np.zeros_like(head), head, tail, len(names))[0])


def made_up_result(seed=0, **changes):
    rng = np.random.default_rng(seed)
    counts = MarginCounts.empty(LAYERS, HEADS)
    for layer in range(LAYERS):
        counts.add(layer, rng.lognormal(size=(HEADS, 200)))
    tokens = ("[CLS]", EVIL, "two", "[SEP]")
    attention = rng.dirichlet(np.ones(4), size=(LAYERS, HEADS, 4)).astype(np.float32)
    example = Example(EVIL, tokens, np.arange(4), attention, attention.argmax(axis=-1), rng.random((LAYERS, HEADS, 4)))
    heads = {field.name: rng.random((LAYERS, HEADS)) for field in dataclasses.fields(HeadMeasures)}
    margin = {field.name: rng.random((LAYERS, HEADS)) for field in dataclasses.fields(MaxMarginMeasures)}
    known = {
        "model": EVIL,
        "family": "bert",
        "n_inputs": 7,
        "n_queries": 90,
        "mean_tokens": 12.0,
        "heads": HeadMeasures(**heads),
        "margins": counts,
        "settings": ProbeSettings(max_margin=True),
        "max_margin": MaxMarginMeasures(**margin),
        "examples": (example,),
        "preferences": {(1, 2): (NamedPreference(EVIL, "two", 5, 1, 8),)},
        "graphs": {(1, 2): named_graph((EVIL, "two"), [(1, 0)])},
        "notes": (EVIL,),
        "seconds": 3.0,
    }
    return ProbeResult(**{**known, **changes})


def made_up_curves(*, without=(), **changes):
    """Seven checkpoints of three layers of two heads; a change is one curve, or one for each layer."""
    rng = np.random.default_rng(0)
    measures = {one.name: rng.random((N_CHECKPOINTS, 3, 2)) for one in MEASURES if one.name not in without}
    for name, curves in changes.items():
        by_layer = np.broadcast_to(np.asarray(curves, dtype=float), (3, N_CHECKPOINTS))
        measures[name] = by_layer.T[:, :, None] + np.array([-0.01, 0.01])  # two heads around their mean
    names = (*(f"epoch-{k}" for k in range(N_CHECKPOINTS - 1)), EVIL)
    return CheckpointCurves("vit, 3 layers of 2 heads", names, STEPS, measures, 60, (EVIL,))
