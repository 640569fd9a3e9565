"""
Does the best arm win, and how fast?
====================================

Log-linear policies trained by exact policy gradients from zero. Left: a bandit whose best arm moves over the plane while four others stay;
where each ends is computed before training. Inside the others' hull the best arm cannot win, and outside it sometimes loses all the same.
Right: REINFORCE, GRPO and rejection sampling on one bandit. GRPO divides by the standard deviation of the rewards, so its weights grow
twice as fast, and its entropy falls about like 1/t² in place of 1/t after t steps (claims X-R1 and X-R2).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_SIDE = 21  # places of the best arm on each side of a square
N_STEPS = 30_000
BEST, NONE = 0, -1

# %%
# Four arms and their rewards, and the best arm, of reward 1, at each place in turn.
others = np.array([(1.0, 0.3), (0.2, 1.0), (-0.9, 0.2), (0.1, -0.8)])
rewards = [1.0, 0.9, 0.2, -0.5, 0.0]
side = np.linspace(-2.0, 2.0, N_SIDE)
places = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 1, 2)
features = np.concatenate([places, np.broadcast_to(others, (len(places), 4, 2))], axis=1)[:, None]
data = ml.data.bandit(features, np.broadcast_to(rewards, (len(places), 1, 5)))
outcomes = [found.outcome for found in ml.predict_limit(data, loss=ml.losses.CorrelationLoss(), max_problems=1)]
ends = np.array([NONE if outcome.finite else outcome.selected[0] for outcome in outcomes])
can_win = np.array([status is ml.Status.OPTIMAL for status in ml.att_svm(data, [BEST]).status])
loses = can_win & (ends != BEST)
print(f"{np.mean([outcome.proved for outcome in outcomes]):.0%} of the ends are proved.")
print(f"The best arm could win at {can_win.mean():.0%} of the places; at {np.mean(loses):.0%} it could and does not.")

# %%
# One bandit with one right answer to each of three questions, and three algorithms. A loss names the algorithm.
rng = np.random.default_rng(2)
answers = rng.standard_normal((3, 4, 8))
quiz = ml.data.bandit(answers, [[1.0, 0.0, 0.0, 0.0]] * 3)
algorithms = {
    "REINFORCE": ml.losses.CorrelationLoss(),
    "GRPO": ml.losses.ArcsineLoss(),
    "rejection sampling": ml.losses.LogProbability(),
}
record = ml.Record(ml.plotting.recorded_steps(N_STEPS), ("attention",))
entropies = {}
for name, loss in algorithms.items():
    run = ml.descend(quiz, loss=loss, optimizer=ml.GradientDescent(1.0), n_steps=N_STEPS, record=record)
    policy = run.saved["attention"]
    entropies[name] = -np.sum(policy * np.log(policy), axis=-1).mean(axis=-1)
    print(f"{name:18s} entropy {entropies[name][-1]:.1e} after {N_STEPS:,} steps")

# %%
# Each square is a place of the best arm, coloured by what wins; the crosses are the other arms.
LOOKS = {
    "best arm": (ends == BEST, ml.plotting.GLOBAL),
    "worse arm": (ends > BEST, ml.plotting.LOCAL),
    "no arm": (ends == NONE, "0.8"),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.6), layout="constrained")
for label, (where, colour) in LOOKS.items():
    left.plot(*places[where, 0].T, "s", ms=140.0 / N_SIDE, color=colour, label=label)
left.plot(*others.T, "x", color=ml.plotting.INK, ms=8, mew=2)
left.set(aspect="equal", xlabel="first feature of the best arm", ylabel="its second feature", title="What wins")
left.grid(visible=False)
for (name, entropy), look in zip(entropies.items(), (":", "-", "--"), strict=True):
    colour = ml.plotting.GLOBAL if name == "GRPO" else ml.plotting.INK
    right.plot(record.steps[1:], entropy[1:], look, color=colour, lw=2.2, label=name)
right.set(xscale="log", yscale="log", xlabel="step", ylabel="entropy of the policy", title="How fast")
right.legend()
fig.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=3)
plt.show()
