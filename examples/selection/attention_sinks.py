"""
Which inputs end at the sink?
=============================

A sink is a token of score zero, so it seems that an input whose tokens all hurt must end there. It need not: the inputs share one
attention vector, and what the others want can turn it away from the sink. Here problems differ only in the key of one token of the
first input, which moves along a circle; where each ends is computed before training (claim X-R6).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_ANGLES = 90
SINK, MIXTURE = 2, -1  # the last token of the first input, and none

# %%
# The first input has two tokens that hurt, and one of their keys moves. The second has one good token, and ends there.
angles = np.linspace(0.0, 2.0 * np.pi, N_ANGLES, endpoint=False) + 0.01
moving = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
keys = np.zeros((N_ANGLES, 2, 2, 2))
keys[:, 0, 0], keys[:, 0, 1] = moving, (0.6, -0.5)
keys[:, 1, 0], keys[:, 1, 1] = (0.5, 0.8), (-0.4, -0.3)
scores = np.broadcast_to([[-0.5, -1.0], [1.0, -0.5]], keys.shape[:-1])
data, head = ml.data.scored_tokens(keys, scores)

# %%
# Where does the first input end: without a sink, with a fixed one, and with one whose logit is learned?
STEP = ml.NormalizedGD(0.2)
problems = {"no sink": data, "fixed sink": data.with_sink(), "learned sink": data.with_sink(learned=True)}
ends = {}
for name, problem in problems.items():
    found = ml.predict_limit(problem, head, optimizer=STEP, max_problems=1)
    ends[name] = np.array([MIXTURE if each.outcome.finite else each.outcome.selected[0] for each in found])
    proved = np.mean([each.outcome.proved for each in found])
    print(f"{name}: {np.mean(ends[name] == SINK):.0%} end at the sink, {proved:.0%} of the answers are proved")
print(ml.predict_limit(problems["fixed sink"][0], head).outcome)

# %%
# Each dot is the moving key of one problem, coloured by where the first input ends: at the sink, at this token, which hurts, or at a
# mixture. Its other token, which hurts more, wins nowhere.
LOOKS = {
    SINK: (ml.plotting.GLOBAL, "sink"),
    0: (ml.plotting.LOCAL, "moving token"),
    MIXTURE: ("0.8", "mixture"),
}
figure, panels = plt.subplots(1, 3, figsize=(6.4, 2.8), layout="constrained", sharey=True)
for axes, (name, end) in zip(panels, ends.items(), strict=True):
    for which, (colour, label) in LOOKS.items():
        axes.scatter(*moving[end == which].T, s=42, color=colour, label=label)
    axes.plot(0.0, 0.0, "x", color=ml.plotting.INK, ms=6)
    axes.annotate("0", (0.0, 0.0), (5, 4), textcoords="offset points")
    axes.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), title=name)
    axes.set(xlabel="key, first coordinate", ylabel="second coordinate")
    axes.grid(visible=False)
handles, labels = panels[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=4, columnspacing=1.0)
plt.show()
