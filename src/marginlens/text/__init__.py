"""From reviews to token ids: readers, cleaning, stop words, stems, pieces, and a cache of the result."""

from marginlens.text.cache import EncodedReviews, cache_folder, encode_reviews
from marginlens.text.cleaning import Cleaning
from marginlens.text.imdb import ImdbFolder
from marginlens.text.parts import ReviewPart
from marginlens.text.pipeline import EncodedTexts, TextPipeline, Vocabulary, paper_pipeline
from marginlens.text.readers import review_source
from marginlens.text.reviews import Reviews, ReviewSource, two_classes
from marginlens.text.stemming import Snowball
from marginlens.text.stopwords import StopWords
from marginlens.text.tables import ReviewTable
from marginlens.text.wordpiece import Pieces, SavedTokenizer, WordPiece, read_pieces
from marginlens.text.yelp import YelpLines

__all__ = [
    "Cleaning",
    "EncodedReviews",
    "EncodedTexts",
    "ImdbFolder",
    "Pieces",
    "ReviewPart",
    "ReviewSource",
    "ReviewTable",
    "Reviews",
    "SavedTokenizer",
    "Snowball",
    "StopWords",
    "TextPipeline",
    "Vocabulary",
    "WordPiece",
    "YelpLines",
    "cache_folder",
    "encode_reviews",
    "paper_pipeline",
    "read_pieces",
    "review_source",
    "two_classes",
]
