"""
Attention as a Markov chain that repeats itself
===============================================

Attention without positions picks the next token like a Markov chain whose transitions the context weighs by its counts. From prompts and
what followed them the chain is found again, with errors as small as the number of its parameters allows (X C1). Left to itself it
collapses: a token that is its own likeliest successor takes over, by a power of the length that the chain gives (X C2).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import marginlens as ml
from marginlens.nexttoken import MarkovChain

plt.rcParams.update(ml.plotting.STYLE)
N_PROMPTS = 2_000
N_TRAJECTORIES = 300
N_TOKENS = 4_000
rng = np.random.default_rng(0)

# %%
# The chain of a layer with four tokens, and the layer of a chain.
layer = 0.3 * rng.standard_normal((6, 6))
E = rng.standard_normal((4, 6))
chain = MarkovChain.from_weights(layer, E)
print(np.abs(MarkovChain.from_weights(chain.to_weights(E), E).P - chain.P).max())

# %%
# Prompts of five tokens, what the layer drew after each, and the chain of maximum likelihood.
prompts = rng.integers(0, 4, (N_PROMPTS, 5))
data = ml.SequenceDataset(prompts, chain.sample(prompts, 1, rng)[:, 0], np.eye(4))
found = MarkovChain.fit(data)
print(found.identified, np.abs(found.P - chain.P).max())

# %%
# Chains that like to repeat: which token can take over, and by which power the others fade.
start = np.tile([0] * 40 + [1, 2, 3, 0], (N_TRAJECTORIES, 1))
fading, drawn = {}, {}
for own in (0.35, 0.5):
    P = np.full((4, 4), (1 - own) / 3)
    np.fill_diagonal(P, own)
    repeating = MarkovChain(P)
    power = float(repeating.winners()[0])
    drawn[power] = repeating.sample(start, N_TOKENS, rng)
    others = np.cumsum(drawn[power] != 0, axis=1) + 3
    fading[power] = np.mean(others / (np.arange(1, N_TOKENS + 1) + start.shape[1]), axis=0)
for power, share in fading.items():
    fitted = np.log(share[-1] / share[N_TOKENS // 4]) / np.log(N_TOKENS / (N_TOKENS // 4))
    print(f"predicted power {power:.2f}, measured {fitted:.2f}")

# %%
# Each row is a trajectory, each colour a token: what is not the winner becomes rare.
fig, axes = plt.subplots(2, 1, figsize=(6.4, 4.0), layout="constrained", sharex=True)
colours = ListedColormap([ml.plotting.GLOBAL, *ml.plotting.ACCENTS[1:4]])
shown = np.linspace(0, N_TOKENS - 1, 240).astype(int)
for ax, (power, tokens) in zip(axes, drawn.items(), strict=True):
    ax.imshow(tokens[:24, shown], cmap=colours, aspect="auto", interpolation="none", extent=(1, N_TOKENS, 24, 0))
    ax.grid(visible=False)
    ax.set(ylabel="trajectory", yticks=[], title=f"the others fade by the power {power:.2f}", xlabel="tokens so far")
fig.suptitle("Trajectories collapse into repetition")
plt.show()
