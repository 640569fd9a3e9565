"""
Which heads does fine-tuning move?
==================================

A GPT-2 of two layers has learnt to repeat a word. Fine-tuned to say it backwards, which of its heads change? ``compare_models`` sets the
two checkpoints side by side: how much of each head's attention has moved, and what that did to its sparsity and its weights.
On the command line it is ``marginlens probe AFTER --against BEFORE``. It needs ``torch`` and ``transformers``.
"""

from copy import deepcopy

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import marginlens as ml
from marginlens.probe import LoadedModel, TextInputs, compare_models

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 200
N_LETTERS, WORD = 12, 8

# %%
# The model, without dropout, and its two tasks: after a random word comes the word itself, or its letters from the last to the first.
torch.manual_seed(0)
sizes = {"vocab_size": N_LETTERS, "n_positions": 2 * WORD, "n_layer": 2, "n_head": 2, "n_embd": 32}
rest = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) | {"bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(**sizes, **rest, attn_implementation="eager"))


def words(n_inputs, *, backwards):
    """Random words, each followed by its repetition: (n_inputs, 2 WORD)."""
    word = torch.randint(1, N_LETTERS, (n_inputs, WORD))
    return torch.cat([word, word.flip(1) if backwards else word], dim=1)


def train(*, backwards):
    """Descend on the cross-entropy of the second half, and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(N_STEPS):
        ids = words(32, backwards=backwards)
        logits = model(input_ids=ids).logits[:, WORD - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, WORD:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


# %%
# A checkpoint before fine-tuning and one after it, compared on the same thirty words.
losses = [train(backwards=False)]
before = deepcopy(model)
losses.append(train(backwards=True))
ids = tuple(map(tuple, words(30, backwards=True).tolist()))
letters = tuple(tuple("-abcdefghijk"[k] for k in word) for word in ids)
inputs = TextInputs(tuple(map("".join, letters)), ids, letters, n_truncated=0, max_tokens=2 * WORD, pad_id=0)
after, against = (
    LoadedModel(network, None, None, name) for network, name in ((model, "backwards"), (before, "repeating"))
)
difference = compare_models(after, against, inputs)
print(f"loss {losses[0]:.2f} at repeating, {losses[1]:.2f} at saying it backwards")
print(*difference.findings(), sep="\n")

# %%
# The head that moved most, on one word: before it looked one word back, now it runs through the word from its end.
layer, head = difference.changed_heads(1)[0]
moved, one_word = difference["total_variation"], words(1, backwards=True)
figure, axes = plt.subplots(1, 3, figsize=(6.4, 2.6), layout="constrained")
axes[0].imshow(moved, cmap="Blues", vmin=0.0, vmax=1.0)
for (row, column), share in zip(np.ndindex(moved.shape), moved.ravel(), strict=True):
    axes[0].text(column, row, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.5 else "black")
axes[0].set(xlabel="head", ylabel="layer", xticks=range(2), yticks=range(2), title="share that moved")
ticks = range(0, 2 * WORD, 4)
for ax, network, when in ((axes[1], before, "before"), (axes[2], model, "after")):
    attention = network(input_ids=one_word, output_attentions=True).attentions[layer][0, head].tolist()
    ax.imshow(attention, cmap="Blues", vmin=0.0, vmax=1.0)
    ax.set(xlabel="attended position", ylabel="attending position", xticks=ticks, yticks=ticks)
    ax.set_title(f"L{layer}H{head}, {when}")
for ax in axes:
    ax.grid(visible=False)
plt.show()
