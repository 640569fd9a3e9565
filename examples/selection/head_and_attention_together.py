"""
Training the head and attention together
========================================

When the head v learns too, scores are not given: v moves towards the max-margin classifier of the tokens that attention selects, and p towards
the max-margin selection (A Thms 5 to 7). An input whose token is not a support vector of the head need not be selected sharply.
"""

import matplotlib.pyplot as plt
import numpy as np

import marginlens as ml

plt.rcParams.update(ml.plotting.STYLE)
N_STEPS = 20_000

# %%
# Three inputs of two tokens in the plane; the first token of each is the origin.
data = ml.data.figure_3a()
risk = ml.JointRisk(data)
prediction = ml.predict(risk)
print(prediction)

# %%
# One call trains both.
steps = ml.plotting.recorded_steps(N_STEPS)
run = ml.descend(risk, optimizer=ml.NormalizedGD(0.1), n_steps=N_STEPS, record=ml.Record(steps))
print(run)
plt.show()
