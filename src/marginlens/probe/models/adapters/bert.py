"""Encoders of text (BERT and its kin): every token sees every token that is not padding."""

from __future__ import annotations

from typing import Any, ClassVar

from marginlens.errors import reject
from marginlens.probe.models.adapters.base import LinearAdapter


class BertAdapter(LinearAdapter):
    """BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA, with positions that are part of the inputs."""

    families: ClassVar[tuple[str, ...]] = ("bert", "roberta", "camembert", "xlm-roberta", "electra")
    projections: tuple[str, ...] = ("query", "key")

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        kind = getattr(self.config, "position_embedding_type", None) or "absolute"
        if kind != "absolute":
            raise reject("model", "a model whose positions are part of its inputs", f"one with {kind!r} positions")


class DistilBertAdapter(LinearAdapter):
    """DistilBERT: BERT's layers under other names."""

    families: ClassVar[tuple[str, ...]] = ("distilbert",)
    projections: tuple[str, ...] = ("q_lin", "k_lin")
