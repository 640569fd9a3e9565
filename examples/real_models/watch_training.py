"""
Watch a model learn to copy
===========================

A GPT-2 of two layers sees a random word twice and has to say the second half. While it trains, a monitor measures its heads: the
heads that do the copying become sparse as their key-query weights grow, and the loss falls as they do. It needs ``torch`` and
``transformers``.
"""

import matplotlib.pyplot as plt
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import marginlens as ml
from marginlens.probe import AttentionMonitor

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 200
N_LETTERS, WORD = 12, 10

# %%
# The model, without dropout and with no other training than this.
torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=N_LETTERS,
        n_layer=2,
        n_head=2,
        n_embd=32,
        n_positions=2 * WORD,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
)


def words_twice(n_inputs):
    """Random words, each followed by itself: (n_inputs, 2 WORD)."""
    word = torch.randint(1, N_LETTERS, (n_inputs, WORD))
    return torch.cat([word, word], dim=1)


def copying_loss(ids):
    """The cross-entropy of the second half, which can be told from the first."""
    logits = model(input_ids=ids).logits[:, WORD - 1 : -1]
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, WORD:])


# %%
# One line in the loop: the monitor reads every tenth step, and is told the loss, which this loop computes itself.
monitor = AttentionMonitor(every=10)
monitor.attach(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for _ in range(N_STEPS):
    loss = copying_loss(words_twice(16))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(model, loss=loss)
    losses.append(float(loss.detach()))

curves = monitor.curves
print(monitor)
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; alarms: {len(monitor.alarms)}")
for layer in range(2):
    for head in range(2):
        sparsity, norm = (curves[name][:, layer, head] for name in ("relative_nnz", "frobenius"))
        print(f"L{layer}H{head}: nnz/T {sparsity[0]:.2f} -> {sparsity[-1]:.2f}, |W| {norm[0]:.2f} -> {norm[-1]:.2f}")

# %%
# The sparsity of each head beside its weights.
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
for ax, name, title in ((axes[0], "relative_nnz", "nnz/T"), (axes[1], "frobenius", "Frobenius norm of W")):
    for layer in range(2):
        for head in range(2):
            style = "-" if layer else "--"
            ax.plot(curves.steps, curves[name][:, layer, head], style, label=f"L{layer}H{head}")
    ax.set(xlabel="optimizer step", ylabel=title)
axes[0].legend()
figure.suptitle("Two heads become sharp as their weights grow")
plt.show()
