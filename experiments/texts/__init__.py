"""Labelled texts in files, and their token ids as in paper B: what `python -m experiments.encode` is made of."""

from experiments.texts.text_files import TextFile
from experiments.texts.vectorize import (
    Cleaning,
    Snowball,
    StopWords,
    SubwordTokenizer,
    TextPipeline,
    TextVocabulary,
)

__all__ = ["Cleaning", "Snowball", "StopWords", "SubwordTokenizer", "TextFile", "TextPipeline", "TextVocabulary"]
