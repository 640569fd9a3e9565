"""What the statements of the papers say, each in a sentence or two of plain words, by label; and which are steps of a proof only."""

from __future__ import annotations

WORDS: dict[str, str] = {
    # ---- paper A: attention weights p, or a key-query matrix W, for classification
    "A (ERM)": "Training minimises the mean loss over the inputs; the model's output is the head v applied to the average of an input's "
    "tokens, weighted by the softmax of their keys' products with p.",
    "A Eq. (4)": "Self-attention: every token of an input is a query, and its output the mean of the values by its attention.",
    "A (SVM)": "The shortest head v that classifies one given vector of each input correctly, with a margin of at least one.",
    "A ATT-SVM": "The shortest p whose product with the selected token's key exceeds that with every other key of the same input by at "
    "least one.",
    "A ATT-SVM'": "ATT-SVM for sets: in each input some optimal token has to lead all tokens that are not optimal by at least one, "
    "whichever it is. It need not be convex, so there may be several solutions.",
    "A P^mm": "All unit directions of ATT-SVM solutions whose selected tokens are locally optimal.",
    "A Assumption A": "On every bounded interval the loss decreases strictly, and its slope is bounded and Lipschitz. The logistic, the "
    "exponential and the correlation loss are such losses.",
    "A Assumption B": "Within each input all tokens but the optimal one have the same score, below that of the optimal one.",
    "A Assumption C": "Selecting the tokens α gives the head the largest label margin, and any attention that leaves a share q to other "
    "tokens of some input loses margin of at least a constant times q.",
    "A Assumption D": "Each input has a set of optimal tokens such that of two attentions, once both are nearly saturated, the one with "
    "exponentially less weight outside these sets has the lower risk.",
    "A Def 1": "A token's score is its label times its product with the head. The optimal token of an input has the highest score, and the "
    "solution of ATT-SVM that selects all optimal tokens is the globally optimal max-margin direction (GMM).",
    "A Def 2": "Neighbours of a selected token are those that ATT-SVM's solution leads by exactly one. A selection is locally optimal when "
    "every selected token outscores its neighbours; its solution is then a locally optimal max-margin direction (LMM).",
    "A Def 3": "A direction selects the tokens with the largest product in each input. Its margin is the smallest lead over another token, "
    "its neighbours are the tokens that attain it, and it is neighbour-optimal if the selected tokens outscore these.",
    "A Lemma 1": "Training the key-query matrix W with a fixed query u is training p: from a matching start, and with steps scaled by "
    "1/‖u‖², W stays u pᵀ/‖u‖² at every step.",
    "A Lemma 2": "With all labels +1, strictly optimal tokens and a W of full rank, the optimal tokens can be separated: ATT-SVM has a "
    "solution for them.",
    "A Lemma 3": "How the output reacts to a change of logits is, up to an error of second order in the attention off the first token, the "
    "sum over the other tokens of logit lead times attention times score lead.",
    "A Lemma 4": "Under Assumption B and a decreasing loss, moving along the GMM direction lowers the risk from every p.",
    "A Lemma 5": "For one input under Assumption B and any π > 0, beyond some norm p is at most 1 + π times as good a direction of descent "
    "as the GMM direction.",
    "A Lemma 6": "Under Assumption A the gradient of the risk is Lipschitz with the constant of Eq. (6), so that steps up to its inverse "
    "never raise the risk.",
    "A Lemma 7": "Around a locally optimal direction there is a cone in which, beyond some norm, that direction lowers the risk, the "
    "gradient has known bounds on both sides, and p is at most 1 + π times as good a direction of descent.",
    "A Lemma 8": "Of two directions that select the same tokens, the one with the larger margin has the lower risk far out if both are "
    "neighbour-optimal; where the single neighbour of the one with the smaller margin outscores its selected token, that one does.",
    "A Lemma 9": "Where every neighbour of a direction outscores the selected token, the risk along it is below its own limit from some "
    "norm on: going on for ever does not pay.",
    "A Lemma 10": "With keys in general position, a direction has no more neighbours than there are dimensions.",
    "A Lemma 11": "Lemma 2 for any head in the range of Wᵀ: the optimal tokens can be separated, whatever the rank of W.",
    "A Lemma 12": "If attention on the tokens α tends to one along the joint regularisation path, then from some norm on p gives every "
    "selected token the largest logit of its input.",
    "A Lemma 13": "Among all p that select the tokens α, the joint regularisation path goes to p^relax in direction, and the head to its "
    "max-margin classifier.",
    "A Lemma 14": "Assumption D holds where an output loses what attention takes from optimal tokens, and gets back less than that from "
    "the others; a linear head is such a case.",
    "A Thm 1": "If each input has a single token of highest score, the p of smallest risk in a ball of radius R turns to the GMM direction "
    "as R grows.",
    "A Thm 2": "Under Assumptions A and B gradient descent with steps up to 1/L_p diverges in norm from every start; with a single input "
    "its direction goes to the GMM direction.",
    "A Thm 3": "Every locally optimal direction has a cone around it without stationary points beyond some norm; gradient descent that "
    "starts there diverges in norm and goes to that direction.",
    "A Thm 4": "With distinct scores and keys in general position, the best points of a narrow cone go to its axis, as the norm grows, "
    "only if the axis is a locally optimal direction.",
    "A Thm 5": "Head and p are trained together, in balls. If the tokens α satisfy Assumption C and can be separated, v goes to the "
    "max-margin classifier of these tokens and p to the solution of ATT-SVM that selects them, each in direction.",
    "A Thm 6": "Thm 5 where not every selected token is a support vector of the head: p goes to p^relax, which keeps a margin of one on "
    "the support vectors and merely selects the token of the other inputs.",
    "A Thm 7": "Thm 4 with its conditions on the keys spelled out: key differences are as independent as their number allows.",
    "A Thm 8": "Under Assumption D, and whatever the head is, the p of smallest risk in a ball approaches the set of solutions of "
    "ATT-SVM' in direction as the ball grows.",
    "A App. E": "The experiments on random data: tokens and head uniform on the unit sphere, random labels, and how often descent "
    "saturates and at which tokens.",
    # ---- paper B: embeddings E and a query p that are trained too
    "B Assumption 4": "Each sequence holds one token that occurs with its label only, and otherwise tokens that occur equally often with "
    "both labels.",
    "B Definition 1": "A token is positive, negative or irrelevant by the sign of α_s, its mean share of the positions times the label; it "
    "is completely positive or negative where it occurs with one label only.",
    "B Definition 15": "Besides the tokens that p selects in a sequence, those with the largest product among the others are its "
    "secondary selection, and what is left is the rest.",
    "B Definition 16": "p is locally optimal if in every sequence the selected positions together score more than any secondary one, by a "
    "constant.",
    "B Lemma 2": "One gradient step from small random embeddings moves the embedding of each token along v by (η₀/2) α_s, and p hardly at "
    "all: embeddings learn at once which label a token speaks for.",
    "B Lemma 3": "For any p that is not zero, the shortest vector which selects the same tokens with a margin of one exists and is unique.",
    "B Lemma 6": "The direction in which gradient flow converges cannot be one that selects every token.",
    "B Lemma 7": "The gradients of the logistic loss by the embeddings and by p, in closed form.",
    "B Lemma 8": "The slope of the loss along a direction of p, as a sum over pairs of tokens of each sequence.",
    "B Lemma 9": "If p diverges, and far out the loss falls along a direction p̂ at least almost as fast as along p itself, then p's own "
    "direction converges to p̂ if it converges at all.",
    "B Lemma 10": "A selected position has attention of at least 1/T; another one whose logit is at least τ lower has at most 1/(1 + e^τ), "
    "and one whose logit is at most τ lower has at least 1/(T e^τ).",
    "B Lemma 11": "After the first step all embeddings and p stay bounded, with high probability for wide embeddings.",
    "B Lemma 12": "After the first step the loss is below a bound that a large step makes small, with high probability for wide "
    "embeddings.",
    "B Lemma 13": "Under Assumption 4 and for wide embeddings, gradient flow on p after the first step has no finite stationary point, so "
    "that the norm of p diverges.",
    "B Lemma 14": "Under Assumption 4, after a large first step with wide embeddings, the direction of the flow, if there is one, selects "
    "the decisive token of every sequence.",
    "B Lemma 17": "Far out along a locally optimal direction, the slope of the loss is, up to a factor near one, what the pairs of a "
    "selected and a secondary token contribute.",
    "B Lemma 18": "Under the conditions of Thm 5 the direction of the flow, if there is one, is the max-margin direction of the tokens "
    "that it selects itself.",
    "B Lemma 19": "If the max-margin solution that selects the decisive tokens alone is shorter than that of any other selection, by a "
    "constant factor, and embeddings are wide enough, the flow goes to it.",
    "B Lemma 20": "At the max-margin solution some selected token leads another one by exactly one: the problem is tight.",
    "B Lemma 21": "For wide embeddings the max-margin solution that selects the decisive tokens alone is no longer than 4n.",
    "B Thm 5": "Under Assumption 4, after one large step on wide embeddings, gradient flow makes p diverge; its direction, if there "
    "is one, is a max-margin direction, and every decisive token is selected in some sequence (in every sequence by Lemma 14).",
    "B §3, one irrelevant token": "Where a single token of the vocabulary is irrelevant, Thm 5 and Lemma 6 leave one selection: the "
    "decisive tokens alone.",
    "B' Lemma 4.5": "The earlier form of B Lemma 19: if the max-margin solution of the decisive tokens alone is shortest by a constant "
    "factor, the flow goes to it.",
    # ---- paper C: next tokens
    "C (ERM)": "Training minimises the mean loss of the labels over sequences; attention compares the last token with all tokens of its "
    "sequence through the matrix W, and a head reads the weighted average of embeddings.",
    "C Acyc-SVM": "The shortest W whose logits put, for each last token, every token ahead of those of lower priority by at least one; for "
    "data without ties.",
    "C Graph-SVM": "Acyc-SVM for any data: tokens of equal priority get equal logits, and higher ones lead lower ones by at least one.",
    "C Algo-GD": "Gradient descent on W with a constant step size.",
    "C Algo-RP": "For every radius R, the W of smallest risk in the ball of that radius.",
    "C Abstract": "A trained layer first retrieves the tokens of highest priority in a sequence, then mixes those that are equal in fixed "
    "proportions.",
    "C App. D": "The experiments: random sequences without ties and with ties, trained by gradient descent.",
    "C Assumption 1": "The loss depends only on the output for the label itself, decreases strictly, and has a bounded slope.",
    "C Assumption 2": "Every sequence holds its label: attention can only output what it reads.",
    "C Assumption 3": "The head's row of each label has its largest product with that label's own embedding.",
    "C Assumption 4": "The head reads each token's own embedding and nothing else: C Eᵀ is the identity.",
    "C Def 1": "The cyclic subdataset: from each sequence the tokens that rank strictly below its label are taken out, and ties are left.",
    "C Def 2": "Data are acyclic if no priority graph has a cycle: no two tokens tie for any last token.",
    "C Def 3": "The cyclic correction W^cyc is the shortest minimiser of the risk over the cyclic subdataset: it sets in which proportions "
    "tied tokens are mixed.",
    "C Lemma 1": "On acyclic data the risk of every finite W is above that of outputting the label itself, and the Acyc-SVM solution, "
    "scaled up, comes arbitrarily close.",
    "C Lemma 2": "W^cyc lies in the cyclic subspace and W^mm is orthogonal to it, so the two do not disturb each other.",
    "C Lemma 3": "With the log-loss and the head of Assumption 4 the risk is convex in W, strictly so on the cyclic subspace.",
    "C Lemma 4": "With the part of W in the cyclic subspace fixed, the rest of smallest risk in a ball goes to the direction of W^mm as "
    "the ball grows.",
    "C Lemma 5": "Steps up to the inverse Lipschitz constant of the gradient lower the risk each time, by at least half the step times the "
    "squared gradient.",
    "C Lemma 6": "From every finite W the risk falls along the Graph-SVM solution W^mm.",
    "C Lemma 7": "In the setting of Thm 3 the cyclic correction W^cyc is finite and unique.",
    "C Thm 1": "On acyclic data with a feasible Acyc-SVM, the W of smallest risk in a ball goes to the direction of its solution as the "
    "ball grows.",
    "C Thm 2": "On any data with a feasible Graph-SVM and a finite W^cyc, the W of smallest risk in a ball goes to the direction of W^mm, "
    "and its part in the cyclic subspace to W^cyc.",
    "C Thm 3": "With the log-loss, gradient descent from any start does the same: W's direction goes to W^mm's, and its part in the cyclic "
    "subspace to W^cyc.",
    "C Thm 4": "In the setting of Thm 3 no finite W is stationary, and descent with steps up to 1/L diverges in norm.",
    "C §3.1": "For each last token a graph: an edge from the label to every other token of a sequence. Tokens that reach each other tie; "
    "an edge without a way back is a strict priority.",
    "C §6": "With general heads the tokens that the trained W selects make graphs of their own, and training goes to the Graph-SVM "
    "solution of these.",
    # ---- papers D, E and F: where they are used
    "D SVMeq": "The problem for attention that keeps several tokens of an input: equal logits among them, and a lead of at least one over "
    "all others.",
    "D W-SVM": "ATT-SVM for a full key-query matrix: the shortest W, in the Frobenius or the nuclear norm, under which every selected "
    "token leads the others of its input by at least one.",
    "D regularisation path of (K, Q)": "Factors K and Q of smallest risk in growing balls: their product goes to the max-margin direction "
    "in the nuclear norm.",
    "F Thm 1": "Normalised steepest descent of a linear classifier with steps falling like 1/√t reaches the largest margin in its own "
    "norm, with a gap of order (log t + n)/√t.",
    "F Thm 2": "The same with momentum; the gap's order then has the dimension as a factor.",
    "F cross-entropy": "The mean cross-entropy of a linear classifier with several classes.",
    # ---- paper G: a linear decoder of next tokens on fixed contexts
    "G Eq. (2)": "Training minimises the cross-entropy of a linear decoder W over distinct contexts, each weighed by how often it occurs "
    "and followed by tokens with their observed probabilities.",
    "G entropy": "The mean entropy of what follows a context, below which no cross-entropy can be.",
    "G Def 1": "Data are compatible if some W gives all tokens that follow a context logits which differ by their log-odds.",
    "G Eq. (4)": "The equations of compatibility: logit differences of tokens that follow a context are their log-odds.",
    "G Eq. (5)": "The subspace F of all matrices that tell tokens which follow the same context apart.",
    "G Def 2": "Data are separable if some W gives all tokens that follow a context one logit, at least one above all others.",
    "G Def 3": "NTP-SVM, the shortest W that shows the data to be separable, is the decoder of largest margin.",
    "G NTP-SVM": "The shortest W with equal logits for all tokens that follow a context, at least one above those of the others.",
    "G Prop 1": "On compatible and separable data the cross-entropy of every W is above the entropy, and comes as near to it as one likes "
    "along W^p + γ W^d as γ grows.",
    "G Lemma 2": "On compatible and separable data gradient descent brings the cross-entropy to the entropy, and W grows without bound.",
    "G Thm 1": "On compatible and separable data the W of least cross-entropy in a ball turns to the direction of W^mm as balls grow.",
    "G Thm 2": "On compatible and separable data gradient descent goes to the direction of W^mm from every start, and its part in F to W*, "
    "which has the log-odds.",
    "X E1": "No attention whose centred logits have a given Euclidean norm has less entropy than one logit ahead of equal others; and the "
    "least entropy of a head on tokens of bounded length follows from the largest singular value of its W.",
    "X E2": "The most that attention moves, in the sum of moduli, per largest change of a logit is 4 p(1 - p), p being the attention of "
    "the set of tokens that is nearest to a half.",
    "X H1": "Heads whose outputs are averaged under one value head each go to the largest margin of the tokens that they select.",
    "X N7": "Steps in a norm that see some of the inputs end short of its largest margin, unless momentum remembers the gradients of an "
    "epoch and still fades faster than they fall.",
    "X N8": "Weight decay on the factors of W lets QᵀQ - KᵀK fade like e^(-2λt) and makes minima those of the risk with the nuclear norm.",
    "X C1": "The most likely chain for prompts exists and is the only one exactly where what follows a last token, and what its "
    "prompts hold beside, are one strong component of all tokens; it is W^cyc.",
    "X C2": "While one token makes up nearly all of a context, any other fades like the length to the power P_wi/P_ww - 1, to first "
    "order: so a token lasts only if it is its own likeliest successor.",
    "X C3": "A model of several topics leaves that of its input only between tokens that the mixture ties, where counts times "
    "mixing weights decide.",
    "X G1": "On separable data descent brings the cross-entropy to its infimum among tokens that follow, and the part of W in F to the "
    "minimiser W*, also where log-odds contradict each other.",
}

