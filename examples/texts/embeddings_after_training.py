"""
Where training takes the tokens
===============================

When embeddings are trained together with attention, every token moves to a place that its statistics decide (B Thm 5): tokens that tell
the classes apart gain attention and a vote, the others lose both. The picture has a point for each token.
"""

import matplotlib.pyplot as plt

import marginlens as ml
from marginlens_papers.claims.b import token_panels
from marginlens_papers.claims.b.embedding_runs import EmbeddingSettings
from marginlens_papers.claims.b.one_layer import train_one_layer

plt.rcParams.update(ml.plotting.STYLE)
N_SEQUENCES = 2000
EPOCHS = 8

# %%
# Sequences of the K-level model: the lower the level of a token, the more its presence says about the label.
levels = ml.data.Levels(deltas=(0.45, 0.3, 0.15, 0.05), n_irrelevant=200, share=0.05)
sequences = ml.data.level_sequences(N_SEQUENCES, 40, 0, levels)
statistics = ml.token_statistics(sequences)
print(sequences)

# %%
# Train embeddings E, attention weights p and head v together.
settings = EmbeddingSettings(d_model=128, epochs=EPOCHS, milestones=(), dtype="float64")
run = train_one_layer(sequences, settings)
print(f"loss {run.loss:.3f}")

# %%
# Left, selection: decisive tokens rise on both sides. Right, prediction: the vote follows the class.
fig, axes = plt.subplots(1, 2, figsize=(6.4, 4.0), layout="constrained")
points = token_panels.TokenPoints.of(statistics.posterior_difference, run.a, run.b, statistics.count)
token_panels.draw_tokens(points, tuple(axes), legend=False)
fig.suptitle("What tells the classes apart gains attention")
plt.show()
