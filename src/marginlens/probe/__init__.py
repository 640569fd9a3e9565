"""Real models: what the attention heads of Hugging Face models select, how sparsely and with which margin."""

from marginlens.probe.checkpoints import CheckpointCurves, probe_checkpoints
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.max_margin import HeadMargin, MarginMatch, head_margin, layer_margins
from marginlens.probe.heads.max_margin_sample import MaxMarginSettings, QuerySample, sample_queries
from marginlens.probe.heads.selection import select_tokens
from marginlens.probe.heads.sparsity import entropy, relative_sparsity, soft_sparsity, top_probability
from marginlens.probe.models.adapters import Adapter, adapter_for, supported_families
from marginlens.probe.models.image_inputs import ImageInputs, ImageSettings, prepare_images, read_images
from marginlens.probe.models.loading import LoadedModel, load_model
from marginlens.probe.models.reading import LayerReading, read_attention
from marginlens.probe.models.text_inputs import TextInputs, encode_texts, read_texts
from marginlens.probe.pages.page import probe_page
from marginlens.probe.result import ProbeResult
from marginlens.probe.run import probe_model
from marginlens.probe.sentences import own_sentences
from marginlens.probe.settings import ProbeSettings

__all__ = [
    "Adapter",
    "CheckpointCurves",
    "HeadMargin",
    "ImageInputs",
    "ImageSettings",
    "KeyQueryMap",
    "LayerReading",
    "LoadedModel",
    "MarginMatch",
    "MaxMarginSettings",
    "ProbeResult",
    "ProbeSettings",
    "QuerySample",
    "TextInputs",
    "adapter_for",
    "encode_texts",
    "entropy",
    "head_margin",
    "layer_margins",
    "load_model",
    "own_sentences",
    "prepare_images",
    "probe_checkpoints",
    "probe_model",
    "probe_page",
    "read_attention",
    "read_images",
    "read_texts",
    "relative_sparsity",
    "sample_queries",
    "select_tokens",
    "soft_sparsity",
    "supported_families",
    "top_probability",
]
