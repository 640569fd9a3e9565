"""Text encoders whose positions are part of the inputs or added to logits: the BERT family, ALBERT and DeBERTa."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from marginlens.probe.models.adapters.base import Captured, LinearAdapter, real_tokens
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class BertAdapter(LinearAdapter):
    """BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA, with positions that are part of the inputs."""

    families: ClassVar[tuple[str, ...]] = ("bert", "roberta", "camembert", "xlm-roberta", "electra")
    projections: tuple[str, ...] = ("query", "key")

    @classmethod
    def without_weights(cls, model: PreTrainedModel) -> str | Fact:
        kind = getattr(model.config, "position_embedding_type", None) or "absolute"
        return "" if kind == "absolute" else Fact("no_weights.positions", {"kind": kind})


class DistilBertAdapter(LinearAdapter):
    """DistilBERT: BERT's layers under other names."""

    families: ClassVar[tuple[str, ...]] = ("distilbert",)
    projections: tuple[str, ...] = ("q_lin", "k_lin")


class AlbertAdapter(LinearAdapter):
    """ALBERT, whose layers share weights: a module that serves several layers is read at each of its calls."""

    families: ClassVar[tuple[str, ...]] = ("albert",)
    projections: tuple[str, ...] = ("query", "key")

    def find_layers(self) -> list[tuple[str, Any]]:
        modules, n_layers, n_groups = (
            super().find_layers(),
            self.config.num_hidden_layers,
            self.config.num_hidden_groups,
        )
        in_group = len(modules) // n_groups
        groups = (int(layer / (n_layers / n_groups)) for layer in range(n_layers))  # as the family's own code counts
        return [module for group in groups for module in modules[group * in_group : (group + 1) * in_group]]


class DebertaAdapter(LinearAdapter):
    r"""DeBERTa-v2 and v3, whose attention is disentangled into content and relative positions.

    A query z at m and a token x at n have the logit :math:`x^\top W z + x^\top w_0` of their contents, plus a term of z and n -
    m, and a term of x and m - n. W is that of the contents; the two other terms are the reading's `bias`.
    """

    families: ClassVar[tuple[str, ...]] = ("deberta-v2",)
    projections: tuple[str, ...] = ("query_proj", "key_proj")
    beyond_w: str | Fact = Fact("beyond_w.relative_positions")
    call_options: ClassVar[dict[str, Any]] = {"output_attentions": True}

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        if not any(module.relative_attention for module in self._modules):
            self.beyond_w = ""

    def capture(self, layer: int, arguments: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]) -> Captured:
        import torch

        tokens, allowed = arguments["hidden_states"], arguments["attention_mask"].bool()  # (B, 1, T, T)
        mask = torch.zeros(allowed.shape, dtype=tokens.dtype, device=tokens.device)
        mask.masked_fill_(~allowed, torch.finfo(tokens.dtype).min)
        return Captured(tokens, mask, real_tokens(inputs.get("attention_mask"), tokens), arguments=arguments)

    def _n_terms(self, layer: int) -> int:
        kinds = self.attention_module(layer).pos_att_type
        return 1 + ("c2p" in kinds) + ("p2c" in kinds)

    def scale(self, layer: int) -> float:
        squared = np.float32(self.shape(layer).d_head * self._n_terms(layer))
        return 1.0 / float(np.sqrt(squared))  # in single precision, as the family's own code

    def bias(self, layer: int, captured: Captured, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        module = self.attention_module(layer)
        if not module.relative_attention:
            return None
        given = (captured.arguments.get(name) for name in ("relative_pos", "rel_embeddings"))
        flat = (heads.flatten(0, 1) for heads in (queries, keys))  # (B H, T, d_h)
        terms = module.disentangled_attention_bias(*flat, *given, self._n_terms(layer))
        return terms.view(queries.shape[0], -1, *terms.shape[1:]) if hasattr(terms, "view") else None
