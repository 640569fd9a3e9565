"""
Why do my experts die?
======================

A router's inputs often share a mean. It is the same for all of them, so the expert that is best on average grows with it and wins
inputs that other experts would serve better. Here a dense softmax gate is trained on four frozen experts, on inputs as they are and with
their mean subtracted. Which expert wins which input is known before training (claim X-R5).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_INPUTS, N_EXPERTS, WIDTH = 32, 4, 48
N_STEPS = 20_000

# %%
# Each expert is the best one for a quarter of the inputs, and expert 0 is fair at all of them. The inputs share a mean of length 4 and
# differ by vectors of length 1.
rng = np.random.default_rng(1)
own = np.arange(N_INPUTS) // (N_INPUTS // N_EXPERTS)
effects = rng.uniform(-0.6, 0.2, (N_INPUTS, N_EXPERTS))
effects[:, 0] = rng.uniform(0.2, 0.5, N_INPUTS)
effects[np.arange(N_INPUTS), own] = 0.7
deviations = rng.standard_normal((N_INPUTS, WIDTH)) / WIDTH**0.5
mean = rng.standard_normal(WIDTH)
inputs = deviations + 4.0 * mean / np.linalg.norm(mean)

# %%
# Predict where both gates end, train them, and compare.
gates = {"Inputs as they are": inputs, "Mean subtracted": inputs - inputs.mean(axis=0)}
outcomes, runs = {}, {}
for name, x in gates.items():
    risk = ml.risk.router(x, effects)
    outcomes[name] = ml.predict_limit(risk, max_problems=1).outcome
    runs[name] = ml.descend(risk, optimizer=ml.NormalizedGD(0.05), n_steps=N_STEPS)
    same = np.mean(outcomes[name].selected == runs[name].selected)
    print(f"{name}: {same:.0%} of the winners predicted, limit {'proved' if outcomes[name].proved else 'not proved'}")

# %%
# One column per input. Each expert should win its own quarter, which is outlined.
figure, panels = plt.subplots(2, 1, figsize=(6.4, 4.4), layout="constrained")
for axes, (name, run) in zip(panels, runs.items(), strict=True):
    for expert in range(N_EXPERTS):
        first = np.flatnonzero(own == expert)[0]
        outline = {"fill": False, "edgecolor": ml.plotting.INK, "lw": 1.2}
        axes.add_patch(plt.Rectangle((first - 0.5, expert - 0.5), N_INPUTS // N_EXPERTS, 1, **outline))
    for right, colour in ((True, ml.plotting.LOCAL), (False, ml.plotting.GLOBAL)):
        which = np.flatnonzero((run.selected == own) == right)
        axes.bar(
            which, 0.8, 0.8, run.selected[which] - 0.4, color=colour, label="best expert" if right else "another expert"
        )
    axes.set(
        ylim=(N_EXPERTS - 0.4, -0.6), xlim=(-0.7, N_INPUTS - 0.3), ylabel="winning expert", title=name, xlabel="input"
    )
    axes.set_yticks(range(N_EXPERTS))
    axes.grid(visible=False)
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()
