"""C Thm 3: self-attention trained on next tokens becomes an automaton, which the data alone determine.

It retrieves from a sequence the tokens of highest priority and mixes them in fixed proportions: softmax of R W^mm + W^cyc as R grows.
"""

import numpy as np

import marginlens as ml

# Data: windows of six words from a rhyme of our own, each with the word that follows.
text = "the cat and the dog and the cat met the dog and the bird and the dog met the cat and the bird slept and the cat slept "
words = ml.data.text_windows(text, 6, ml.data.Words(), d_model=12)
ds, names = words.data, words.vocabulary
print(f"{ds}: of every window that lacks its next word nothing can be learnt")

# Solve: the priorities, the shortest matrix that respects them, the mix among equals. No training.
automaton = ml.NextTokenAutomaton.fit(ds)
print(f"Graph-SVM: {automaton.priority}, residual {automaton.priority.kkt_residual():.0e}")
print(f"cyclic correction: {automaton.mix.status.value}")

# Look: what follows, and why.
for prefix in ("the cat and the dog and", "cat and the dog and the"):
    print(f"\n{prefix} …\n{automaton.explain(names.encode(prefix), names.shown)}")

# Check: the smallest log-loss at growing norms comes to the same probabilities.
path = ml.path(ds, [5.0, 50.0, 500.0])
for norm, W in zip(path.radii, path.points, strict=True):
    print(f"norm {norm:3.0f}: total variation to the automaton {automaton.total_variation(ds, W).max():.1e}")

# What to notice: the priorities are those of one last word; the same two words may be ranked the other way round after another.
ranked = [last for last, graph in automaton.graphs.items() if len(graph.strict)]
print("last words with a ranking:", ", ".join(names.shown[last] for last in ranked))
print(
    "goes on:",
    names.decode(automaton.sample(names.encode("the cat and the dog and"), 8, np.random.default_rng(0), window=6)),
)
