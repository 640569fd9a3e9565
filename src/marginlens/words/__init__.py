"""Every sentence that a person reads: `texts.toml`, and the one renderer that turns codes and numbers into prose.

The rest of the library states facts as codes with numbers. Errors are the exception: `marginlens.errors` renders them.
"""

from marginlens.words.renderer import (
    CASE,
    DEFAULT,
    Fact,
    exponential,
    listed,
    numbered,
    percent,
    render,
    rendered_examples,
    sections,
    short,
    text,
    texts,
    title,
)

__all__ = [
    "CASE",
    "DEFAULT",
    "Fact",
    "exponential",
    "listed",
    "numbered",
    "percent",
    "render",
    "rendered_examples",
    "sections",
    "short",
    "text",
    "texts",
    "title",
]
