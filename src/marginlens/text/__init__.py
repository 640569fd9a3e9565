"""Texts: readers of labelled reviews, token ids from texts, and a classifier that shows which tokens decide."""

from marginlens.text.readers import (
    ImdbFolder,
    Reviews,
    ReviewSource,
    YelpLines,
)
from marginlens.text.vectorize import (
    Cleaning,
    EncodedTexts,
    Snowball,
    StopWords,
    SubwordTokenizer,
    TextPipeline,
    TextVocabulary,
)

__all__ = [
    "Cleaning",
    "EncodedTexts",
    "ImdbFolder",
    "ReviewSource",
    "Reviews",
    "Snowball",
    "StopWords",
    "SubwordTokenizer",
    "TextPipeline",
    "TextVocabulary",
    "YelpLines",
]
