"""A Figs 6, 7 and ATT-SVM: how sparsely the heads of a real model attend, what they select, and how max-margin that is.

Usage: python examples/real_models/probe_a_sentence_model.py [PAGE.html]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import marginlens as ml
from marginlens.probe import ProbeSettings, example_sentences, load_model, probe_model, probe_page

# Data: one sentence in five of the project's own, and the packaged all-MiniLM-L6-v2, six layers of twelve heads.
sentences = example_sentences()[::5]
try:
    loaded = load_model("minilm")
except ml.errors.MissingExtra as missing:
    sys.exit(str(missing))

# Solve: run the model once over all sentences; then, for 12 queries, ask for the shortest W that selects as each head does.
result = probe_model(loaded, sentences, ProbeSettings(max_margin=True, max_margin_inputs=12))
print(result)

# Look: the three sparsest heads and what they select in one sentence, the correlations beside chance, and a page with every head.
share, example = result["relative_nnz"], result.examples[0]
for flat in np.argsort(share, axis=None)[:3]:
    layer, head = divmod(int(flat), result.n_heads)
    chosen = [f"{example.tokens[q]}→{example.tokens[t]}" for q, t in enumerate(example.selected[layer, head])]
    print(f"L{layer}H{head}: nnz/T = {share[layer, head]:.3f}, selects {' '.join(chosen)}")
own, chance = result["correlation"], result["correlation_random_head"]
print(f"median correlation with the max-margin W: {np.nanmedian(own):.3f}, of random heads {np.nanmedian(chance):.3f}")
place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "heads.html"
place.write_text(probe_page(result), encoding="utf-8")
print(f"The page is at {place}")

# What to notice: the sparsest heads look at a neighbour or at [CLS], where there is nothing to see; and a correlation says
# something only beside that of random heads at as many queries, whose W leans towards the max-margin one too.
