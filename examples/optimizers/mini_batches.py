"""
One input at a time
===================

Sign descent that sees one input a step ends far from the largest ℓ∞ margin. Momentum that remembers an epoch brings it back, as long as it
forgets faster than gradients fall (claim X-N7; of linear classifiers arXiv 2602.11557 says the like).
"""

import matplotlib.pyplot as plt

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# Four inputs of six tokens. An epoch of single inputs has four steps; momentum .9 remembers ten.
data, v = ml.data.sphere_tokens(1, 4, 6, 30, rng=5)
risk = ml.AttentionRisk(data[0], v[0])
rules = {"all inputs": (0.0, 4), "one input": (0.0, 1), "one, momentum .5": (0.5, 1), "one, momentum .9": (0.9, 1)}
for momentum, size in rules.values():
    bias = ml.theory.implicit_bias(ml.SignDescent(0.002, momentum), risk, batch_size=size)
    print(size, momentum, "→", bias.norm, *(check.sentence for check in bias.conditions if not check))

# %%
# Train on the same order of inputs.
record = ml.Record(ml.plotting.recorded_steps(N_STEPS))
runs = {
    name: ml.descend(
        risk,
        optimizer=ml.SignDescent(0.002, momentum),
        n_steps=N_STEPS,
        record=record,
        batch_size=size,
        sampling=ml.Sampling(0),
    )
    for name, (momentum, size) in rules.items()
}


# %%
# The share of the best ℓ∞ margin, for the tokens that each run selects.
def shares(run):
    rows, _ = risk.margin_rows(run.selected)
    best = ml.att_svm(risk.data, run.selected, norm=ml.LInf()).margin
    return [(rows @ p).min() / abs(p).max() / best for p in run.saved["x"][1:]]


fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for (name, run), colour in zip(runs.items(), ml.plotting.ACCENTS, strict=False):
    ax.plot(run.saved.steps[1:], shares(run), color=colour, label=name)
ax.axhline(1.0, color=ml.plotting.INK, lw=0.8)
ax.set(xscale="log", xlabel="step", ylabel="share of the best ℓ∞ margin", ylim=(-0.6, 1.05))
ax.set_title("A memory of an epoch stands in for all inputs")
ax.legend()
plt.show()
