"""
The highest score wins
======================

Head and attention learn together on one input whose tokens are orthogonal. From attention that starts even, the token that the
head scores highest at the start is where attention ends, however small its lead: no lead ever shrinks (X Thm 3). So the winner
is known before training.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_TOKENS, N_STEPS = 6, 600

# %%
# One input of six orthogonal tokens, and a small random head.
data = ml.data.TokenDataset(np.eye(N_TOKENS)[None], [1.0])
head = 0.05 * np.random.default_rng(4).standard_normal(N_TOKENS)
start = (head, np.zeros(N_TOKENS))
print("scores at the start:", head.round(3))

# %%
# Before training: which token, and is it proved?
answer = ml.predict_limit(data, start=start, optimizer=ml.GradientDescent(1.0))
print(answer.answer)

# %%
# Train both together, and look at the attention of every token on the way.
risk = ml.JointRisk(data)
run = ml.descend(
    risk, start=start, optimizer=ml.GradientDescent(1.0), n_steps=N_STEPS, record=ml.Record(1, "attention")
)
attention = run.saved["attention"][:, 0]
print("the most attention after training is at token", int(run.selected[0]))

# %%
# The order of the start is the order for ever; the winner takes all.
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
order = np.argsort(head)[::-1]
shades = [ml.plotting.GLOBAL, *plt.get_cmap("Greys")(np.linspace(0.65, 0.2, N_TOKENS - 1))]
axes.stackplot(np.arange(len(attention)), attention[:, order].T, colors=shades, edgecolor="white", linewidth=0.5)
for t, height in zip(order, np.cumsum(attention[0, order]) - attention[0, order] / 2, strict=True):
    axes.annotate(f"score {head[t]:+.3f}", (0, height), (-6, 0), textcoords="offset points", ha="right", va="center")
axes.set(xlabel="step", ylabel="attention of each token", xlim=(0, N_STEPS), ylim=(0, 1), yticks=[])
axes.yaxis.labelpad = 78
axes.set_title("The highest score at the start takes all attention")
plt.show()
