"""The rules of alarms, each at its threshold and just beside it, and on models that deserve none."""

import numpy as np
import pytest

from marginlens.probe import AttentionMonitor, CheckpointCurves, find_alarms
from marginlens.probe.monitor.alarms import (
    COLLAPSED_ENTROPY_NATS,
    NORM_GROWTH,
    PERSISTENCE,
    STUCK_SINK_SHARE,
    UNCHANGED_NNZ_SHARE,
    UNIT_NORM,
    UNSTUCK_SINK_SHARE,
    AlarmKind,
    alarm_summary,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

N_STEPS, LAYERS, HEADS = 10, 2, 3
HEALTHY = {"relative_nnz": 0.6, "entropy": 2.0, "sink_share": 0.2, "first_share": 0.2, "frobenius": 3.0}


def made_up(changes=None, layer=1, head=2):
    """A run in which nothing happens, but for one head, or one layer where `head` is a slice."""
    measures = {name: np.full((N_STEPS, LAYERS, HEADS), value) for name, value in HEALTHY.items()}
    for name, values in (changes or {}).items():
        measures[name][:, layer, head] = np.reshape(values, (N_STEPS, *([1] if isinstance(head, slice) else [])))
    steps = np.arange(N_STEPS) * 100.0
    return CheckpointCurves("made up", tuple(f"step {k:.0f}" for k in steps), steps, measures, 8)


def falling_to(value, first, n_last=PERSISTENCE):
    """`first` at all measurements but the last few."""
    return [first] * (N_STEPS - n_last) + [value] * n_last


def kinds(curves):
    return [(alarm.kind, alarm.layer, *alarm.heads) for alarm in find_alarms(curves)]


def test_nothing_happens_and_nothing_is_said():
    assert kinds(made_up()) == []


def test_an_entropy_collapse_takes_a_whole_layer_for_several_measurements():
    def collapsed(value, n_last=PERSISTENCE, head=slice(None)):
        return made_up({"entropy": falling_to(value, 2.0, n_last)}, head=head)

    (alarm,) = find_alarms(collapsed(0.99 * COLLAPSED_ENTROPY_NATS))
    assert (alarm.kind, alarm.layer, alarm.heads, alarm.step) == (AlarmKind.ENTROPY_COLLAPSE, 1, (), 700)
    assert "entropy collapse from step 700 on" in alarm.sentence
    assert kinds(collapsed(1.01 * COLLAPSED_ENTROPY_NATS)) == []
    assert kinds(collapsed(0.0, n_last=PERSISTENCE - 1)) == []
    assert kinds(collapsed(0.0, head=2)) == []  # one sharp head of a layer is no collapse
    assert kinds(made_up({"entropy": [0.05] * N_STEPS}, head=slice(None))) == []  # it was always so


def test_a_head_is_stuck_when_it_became_so():
    def sink(value, first=0.2, n_last=PERSISTENCE):
        return made_up({"sink_share": falling_to(value, first, n_last)})

    assert kinds(sink(STUCK_SINK_SHARE)) == [(AlarmKind.STUCK, 1, 2)]
    assert kinds(sink(STUCK_SINK_SHARE - 0.001)) == []
    assert kinds(sink(1.0, first=UNSTUCK_SINK_SHARE + 0.001)) == []  # a pretrained sink
    assert kinds(sink(1.0, n_last=PERSISTENCE - 1)) == []


def test_a_head_that_recovers_is_said_to_have_done_so():
    values = [0.2] * 2 + [0.99] * 4 + [0.2] * 4
    (alarm,) = find_alarms(made_up({"sink_share": values}))
    assert alarm.step == 200
    assert alarm.sentence.endswith("It is over: the last such step is 500.")


def test_norms_that_grow_are_an_alarm_only_where_attention_stays_as_it_was():
    growing = np.linspace(3.0, 3.0 * NORM_GROWTH * 1.5, N_STEPS)

    def run(norms, share):
        return made_up({"frobenius": norms, "relative_nnz": share})

    assert kinds(run(growing, [0.6] * N_STEPS)) == [(AlarmKind.GROWTH_WITHOUT_SPARSITY, 1, 2)]
    sparser = falling_to(0.6 * (UNCHANGED_NNZ_SHARE - 0.01), 0.6, N_STEPS - 1)
    assert kinds(run(growing, sparser)) == []
    assert kinds(run(np.minimum(growing, 2.9 * NORM_GROWTH), [0.6] * N_STEPS)) == []
    assert kinds(run(falling_to(9.0, 3.0), [0.6] * N_STEPS)) == []  # it grew once, and stays
    tiny = np.linspace(0.01, 0.99 * NORM_GROWTH * UNIT_NORM, N_STEPS)  # logits that do nothing yet
    assert kinds(run(tiny, [1.0] * N_STEPS)) == []


def test_attention_that_is_not_finite_is_an_alarm_at_once():
    (alarm,) = find_alarms(made_up({"relative_nnz": falling_to(np.nan, 0.6, 1)}))
    assert (alarm.kind, alarm.step) == (AlarmKind.NOT_FINITE, 900)


def test_noise_raises_nothing():
    rng = np.random.default_rng(0)
    for _ in range(50):
        changes = {name: value * np.exp(0.5 * rng.standard_normal(N_STEPS)) for name, value in HEALTHY.items()}
        changes["sink_share"] = np.minimum(changes["sink_share"], 1.0)
        assert kinds(made_up(changes)) == []


def test_heads_of_one_layer_share_an_alarm_and_many_alarms_are_summed_up():
    curves = made_up()
    curves["sink_share"][1:, 1, :2] = 0.99
    curves["sink_share"][5:, 1, 2] = 0.97
    (alarm,) = find_alarms(curves)
    assert (alarm.layer, alarm.heads, alarm.step) == (1, (0, 1, 2), 100)
    assert alarm.sentence.startswith("Layer 1, heads 0, 1 and 2: stuck on one token from step 100 on")
    assert "97%–99% of the attention" in alarm.sentence
    curves["sink_share"][1:] = 0.99
    curves["frobenius"][:] = np.linspace(3.0, 9.0 * NORM_GROWTH, N_STEPS)[:, None, None]
    alarms = find_alarms(curves)
    assert len(alarms) == 2 * LAYERS
    assert len(alarm_summary(alarms, most=2)) == 3
    assert alarm_summary(alarms, most=2)[-1].startswith("There are 2 more alarms")
    assert alarm_summary(alarms, most=3) == tuple(alarm.sentence for alarm in alarms)


# ---- real models


def copying_model(seed, n_layers=2, n_heads=2):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=12,
        n_layer=n_layers,
        n_head=n_heads,
        n_embd=32,
        n_positions=24,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        loss_type="ForCausalLM",
    )
    return transformers.GPT2LMHeadModel(config)


