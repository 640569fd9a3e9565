"""Two hundred English sentences of the project's own, to ask a language model about when no text is at hand.

Twenty each of facts, questions, small stories, negations, dialogue, numbers, ambiguous pronouns, agreement across clauses, sentences that
mislead or can be read in two ways, and other constructions, in this order.
"""

from __future__ import annotations

from importlib.resources import files

KINDS = (
    "facts",
    "questions",
    "stories",
    "negations",
    "dialogue",
    "numbers",
    "pronouns",
    "agreement",
    "garden paths",
    "constructions",
)


def own_sentences() -> tuple[str, ...]:
    """The 200 sentences, of 5 to 25 words."""
    text = files("marginlens.probe").joinpath("sentences.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())
