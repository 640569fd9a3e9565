"""Labelled texts in files, and their token ids as in paper B: what `marginlens encode` is made of."""

from marginlens_papers.texts.text_files import TextFile
from marginlens_papers.texts.vectorize import (
    Cleaning,
    Snowball,
    StopWords,
    SubwordTokenizer,
    TextPipeline,
    TextVocabulary,
)

__all__ = ["Cleaning", "Snowball", "StopWords", "SubwordTokenizer", "TextFile", "TextPipeline", "TextVocabulary"]
