"""Which heads a model can do without: each is silenced in turn, then the least missed ones together, and the output compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import InputError
from marginlens.probe.models.adapters import Adapter
from marginlens.probe.models.adapters.base import evaluating
from marginlens.probe.models.inputs import Inputs
from marginlens.probe.models.reading import model_inputs
from marginlens.probe.result import PrunedHeads
from marginlens.typing import FloatArray

PRUNED_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of all heads, silenced together, the least missed first
_OUTPUT_MAPS = ("o_proj", "out_proj", "c_proj", "out_lin", "Wo", "o", "dense")  # that join the outputs of all heads
_DISTRIBUTIONS = (  # in the name of a class whose logits are those of one distribution for each token or input
    *("LMHead", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"),
    *("ForSequenceClassification", "ForTokenClassification", "ForImageClassification"),
)
_ROWS_AT_ONCE = 128  # of distributions over a vocabulary, in float64


class HeadAblation(NamedTuple):
    """What becomes of a model's output without its heads; means over the real tokens of all inputs.

    Attributes:
        measure: output_divergence, KL(p ‖ p') in nats of the output distributions with and without the head, where the model has a head of
            classes or of next tokens; else output_change, ‖h' - h‖/‖h‖ of the last hidden states.
        values: (n_layers, n_heads) this number; nan where a layer has fewer heads.
        pruned: the same number without several heads at once, the least missed ones.
    """

    measure: str
    values: FloatArray
    pruned: tuple[PrunedHeads, ...]


@contextmanager
def without_heads(adapter: Adapter, heads: Iterable[tuple[int, int]]) -> Iterator[None]:
    """While it lasts, the output of each (layer, head) is zero where the layer joins its heads.

    Layers that share a module are silenced each at its own call.
    """
    of_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        of_layer.setdefault(layer, []).append(head)
    modules = {id(module): module for module in map(adapter.attention_module, of_layer)}
    hooks = []
    try:
        for module in modules.values():
            served = [layer for layer in range(adapter.n_layers) if adapter.attention_module(layer) is module]
            hooks.append(_silence(module, adapter.shape(served[0]).n_heads, [of_layer.get(k, []) for k in served]))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _silence(module: Any, n_heads: int, by_call: list[list[int]]) -> Any:
    """The hook that zeroes heads of a module: those of `by_call[k]` at the k-th of the calls that a run makes."""
    n_calls = 0

    def silenced(joined: Any) -> Any:
        nonlocal n_calls
        heads = by_call[n_calls % len(by_call)]
        n_calls += 1
        if not heads:
            return joined
        changed = joined.contiguous().clone()
        changed.view(*joined.shape[:-1], n_heads, -1)[..., heads, :] = 0
        return changed

    joining = next((getattr(module, name) for name in _OUTPUT_MAPS if hasattr(module, name)), None)
    if joining is not None:
        return joining.register_forward_pre_hook(lambda _, args: (silenced(args[0]), *args[1:]))
    # the map is elsewhere, and the module hands out the heads side by side
    return module.register_forward_hook(lambda _, args, output: (silenced(output[0]), *output[1:]))


def ablate_heads(
    model: Any, adapter: Adapter, inputs: Inputs, progress: Callable[[int], None] = lambda done: None
) -> HeadAblation:
    """Run the model once as it is, once without each head, and a few times without many.

    What comes before the silenced layer is as it was, and is not computed again.

    Args:
        model: the loaded model, with its head of classes or next tokens where it has one. adapter: its adapter.
        inputs: from `encode_texts` or `prepare_images`; a head costs about 0.6 of a run of all of them, and as much again or more where
            distributions over a large vocabulary are compared.
        progress: called with the number of heads that are done; those of earlier batches count in proportion.
    """
    import torch

    if not adapter.reads_weights:
        raise InputError("Heads are silenced where a layer joins them, which takes an adapter for the model's family.")
    is_distribution = has_distribution(model)
    network = model if is_distribution else adapter.model
    heads = [(layer, k) for layer in range(adapter.n_layers) for k in range(adapter.shape(layer).n_heads)]
    batches = list(inputs.batches())
    sums, counts = np.zeros(len(heads)), 0
    with torch.no_grad(), evaluating(model):
        for k, batch in enumerate(batches):
            run = _Run(network, adapter, batch.inputs, is_distribution)
            counts += run.n_rows
            for place, head in enumerate(heads):
                sums[place] += run.change_without([head])
                progress((k * len(heads) + place + 1) // len(batches))
        order = [heads[place] for place in np.argsort(sums, kind="stable")]
        sizes = sorted({max(1, round(share * len(heads))) for share in PRUNED_SHARES})
        pruned = np.zeros(len(sizes))
        for batch in batches:
            run = _Run(network, adapter, batch.inputs, is_distribution)
            pruned += [run.change_without(order[:size]) for size in sizes]
    values = np.full((adapter.n_layers, adapter.n_heads), np.nan)
    values[tuple(zip(*heads, strict=True))] = sums / counts
    rows = tuple(
        PrunedHeads(tuple(order[:size]), float(total / counts)) for size, total in zip(sizes, pruned, strict=True)
    )
    return HeadAblation("output_divergence" if is_distribution else "output_change", values, rows)


def has_distribution(model: Any) -> bool:
    """Whether the logits of a model are those of distributions: over next or masked tokens, or over classes that exclude each other."""
    names = [kind.__name__ for kind in type(model).__mro__]
    if not any(part in name for name in names for part in _DISTRIBUTIONS):
        return False
    config = model.config
    is_classifier = any("Classification" in name for name in names)
    return not is_classifier or (
        config.num_labels >= 2 and config.problem_type in (None, "single_label_classification")
    )


class _Run:
    """A batch that a model has read as it is, to be read without some of its heads."""

    def __init__(self, network: Any, adapter: Adapter, inputs: Mapping[str, Any], is_distribution: bool) -> None:
        self._network, self._adapter, self._is_distribution = network, adapter, is_distribution
        self._batch = adapter.complete(model_inputs(network, inputs))
        self._options = {name: value for name, value in adapter.call_options.items() if name == "use_cache"}
        blocks = _blocks(adapter)
        outputs: dict[int, list[Any]] = {}
        hooks = [
            block.register_forward_hook(lambda module, _, output: outputs.setdefault(id(module), []).append(output))
            for block in blocks
        ]
        try:
            self._before = self._output()
        finally:
            for hook in hooks:
                hook.remove()
        called_once = {key: calls[0] for key, calls in outputs.items() if len(calls) == 1}
        self._known = [
            (block, last, called_once[id(block)]) for block, last in blocks.items() if id(block) in called_once
        ]
        self.n_rows = len(self._before)

    def change_without(self, heads: list[tuple[int, int]]) -> float:
        """The sum over real tokens, or inputs, of what changes without these heads."""
        first = min(layer for layer, _ in heads)
        unchanged = [(block, output) for block, last, output in self._known if last < first]
        with without_heads(self._adapter, heads), _handing_out(unchanged):
            after = self._output()
        rows = range(0, self.n_rows, _ROWS_AT_ONCE)
        pairs = ((part[k : k + _ROWS_AT_ONCE].double() for part in (self._before, after)) for k in rows)
        return sum(float(self._compared(p, q).sum()) for p, q in pairs)

    def _compared(self, before: Any, after: Any) -> Any:
        if not self._is_distribution:
            return (after - before).norm(dim=-1) / before.norm(dim=-1)
        p, q = before.log_softmax(dim=-1), after.log_softmax(dim=-1)
        return (p.exp() * (p - q)).sum(dim=-1)

    def _output(self) -> Any:
        """(n_rows, n) logits or last hidden states of every real token, or of every input."""
        output = self._network(**self._batch, **self._options)
        values = output.logits if self._is_distribution else output.last_hidden_state
        mask = self._batch.get("decoder_attention_mask", self._batch.get("attention_mask"))
        if mask is not None and mask.shape == values.shape[:-1]:
            return values[mask.bool()]
        return values.reshape(-1, values.shape[-1])


def _blocks(adapter: Adapter) -> dict[Any, int]:
    """The blocks of the model's stacks, and the last attention layer that each has inside."""
    import torch

    blocks: dict[Any, int] = {}
    for layer, name in enumerate(adapter.module_names):
        parts = name.split(".")
        for k in range(1, len(parts)):
            block = adapter.model.get_submodule(".".join(parts[: k + 1]))
            is_in_stack = isinstance(adapter.model.get_submodule(".".join(parts[:k])), torch.nn.ModuleList)
            if is_in_stack and "forward" not in vars(block):  # else another has taken its place
                blocks[block] = layer
    return blocks


@contextmanager
def _handing_out(known: list[tuple[Any, Any]]) -> Iterator[None]:
    """While it lasts, modules hand out what they are known to compute."""
    try:
        for block, output in known:
            block.forward = lambda *args, output=output, **kwargs: output
        yield
    finally:
        for block, _ in known:
            vars(block).pop("forward", None)
