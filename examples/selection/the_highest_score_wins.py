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
for t in np.argsort(head)[::-1]:
    wins = t == answer.selected[0]
    colour = ml.plotting.GLOBAL if wins else ml.plotting.INK
    axes.plot(
        attention[:, t],
        color=colour,
        lw=2.4 if wins else 1.2,
        alpha=1.0 if wins else 0.45,
        label=f"score {head[t]:+.3f}",
    )
axes.set(xlabel="step", ylabel="attention of each token")
axes.set_title("The highest score at the start takes all attention")
axes.legend(title="at the start", frameon=False)
plt.show()
