"""Paper A's real experiment: vision transformers whose attention gets sparser as they train."""

from marginlens.vision.images import LabelledImages, digit_images
from marginlens.vision.results import Ending, EpochRecord, VisionCurves, VisionRun
from marginlens.vision.settings import VisionSettings
from marginlens.vision.training import train_vision

__all__ = [
    "Ending",
    "EpochRecord",
    "LabelledImages",
    "VisionCurves",
    "VisionRun",
    "VisionSettings",
    "digit_images",
    "train_vision",
]
