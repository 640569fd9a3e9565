"""Self-attention as a Markov chain that its context weighs: estimation, one trajectory's collapse, and changes of topic."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.nexttoken import MarkovChain, topic_change
from marginlens.result.palette import ACCENTS
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress

SEED = 0
LENGTH = 5  # of prompts
N_TOKENS_OF_TOPICS, N_OWN, N_OTHER = 6, 150, 100  # tokens, and sequences of the topic and of the other one


def _prompts(chain: MarkovChain, tokens: IntArray, rng: np.random.Generator) -> ml.SequenceDataset:
    """Prompts (n, length), and what the chain draws after each."""
    return ml.SequenceDataset(tokens, chain.sample(tokens, 1, rng)[:, 0], np.eye(len(chain.P)))


class X_C1(Claim):
    labels = ("X C1",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Estimate random chains from more and more prompts, and from prompts that never compare two halves of the tokens."""
        K, n_draws, sizes = (5, 60, (1_000, 3_000, 10_000)) if effort is Effort.PAPER else (4, 20, (1_000, 4_000))
        ratios, errors, known, known_of_control = [], [], [], []
        for k in progress.each(range(n_draws)):
            rng = np.random.default_rng((SEED, k))
            chain = MarkovChain(rng.dirichlet(np.full(K, 4.0), K))
            for n in sizes:
                data = _prompts(chain, rng.integers(0, K, (n, LENGTH)), rng)
                found = MarkovChain.fit(data)
                known.append(found.identified.all())
                if known[-1]:
                    gain = found.log_likelihood(data) - chain.log_likelihood(data)
                    ratios.append(2.0 * n * gain / (K * (K - 1)))
                    errors.append((n, float(np.sum((found.P - chain.P) ** 2))))
            half = K // 2 * rng.integers(0, 2, (sizes[-1], 1))
            apart = half + rng.integers(0, K // 2, (sizes[-1], LENGTH))
            known_of_control.append(MarkovChain.fit(_prompts(chain, apart, rng)).identified.any())
        by_size = np.array([np.mean([error for size, error in errors if size == n]) for n in sizes])
        numbers = {
            "mean_likelihood_ratio": float(np.mean(ratios)),
            "exponent_of_squared_error": float(np.polyfit(np.log(sizes), np.log(by_size), 1)[0]),
            "identified_share": float(np.mean(known)),
            "identified_share_of_control": float(np.mean(known_of_control)),
        }
        measured = (
            f"{len(ratios)} fits: twice the gained log-likelihood is {numbers['mean_likelihood_ratio']:.2f} K(K − 1) on average, and the "
            f"squared error falls like n^{numbers['exponent_of_squared_error']:.2f}; of chains whose tokens are compared in two halves "
            f"only, {numbers['identified_share_of_control']:.0%} are identified."
        )
        return Finding(measured, numbers, {"sizes": sizes, "errors": by_size, "ratios": ratios})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The error over the number of prompts, and how the likelihood ratios are spread."""
        figure, (left, right) = ml.plotting.figure(2, width=3.8, height=3.2)
        n, errors = np.asarray(finding.arrays["sizes"]), np.asarray(finding.arrays["errors"])
        left.loglog(n, errors, "o-", color=ACCENTS[0])
        left.loglog(n, errors[0] * n[0] / n, "--", color="0.5", label="1/n")
        left.set(xlabel="prompts", title="squared error of P")
        left.legend()
        right.hist(finding.arrays["ratios"], bins=20, color=ACCENTS[1])
        right.axvline(1.0, color="0.4", lw=1)
        right.set(title="gained log-likelihood × 2n/K(K − 1)", ylabel="fits")
        return {"estimation": figure}


class X_C2(Claim):
    labels = ("X C2",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow trajectories of chains in which a token is its own likeliest successor, and of one in which none is."""
        n, n_steps = (600, 8_000) if effort is Effort.PAPER else (200, 2_000)
        steps = np.unique(np.geomspace(1, n_steps, 40).astype(np.int64)) - 1
        rows, predicted = [], []
        rng = np.random.default_rng(SEED)
        for own in progress.each((0.35, 0.4, 0.5)):
            chain = _self_preferring(own)
            predicted.append(float(chain.winners()[0]))
            rows.append(_share_of_others(chain, n, n_steps, rng)[steps])
        control = _self_preferring(0.1)  # every other token is likelier than itself
        left = _share_of_others(control, n, n_steps, rng)
        totals = steps + len(_START)
        late = steps >= n_steps / 30
        fitted = [float(np.polyfit(np.log(totals[late]), np.log(row[late]), 1)[0]) for row in rows]
        numbers = {
            "largest_error_of_exponent": float(np.max(np.abs(np.subtract(fitted, predicted)))),
            "control_can_win": float(np.isfinite(control.winners()).any()),
            "control_share_of_others": float(left[-1]),
        }
        listed = ", ".join(f"{fit:.2f} ({law:.2f} predicted)" for fit, law in zip(fitted, predicted, strict=True))
        measured = (
            f"Exponents of the share that other tokens keep of a trajectory: {listed}. If no token is its own likeliest successor, the "
            f"others end with {left[-1]:.0%} of it."
        )
        return Finding(
            measured, numbers, {"steps": totals, "rows": rows, "predicted": predicted, "control": left[steps]}
        )

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The share of other tokens over the length of the trajectory, with the predicted powers."""
        figure, (ax,) = ml.plotting.figure(1, width=5.2, height=3.6)
        t = np.asarray(finding.arrays["steps"], dtype=np.float64)
        for row, law, colour in zip(finding.arrays["rows"], finding.arrays["predicted"], ACCENTS, strict=False):
            ax.loglog(t, row, color=colour, label=f"exponent {law:.2f} predicted")
            ax.loglog(t, np.asarray(row)[-1] * (t / t[-1]) ** law, "--", color="0.5", lw=1)
        ax.loglog(t, finding.arrays["control"], color="0.2", label="control: no token can win")
        ax.set(xlabel="tokens so far", title="share of all tokens but the winner")
        ax.legend(loc="lower left")
        return {"collapse": figure}


_START = np.concatenate([np.zeros(40, dtype=np.int64), [1, 2, 3, 0]])  # one token leads, the others are there


def _self_preferring(own: float) -> MarkovChain:
    """Four tokens, each followed by itself with probability `own` and by any other equally often."""
    P = np.full((4, 4), (1.0 - own) / 3.0)
    np.fill_diagonal(P, own)
    return MarkovChain(P)


def _share_of_others(chain: MarkovChain, n: int, n_steps: int, rng: np.random.Generator) -> FloatArray:
    """(n_steps,) the mean share of tokens other than the leading one, so far, over n trajectories."""
    drawn = chain.sample(np.tile(_START, (n, 1)), n_steps, rng)
    others = np.cumsum(drawn != 0, axis=1) + np.sum(_START != 0)
    return np.asarray(np.mean(others / (np.arange(1, n_steps + 1) + len(_START)), axis=0))


class X_C3(Claim):
    labels = ("X C3",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Ask the automata and a layer trained on both topics about the same inputs, and a rule that only counts."""
        n_pairs, n_inputs, n_steps = (8, 400, 20_000) if effort is Effort.PAPER else (3, 100, 4_000)
        rows: list[tuple[bool, ...]] = []
        same_order = []
        for k in progress.each(range(n_pairs)):
            rng = np.random.default_rng((SEED, k))
            orders = [rng.permutation(N_TOKENS_OF_TOPICS) for _ in range(2)]
            own, both = _topics(orders, rng)
            W = ml.descend(
                both.data, optimizer=ml.GradientDescent(1.0 / ml.NextTokenRisk(both.data).smoothness()), n_steps=n_steps
            ).final
            alike = _topics([orders[0], orders[0]], rng)
            for length in np.resize((4, 8, 16), n_inputs):
                x = rng.integers(0, N_TOKENS_OF_TOPICS, length)
                asked = topic_change(own, both, x)
                trained = int(np.argmax(both.predict_proba(x, W=W)))
                tokens, counts = np.unique(x, return_counts=True)
                leading = tokens[counts == counts.max()]
                by_count = int(asked.expected[0]) if len(leading) > 1 else int(leading[0])
                rows.append(
                    (asked.changed, asked.predicted == trained, by_count == trained, asked.outnumbers, asked.tied)
                )
                same_order.append(topic_change(alike[0], alike[1], x).changed)
        changed, agrees, counted, outnumbers, tied = np.array(rows).T
        numbers = {
            "agreement_with_training": float(np.mean(agrees)),
            "agreement_of_counting": float(np.mean(counted)),
            "changed_share": float(np.mean(changed)),
            "tied_share_of_changes": float(np.mean(tied[changed])),
            "changes_with_one_order": float(np.mean(same_order)),
            "outnumbering_share_of_changes": float(np.mean(outnumbers[changed])),
        }
        measured = (
            f"{len(rows):,} inputs: {numbers['changed_share']:.0%} change the topic, {numbers['tied_share_of_changes']:.0%} of these "
            f"between tokens that the mixture ties; the automaton names the trained layer's token in "
            f"{numbers['agreement_with_training']:.1%}, counting alone in {numbers['agreement_of_counting']:.0%}. "
            f"In {numbers['outnumbering_share_of_changes']:.0%} of changes the new token outnumbers all that the topic ranks above it."
        )
        note = (
            "Counts alone do not decide. The abstract of arXiv 2501.06382 says that a change can occur only if lower-priority tokens "
            "outnumber all higher-priority ones, under conditions that were not at hand; here a token with a larger mixing weight changes "
            "the topic without that."
        )
        shares = {
            name: numbers[name]
            for name in ("agreement_with_training", "agreement_of_counting", "outnumbering_share_of_changes")
        }
        return Finding(measured, numbers, {"shares": shares}, note=note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How often each rule names the trained layer's token, and how often a change is decided by counts."""
        figure, (ax,) = ml.plotting.figure(1, width=6.4, height=2.6)
        names = [
            "changes in which the new token\noutnumbers all above it",
            "counting names the token",
            "the automaton names the token",
        ]
        ax.barh(names, list(finding.arrays["shares"].values())[::-1], color=ACCENTS[0])
        ax.set(xlim=(0, 1), xlabel="share")
        return {"topics": figure}


def _topics(orders: list[IntArray], rng: np.random.Generator) -> tuple[Any, ...]:
    """The automaton of the first topic, whose sequences are followed by their first token in an order, and that of both topics."""
    parts = []
    for order, n in zip(orders, (N_OWN, N_OTHER), strict=True):
        tokens = rng.integers(0, N_TOKENS_OF_TOPICS, (n, 4))
        place = np.argmin(np.argsort(order)[tokens], axis=1)
        parts.append((tokens, tokens[np.arange(n), place]))
    (first, its_labels), (second, other_labels) = parts
    both = (np.concatenate([first, second]), np.concatenate([its_labels, other_labels]))
    E = np.eye(N_TOKENS_OF_TOPICS)
    own, mixed = (
        ml.NextTokenAutomaton.fit(ml.SequenceDataset(tokens, labels, E)) for tokens, labels in (parts[0], both)
    )
    return own, mixed
