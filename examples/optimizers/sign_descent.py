"""
Sign descent has another margin
===============================

Sign descent ends at the largest margin in ℓ∞, not in the Euclidean norm (F Thm 1, on attention). Two runs on one problem, judged in both
norms: each wins in its own and loses in the other.
"""

import matplotlib.pyplot as plt

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# Six inputs of eight tokens in ten dimensions; two rules with steps of the same size.
data, v = ml.data.sphere_tokens(1, 6, 8, 10, rng=3)
risk = ml.AttentionRisk(data[0], v[0])
rules = {"gradient": ml.NormalizedGD(0.02), "sign": ml.SignDescent(0.02)}
print(ml.theory.implicit_bias(rules["sign"], risk, selected=[0] * 6).norm)

# %%
# Train, and keep the iterates.
record = ml.Record(ml.plotting.recorded_steps(N_STEPS))
runs = {name: ml.descend(risk, optimizer=rule, n_steps=N_STEPS, record=record) for name, rule in rules.items()}


# %%
# The share of the best margin in a norm, for the tokens that the run selects.
def shares(run, norm):
    rows, _ = risk.margin_rows(run.selected)
    best = ml.att_svm(risk.data, run.selected, norm=norm).margin
    return [(rows @ p).min() / norm.value(p) / best for p in run.saved["x"][1:]]


# %%
# Solid lines are judged in ℓ2, dashed ones in ℓ∞. A share of one is the limit.
norms = {"ℓ2": (ml.L2(), "-"), "ℓ∞": (ml.LInf(), "--")}
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for (name, run), colour in zip(runs.items(), (ml.plotting.LOCAL, ml.plotting.GLOBAL), strict=True):
    for in_norm, (norm, dashes) in norms.items():
        ax.plot(
            run.saved.steps[1:], shares(run, norm), dashes, color=colour, label=f"{name} descent, margin in {in_norm}"
        )
ax.axhline(1.0, color=ml.plotting.INK, lw=0.8)
ax.set(xscale="log", xlabel="step", ylabel="share of the best margin", ylim=(0.0, 1.05))
ax.set_title("Each rule attains the margin of its own norm")
ax.legend()
plt.show()
