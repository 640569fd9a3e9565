"""
Inputs that change the topic
============================

A topic is an order of priority among tokens. A model that learns two topics at once has the rankings of both; where they contradict each
other it ties the tokens, and the input's counts decide. The automaton says for every input, without training, whether the model leaves
the topic (X C3).
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml
from marginlens.nexttoken import topic_change

plt.rcParams.update(ml.plotting.STYLE)
N_TOKENS = 6
N_INPUTS = 300
OTHERS = [0, 25, 50, 100, 200]
rng = np.random.default_rng(3)


# %%
# Sequences of four tokens, each followed by the one that comes first in the order of its topic.
def sequences(order, n):
    """(n, 4) tokens, and what follows each."""
    tokens = rng.integers(0, N_TOKENS, (n, 4))
    return tokens, tokens[np.arange(n), np.argmin(np.argsort(order)[tokens], axis=1)]


def automaton(*parts):
    """The automaton of the sequences of one or more topics."""
    tokens, following = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ml.NextTokenAutomaton.fit(ml.SequenceDataset(tokens, following, np.eye(N_TOKENS)))


first, second = rng.permutation(N_TOKENS), rng.permutation(N_TOKENS)
own = sequences(first, 150)
topic = automaton(own)

# %%
# More and more sequences of the other topic beside them: which inputs of the first are answered by a token that it ranks lower?
inputs = rng.integers(0, N_TOKENS, (N_INPUTS, 8))
changed, by_number = [], []
for n in OTHERS:
    mixed = automaton(own, sequences(second, n)) if n else topic
    answers = [topic_change(topic, mixed, x) for x in inputs]
    changed.append(np.mean([answer.changed for answer in answers]))
    by_number.append(np.mean([answer.changed and answer.outnumbers for answer in answers]))
    assert all(answer.tied for answer in answers if answer.changed)
print(dict(zip(OTHERS, changed, strict=True)))

# %%
# Every change is between tokens that the mixture ties; in some the new token outnumbers all that the topic ranks above it.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.bar(range(len(OTHERS)), changed, color=ml.plotting.GLOBAL, label="inputs that change the topic")
ax.bar(range(len(OTHERS)), by_number, color=ml.plotting.LOCAL, label="of these by a token that outnumbers the others")
ax.set_xticks(range(len(OTHERS)), OTHERS)
ax.set(
    xlabel="sequences of the other topic, beside 150",
    ylabel="share of inputs",
    title="What it takes to change the topic",
)
ax.legend()
plt.show()
