"""
A thousand problems at once
===========================

On random problems descent ends at a max-margin direction of the tokens it selects (A Fig 9), if gradients are exact.
The same runs with the textbook gradient wander off: once the softmax saturates, that formula has only rounding noise left.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_PROBLEMS = 1000
N_TEXTBOOK = 200
N_STEPS = 1000

# %%
# Problems with 4 inputs of 6 tokens on the unit sphere in 10 dimensions: train all of them, then solve the margin problem of what each
# one selected.
data, v = ml.data.sphere_tokens(N_PROBLEMS, 4, 6, 10, 0)
run = ml.descend(data, v, optimizer=ml.NormalizedGD(1.0), n_steps=N_STEPS)
svm = ml.att_svm(data, run.selected)
exact = ml.correlation(run.final, svm.x)
print(run)
print(svm)


# %%
# The textbook formula for the same gradient, :math:`K^\top(\mathrm{diag}(s) - s s^\top)\gamma`, in double precision.
def textbook_descent(data, v, n_steps):
    scores, p = data.scores(v), np.zeros((len(data), data.d_key))
    for _ in range(n_steps):
        logits = np.einsum("bntd,bd->bnt", data.K, p)
        s = np.exp(logits - logits.max(axis=-1, keepdims=True))
        s /= s.sum(axis=-1, keepdims=True)
        output = np.sum(s * scores, axis=-1, keepdims=True)
        weights = s * (scores - output) / (1.0 + np.exp(output))
        gradient = -np.einsum("bnt,bntd->bd", weights, data.K)
        length = np.linalg.norm(gradient, axis=-1, keepdims=True)
        p = p - gradient / np.where(length > 0.0, length, 1.0)
    return p


few = data[:N_TEXTBOOK]
rounded = textbook_descent(few, v[:N_TEXTBOOK], N_STEPS)
selected = np.einsum("bntd,bd->bnt", few.K, rounded).argmax(axis=-1)
textbook = ml.correlation(rounded, ml.att_svm(few, selected).x)

# %%
# One minus the cosine with the max-margin direction, over the problems whose softmax has saturated.
saturated = run.attention.max(axis=-1).mean(axis=-1) >= 1.0 - 1e-5
misses = {"exact gradient": 1.0 - exact[saturated], "textbook gradient": 1.0 - textbook[np.isfinite(textbook)]}
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
bins = np.geomspace(1e-7, 1.0, 50)
for (name, miss), colour in zip(misses.items(), (ml.plotting.LOCAL, ml.plotting.GLOBAL), strict=True):
    shares = np.full(len(miss), 1.0 / len(miss))
    ax.hist(np.clip(miss, *bins[[0, -1]]), bins, weights=shares, color=colour, alpha=0.8, label=name)
ax.set(xscale="log", xlabel="1 - cosine with the max-margin direction", ylabel="share of problems")
ax.set_title("Saturated softmax needs exact gradients")
ax.legend()
plt.show()
