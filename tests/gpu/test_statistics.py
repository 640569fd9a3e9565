"""The kernel of attention_statistics: the numbers of the blocks of torch, for every rule that it takes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from marginlens.probe import AttentionRule, attention_statistics  # noqa: E402
from marginlens.probe.heads import statistics  # noqa: E402

pytestmark = pytest.mark.gpu
N_TOKENS = 700


def padding():
    mask = torch.ones(2, 1, 1, N_TOKENS, dtype=torch.bool)
    mask[0, ..., 600:] = False
    mask[1, ..., :130] = False
    return mask.cuda()


RULES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 37},
    "both sides": {"window": 129},
    "capped": {"softcap": 5.0, "causal": True},
    "ALiBi": {"bias": 2.0 ** -torch.arange(1.0, 7.0), "causal": True},
    "sinks": {"sinks": torch.arange(-2.0, 4.0), "causal": True},
    "padding": {"mask": padding, "causal": True},
    "padding on both sides": {"mask": padding},
}


@pytest.mark.parametrize(
    ("name", "dtype", "width"),
    [*((name, "bfloat16", 64) for name in RULES), ("causal", "float32", 40), ("causal", "float16", 128)],
)
def test_statistics_equal_blocks_in_float64(name, dtype, width):
    options = {key: value() if callable(value) else value for key, value in RULES[name].items()}
    rule = AttentionRule(**options)
    rng = np.random.default_rng(0)
    q = torch.from_numpy(rng.normal(size=(2, 6, N_TOKENS, width)) * 2.0).cuda().to(getattr(torch, dtype))
    k = torch.from_numpy(rng.normal(size=(2, 3, N_TOKENS, width))).cuda().to(getattr(torch, dtype))
    found = attention_statistics(q, k, rule)
    exact = attention_statistics(q.double(), k.double(), rule)
    assert found.largest.dtype == torch.float32
    sees = exact.n_visible > 0
    assert torch.equal(found.n_visible, exact.n_visible)
    assert bool((found.selected == exact.selected)[sees & ~found.tied].all())
    assert float(found.tied.float().mean()) < 0.01
    for field in ("entropy", "top_probability", "rest_probability", "sink_share", "learned_sink"):
        torch.testing.assert_close(
            getattr(found, field).double(), getattr(exact, field), atol=1e-5, rtol=1e-5, equal_nan=True
        )
    for field in ("largest", "margin", "log_sum_exp", "n_effective"):
        torch.testing.assert_close(
            getattr(found, field).double(), getattr(exact, field), atol=3e-5, rtol=1e-5, equal_nan=True
        )


def test_nan_queries_do_not_affect_others():
    q, k = torch.randn(1, 2, 200, 64, device="cuda"), torch.randn(1, 2, 200, 64, device="cuda")
    q[0, 1, 7] = torch.nan
    found = attention_statistics(q, k)
    assert int(found.entropy.isnan().sum()) == 1
    assert int(found.selected[0, 1, 7]) == -1


def test_memory_grows_linearly_with_tokens():
    q, k = (torch.randn(1, 8, 16_384, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attention_statistics(q, k, AttentionRule(causal=True))
    assert torch.cuda.max_memory_allocated() - before < 4 * (q.nbytes + k.nbytes)


def test_a_sample_of_queries_agrees_with_float64():
    q, k = torch.randn(1, 2, 5, 64, device="cuda"), torch.randn(1, 2, 300, 64, device="cuda")
    places = torch.tensor([299, 0, 17, 160, 5], device="cuda")
    rule = AttentionRule(causal=True)
    found = attention_statistics(q, k, rule, positions=places)
    exact = attention_statistics(q.double(), k.double(), rule, positions=places)
    torch.testing.assert_close(found.entropy.double(), exact.entropy, atol=1e-5, rtol=1e-5)
    assert statistics._Applied.of(q, k, rule, places).has_kernel
