"""Every tolerance of the tests, by name and with its reason."""

ROUNDING = 1e-12  # a handful of float64 operations on numbers of order one
LOOP_AGREEMENT = 1e-9  # two float64 loops that add in different orders, after hundreds of steps
AUTOGRAD = 1e-10  # our gradient against autograd's, relative to the gradient's size, where neither cancels
HIGH_PRECISION = 1e-11  # float64 against 60-digit arithmetic, relative, on single evaluations
LEMMA_1 = 1e-10  # the claim's own bar for W(t) = u p(t)ᵀ/‖u‖² after 1,000 steps
QUADPROG = 1e-8  # quadprog's minimiser against ours, and its idea of a tight constraint
DIRECTION_ON_RANDOM_DATA = 0.999  # mean cosine with the max-margin direction after a few thousand normalised steps, A Fig 9
