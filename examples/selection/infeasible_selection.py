"""
A selection that no weights can make
====================================

Some tokens can never be selected, whatever their score. No p selects the tokens α exactly when nonnegative multiples, not all zero, of the
differences :math:`k_α - k_t` add up to zero; these multiples are a Farkas certificate, and `att_svm` returns it (A ATT-SVM).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 2000

# %%
# One input: the corners of a square and a token inside it, which alone has a high score.
X = np.array([[(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (0.2, 0.1)]])
data, v = ml.data.scored_tokens(X, [[0.0, 0.0, 0.0, 0.0, 1.0]])

# %%
# A corner can be selected, the token inside cannot.
corner, inside = ml.att_svm(data, [0]), ml.att_svm(data, [4])
print("corner:", corner.status.value)
print("inside:", inside.status.value)

# %%
# The certificate has one weight for each other token. If p gave every difference a margin of 1, their weighted sum would have one too; but
# the sum is zero.
weights = inside.certificate / inside.certificate.sum()
print("the weighted differences add up to", np.round(weights @ inside.rows, 12) + 0.0)

# %%
# Training that wants this token ends at finite weights, with attention spread over several tokens.
run = ml.descend(data, v, n_steps=N_STEPS, optimizer=ml.GradientDescent(1.0))
print(f"its probability ends at {run.attention[0, 4]:.3f}, the norm of p at {run.norm:.3f}")

# %%
# The same weights, read differently, write the inner token as a mixture of the others: it lies in their hull.
fig, ax = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
hull = X[0, [0, 1, 2, 3, 0]]
ax.fill(*hull.T, color=ml.plotting.TINTS[ml.plotting.LOCAL], label="hull of the others")
for (_, _, other), weight in zip(inside.pairs, weights, strict=True):
    ax.plot(*np.stack([X[0, 4], X[0, other]]).T, color=ml.plotting.LOCAL, lw=0.5 + 12.0 * weight, alpha=0.7)
    ml.plotting.note_at(ax, f"weight {weight:.2f}", X[0, other], (0, 16 if X[0, other, 1] > 0 else -16), ha="center")
ax.scatter(*X[0, :4].T, s=70, color=ml.plotting.LOCAL, zorder=3, label="can be selected")
ax.scatter(*X[0, 4], s=260, marker="*", color=ml.plotting.GLOBAL, zorder=4, label="best score, never selected")
ax.set(
    xlim=(-2.2, 2.2), ylim=(-1.4, 1.4), aspect="equal", xlabel="first coordinate of the key", ylabel="second coordinate"
)
ax.set_title("The certificate: the best token is a mixture of the others")
fig.legend(loc="outside lower center", ncols=3, columnspacing=1.0)
plt.show()
