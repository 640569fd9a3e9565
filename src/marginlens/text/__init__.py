"""Texts: readers of labelled reviews, token ids from texts, and a classifier that shows which tokens decide."""

from marginlens.text.readers import (
    ImdbFolder,
    ReviewPart,
    Reviews,
    ReviewSource,
    ReviewTable,
    YelpLines,
    review_source,
    two_classes,
)
from marginlens.text.vectorize import (
    Cleaning,
    EncodedTexts,
    Snowball,
    StopWords,
    SubwordTokenizer,
    TextPipeline,
    TextVocabulary,
    encode_reviews,
    paper_pipeline,
)

__all__ = [
    "Cleaning",
    "EncodedTexts",
    "ImdbFolder",
    "ReviewPart",
    "ReviewSource",
    "ReviewTable",
    "Reviews",
    "Snowball",
    "StopWords",
    "SubwordTokenizer",
    "TextPipeline",
    "TextVocabulary",
    "YelpLines",
    "encode_reviews",
    "paper_pipeline",
    "review_source",
    "two_classes",
]
