"""
Can an adapter rank these endings first?
========================================

Twenty stories of the sample text: from its beginning, find the ending of each. Beginnings and endings are frozen vectors, hashed bags of
words, and a matrix W between them is trained with InfoNCE. Whether any W ranks all endings first is decided before training: with one
sentence of each beginning it is impossible, and the proof names the stories that begin alike; with two sentences it is possible, and
training finds such a W.
"""

import re
from importlib.resources import files
from zlib import crc32

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STORIES, WIDTH = 20, 32

# %%
# A text as a vector: every word adds 1 or -1 to the coordinate that its hash chooses.


def embedded(text: str) -> np.ndarray:
    """Return the hashed bag of words of a text, of length one."""
    vector = np.zeros(WIDTH)
    for word in re.findall("[a-z]+", text):
        code = crc32(word.encode())
        vector[code % WIDTH] += 1.0 if (code >> 16) % 2 else -1.0
    return vector / np.linalg.norm(vector)


book = files("marginlens.data").joinpath("sample_files", "book.txt").read_text(encoding="utf-8")
stories = [story.split(". ") for story in book.splitlines()[:N_STORIES]]
endings = np.array([embedded(sentences[-1]) for sentences in stories])
own = np.arange(N_STORIES)

# %%
# Is there a W that ranks the own ending of every story first?
problems = {}
for n_sentences in (1, 2):
    beginnings = np.array([embedded(" ".join(sentences[:n_sentences])) for sentences in stories])
    risk = ml.risk.contrastive(beginnings, endings, own)
    problems[n_sentences] = risk
    solution = ml.att_svm(risk.data, own, query=beginnings)
    print(f"{n_sentences} of its sentences: {solution.status.name}")
    for (query, positive, negative), weight in zip(*solution.contradiction, strict=True):
        print(
            f"  beginning {query} wants ending {positive} above {negative} (weight {weight:.2f}): {stories[query][0]}"
        )

# %%
# Train with two sentences, by normalised steps from zero.
risk = problems[2]
run = ml.descend(risk, optimizer=ml.NormalizedGD(1.0), n_steps=5_000)
scores = {"before: cosines": risk.query @ endings.T, "after: q · W d": risk.query @ run.final @ endings.T}
found = {name: int(np.sum(np.argmax(table, axis=1) == own)) for name, table in scores.items()}
print(f"own ending first: {found}; as the risk says: {int(np.sum(run.selected == own))}")

# %%
# Every row is a beginning, every column an ending; the best ending of each row is dark, and marked in orange unless it is the own one.
figure, panels = plt.subplots(1, 2, figsize=(6.4, 3.5), layout="constrained")
for axes, (name, table) in zip(panels, scores.items(), strict=True):
    low, high = table.min(axis=1, keepdims=True), table.max(axis=1, keepdims=True)
    axes.imshow(((table - low) / (high - low)) ** 3, cmap="Blues", vmin=0.0, vmax=1.0)
    best = np.argmax(table, axis=1)
    axes.plot(best[best != own], own[best != own], "s", color=ml.plotting.GLOBAL, ms=7, mfc="none", mew=2)
    axes.set(xticks=[], yticks=[], xlabel="endings", ylabel="beginnings")
    axes.set_title(f"{name}\n{found[name]} of {N_STORIES} first")
    axes.grid(visible=False)
plt.show()
