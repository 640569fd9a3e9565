"""The contract suite of adapters finds what is wrong with one."""

import pytest

from marginlens.probe import register_adapter
from marginlens.probe.models.adapters import _REGISTERED
from marginlens.probe.models.adapters.encoders import BertAdapter
from marginlens.probe.models.adapters.rotary import CappedAdapter, LlamaAdapter, NormalisedAdapter
from marginlens.testing import check_adapter
from tiny_families import batch_for, small_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


class WrongMatrix(BertAdapter):
    """Swaps queries and keys in W alone."""

    def _map(self, layer, factors, offset):
        W_Q, b_Q, W_K = factors
        return super()._map(layer, (W_K, b_Q, W_Q), offset)


class TurnsBackwards(LlamaAdapter):
    """W at the offset of the token minus that of the query."""

    def rotation(self, layer, offset):
        return super().rotation(layer, -offset)


class ForgetsGains(NormalisedAdapter):
    """W without the gains of the norms."""

    def projection(self, layer):
        from marginlens.probe.models.adapters.base import Projection

        query, key = self._affine(layer, "q_proj"), self._affine(layer, "k_proj")
        return Projection(query.W, query.b, key.W)


class ForgetsCap(CappedAdapter):
    """Logits that are capped but not stated to be."""

    def read(self, layer, captured):
        from dataclasses import replace

        return replace(super().read(layer, captured), cap=None)


@pytest.mark.parametrize(
    ("adapter", "name", "words"),
    [
        (WrongMatrix, "bert", "W of layer 0, head 0 gives the logits"),
        (TurnsBackwards, "llama", "at offset"),
        (ForgetsGains, "qwen3", "W of layer 0"),
        (ForgetsCap, "gemma2", "W of layer 0"),
    ],
)
def test_a_wrong_matrix_is_found(adapter, name, words):
    try:
        register_adapter(adapter)
        with pytest.raises(AssertionError, match=words):
            check_adapter(small_model(name, torch.float64), batch_for(name, torch.float64))
    finally:
        _REGISTERED.remove(adapter)
