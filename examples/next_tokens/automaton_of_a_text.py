"""
The automaton of a text
=======================

Self-attention trained on next tokens becomes an automaton, which the data alone determine (C Thm 3): it retrieves from a
sequence the tokens of highest priority and mixes them in fixed proportions. Here it is computed without training, asked for its
reasons, and compared with what the best weights of growing length predict.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)

# %%
# Windows of six words from a made-up rhyme, each with the word that follows.
text = "the cat and the dog and the cat met the dog and the bird and the dog met the cat and the bird slept and the cat slept "
words = ml.data.text_windows(text, 6, ml.data.Words(), d_model=12)
ds, names = words.data, words.vocabulary
print(ds)

# %%
# The priorities, the shortest matrix that respects them, the mix among equals.
automaton = ml.NextTokenAutomaton.fit(ds)
print(automaton.priority)

# %%
# What follows, and why?
print(automaton.explain(names.encode("cat and the dog and the"), names.shown))
going_on = automaton.sample(names.encode("the cat and the dog and"), 8, np.random.default_rng(0), window=6)
print("the cat and the dog and …", names.decode(going_on))

# %%
# The smallest log-loss at growing norms comes to the same probabilities.
radii = np.geomspace(1.0, 150.0, 13)
path = ml.path(ds, radii)
distance = [automaton.total_variation(ds, W).max() for W in path.points]
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(radii, distance, "o-", color=ml.plotting.LOCAL)
ax.set(xscale="log", yscale="log", xlabel="norm of W", ylabel="largest total variation to the automaton")
ax.set_title("Trained attention becomes the automaton of its text")
plt.show()
