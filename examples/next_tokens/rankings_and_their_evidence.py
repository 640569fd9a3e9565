"""
Rankings of a text, and what stands behind them
===============================================

Every window that ends in a word and is followed by another ranks that one above the rest of the window. These rankings make a
priority graph for each last word (C §3.1); the evidence says how many windows stand behind each.
"""

import matplotlib.pyplot as plt

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)

# %%
# A made-up text, in windows of six words.
text = "the cat and the dog and the cat met the dog and the bird and the dog met the cat and the bird slept and the cat slept "
words = ml.data.text_windows(2 * text, 6, ml.data.Words())
ds, names = words.data, words.vocabulary
graphs = ml.priority_graphs(ds)
print(f"{len(graphs)} last words have a graph")

# %%
# After "the": which words are ranked above which, and which are equal?
graph = graphs[names.names.index("the")]
print(graph)
evidence = ml.graphs.ranking_evidence(ds, graph)

# %%
# The pairs with most evidence.
order = evidence.samples.argsort(kind="stable")[::-1][:10]
pairs = [f"{names.shown[i]} over {names.shown[j]}" for i, j in evidence.pairs[order].tolist()]
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.barh(pairs[::-1], evidence.samples[order][::-1], color=ml.plotting.LOCAL)
ax.set(xlabel="windows that say so", ylabel="ranking after “the”", title="What a text says about its next words")
ax.xaxis.get_major_locator().set_params(integer=True)
ax.grid(visible=False, axis="y")
plt.show()
