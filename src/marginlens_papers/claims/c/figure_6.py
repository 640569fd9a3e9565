"""C Fig 6, §6: with cross-entropy and a general head, descent follows the local Graph-SVM and the local cyclic correction."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.losses.next_token import CrossEntropy
from marginlens_papers.claim import Bound, Effort, Finding, Progress
from marginlens_papers.claims.c.training_curves import (
    RULES,
    Contrast,
    contrasts,
    draw_contrasts,
    local_series,
    mean,
    spread,
)

ID = "C-F6"
LABELS = ("C Fig 6", "C §6")
TITLE = "With cross-entropy descent follows the local Graph-SVM and correction"
STATEMENT = (
    "With cross-entropy and a general head, several tokens of a sequence may stay selected. The direction of W converges to the "
    "Graph-SVM solution of the pseudo-graphs, and its part in their cyclic subspace to the local correction; the global ones stay far."
)
PROTOCOL = (
    "K = d = 8, n = 4, T = 6, head C = E (unit embeddings, so Assumption 3 holds), normalised steps of .1, 100 trials; the paper does "
    "not state the number of steps, here 4,000. A token is selected when its attention at the end exceeds .01. Three series: the text's, "
    "with W(0) = 0, on any dataset, that is labels drawn at random from their sequence, and on data drawn again until some tokens tie; "
    "and the data, start and corrections of the authors' code: no token twice in a sequence, cyclic, W(0) uniform in ±1/√d, corrections "
    "trained on the cyclic subset for as many steps. The text's corrections are minimised from zero to a gradient of 1e-10; where one is "
    "infinite the distance to it is infinite too: such trials are counted, and left out of the mean, which favours the global side. The "
    "local correction is made by both rules: of the pseudo-graph a sequence keeps its label's component (Eqs (4) and (5), and the "
    "code), or the component of what it selects. Every trial counts. What must hold is the contrast in the text's series, by either rule; "
    "the paper's own numbers are asked of all series, distances within a tenth, and where one is missed the claim is partly reproduced."
)
PAPER_VALUE = "local > .99 in the text (.9886 in the figure); distance around 9.59 global, .09 local"
EXPECTED = {
    "local_corr": Bound(low=0.985),
    "cyclic_local_corr": Bound(low=0.985),
    "distance_ratio_by_label": Bound(low=20),
    "distance_ratio_by_selected": Bound(low=20),
    "cyclic_distance_ratio_by_label": Bound(low=20),
    "cyclic_distance_ratio_by_selected": Bound(low=20),
    "infinite_by_selected": Bound(high=0),
    "undefined": Bound(high=0),
}
_GLOBAL, _LOCAL = Bound(low=0.9 * 9.59, high=1.1 * 9.59), Bound(high=1.1 * 0.09)
AS_STATED = {
    **{f"{series}local_corr": Bound(low=0.99) for series in ("", "cyclic_", "code_")},
    **{f"{series}global_distance": _GLOBAL for series in ("cyclic_", "code_")},
    **{f"{series}local_distance_by_label": _LOCAL for series in ("", "cyclic_", "code_")},
    **{f"{series}local_distance_by_selected": _LOCAL for series in ("", "cyclic_", "code_")},
    "infinite_by_label": Bound(high=0),
}
SEED = 11
SERIES = local_series(CrossEntropy(), CrossEntropy())
N_STEPS = 4_000
LABEL, SELECTED = RULES


def compute(effort: Effort, progress: Progress) -> Finding:
    """Train on the three kinds of data and compare the weights with both kinds of graph."""
    trials = (100, 100, 100) if effort is Effort.PAPER else (40, 24, 8)
    progress.expect(len(SERIES))
    found = contrasts(SERIES, trials, N_STEPS, SEED, progress)
    text, cyclic, code = found.values()
    numbers = {
        **_ends(text, ""),
        **_ends(cyclic, "cyclic_"),
        **_ends(code, "code_"),
        "global_infinite": float(text.infinite("global")),
        "cyclic_global_infinite": float(cyclic.infinite("global")),
        "infinite_by_label": float(text.infinite(LABEL) + cyclic.infinite(LABEL)),
        "infinite_by_selected": float(text.infinite(SELECTED) + cyclic.infinite(SELECTED)),
        "undefined": float(sum(one.undefined for one in found.values())),
    }
    measured = (
        f"{trials[0]} trials on any data: correlation {spread(text.final('local'))} with the local and {spread(text.final('global'))} "
        f"with the global solution, {_words(text)}. Cyclic data: {spread(cyclic.final('local'))} and {spread(cyclic.final('global'))}, "
        f"{_words(cyclic)}. The code's series: {spread(code.final('local'))} and {spread(code.final('global'))}, {_words(code)}."
    )
    passing = _when(code, 9.59)
    note = (
        f"The global correction is infinite in {text.infinite('global')} trials on any data and {cyclic.infinite('global')} on cyclic "
        f"data: within a component the risk falls for ever. The global distance grows with the steps, so its value says how long a run "
        f"was: in the code's series its mean passes the paper's 9.59 at about {code.runs.steps[passing]:.0f} steps, where the local one "
        f"is {mean(code.distance[LABEL][:, passing]):.2f} by the label's component and {mean(code.distance[SELECTED][:, passing]):.2f} "
        f"by the selected one. By the paper's own rule the local distance of the code's series grows as well, to "
        f"{mean(code.apart(LABEL)):.1f}: in {int(np.sum(code.apart(LABEL) > 1.0))} trials two sequences tie the same tokens and one of "
        f"them has its label elsewhere; that one drops out, and the correction of the other drives the tokens apart for ever while W "
        f"keeps them together. Neither rule gives .09 beside 9.59. Where a local correction by the selected component is not zero, W "
        f"circles around it at half a step, .05."
    )
    arrays = {"steps": text.runs.steps, **{name: one.curves for name, one in found.items()}}
    return Finding(measured, numbers, arrays, note)


def _ends(one: Contrast, prefix: str) -> dict[str, float]:
    far = mean(one.apart("global"))
    numbers = {
        f"{prefix}local_corr": mean(one.final("local")),
        f"{prefix}global_corr": mean(one.final("global")),
        f"{prefix}smallest_local_corr": float(np.nanmin(one.final("local"))),
        f"{prefix}global_distance": far,
        f"{prefix}tied": float(np.sum(~one.single)),
    }
    for name, rule in (("label", LABEL), ("selected", SELECTED)):
        near = mean(one.apart(rule))
        numbers[f"{prefix}local_distance_by_{name}"] = near
        numbers[f"{prefix}distance_ratio_by_{name}"] = far / near if near > 0.0 else float("inf")
    return numbers


def _when(one: Contrast, distance: float) -> int:
    """The place of the first kept step at which the mean global distance exceeds a value."""
    return int(np.argmax(np.mean(one.distance["global"], axis=0) > distance))


def _words(one: Contrast) -> str:
    infinite = f" (infinite in {one.infinite('global')})" if one.status else ""
    return (
        f"distance {mean(one.apart(LABEL)):.4f} to the local correction by the label's component and {mean(one.apart(SELECTED)):.4f} by "
        f"the selected one (not zero in {int(np.sum(~one.empty[LABEL]))} and {int(np.sum(~one.single))} trials), "
        f"{mean(one.apart('global')):.1f} to the global one{infinite}"
    )


def draw(finding: Finding) -> dict[str, Figure]:
    """Correlation over the steps, global and local, and the distance with the local correction by either rule."""
    fig, axes = plotting.figure(3, width=4.7, height=4.8)
    lines = zip(SERIES, ("-", ":", "--"), strict=True)
    draw_contrasts(axes, finding.arrays["steps"], [(name, finding.arrays[name], line) for name, line in lines])
    axes[0].set_title("Cross-entropy: the direction")
    return {"local": fig}