def copies(generator, n_inputs=16):
    """A random word of ten letters, twice: the second half can be told from the first."""
    word = torch.randint(1, 12, (n_inputs, 10), generator=generator)
    return torch.cat([word, word], dim=1)


def learned(learning_rate, n_steps, *, every=20, **sizes):
    """A model that learns to copy, watched from before its first step; its loss at the second half of the words at every step."""
    model, generator = copying_model(0, **sizes), torch.Generator().manual_seed(1)
    monitor = AttentionMonitor({"input_ids": copies(generator, 8)}, every=every, max_margin_every=0)
    monitor.step(model, step=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses = []
    for _ in range(n_steps):
        ids = copies(generator)
        labels = ids.clone()
        labels[:, :10] = -100
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(model)
        losses.append(float(loss.detach()))
    return monitor, losses


def test_untrained_models_raise_nothing():
    monitor = AttentionMonitor({"input_ids": copies(torch.Generator().manual_seed(1), 8)}, every=1, max_margin_every=0)
    for seed in range(8):  # as if each were the same model a step later
        monitor.step(copying_model(seed))
    assert len(monitor.curves.names) == 8
    assert monitor.alarms == ()


@pytest.mark.slow
def test_a_healthy_run_that_learns_raises_nothing_and_a_wild_one_does():
    monitor, losses = learned(3e-3, 400)
    assert losses[-1] < 0.2 < 2.0 < losses[0]  # it has learned to copy
    assert np.nanmin(monitor.curves["entropy"][-1]) < 0.5 * np.nanmax(monitor.curves["entropy"][0])  # by sharp heads
    assert monitor.alarms == ()
    wild, _ = learned(0.3, 120)
    assert {AlarmKind.ENTROPY_COLLAPSE, AlarmKind.STUCK} & {alarm.kind for alarm in wild.alarms}


def test_a_real_run_whose_norms_grow_without_sparsity_says_so():
    wild, _ = learned(0.1, 60, every=10, n_layers=3, n_heads=4)  # a learning rate thirty times too large
    grown = [alarm for alarm in wild.alarms if alarm.kind is AlarmKind.GROWTH_WITHOUT_SPARSITY]
    assert grown
    assert "weights that grow without sharper attention" in grown[0].sentence


def test_a_real_run_that_diverges_says_so():
    wild, losses = learned(1e30, 60)
    assert not np.isfinite(losses[-1])
    assert {alarm.kind for alarm in wild.alarms} == {AlarmKind.NOT_FINITE}
