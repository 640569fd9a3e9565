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
    sweep = ml.sweep(plan, folder)
    summary = sweep.summary()
for cell in summary.cells:
    print(f"d = {cell.axes['d']:2d}: {cell.columns['optimality']}")

# %%
# Every share has its exact 95% interval. In few dimensions descent often ends at a direction that is only locally optimal; with width the
# best tokens can be separated from everything else, and descent finds them.
fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
summary.plot(ax)
ax.set(xlabel="dimension d", ylabel="share of problems", title="In wide models descent finds the global direction")
plt.show()
