"""
Priority graphs of a long text
==============================

A text that does not fit in memory is read once and cut into tokens; its windows are counted chunk by chunk. Memory grows with the
different triples of last token, next token and other token, and not with the text.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_BYTES = [1 << 14, 1 << 16, 1 << 18, 1 << 20]  # of texts; 100 MB take a minute, and hardly more memory
WINDOW = 4

# %%
# A made-up text of sixty words by Zipf's law, the k-th most frequent with probability proportional to 1/k, written piece by piece.
WORDS = np.array([f"{a}{b}" for a in "bdgklmnprt" for b in ("a", "ei", "o", "u", "an", "el")])
shares = 1.0 / np.arange(1, len(WORDS) + 1)


def write_text(file, n_bytes):
    rng, written = np.random.default_rng(0), 0
    while written < n_bytes:
        words = rng.choice(WORDS, 20_000, p=shares / shares.sum())
        piece = (" ".join(words) + "\n")[: n_bytes - written]
        written += file.write(piece)


# %%
# The graphs of ever longer texts: any function from a text to its tokens cuts them, here `str.split`.
components, triples = [], []
with tempfile.TemporaryDirectory() as folder:
    for n_bytes in N_BYTES:
        path = Path(folder) / "text.txt"
        with path.open("w", encoding="utf-8") as file:
            write_text(file, n_bytes)
        text = ml.data.TextTokens(path, str.split)
        graphs = ml.priority_graphs(text, window=WINDOW)
        components.append(np.mean([graph.n_components / len(graph.nodes) for graph in graphs.values()]))
        triples.append(sum(len(graph.edges) for graph in graphs.values()))
        print(f"{n_bytes:,} bytes, {len(text):,} tokens: {triples[-1]:,} edges")

# %%
# With more text every ranking meets its opposite, and words become equal: in random text there is nothing to learn. The number of edges,
# and with it the memory, stops growing.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(
    N_BYTES, np.array(triples) / len(WORDS) ** 3, "o-", color=ml.plotting.LOCAL, label="edges, of all that there can be"
)
ax.plot(N_BYTES, components, "s-", color=ml.plotting.GLOBAL, label="components per word, mean")
ax.set(xscale="log", xlabel="bytes of the text", ylabel="share", ylim=(0.0, 1.05))
ax.set_title("Counts stop growing while the text goes on")
ax.legend()
plt.show()
