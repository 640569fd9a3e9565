"""
What the decoder of a language model goes to
============================================

The last layer of a language model is linear: a decoder W on the states of its contexts. With the states of a small GPT-2 held fixed, the
text alone says where training takes W: its part in a subspace F has the log-odds of what followed each context, and across F it grows
along the widest margin to what never did (G Thm 2). It needs ``torch`` and ``transformers``.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import GPT2Config, GPT2Model

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_CONTEXTS = 12
LENGTH = 3
N_STEPS = 8_000

# %%
# A text of your own, here the tales of `marginlens samples`, as characters; its most frequent contexts of three of them.
folder = tempfile.mkdtemp()
text = next(path for path in ml.data.write_samples(folder) if path.name == "book.txt").read_text(encoding="utf-8")
letters, ids = np.unique(list(text.lower()), return_inverse=True)
windows = np.lib.stride_tricks.sliding_window_view(ids, LENGTH + 1)
contexts, place, count = np.unique(windows[:, :-1], axis=0, return_inverse=True, return_counts=True)
frequent = np.isin(place.ravel(), np.argsort(-count, kind="stable")[:N_CONTEXTS])

# %%
# The states of the last layer, from a model of your own; this one has random weights.
torch.manual_seed(0)
sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": LENGTH, "vocab_size": len(letters)}
model = GPT2Model(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).double().eval()


def states(distinct):
    """(n_contexts, d_model) what the last layer holds at the last position of each context."""
    with torch.no_grad():
        return model(input_ids=torch.as_tensor(distinct)).last_hidden_state[:, -1].numpy()


data = ml.ContextDataset.from_windows(windows[frequent, :-1], windows[frequent, -1], states, len(letters))
print(data)

# %%
# Which theorem holds, and both limits, with their proofs.
prediction = ml.predict_limit(data)
print(prediction.why)
priority, finite = prediction.details
print(priority, finite)

# %%
# Training by gradient descent, held against both.
risk = ml.ContextRisk(data)
steps = np.unique(np.geomspace(10, N_STEPS, 25).astype(int))
rule = ml.GradientDescent(1.9 / risk.smoothness())  # steps below 2/L lower the loss
points = ml.descend(risk, optimizer=rule, n_steps=N_STEPS, record=ml.Record(steps.tolist())).saved["x"]
along = [float(ml.correlation(W.ravel(), priority.x.ravel())) for W in points]
distance = [finite.distance(W) / np.linalg.norm(finite.x) for W in points]

# %%
# The loss falls to the entropy of the text, the finite part to the log-odds; the direction takes its time, as log t.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.loglog(steps, risk.excess(points), color=ml.plotting.GLOBAL, label="cross-entropy less entropy")
ax.loglog(steps, distance, color=ml.plotting.LOCAL, label="distance to the log-odds, relative")
ax.loglog(steps, 1.0 - np.array(along), color=ml.plotting.NEITHER, label="1 - cosine with the widest margin")
ax.set(xlabel="step", ylabel="what is left", title="The text alone says where the decoder goes")
ax.legend()
plt.show()