_PROOFS: dict[str, dict[str, str]] = {
    "A Lemma 3": {"Eq. (16)": "the reaction to logits, split into the selected token's part and those of the others"},
    "A Lemma 4": {
        "Eq. (17)": "short names for scores, for logits of p and of the GMM direction, and for slopes of the loss",
        "Eq. (19)": "the slope of the risk along the GMM direction as a mean over inputs",
        "Eq. (20)": "what one input adds to Eq. (19), with the derivative of the softmax written out",
        "Eq. (21)": "under Assumption B this part is score lead times s(1 - s) times the lead over the other logits' mean",
        "Eq. (22)": "a lower bound of Eq. (21), by the smallest lead of a logit",
    },
    "A Lemma 5": {"Eq. (23)": "all that is to be shown: the lead along p is at most 1 + π times that along the GMM"},
    "A Lemma 6": {
        "Eq. (27)": "the derivative of the attention in p",
        "Eq. (28a)": "the attention is Lipschitz in p, with the norm of the keys",
        "Eq. (28b)": "the derivative of the softmax is Lipschitz in p, with three times the norm of the keys",
        "Eq. (29)": "a change of the gradient is one of the loss's slope and one of the softmax's derivative",
    },
    "A Lemma 7": {
        "Eq. (34)": "the slope of the risk along any q as a mean over inputs",
        "Eq. (36)": "Lemma 3 for neighbours alone, the other tokens being part of the error",
        "Eq. (37)": "attention on neighbours has to outweigh the error of Eq. (36)",
        "Eq. (38)": "Eq. (37) with exponentials in the radius for the error; the radius of Eq. (39) makes them small enough",
        "Eq. (41)": "Eq. (31a), from Eq. (40) with the smallest and the largest slopes of the loss and score leads",
        "Eq. (42)": "an upper bound of the neighbours' sum for q in any direction",
        "Eq. (43)": "the bound of the slope along any q that follows from Eq. (42); with q along the gradient it is Eq. (31b)",
        "Eq. (44)": "(L3) written over inputs: the slopes along p and along the locally optimal direction",
        "Eq. (45)": "Eq. (36) again, for both sides of Eq. (44)",
        "Eq. (47)": "what is left of (L3) once errors are bounded: the neighbours' sums, with 1 + π/2",
        "Eq. (48)": "inputs whose smallest lead is nearly one or more miss Eq. (47) by an exponentially small amount at most",
    },
    "A Thm 2": {"Eq. (51)": "what a step adds along the GMM direction, by the changes of the norm and of the risk"},
    "A Thm 3": {
        "Eq. (53)": "(L3) with 1 - ε for 1/(1 + π), everywhere in the cone beyond some norm",
        "Eq. (54a)": "a step raises the component along the locally optimal direction",
        "Eq. (54b)": "a bound of the norm after a step",
        "Eq. (54c)": "by which factor at most a step lengthens p",
        "Eq. (55)": "the cosine with that direction is still at least 1 - μ after a step that is small enough",
        "Eq. (56)": "how large a step may be for the iterate to stay in the cone",
    },
    "C Lemma 2": {"Eq. (10)": "a matrix orthogonal to the cyclic subspace gives tokens of a component equal logits"},
    "C Eq. (23)": {
        "Eq. (20)": "the change of the gradient is at most 2‖E‖² √T times that of the attention",
        "Eq. (21)": "the attention changes by at most ‖E‖² times the change of W; docs/differences.md says where this fails",
        "Eq. (22)": "Eqs (20) and (21) together: the gradient is Lipschitz",
    },
    "C Lemma 3": {
        "Eq. (25)": "what would hold on a segment in the cyclic subspace if the risk were not strictly convex there",
        "Eq. (26)": "after Eq. (25) no sequence has curvature along the segment, so that no two logits of a component part",
    },
    "C Thm 3": {
        "Eq. (28)": "convexity between W and R W^mm plus W's cyclic part; docs/differences.md says how W^mm is scaled",
        "Eq. (29)": "far out a step goes along W^mm at least as far as along W; docs/differences.md says what is missing",
        "Eq. (30)": "how far a step goes along W, in norms, where the norm is above one half",
        "Eq. (31)": "a difference of squares over twice the norm is at least the difference of norms",
        "Eq. (32)": "the step outside the cyclic subspace is no longer than the whole step",
        "Eq. (33)": "the squared step is at most twice the step size times the decrease of the risk, by Lemma 5",
        "Eq. (34)": "summed over steps: the part outside the cyclic subspace goes to the direction of W^mm",
        "Eq. (35)": "convexity again: were the cyclic part not to go to W^cyc, the gradient would not vanish",
        "Fig 1": "a drawing without numbers: attention picks out the tokens of highest priority and mixes them",
    },
}  # statement -> the equations that are only steps of its proof, or the picture that shows it, and what each says
PROOF_STEPS = {f"{proved[0]} {label}": proved for proved, steps in _PROOFS.items() for label in steps}
WORDS |= {
    f"{proved[0]} {label}": f"{'Illustration' if label.startswith('Fig') else 'Proof step'} of {proved}: {step}."
    for proved, steps in _PROOFS.items()
    for label, step in steps.items()
}

