"""Certificates of rounded keys on models of four families trained here, on MiniLM where it is installed, and on random decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError
from marginlens.probe import TextInputs, certify_rounding, example_sentences, load_model, rotation_matrix, round_keys
from marginlens.probe.heads.rounding import output_bound
from marginlens.probe.heads.statistics import AttentionRule
from marginlens.probe.models.reading import read_layers
from marginlens.probe.run import readable
from marginlens.runtime.progress import Progress, ProgressCallback

FAMILIES = ("gpt2", "llama", "qwen3", "gemma2")
N_TOKENS, N_STEPS, BATCH, RATE = 128, 600, 32, 1e-3
BITS = (8, 4)
STORED = ("as they are", "centred, rotated")  # keys, before they are rounded
COUNTS = ("certified", "robust", "resolved", "changed")
TOLERANCE = 0.01
N_FIRST = 4  # keys that a window keeps beside the last ones
DECISIONS = {"cpu": 10**6, "cuda": 10**8}  # of random queries
SEQUENCES = {"cpu": 16, "cuda": 1000}  # that a trained model reads
N_READ = 128  # of these, by which losses at equal memory are compared, and
N_BOUNDED = 2  # by which the bound on a head's output is


def bench_budgets(progress: ProgressCallback | None = None, device: str = "cpu") -> list[dict[str, Any]]:
    """Train four small models on the bytes of the project's guides, and certify rounding of their keys.

    Returns:
        One row per model, number of bits, and keys as they are or centred and rotated: shares certified, robust, resolved and changed,
        selections that are certified and changed all the same, and the mean total variation that rounding makes, beside that of the same
        number of keys by attention and by a window. For trained models also the loss on the same text with all keys and values rounded,
        and with a window of so many exact ones that memory is the same.
    """
    watch = Progress(progress)
    watch.expect(len(FAMILIES) + 2)
    kind = device.split(":", maxsplit=1)[0]
    corpus = text_corpus()
    rows = []
    for name in FAMILIES:
        model, loss = _trained(name, corpus, device)
        starts = np.random.default_rng(1).integers(0, len(corpus) - N_TOKENS, size=SEQUENCES[kind])
        ids = tuple(tuple(corpus[start : start + N_TOKENS].tolist()) for start in starts.tolist())
        tokens = tuple(tuple(map(str, row)) for row in ids)
        rows += _certified(name, model, TextInputs(tuple(map(str, starts)), ids, tokens, 0, N_TOKENS, 0), loss)
        rows += _losses(name, model, np.array(ids[:N_READ]))
        watch.advance()
    try:
        rows += _certified("MiniLM", load_model("minilm", device=device), example_sentences(), float("nan"))
    except (InputError, ImportError) as problem:
        rows.append({"run": "MiniLM", "note": str(problem)})
    watch.advance()
    rows += list(_random(device, DECISIONS[kind]))
    watch.advance()
    count = sum(row.get("decisions", 0) for row in rows)
    flips = sum(row.get("certified_and_changed", 0) for row in rows)
    return [*rows, {"run": "summary", "decisions": count, "certified_and_changed": flips}]


def text_corpus() -> Any:
    """The bytes of the project's guides."""
    guides = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
    return np.frombuffer(b"".join(path.read_bytes() for path in guides), dtype=np.uint8)


