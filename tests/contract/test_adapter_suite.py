"""The contract suite of adapters finds what is wrong with one."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from marginlens.errors import InputError
from marginlens.probe import register_adapter
from marginlens.probe.models.adapters import _REGISTERED
from marginlens.probe.models.adapters.base import HeadInputs, Projection
from marginlens.probe.models.adapters.encoder_decoder import BartAdapter, T5Adapter
from marginlens.probe.models.adapters.encoders import BertAdapter
from marginlens.probe.models.adapters.rotary import CappedAdapter, LlamaAdapter, NormalisedAdapter
from marginlens.testing import check_adapter
from refusals import raised
from tiny_families import MODELS, batch_for, small_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@contextmanager
def registered(adapter):
    """Register an adapter for the time of a test."""
    register_adapter(adapter)
    try:
        yield
    finally:
        _REGISTERED.remove(adapter)


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
        query, key = self._affine(layer, "q_proj"), self._affine(layer, "k_proj")
        return Projection(query.W, query.b, key.W)


class ForgetsCap(CappedAdapter):
    """Logits that are capped but not stated to be."""

    def read(self, layer, captured):
        reading = super().read(layer, captured)
        return replace(reading, rule=replace(reading.rule, softcap=None))


class ForgetsQueryBias(BertAdapter):
    """W without the column that the bias of the queries gives."""

    def projection(self, layer):
        return replace(super().projection(layer), b_Q=None)


class ForgetsRotaryQueryBias(LlamaAdapter):
    """The same where positions turn queries."""

    def projection(self, layer):
        return replace(super().projection(layer), b_Q=None)


class ForgetsEpsilon(NormalisedAdapter):
    """Lengths of queries and keys without what the norm adds to their squares."""

    def normalise(self, layer, queries, keys):
        made = super().normalise(layer, queries, keys)
        eps = self.config.rms_norm_eps
        factors = ((factor**-2 - eps).rsqrt() for factor in (made.query_factor, made.key_factor))
        return HeadInputs(made.queries, made.keys, *factors)


class AttendsToItself(BartAdapter):
    """Keys of cross-attention from the decoder's tokens."""

    def capture(self, layer, arguments, inputs):
        captured = super().capture(layer, arguments, inputs)
        return captured if captured.memory is None else replace(captured, memory=captured.inputs)


class ForgetsDistances(T5Adapter):
    """Logits without the bias by distance."""

    def bias(self, layer, captured, queries, keys):
        return None


WEIGHTS = "contract.adapter.weights"


@pytest.mark.parametrize(
    ("adapter", "name", "code", "case"),
    [
        (WrongMatrix, "bert", WEIGHTS, None),
        (TurnsBackwards, "llama", WEIGHTS, "offset"),
        (ForgetsGains, "qwen3", WEIGHTS, "offset"),
        (ForgetsQueryBias, "bert", WEIGHTS, None),
        (ForgetsRotaryQueryBias, "llama yarn, wide heads", WEIGHTS, "offset"),
        (ForgetsRotaryQueryBias, "phi", WEIGHTS, "offset"),
        (ForgetsEpsilon, "qwen3", WEIGHTS, "offset"),
        (ForgetsEpsilon, "olmo2", WEIGHTS, "offset"),
    ],
)
def test_a_wrong_adapter_fails_the_suite(adapter, name, code, case):
    with registered(adapter), pytest.raises(AssertionError) as error:
        check_adapter(small_model(name, torch.float64), batch_for(name, torch.float64))
    promise = error.value.args[0]
    assert promise.code == code
    assert promise.numbers.get("case") == case
    assert promise.numbers["layer"] == 0


@pytest.mark.parametrize(
    ("adapter", "name"), [(ForgetsCap, "gemma2"), (AttendsToItself, "bart"), (ForgetsDistances, "t5")]
)
def test_an_adapter_with_other_attention_is_refused_while_it_is_read(adapter, name):
    with registered(adapter), raised(InputError, "its family"):
        check_adapter(small_model(name, torch.float64), batch_for(name, torch.float64))


@pytest.mark.parametrize("name", MODELS)
def test_no_weight_of_the_adapter_suite_is_zero_or_one(name):
    for place, parameter in small_model(name, torch.float32).named_parameters():
        weight = parameter.detach()
        if weight.numel() > 2:  # of two numbers the spread is luck
            assert float(weight.std()) > 0.1, place
            assert float((weight.abs() < 1e-3).float().mean()) < 0.2, place
