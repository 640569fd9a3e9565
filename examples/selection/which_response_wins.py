"""
Why does the chosen response become less likely?
================================================

A log-linear policy is trained on one preference by DPO. Features of the chosen and the rejected response fix a direction, and in the end
all probability goes to the response that is farthest along it. Here it is one that nobody compared: the rejected response becomes
less likely, and the chosen one as well (claim X-R3).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
CHOSEN, REJECTED, N_STEPS = 0, 1, 10_000

# %%
# Six responses to one prompt, with two features each. The first was preferred to the second.
features = np.array([[(0.5, 0.3), (-0.2, 0.1), (1.6, 0.9), (0.9, -0.9), (-0.8, 0.9), (-0.5, -0.8)]])
risk = ml.risk.preferences(features, [CHOSEN], [REJECTED], beta=0.1)
end = ml.theory.winning_responses(features, risk)
print(end)

# %%
# Train, and follow the probabilities of all responses. All are equally likely at the start.
steps = np.unique(np.geomspace(1, N_STEPS, 60).astype(int)).tolist()
run = ml.descend(risk, optimizer=ml.GradientDescent(1.0), n_steps=N_STEPS, record=ml.Record(steps=[0, *steps]))
logits = run.saved["x"] @ features[0].T
log_policy = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
print(f"loss: {float(risk.value(run.final)):.1e}, and the pair is ranked as it was chosen")
print(f"log-probability of the chosen response: {log_policy[0, CHOSEN]:.2f} before, {log_policy[-1, CHOSEN]:.2f} after")

# %%
# Left, the features of the responses and the direction that training takes. Right, what becomes of their probabilities.
names = {CHOSEN: "chosen", REJECTED: "rejected", int(end.winners[0]): "in no pair, wins"}
colours = {CHOSEN: ml.plotting.LOCAL, REJECTED: ml.plotting.INK, int(end.winners[0]): ml.plotting.GLOBAL}
figure, (plane, curves) = plt.subplots(1, 2, figsize=(6.4, 3.3), layout="constrained")
plane.annotate("", 1.9 * end.direction, (0.0, 0.0), arrowprops={"arrowstyle": "->", "color": "0.6", "lw": 2})
for y, point in enumerate(features[0]):
    colour, is_named = colours.get(y, "0.75"), y in names
    foot = (point @ end.direction) * end.direction
    plane.plot(*np.stack([point, foot]).T, ":", color=colour, lw=1)
    plane.plot(*point, "o", color=colour, ms=9 if is_named else 6)
    curves.semilogx([0.7, *steps], log_policy[:, y], color=colour, lw=2.5 if is_named else 1, label=names.get(y))
plane.set(aspect="equal", xlim=(-1.2, 2.0), ylim=(-1.2, 1.4), title="responses to the prompt")
plane.set(xlabel="first feature", ylabel="second feature")
curves.set(xlabel="steps", ylabel="log-probability", ylim=(-7, 0.3), title="training")
figure.legend(loc="outside lower center", ncols=3)
plt.show()
