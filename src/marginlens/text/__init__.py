"""Texts: files of texts, token ids from texts, and a classifier that shows which tokens decide."""

from marginlens.text.text_files import TextFile
from marginlens.text.vectorize import Cleaning, Snowball, StopWords, SubwordTokenizer, TextPipeline, TextVocabulary

__all__ = ["Cleaning", "Snowball", "StopWords", "SubwordTokenizer", "TextFile", "TextPipeline", "TextVocabulary"]
