"""
Which patches of a digit are selected?
======================================

A small vision transformer learns scikit-learn's handwritten digits, 8 × 8 pixels cut into sixteen patches. The probe then says which patch
each head selects for [CLS], the token that the class is read from, on images that it has not been trained on.
Needs the packages torch and transformers (the extra `probe`).
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

import marginlens as ml
from marginlens.probe import ImageSettings, ProbeSettings, prepare_images, probe_model

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 300
N_PROBED = 200

# %%
# Two layers of four heads, trained for some seconds on four fifths of the digits.
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8) * 255.0 / 16.0).astype(np.uint8)
torch.manual_seed(0)
config = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager",
)  # fmt: skip
model = ViTForImageClassification(config)
inputs = prepare_images(images, ImageSettings.of(config))
pixels, classes = torch.from_numpy(inputs.pixel_values), torch.from_numpy(labels)
order = torch.randperm(len(images))
training, rest = order[: 4 * len(images) // 5], order[4 * len(images) // 5 :]
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(N_STEPS):
    batch = training[torch.randint(len(training), (64,))]
    model(pixel_values=pixels[batch], labels=classes[batch]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    accuracy = float((model(pixel_values=pixels[rest]).logits.argmax(-1) == classes[rest]).float().mean())
print(f"{accuracy:.1%} of the other digits are recognised")

# %%
# What every head selects on them, image by image: `selected` has axes for layers, heads and queries, and [CLS] is query 0.
probed = rest[:N_PROBED].numpy()
settings = ProbeSettings(examples=len(probed))
result = probe_model(model, prepare_images(images[probed], ImageSettings.of(config)), settings)
print(result)
chosen = np.array([example.selected[-1, :, 0] for example in result.examples])  # (images, heads) of the last layer

# %%
# How often each patch is selected, for each digit, and how dark the selected patches are beside the others.
shares = np.zeros((10, 16))
for digit in range(10):
    patches = chosen[labels[probed] == digit]
    shares[digit] = [np.mean(patches == patch + 1) for patch in range(16)]  # 0 is [CLS] itself
ink = images[probed].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 255.0
on_patch = chosen > 0
ink_selected = np.take_along_axis(ink, np.maximum(chosen - 1, 0), axis=1)[on_patch].mean()
print(f"ink of the selected patches {ink_selected:.2f}, of all {ink.mean():.2f}")

# %%
# Mean images of the ten digits; the area of a circle is the share of selections that fall on its patch.
fig, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
means = np.array([images[probed][labels[probed] == digit].mean(axis=0) for digit in range(10)])
ax.imshow(np.pad(means, ((0, 0), (1, 1), (1, 1))).reshape(2, 5, 10, 10).swapaxes(1, 2).reshape(20, 50), cmap="Greys")
for digit, share in enumerate(shares):
    y, x = np.divmod(np.arange(16), 4)
    corner = np.array([10 * (digit % 5), 10 * (digit // 5)]) + 1.5
    ax.scatter(corner[0] + 2 * x, corner[1] + 2 * y, s=400 * share, color=ml.plotting.GLOBAL, alpha=0.85)
ax.set(xticks=[], yticks=[], xlabel="digits 0 to 4 above, 5 to 9 below", ylabel="mean images and patches")
ax.set_title("The patches that the last layer selects for [CLS]")
ax.grid(visible=False)
plt.show()
