"""
Priority graphs, drawn
======================

Next-token data determine a graph for each last token: an arrow means that the upper token is preferred to the lower one wherever both
occur, and tokens in one box are equal, because the data prefer each to the other somewhere (C §3.1). These are the graphs of C Fig 2.

`Open its problem in the lab <../../lab/index.html#C-F2>`_
"""

import matplotlib.pyplot as plt

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)

# %%
# Seven sequences over four tokens, each with the token that follows.
ds = ml.data.figure_2()
names = [f"e{k + 1}" for k in range(ds.n_vocabulary)]
for i in range(len(ds)):
    tokens, label = ds[i]
    print(" ".join(names[token] for token in tokens), "→", names[label])

# %%
# Components of the two graphs, from the highest priority to the lowest. After e1 the tokens are ranked strictly; after e2 three are equal.
graphs = ml.priority_graphs(ds)
for last, graph in graphs.items():
    print(f"after {names[last]}:", " > ".join(" = ".join(names[token] for token in part) for part in graph.components))

# %%
# The same as pictures. Without axes, `graph.plot()` makes a figure as large as the graph needs.
fig, axes = plt.subplots(1, 2, figsize=(6.4, 4.0), layout="constrained")
for ax, (last, graph) in zip(axes, graphs.items(), strict=True):
    graph.plot(ax, names)
    ax.set(title=f"after {names[last]}", xlabel="tokens in one box are equal")
fig.suptitle("What the data rank above what")
plt.show()
