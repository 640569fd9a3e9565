"""
Watch a small GPT-2 learn to copy
=================================

`AttentionMonitor` measures every head while a model trains, on the same small batch each time.
Here a GPT-2 of two layers is trained from nothing on sequences that are repeated: once it has found out
that it can copy, attention becomes sparse within fifty steps.
Needs the packages torch and transformers (the extra `probe`).
"""

import matplotlib.pyplot as plt
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import marginlens as ml
from marginlens.probe import AttentionMonitor

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 150
EVERY = 10
N_TOKENS, HALF, BATCH = 16, 8, 32

# %%
# A tiny model; the monitor needs no change to it.
torch.set_num_threads(1)  # so small a model gains nothing from more
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=N_TOKENS, n_positions=2 * HALF, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)


def draw_batch(n_sequences):
    first = torch.randint(0, N_TOKENS, (n_sequences, HALF))
    return torch.cat([first, first], dim=1)  # the second half repeats the first


# %%
# The loop as everybody writes it, with one line more.
monitor = AttentionMonitor({"input_ids": draw_batch(8)}, every=EVERY, max_margin_every=0)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for _ in range(N_STEPS):
    ids = draw_batch(BATCH)
    logits = model(input_ids=ids).logits[:, HALF - 1 : -1]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, N_TOKENS), ids[:, HALF:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    monitor.step(model)
print(monitor)

# %%
# The loss and the spread of attention fall in the same fifty steps, most in the first layer.
curves = monitor.curves
share = curves["relative_nnz"]  # (measurements, layers, heads)
fig, (above, below) = plt.subplots(2, 1, figsize=(6.4, 4.8), sharex=True, layout="constrained")
above.plot(losses, color=ml.plotting.INK)
above.set(xlabel="step", ylabel="loss of the copy", title="When the model learns to copy, its heads become sparse")
for layer, colour in enumerate((ml.plotting.GLOBAL, ml.plotting.LOCAL)):
    below.plot(curves.steps, share[:, layer], color=colour, alpha=0.8)
    below.plot([], [], color=colour, label=f"heads of layer {layer}")
below.set(xlabel="step", ylabel="share attended to (nnz/T)", ylim=(0.0, 1.05))
below.legend()
plt.show()
