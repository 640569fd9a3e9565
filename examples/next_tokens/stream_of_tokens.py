"""
Priority graphs of a stream
===========================

A corpus that does not fit in memory is read as a stream: windows are counted in chunks and merged into the files of a folder,
from which a graph is read when it is asked for. How many words can a ranking tell apart as the corpus grows?
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
LENGTHS = [1_000, 3_000, 10_000, 30_000, 100_000]
N_VOCABULARY = 60

# %%
# Random words by Zipf's law, the k-th most frequent with probability proportional to 1/k.
shares = 1.0 / np.arange(1, N_VOCABULARY + 1)
ids = np.random.default_rng(0).choice(N_VOCABULARY, size=max(LENGTHS), p=shares / shares.sum()).astype("uint16")

# %%
# The graphs of ever longer beginnings of the corpus, each counted from an array as from a file.
acyclic, components = [], []
for length in LENGTHS:
    with tempfile.TemporaryDirectory() as folder:
        graphs = ml.priority_graphs(ml.data.TokenStream(ids[:length], window=4), out=Path(folder) / "graphs")
        acyclic.append(graphs.summary().share_acyclic)
        components.append(np.mean([graphs[last].n_components / len(graphs[last].nodes) for last in list(graphs)]))

# %%
# With more text every ranking meets its opposite, and words become equal: in random text there is nothing to learn.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(LENGTHS, acyclic, "o-", color=ml.plotting.LOCAL, label="last words without any tie")
ax.plot(LENGTHS, components, "s-", color=ml.plotting.GLOBAL, label="components per word, mean")
ax.set(xscale="log", xlabel="words of the corpus", ylabel="share", ylim=(0.0, 1.05))
ax.set_title("The more random text, the more words are equal")
ax.legend()
plt.show()
