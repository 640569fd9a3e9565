"""The numbers of every kind of attention, windows and cross-attention among them, recounted query by query from the model's own."""

from collections import defaultdict

import numpy as np
import pytest

from marginlens.probe import AttentionMonitor, probe_model
from marginlens.probe.models.adapters.encoder_decoder import with_decoder_inputs
from marginlens.probe.models.inputs import ImageSettings, TextInputs, prepare_images
from tiny_families import IMAGES, NO_FLOAT64, batch_for, small_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

EXACT = 1e-12
SINGLE = 1e-5  # of a monitor, in float32
BIN = 0.0058  # relative width of a bin of margins
ROUNDED_SOFTMAX = 1e-6  # of families that take it in float32
QUANTILES = {"margin_median": 0.5, "margin_low": 0.05}


def inputs_of(name, model):
    """The inputs as the probe takes them, each of them alone as the model does, and all in one batch."""
    if name in IMAGES:
        pixels = batch_for(name, model.dtype)["pixel_values"]
        data = prepare_images(pixels.numpy(), ImageSettings.of(model.config))
        images = torch.as_tensor(data.pixel_values).double()
        return data, [{"pixel_values": image[None]} for image in images], {"pixel_values": images}
    rng = np.random.default_rng(1)
    ids = tuple(tuple(rng.integers(3, 40, n).tolist()) for n in (9, 12, 6, 7))
    data = TextInputs(tuple(map(str, ids)), ids, tuple(tuple(map(str, row)) for row in ids), 0, 16, 0)
    single = [{"input_ids": torch.tensor([row])} for row in ids]
    if name in ("t5", "bart"):
        single = [with_decoder_inputs(model.config, one) for one in single]
    padded = np.array([row + (0,) * (12 - len(row)) for row in ids])
    mask = np.arange(12) < np.array([[len(row)] for row in ids])
    return data, single, {"input_ids": padded, "attention_mask": mask.astype(int)}


def own_attention(name, model, batch):
    """Layer by layer the maps (n_windows, n_heads, n_queries, n_tokens), and which tokens a query may see."""
    maps = []
    if name == "swin":  # whose output has one map of each stage only
        modules = [block.attention for stage in model.encoder.layers for block in stage.blocks]
        hooks = [module.register_forward_hook(lambda _, args, output: maps.append(output[1])) for module in modules]
        with torch.no_grad():
            model(**batch, output_attentions=True)
        for hook in hooks:
            hook.remove()
        return [(layer.numpy(), (layer > 1e-30).any(dim=1).numpy()) for layer in maps]
    with torch.no_grad():
        output = model(
            **(batch if name in ("t5", "bart") else {"input_ids": batch["input_ids"]}), output_attentions=True
        )
    if name in ("t5", "bart"):
        towers = [(layer, "all") for layer in output.encoder_attentions]
        for decoder, cross in zip(output.decoder_attentions, output.cross_attentions, strict=True):
            towers += [(decoder, "causal"), (cross, "all")]
    else:
        usual = [{"bert": "all", "llama": "causal"}.get(name)] * len(output.attentions)
        towers = list(zip(output.attentions, getattr(model.config, "layer_types", usual), strict=True))
    for layer, kind in towers:
        query, token = np.indices(layer.shape[2:])
        sees = np.ones(query.shape, dtype=bool) if kind == "all" else token <= query
        if kind == "sliding_attention":
            sees &= query - token < model.config.sliding_window
        maps.append((layer.numpy(), np.broadcast_to(sees, (len(layer), *sees.shape))))
    return maps


def by_hand(name, model, batches):
    """Every measure of every head, one query after the other."""
    rows, sinks = defaultdict(lambda: defaultdict(list)), defaultdict(list)
    for batch in batches:
        for layer, (maps, visible) in enumerate(own_attention(name, model, batch)):
            for window, head in np.ndindex(*maps.shape[:2]):
                received, n_queries = np.zeros(maps.shape[-1]), 0
                for query, attention in enumerate(maps[window, head]):
                    places = np.flatnonzero(visible[window, query])
                    if len(places) < 2:
                        continue
                    seen, numbers = attention[places], rows[layer, head]
                    ordered, chosen = np.sort(seen), places[seen.argmax()]
                    received[places] += seen
                    n_queries += 1
                    rest = seen / seen.sum()  # of a learned sink, which takes a part
                    shapes = {
                        "nnz": 1.0 / np.sum(rest**2),
                        "relative_nnz": 1.0 / np.sum(rest**2) / len(seen),
                        "entropy": -np.sum(rest * np.log(rest)),
                        "top_probability": seen.max(),
                    }
                    if name == "gpt_oss":
                        numbers["learned_sink_share"].append(1.0 - seen.sum())
                    for measure, number in shapes.items():
                        numbers[measure].append(number)
                        if name == "bert" and query == 0:
                            numbers[f"first_{measure}"].append(number)
                    numbers["decisive_share"].append(seen.max() > 0.5)
                    numbers["first_share"].append(np.nan if name == "swin" else chosen == 0)
                    if name in ("bert", "llama"):
                        numbers["self_share"].append(chosen == query)
                    for error, ending in ((0.001, ""), (0.01, "_at_0.01"), (0.1, "_at_0.1")):
                        left_out = 0
                        while left_out < len(seen) and sum(ordered[: left_out + 1]) <= error:
                            left_out += 1
                        numbers[f"negligible_share{ending}"].append(left_out / len(seen))
                    for measure in QUANTILES:
                        numbers[measure].append(np.log(ordered[-1] / ordered[-2]))
                sinks[layer, head].append((received.max(), n_queries))
    found = {}
    for at, numbers in rows.items():
        found[at] = {measure: np.mean(values) for measure, values in numbers.items() if measure not in QUANTILES}
        for measure, share in QUANTILES.items():
            found[at][measure] = np.quantile(numbers[measure], share, method="inverted_cdf")
        found[at]["sink_share"] = sum(most for most, _ in sinks[at]) / sum(count for _, count in sinks[at])
    return found


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt_oss", "t5", "bart", "swin"])
def test_every_number_equals_that_of_the_models_attention(name):
    model = small_model(name, torch.float32 if name in NO_FLOAT64 else torch.float64)
    inputs, single, together = inputs_of(name, model)
    result = probe_model(model, inputs)
    expected = by_hand(name, model, single)
    assert ("learned_sink_share" in result.measures) == (name == "gpt_oss")
    if name in ("bert", "llama"):
        assert (result.margins.counts.sum(axis=-1) == result.n_queries).all()
    assert set(expected) == {tuple(at) for at in np.argwhere(np.isfinite(result["entropy"])).tolist()}
    monitor, single_model = AttentionMonitor(), small_model(name, torch.float32)
    monitor.attach(single_model)
    tensors = {key: torch.as_tensor(value) for key, value in together.items()}
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    single_model(**(with_decoder_inputs(model.config, tensors) if name in ("t5", "bart") else tensors))
    monitor.step(single_model)
    watched = monitor.curves
    for (layer, head), numbers in expected.items():
        for measure, number in numbers.items():
            rounded = {"gpt_oss": SINGLE, **dict.fromkeys(("llama", "gemma2", "swin"), ROUNDED_SOFTMAX)}
            rel, exact, single = (BIN, 0.0, 0.0) if measure in QUANTILES else (0.0, rounded.get(name, EXACT), SINGLE)
            assert result[measure][layer, head] == pytest.approx(number, rel=rel, abs=exact, nan_ok=True), measure
            if measure in watched.measures:
                seen = watched[measure][0, layer, head]
                assert seen == pytest.approx(number, rel=rel, abs=single, nan_ok=True), measure