EARLIER_LABELS: dict[str, str] = {
    f"B' {earlier}": f"B {later}"
    for earlier, later in {
        "Assumption 1": "Assumption 4",
        "Lemma 4.1": "Lemma 2",
        "Lemma 4.2": "Lemma 3",
        "Thm 4.3": "Thm 5",
        "Lemma A.1": "Lemma 7",
        "Lemma A.2": "Lemma 8",
        "Lemma A.3": "Lemma 9",
        "Lemma A.4": "Lemma 10",
        "Lemma B.1": "Lemma 11",
        "Lemma B.2": "Lemma 12",
        "Lemma C.1": "Lemma 13",
        "Lemma C.2": "Lemma 14",
        "Definition C.3": "Definition 15",
        "Definition C.4": "Definition 16",
        "Lemma C.5": "Lemma 17",
        "Lemma C.6": "Lemma 18",
        "Eq. (12)": "Eq. (9)",
        "Eq. (19)": "Eq. (11)",
        "Eq. (20)": "Eq. (12)",
        "Eq. (21)": "Eq. (13)",
        "Eq. (23)": "Eq. (15)",
        "Eq. (24)": "Eq. (16)",
        "Eq. (25)": "Eq. (17)",
        "Eq. (26)": "Eq. (18)",
        "Eq. (27)": "Eq. (19)",
        "Eq. (28)": "Eq. (20)",
        "Eq. (29)": "Eq. (21)",
        "Eq. (30)": "Eq. (22)",
        "Eq. (31)": "Eq. (23)",
        "Eq. (32)": "Eq. (24)",
        "Eq. (33)": "Eq. (25)",
        "Eq. (34)": "Eq. (26)",
        "Eq. (35)": "Eq. (28)",
        "Eq. (36)": "Eq. (32)",
    }.items()
}  # the same statement in both versions; what B' alone says has a function of its own
