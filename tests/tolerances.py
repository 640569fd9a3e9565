"""Every tolerance of the tests, by name and with its reason."""

ROUNDING = 1e-12  # a handful of float64 operations on numbers of order one
SIX_DIGITS = 1e-6  # a number and its formula written out again, relative: a wrong formula differs in the first digits
LOOP_AGREEMENT = 1e-9  # two float64 loops that add in different orders, after hundreds of steps
AUTOGRAD = 1e-10  # our gradient against autograd's, relative to the gradient's size, where neither cancels
HIGH_PRECISION = 1e-11  # float64 against 60-digit arithmetic, relative, on single evaluations
LEMMA_1 = 1e-10  # the claim's own bar for W(t) = u p(t)ᵀ/‖u‖² after 1,000 steps
QUADPROG = 1e-8  # quadprog's minimiser against ours, and its idea of a tight constraint
DIRECTION_ON_RANDOM_DATA = (
    0.999  # mean cosine with the max-margin direction after a few thousand normalised steps, A Fig 9
)
CONDITIONED = 1e-8  # rounding amplified by the condition of a small random matrix or by a near tie
ALIGNED = (
    0.9999  # the cosine at which a run of tens of thousands of normalised steps counts as having reached a direction
)
ON_THE_GRID = (
    2e-3  # the best of 20,001 angles at norm 3e4 against the limit: the grid's width, 3e-4, and an offset over the norm
)
LOG_RATE = 0.02  # growth of the norm per decade of steps against log(10)/margin, from 3e4 steps on
FIXED_POINT = 1e-6  # an iterate that has stopped moving, relative to its norm
SVM_KKT = 1e-10  # the promise of every solved hard-margin problem, scale-free, unless rounding alone leaves more
SVM_DISTANCE = (
    1e-12  # how far x may miss a halfspace, relative to ‖x‖: roundings of inner products, amplified by multipliers
)
SVM_EXACT_GAP = 1e-11  # duality gap in exact arithmetic, relative, beyond what SVM_DISTANCE costs at the tightest row
SVM_FARKAS = 2e-14  # a Farkas combination of unit rows: rounding of a few dozen terms
SVM_ORACLE = 1e-8  # x of another hard-margin solver against ours, relative: the accuracy those solvers reach
SVM_INTERIOR_POINT = 1e-6  # the same for an interior-point method: the root of the duality gap at which it stops
SVM_OTHERS = 1e-5  # residual that any competitor of the hard-margin benchmark reaches in its best form
LAW_RATE = 0.03  # fitted exponential rate of a deviation against the predicted one, from discrete steps
ON_THE_LAW = 1e-6  # tangent of the gradient's angle at a predicted position whose inactive rows have faded by e^-30
LISTED_POINT = 1e-5  # a minimum against the list of minima rounded to six digits
PATH_IN_THE_SET = 1e-3  # distance of a path to the solution set at radius 1e4/margin, relative to the solutions: a few over the radius
SLOW_DESCENT = (
    0.97  # cosine of plain descent with its certain limit after 200,000 small steps: the norm grows like log t
)
PATH_KKT = (
    1e-8  # slope left at a point of a regularisation path, relative to its terms: roundings of logits of up to 1e6
)
PATH_GRID = (
    2e-4  # risk of the best point of a grid of angles and norms above that of the path: the grid's spacing, squared
)
PATH_BRUTE_FORCE = 1e-6  # risk at which a general-purpose solver with many starts stops above the minimum
PATH_OFFSET = 1e-3  # distance of a path's direction to its limit at R = 1e4/margin: an offset of order ten over R
SAME_PATH = 1e-5  # two minimisations of the same risk up to a constant factor, each stopped at its own KKT tolerance
CYCLIC_LIMIT = 1e-10  # a path's part along S_cyc against W^cyc where the tail is nothing: two Newton methods' gradients over the curvature
FINITE_DIFFERENCE = (
    1e-7  # central differences at step 1e-5 of risks of order one: rounding over the step, and the step squared
)
CORRECTION_GRADIENT = 1e-10  # the promise of every cyclic correction: the norm of the risk's gradient by W
ORTHOGONAL = 1e-10  # the claim's own bar for inner products of W^cyc, W^mm and the generators of S_cyc
GENERAL_MINIMISER = (
    1e-5  # distance at which a quasi-Newton method stops short of a minimum: its gradient over the curvature
)
LANCZOS = 1e-4  # an eigenvalue by iteration, relative to the largest ones it is found among
OTHER_MINIMUM = 1e-6  # risk by which another descent may undercut a limit that is approached, never reached
SLSQP_POINT = 1e-5  # a minimiser by scipy's SLSQP: the root of the tolerance at which its objective stops
KEPT_RANKS = (
    1e-3  # a rank correlation from products kept to five digits, or from where a run was stopped within the next epoch
)
FLOW_IN_TIME = 1e-6  # arc-length flow against the flow in time by another integrator, both far finer
STIFF_FLOW = 1e-6  # a stiff flow at two tolerances, relative to its norm: what remains of errors that it contracts
HANGING = 900.0  # seconds after which a process that is to end counts as hanging; how long it takes up to then decides nothing