def _trained(name: str, corpus: Any, device: str) -> tuple[Any, float]:
    """A causal model of four layers of four heads after a short training, and its last losses' mean."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    sizes |= {"intermediate_size": 256, "max_position_embeddings": N_TOKENS, "sliding_window": 64}
    if name == "gpt2":
        sizes = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": N_TOKENS}
    config = AutoConfig.for_model(name, vocab_size=256, bos_token_id=0, eos_token_id=0, pad_token_id=0, **sizes)
    model = AutoModelForCausalLM.from_config(config).to(device).train()
    optimizer, rng, losses = torch.optim.AdamW(model.parameters(), lr=RATE), np.random.default_rng(0), []
    for _ in range(N_STEPS):
        starts = rng.integers(0, len(corpus) - N_TOKENS, size=BATCH)
        ids = torch.from_numpy(np.stack([corpus[k : k + N_TOKENS] for k in starts]).astype(np.int64)).to(device)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model.eval(), float(torch.stack(losses[-50:]).mean())


def _certified(name: str, model: Any, inputs: Any, loss: float) -> list[dict[str, Any]]:
    """The certificates of all heads of a model at each number of bits."""
    import torch

    names, ways = (
        ("decisions", *COUNTS, "certified_and_changed"),
        [(bits, stored) for bits in BITS for stored in STORED],
    )
    counts = {way: dict.fromkeys(names, 0) for way in ways}
    moved: dict[Any, list[Any]] = {way: [] for way in ways}
    bound: dict[Any, list[Any]] = {way: [] for way in ways}
    kept: list[Any] = []
    with readable(model, inputs) as found, torch.no_grad():
        for batch in found.inputs.batches():
            for reading in read_layers(found.adapter, batch.inputs):
                queries, keys, attention = reading.queries, reading.grouped_keys, reading.attention
                statistics = reading.statistics((TOLERANCE,))
                counted = statistics.n_visible >= 2
                kept.append(_kept(attention, statistics, counted))
                for way in ways:
                    rounded = _stored(keys, *way)
                    one = certify_rounding(queries, keys, rounded, reading.rule)
                    decided = one.decided & counted
                    for part in COUNTS:
                        counts[way][part] += int((getattr(one, part) & decided).sum())
                    counts[way]["decisions"] += int(decided.sum())
                    counts[way]["certified_and_changed"] += int((one.certified & one.changed & decided).sum())
                    after = type(reading)(**{**_fields(reading), "grouped_keys": rounded.keys}).attention
                    apart = 0.5 * (after - attention).abs().sum(dim=-1)
                    moved[way].append(float(apart[counted].mean()))
                    bound[way].append(float(one.variation[counted].mean()))
    rows = []
    for way in ways:
        total = max(1, counts[way]["decisions"])
        shares = {part: counts[way][part] / total for part in COUNTS}
        variation = {"variation": float(np.mean(moved[way])), "bound": float(np.mean(bound[way]))}
        rows.append({"run": name, "bits": way[0], "keys": way[1], "loss": loss, **counts[way], **shares, **variation})
    keys_kept, by_attention, by_window = np.mean(kept, axis=0).tolist()
    rows.append(
        {
            "run": f"{name}, a part of the keys",
            "n_keys": keys_kept,
            "variation": by_attention,
            "variation_of_window": by_window,
        }
    )
    return rows


def _stored(keys: Any, bits: int, stored: str) -> Any:
    """Rounded keys, one of the two ways."""
    if stored == STORED[0]:
        return round_keys(keys, bits)
    return round_keys(keys, bits, rotation_matrix(keys.shape[-1]), centre=keys.mean(dim=-2, keepdim=True))


def _losses(name: str, model: Any, ids: Any) -> Iterator[dict[str, Any]]:
    """The model's loss on sequences (n, tokens) with keys and values of all layers rounded, and with a window of the same memory.

    Where 16 bits are exact, b bits leave room for b/16 of the tokens: the first `N_FIRST` and the last ones before each query.
    """
    import torch
    from transformers import AttentionInterface

    device = model.device
    tokens = torch.from_numpy(ids.astype(np.int64)).to(device)
    found: list[tuple[float, float, float]] = []

    def loss_with(bits: int, way: str) -> float:
        def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> tuple[Any, None]:
            place = torch.arange(k.shape[2], device=device)
            distance = place[:, None] - place
            seen = (distance >= 0) & (distance < (options.get("sliding_window") or len(place)))
            if way == "window":
                seen &= (distance < len(place) * bits // 16 - N_FIRST) | (place < N_FIRST)
            elif way != "exact":
                v = _stored(v, bits, way).keys
            keys = k if way in ("exact", "window") else _stored(k, bits, way).keys
            n_shared = q.shape[1] // k.shape[1]
            scale = options.get("scaling") or q.shape[-1] ** -0.5

            def mixed(k: Any) -> Any:
                logits = q @ k.repeat_interleave(n_shared, dim=1).transpose(2, 3) * scale
                cap = options.get("softcap")
                logits = logits if cap is None else cap * torch.tanh(logits / cap)
                weights = logits.masked_fill(~seen, -torch.inf).softmax(dim=-1)
                return weights @ v.repeat_interleave(n_shared, dim=1)

            output = mixed(keys)
            if way == STORED[1] and bits == BITS[0] and len(q) == N_BOUNDED:
                stored = _stored(k, bits, way)
                rule = AttentionRule(scale=scale, softcap=options.get("softcap"), mask=seen[None, None])
                change = (output - mixed(k)).norm(dim=-1)
                certificate = certify_rounding(q, k, stored, rule)
                longest = v.norm(dim=-1).amax(dim=-1).repeat_interleave(n_shared, dim=1)[..., None]
                by_corners, by_variation = output_bound(q, k, v, stored, rule), 2.0 * certificate.variation * longest
                found.append((float(change.mean()), float(by_corners.mean()), float(by_variation.mean())))
            return output.transpose(1, 2).contiguous(), None

        AttentionInterface.register("marginlens_bench", attend)
        before = model.config._attn_implementation
        model.set_attn_implementation("marginlens_bench")
        try:
            with torch.no_grad():
                if way == STORED[1] and bits == BITS[0]:
                    model(input_ids=tokens[:N_BOUNDED])
                return float(model(input_ids=tokens, labels=tokens).loss)
        finally:
            model.set_attn_implementation(before)

    yield {"run": f"{name}, loss", "keys": "exact", "loss": loss_with(16, "exact")}
    for bits in BITS:
        for way in ("window", *STORED):
            yield {"run": f"{name}, loss", "bits": bits, "keys": way, "loss": loss_with(bits, way)}
    change, corners, by_variation = np.mean(found, axis=0).tolist()
    yield {
        "run": f"{name}, output",
        "bits": BITS[0],
        "change": change,
        "bound": corners,
        "bound_by_variation": by_variation,
    }


def _fields(reading: Any) -> dict[str, Any]:
    return {name: getattr(reading, name) for name in type(reading).__dataclass_fields__}


def _kept(attention: Any, statistics: Any, counted: Any) -> tuple[float, float, float]:
    """The keys that a head needs on average, and the attention lost with so many by attention, and by the first ones and a window."""
    import torch

    needed = (statistics.n_visible - statistics.n_negligible[0]).float()
    per_head = (needed * counted).sum(dim=(0, 2)) / counted.sum(dim=(0, 2))  # (heads,)
    budget = per_head.ceil().long().clamp(min=N_FIRST + 1)[None, :, None, None]
    n_tokens = attention.shape[-1]
    place = torch.arange(n_tokens, device=attention.device)
    rank = attention.sort(dim=-1, descending=True).values.cumsum(dim=-1)
    largest = (
        1.0 - rank.take_along_dim((budget - 1).clamp(max=n_tokens - 1).expand(*attention.shape[:3], 1), dim=-1)[..., 0]
    )
    query = place[: attention.shape[2], None]
    near = (query - place).abs() < (budget - N_FIRST)
    inside = near | (place < N_FIRST)
    window = 1.0 - (attention * inside).sum(dim=-1)
    return float(per_head.mean()), float(largest[counted].mean()), float(window[counted].mean())


def _random(device: str, n_decisions: int) -> Iterator[dict[str, Any]]:
    """Random queries and keys, rounded, at several numbers of bits and lengths of logits."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    chunk = min(n_decisions, 2**22)
    totals = {bits: dict.fromkeys(("decisions", *COUNTS, "certified_and_changed"), 0) for bits in (2, 3, 4, 6, 8)}
    while sum(total["decisions"] for total in totals.values()) < n_decisions:
        for bits, total in totals.items():
            size = float(torch.rand(1, generator=generator, device=device)) * 6.0 + 0.2
            q = torch.randn((8, 4, chunk // 32, 16), generator=generator, device=device) * size
            k = torch.randn((8, 2, 24, 16), generator=generator, device=device)
            one = certify_rounding(q, k, round_keys(k, bits))
            for part in COUNTS:
                total[part] += int((getattr(one, part) & one.decided).sum())
            total["decisions"] += int(one.decided.sum())
            total["certified_and_changed"] += int((one.certified & one.changed).sum())
    for bits, total in totals.items():
        shares = {part: total[part] / total["decisions"] for part in COUNTS}
        yield {"run": "random", "bits": bits, **total, **shares}
