"""Which heads a model can do without: each is silenced in turn, and the change of the model's own output is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import InputError
from marginlens.probe.models.adapters import Adapter
from marginlens.probe.models.adapters.base import evaluating
from marginlens.probe.models.inputs import Inputs
from marginlens.probe.models.reading import model_inputs
from marginlens.typing import FloatArray

_OUTPUT_MAPS = ("o_proj", "out_proj", "c_proj", "out_lin", "Wo", "o", "dense")  # that join the outputs of all heads


class HeadAblation(NamedTuple):
    """What becomes of a model's output without each of its heads; means over the real tokens of all inputs.

    Attributes:
        divergence: (n_layers, n_heads) KL(p ‖ p') in nats of the output distributions with and without the head; nan where the model has no
            head of classes or of next tokens.
        change: (n_layers, n_heads) ‖h' - h‖/‖h‖ of the last hidden states where it has none; nan where it has.
    """

    divergence: FloatArray
    change: FloatArray


@contextmanager
def without_head(adapter: Adapter, layer: int, head: int) -> Iterator[None]:
    """While it lasts, the output of one head is zero where the layer joins its heads; other layers that share its module keep theirs."""
    module, n_heads = adapter.attention_module(layer), adapter.shape(layer).n_heads
    served = [other for other in range(adapter.n_layers) if adapter.attention_module(other) is module]
    turn, n_calls = served.index(layer), 0

    def silenced(joined: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if (n_calls - 1) % len(served) != turn:
            return joined
        width = joined.shape[-1] // n_heads
        changed = joined.clone()
        changed[..., head * width : (head + 1) * width] = 0
        return changed

    joining = next((getattr(module, name) for name in _OUTPUT_MAPS if hasattr(module, name)), None)
    if joining is not None:
        hook = joining.register_forward_pre_hook(lambda _, args: (silenced(args[0]), *args[1:]))
    else:  # the map is elsewhere, and the module hands out the heads side by side
        hook = module.register_forward_hook(lambda _, args, output: (silenced(output[0]), *output[1:]))
    try:
        yield
    finally:
        hook.remove()


def ablate_heads(
    model: Any, adapter: Adapter, inputs: Inputs, progress: Callable[[int], None] = lambda done: None
) -> HeadAblation:
    """Run the model once as it is and once without each head.

    Args:
        model: the loaded model, with its head of classes or next tokens where it has one. adapter: its adapter.
        inputs: from `encode_texts` or `prepare_images`; the cost is a run of all of them for every head.
        progress: called with the number of heads that are done.
    """
    import torch

    if not adapter.reads_weights:
        raise InputError("Heads are silenced where a layer joins them, which takes an adapter for the model's family.")
    batches = [adapter.complete(model_inputs(model, batch.inputs)) for batch in inputs.batches()]
    options = {name: value for name, value in adapter.call_options.items() if name == "use_cache"}
    shape = (adapter.n_layers, adapter.n_heads)
    divergence, change, done = np.full(shape, np.nan), np.full(shape, np.nan), 0
    with torch.no_grad(), evaluating(model):
        before = [_output(model(**batch, **options)) for batch in batches]
        for layer in range(adapter.n_layers):
            for head in range(adapter.shape(layer).n_heads):
                with without_head(adapter, layer, head):
                    after = [_output(model(**batch, **options)) for batch in batches]
                parts = [_compare(p, q, batch) for p, q, batch in zip(before, after, batches, strict=True)]
                values = divergence if before[0].is_distribution else change
                values[layer, head] = float(np.concatenate(parts).mean())
                done += 1
                progress(done)
    return HeadAblation(divergence, change)


class _Output(NamedTuple):
    values: Any  # (B, …, n) logarithms of probabilities, or hidden states
    is_distribution: bool


def _output(output: Any) -> _Output:
    logits = getattr(output, "logits", None)
    if logits is not None:
        return _Output(logits.double().log_softmax(dim=-1), True)
    return _Output(output.last_hidden_state.double(), False)


def _compare(before: _Output, after: _Output, batch: dict[str, Any]) -> FloatArray:
    """(n,) the divergence or the relative change at every real token, or of every input."""
    p, q = before.values, after.values
    is_distribution = before.is_distribution
    found = (p.exp() * (p - q)).sum(dim=-1) if is_distribution else (q - p).norm(dim=-1) / p.norm(dim=-1)
    mask = batch.get("decoder_attention_mask", batch.get("attention_mask"))
    is_real = mask.bool() if mask is not None and mask.shape == found.shape else np.s_[:]
    return np.asarray(found[is_real].reshape(-1).cpu().numpy())
