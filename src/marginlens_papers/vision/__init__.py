"""Paper A's real experiment: vision transformers whose attention gets sparser as they train."""

from marginlens_papers.training.loop import Ending
from marginlens_papers.vision.images import LabelledImages, digit_images, read_images
from marginlens_papers.vision.measure import ClsAttention, cls_attention, key_query_norms
from marginlens_papers.vision.results import VisionCurves, VisionEpochRecord, VisionRun, VisionSettings
from marginlens_papers.vision.training import train_vision

__all__ = [
    "ClsAttention",
    "Ending",
    "LabelledImages",
    "VisionCurves",
    "VisionEpochRecord",
    "VisionRun",
    "VisionSettings",
    "cls_attention",
    "digit_images",
    "key_query_norms",
    "read_images",
    "train_vision",
]
