"""Paper A's real experiment: vision transformers whose attention gets sparser as they train."""

from marginlens.training.loop import Ending
from marginlens.vision.images import LabelledImages, digit_images, read_images
from marginlens.vision.keeping import KeptVisionRun, keep_run, kept_run, read_kept
from marginlens.vision.measuring import ClsAttention, cls_attention, key_query_norms
from marginlens.vision.results import EpochRecord, VisionCurves, VisionRun
from marginlens.vision.settings import VisionSettings
from marginlens.vision.training import train_vision

__all__ = [
    "ClsAttention",
    "Ending",
    "EpochRecord",
    "KeptVisionRun",
    "LabelledImages",
    "VisionCurves",
    "VisionRun",
    "VisionSettings",
    "cls_attention",
    "digit_images",
    "keep_run",
    "kept_run",
    "key_query_norms",
    "read_images",
    "read_kept",
    "train_vision",
]
