"""The embeddings benchmark at a small size: every method is timed, and both models end in the same place."""

import pytest

from benchmarks import embeddings


def test_every_method_is_timed_and_both_models_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("WIDTH", 32), ("BATCH", 6), ("TOKENS", 9), ("VOCABULARY", 40), ("STEPS", 3)):
        monkeypatch.setattr(embeddings, name, size)
    rows = embeddings.bench_embeddings()
    assert [row["method"].split(",")[0] for row in rows] == [
        "marginlens",
        "nn.Embedding and autograd",
        "AdamW on E alone",
        "summary",
    ]
    ours, autograd, alone = (row["seconds"] for row in rows[:3])
    summary = rows[-1]
    assert min(ours, autograd, alone) > 0.0
    assert summary["times_faster_than_autograd"] == autograd / ours
    assert summary["over_adamw_alone"] == ours / alone
    assert 0.0 <= summary["largest_difference"] < 1e-5  # float32 sums in different orders, four steps of .01
