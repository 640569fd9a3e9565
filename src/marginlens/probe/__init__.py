"""Real models: the selections, sparsity and margins of the attention heads of Hugging Face models."""

from typing import TYPE_CHECKING, Any

from marginlens.probe.difference import ProbeDifference, compare_models
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.max_margin import MaxMarginSettings, head_margin, layer_margins, sample_queries
from marginlens.probe.heads.selection import select_tokens
from marginlens.probe.heads.sparsity import relative_sparsity, soft_sparsity
from marginlens.probe.heads.statistics import AttentionRule, attention_statistics, received_attention
from marginlens.probe.models.adapters import Adapter, register_adapter
from marginlens.probe.models.adapters.base import LayerReading
from marginlens.probe.models.inputs import (
    ImageSettings,
    TextInputs,
    encode_texts,
    example_sentences,
    prepare_images,
    read_images,
    read_texts,
)
from marginlens.probe.models.loading import LoadedModel, load_model
from marginlens.probe.models.reading import read_attention
from marginlens.probe.monitor.alarms import find_alarms, find_selections
from marginlens.probe.monitor.forecast import forecast_heads
from marginlens.probe.monitor.record import read_run
from marginlens.probe.page import difference_page, probe_page
from marginlens.probe.result import CheckpointCurves, ProbeResult, ProbeSettings
from marginlens.probe.run import probe_checkpoints, probe_model
from marginlens.removed import no_attribute

if TYPE_CHECKING:
    from marginlens.probe.monitor.callback import AttentionMonitor

__all__ = [
    "Adapter",
    "AttentionMonitor",
    "AttentionRule",
    "CheckpointCurves",
    "ImageSettings",
    "KeyQueryMap",
    "LayerReading",
    "LoadedModel",
    "MaxMarginSettings",
    "ProbeDifference",
    "ProbeResult",
    "ProbeSettings",
    "TextInputs",
    "attention_statistics",
    "compare_models",
    "difference_page",
    "encode_texts",
    "example_sentences",
    "find_alarms",
    "find_selections",
    "forecast_heads",
    "head_margin",
    "layer_margins",
    "load_model",
    "prepare_images",
    "probe_checkpoints",
    "probe_model",
    "probe_page",
    "read_attention",
    "read_images",
    "read_run",
    "read_texts",
    "received_attention",
    "register_adapter",
    "relative_sparsity",
    "sample_queries",
    "select_tokens",
    "soft_sparsity",
]


def __getattr__(name: str) -> Any:
    if name == "AttentionMonitor":  # it is a callback of transformers, which takes seconds to import
        from marginlens.probe.monitor.callback import AttentionMonitor

        return AttentionMonitor
    raise no_attribute(__name__, name)
