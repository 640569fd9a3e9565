"""
A conjecture over three thousand problems
=========================================

How often does descent end at the global direction, and does width help? A sweep runs a grid of random problems into a folder that survives
whatever ends the run, and its summary has exact intervals. Needs the package pyarrow.
"""

import tempfile

import matplotlib.pyplot as plt

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_PROBLEMS = 500
N_STEPS = 400
WIDTHS = [4, 6, 10, 20, 40, 80]

# %%
# The plan: four inputs of six tokens in 4 to 80 dimensions, and what to record of each problem.
plan = {"n_inputs": 4, "n_tokens": 6, "d": WIDTHS, "n_problems": N_PROBLEMS, "n_steps": N_STEPS, "seed": 0}
plan["record"] = ["correlation", "optimality"]

# %%
# Run it. The same call again goes on where it was ended; a laptop, a GPU or a cluster gives the same table.
with tempfile.TemporaryDirectory() as folder:
    sweep = ml.sweep(plan, out=folder)
    summary = sweep.summary()
print(summary)
plt.show()
