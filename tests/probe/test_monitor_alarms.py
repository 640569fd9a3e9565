"""The rules of alarms, each at its threshold and just beside it, forecasts of known growth, and the runs that once were told wrongly."""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest

from made_up_probe import made_up_curves
from marginlens.probe import AttentionMonitor, CheckpointCurves, find_alarms, forecast_heads, read_run
from marginlens.probe.monitor.alarms import (
    FLAT_SHARE,
    HORIZON_STEPS,
    LEAP_OVER,
    LEAP_SHARE,
    NORM_GROWTH,
    STILL_SHARE,
    STILL_STEPS,
    UNCHANGED_NNZ_SHARE,
    UNIT_NORM,
    WITHDRAWN,
    AlarmKind,
    alarm_summary,
    find_selections,
)
from marginlens.probe.monitor.forecast import EXPLODED_LOGIT, ForecastKind
from marginlens.probe.monitor.record import RunRecord
from marginlens.probe.page import checkpoint_page
from marginlens.words import Fact, text
from tolerances import ROUNDING

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EVERY, N, LAYERS, HEADS = 10, 41, 2, 3
STEPS = np.arange(N) * float(EVERY)
HEALTHY = {"relative_nnz": 0.6, "entropy": 2.0, "max_logit": 5.0, "frobenius": 3.0, "loss": np.linspace(1.2, 0.8, N)}


def made_up(changes=None, layer=1, head=2):
    """A healthy run in which nothing happens, but for one head; the loss is one for all, and falls."""
    measures = {name: np.empty((N, LAYERS, HEADS)) for name in HEALTHY}
    for name, value in HEALTHY.items():
        measures[name][:] = np.reshape(value, (-1, 1, 1))
    for name, values in (changes or {}).items():
        at = (slice(None), slice(None), slice(None)) if name == "loss" else (slice(None), layer, head)
        measures[name][at] = np.reshape(values, (N, *([1, 1] if name == "loss" else [])))
    return CheckpointCurves("made up", tuple(f"step {k:.0f}" for k in STEPS), STEPS, measures, 8)


def kinds(curves):
    return [(alarm.kind, alarm.layer, *alarm.heads) for alarm in find_alarms(curves)]


def test_a_healthy_run_has_no_alarm():
    assert kinds(made_up()) == []
    assert forecast_heads(made_up()) == ()


# ---- forecasts


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0])
def test_logits_that_grow_like_a_power_are_forecast_exactly(power):
    arrives = 600.0
    logits = np.maximum(EXPLODED_LOGIT * (STEPS / arrives) ** power, 1e-9)
    (forecast,) = forecast_heads(made_up({"max_logit": logits, "frobenius": logits}))
    recent = STEPS[-2]  # the median of three measurements
    expected = STEPS[-1] * (arrives / recent - 1.0)
    assert (forecast.kind, forecast.layer, forecast.head) == (ForecastKind.EXPLODES, 1, 2)
    assert forecast.n_steps == pytest.approx(expected, rel=1e-6, abs=ROUNDING)
    assert forecast.low <= forecast.n_steps <= forecast.high
    assert forecast.numbers["n_steps"] == 220.0
    assert (forecast.code, forecast.numbers["head"], forecast.numbers["case"]) == ("forecast.explodes", "L1H2", "later")


def test_exponentially_falling_entropy_is_forecast_with_bounds():
    entropy = 2.0 * np.exp(-STEPS / 200.0)
    (forecast,) = forecast_heads(made_up({"entropy": entropy}))
    assert forecast.kind is ForecastKind.SELECTS
    assert forecast.n_steps == pytest.approx(200.0 * np.log(entropy[-2] / 0.1), rel=1e-6, abs=ROUNDING)
    assert forecast.low < forecast.n_steps < forecast.high
    assert (forecast.code, forecast.numbers["limit"]) == ("forecast.selects", 0.1)


def test_forecast_of_what_is_happening_now_names_no_number_of_steps():
    logits = np.maximum(EXPLODED_LOGIT * (STEPS / 380.0) ** 2, 1e-9)
    logits[-1] = 0.99 * EXPLODED_LOGIT
    (forecast,) = forecast_heads(made_up({"max_logit": logits, "frobenius": logits}))
    assert forecast.n_steps == 0.0
    assert forecast.numbers["case"] == "now"


def test_growth_of_norm_or_logits_alone_gives_no_forecast():
    rising = 5.0 * (1.0 + STEPS / 10.0) ** 2
    assert forecast_heads(made_up({"frobenius": rising})) == ()  # QK-norm: the norm moves no logit
    assert forecast_heads(made_up({"max_logit": rising})) == ()


def test_an_explosion_is_an_alarm_only_within_the_horizon():
    logits = np.maximum(EXPLODED_LOGIT * (STEPS / 520.0) ** 2, 1e-9)
    sharper = np.linspace(0.6, 0.1, N)
    (alarm,) = find_alarms(made_up({"max_logit": logits, "frobenius": logits, "relative_nnz": sharper}))
    assert alarm.kind is AlarmKind.EXPLODES
    waits = STEPS[1:] * (520.0 / STEPS[:-1].clip(1.0) - 1.0)
    assert alarm.step == int(STEPS[1:][waits <= HORIZON_STEPS][0])
    assert (alarm.code, alarm.numbers["case"], alarm.numbers["heads"]) == ("alarm.logits_explode", "forecast", "L1H2")
    assert alarm.step < alarm.numbers["earliest"] <= alarm.numbers["arrival"] <= alarm.numbers["latest"]
    assert alarm.numbers["arrival"] <= alarm.step + HORIZON_STEPS
    assert str(alarm).splitlines() == [alarm.sentence, f"Try: {alarm.remedy}", f"Why: {alarm.reason}"]


def test_extreme_logits_are_an_alarm_after_one_measurement():
    logits, entropy = np.full(N, 5.0), np.full(N, 2.0)
    logits[-1], entropy[-1] = 5e4, 0.0
    (alarm,) = find_alarms(made_up({"max_logit": logits, "entropy": entropy}))
    assert (alarm.kind, alarm.step) == (AlarmKind.EXPLODES, 400)
    assert (alarm.numbers["case"], alarm.numbers["logit"]) == ("exploded", 5e4)
    assert kinds(made_up({"max_logit": np.full(N, 5e4), "entropy": np.zeros(N)})) == []  # it was always so


# ---- selecting, and being stuck


def selecting(loss, low=0.05):
    entropy = np.concatenate([np.full(15, 2.0), np.full(N - 15, low)])
    return made_up({"entropy": entropy, "loss": loss})


def test_a_selection_with_a_falling_loss_has_no_alarm():
    falls = np.linspace(2.5, 0.1, N)
    assert kinds(selecting(falls)) == []
    (found,) = find_selections(selecting(falls))
    assert found.kind is AlarmKind.HAS_SELECTED
    assert found.step == 250
    assert found.numbers["now"] < found.numbers["before"]
    assert found.remedy == found.reason == ""
    assert find_selections(selecting(falls, low=0.11)) == ()


def test_a_selection_with_a_flat_or_rising_loss_is_stuck():
    flat, back = np.full(N, 2.5), np.concatenate([np.full(15, 2.5), np.full(10, 1.0), np.linspace(1.0, 2.4, N - 25)])
    for loss, case in ((flat, "flat"), (back, "risen")):
        (alarm,) = find_alarms(selecting(loss))
        assert (alarm.kind, alarm.step, alarm.numbers["case"]) == (AlarmKind.STUCK, 250, case)
        assert find_selections(selecting(loss)) == ()
    assert kinds(selecting(np.full(N, np.nan))) == []  # no loss is known, and nothing is claimed
    late = np.where(STEPS >= 310, 0.05, 2.0)
    stuck = [kind for kind, *_ in kinds(made_up({"entropy": late, "loss": flat})) if kind is AlarmKind.STUCK]
    assert stuck == []  # for 90 steps, not for 100


def test_growing_norms_are_an_alarm_only_with_constant_attention():
    growing = np.linspace(3.0, 3.0 * NORM_GROWTH * 3.0, N)

    def run(norms, share):
        return made_up({"frobenius": norms, "relative_nnz": share})

    assert kinds(run(growing, [0.6] * N)) == [(AlarmKind.GROWTH_WITHOUT_SPARSITY, 1, 2)]
    assert kinds(run(growing, [0.6] + [0.6 * (UNCHANGED_NNZ_SHARE - 0.01)] * (N - 1))) == []
    assert kinds(run(np.minimum(growing, 2.9 * NORM_GROWTH), [0.6] * N)) == []
    tiny = np.linspace(0.01, 0.99 * NORM_GROWTH * UNIT_NORM, N)  # logits that do nothing yet
    assert kinds(run(tiny, [1.0] * N)) == []


def test_nonfinite_attention_is_an_immediate_alarm():
    entropy = np.full(N, 2.0)
    entropy[-1] = np.nan
    (alarm,) = find_alarms(made_up({"entropy": entropy}))
    assert (alarm.kind, alarm.step) == (AlarmKind.NOT_FINITE, 400)


def test_alarms_are_grouped_by_layer_and_summarized():
    curves = made_up({"loss": np.full(N, 1.0)})
    curves["entropy"][20:, 1, :2] = 0.0
    curves["entropy"][30:, 1, 2] = 0.05
    (alarm,) = find_alarms(curves)
    assert (alarm.layer, alarm.heads, alarm.step) == (1, (0, 1, 2), 300)
    assert alarm.numbers["heads"] == Fact("heads_of_layer.several", {"layer": "layer 1", "heads": [0, 1, 2]})
    assert alarm.numbers["entropy"] == Fact("span.digits", {"low": 0.0, "high": 0.05, "case": "two"})
    assert alarm.to_dict()["heads"] == [0, 1, 2]
    curves["entropy"][20:] = 0.0
    curves["frobenius"][:] = np.linspace(3.0, 9.0 * NORM_GROWTH, N)[:, None, None]
    alarms = find_alarms(curves)
    assert len(alarms) == 2 * LAYERS
    assert alarm_summary(alarms, most=2) == (*alarms[:2], Fact("alarm.more", {"count": 2}))
    assert alarm_summary(alarms, most=3) == alarms


def test_an_alarm_that_has_ended_says_after_which_step():
    entropy = np.where((STEPS >= 100) & (STEPS < 300), 0.0, 2.0)
    (alarm,) = find_alarms(made_up({"entropy": entropy, "loss": np.full(N, 2.5)}))
    assert (alarm.kind, alarm.step, alarm.ended) == (AlarmKind.STUCK, 200, 290)
    assert alarm.ending in str(alarm)


def test_alarms_of_a_finished_run_are_in_the_past_tense():
    running = selecting(np.full(N, 2.5))
    (now,), (past,) = (find_alarms(dataclasses.replace(running, is_finished=over)) for over in (False, True))
    assert (now.is_over, past.is_over) == (False, True)
    assert now.lead != past.lead
    assert str(now).startswith(now.lead)
    assert str(past).startswith(past.lead)
    assert now.ended is past.ended is None  # it still holds at the last measurement


def growing_until(power_arrives, last, ceiling=np.inf):
    """A run up to step `last`, whose logits grow to 1,000 at step `power_arrives` unless a ceiling stops them."""
    logits = np.minimum(np.maximum(EXPLODED_LOGIT * (STEPS / power_arrives) ** 2, 1e-9), ceiling)
    curves = made_up({"max_logit": logits, "frobenius": logits, "relative_nnz": np.linspace(0.6, 0.1, N)})
    kept = last >= STEPS
    measures = {name: values[kept] for name, values in curves.measures.items()}
    names = tuple(name for name, keep in zip(curves.names, kept, strict=True) if keep)
    return dataclasses.replace(curves, names=names, steps=STEPS[kept], measures=measures)


def test_a_forecast_of_the_past_says_what_came_of_it():
    running = growing_until(380.0, last=300)
    (ahead,) = find_alarms(running)
    assert (ahead.numbers["case"], ahead.is_over) == ("forecast", False)
    assert ahead.numbers["arrival"] > 300
    (finished,) = find_alarms(dataclasses.replace(running, is_finished=True))
    assert (finished.numbers["case"], finished.numbers["last"]) == ("not_reached", 300)
    assert finished.numbers["largest"] == running["max_logit"].max() < EXPLODED_LOGIT
    (passed,) = find_alarms(growing_until(380.0, last=400))
    assert (passed.numbers["case"], passed.numbers["reached"], passed.step) == ("passed", 380, ahead.step)
    (withdrawn,) = find_alarms(growing_until(380.0, last=400, ceiling=600.0))
    assert withdrawn.numbers["case"] == "not_reached"
    assert withdrawn.numbers["largest"] == 600.0
    assert (withdrawn.is_over, withdrawn.ended < 400) == (True, True)
    assert withdrawn.ending == text("alarm.ended", step=withdrawn.ended, case="withdrawn")


def test_selection_alarms_of_a_nonfinite_layer_are_withdrawn():
    falls = np.linspace(2.5, 0.4, N)
    curves = selecting(falls)
    assert [found.layer for found in find_selections(curves)] == [1]
    curves["max_logit"][33:, 1, 0] = 1e4  # another head of the layer
    curves["entropy"][33:, 1, 0] = 0.0
    assert [alarm.kind for alarm in find_alarms(curves)] == [AlarmKind.EXPLODES]
    assert find_selections(curves) == ()
    other = selecting(falls)
    other["max_logit"][33:, 0, 0] = 1e4
    other["entropy"][33:, 0, 0] = 0.0
    assert [found.layer for found in find_selections(other)] == [1]
    lost = selecting(falls)
    lost["entropy"][-1, 1, 1] = np.nan
    assert find_selections(lost) == ()


# ---- the loss, and runs in which nothing happens


def test_a_loss_that_jumps_is_an_alarm_and_a_rising_one_is_not():
    loss = np.linspace(2.0, 1.2, N)
    for height, expected in ((LEAP_SHARE * 1.05, [AlarmKind.LOSS_LEAPS]), (LEAP_SHARE * 0.95, [])):
        leaping = loss.copy()
        leaping[26] = loss[26 - LEAP_OVER : 26].max() + height * loss[0]
        alarms = find_alarms(made_up({"loss": leaping}))
        assert [(alarm.kind, alarm.layer, alarm.heads, alarm.step) for alarm in alarms] == [
            (kind, None, (), 260) for kind in expected
        ]
    assert kinds(made_up({"loss": 1.0 + STEPS / 100.0})) == []  # by a tenth at each measurement
    assert kinds(made_up({"loss": np.r_[1.0, 3.0, np.full(N - 2, 3.0)]}))[0][0] is AlarmKind.LOSS_LEAPS


def test_a_loss_that_becomes_nan_is_an_alarm_and_a_missing_one_is_not():
    loss = np.linspace(2.0, 1.2, N)
    loss[31:] = np.nan
    (alarm,) = find_alarms(made_up({"loss": loss}))
    assert (alarm.kind, alarm.step) == (AlarmKind.LOSS_NOT_FINITE, 310)
    infinite = np.r_[np.full(3, np.nan), np.full(7, 1.5), np.inf, np.full(N - 11, 1.5)]
    assert kinds(made_up({"loss": infinite})) == [(AlarmKind.LOSS_NOT_FINITE, None)]


def test_a_flat_loss_without_movement_is_an_alarm_after_the_limit():
    def run(entropy=2.0, loss=1.0):
        return kinds(made_up({"entropy": np.broadcast_to(entropy, N), "loss": np.broadcast_to(loss, N)}))

    still = [(AlarmKind.NOTHING_MOVES, None)]
    noise = np.random.default_rng(8).uniform(-0.4, 0.4, N)
    assert run() == still
    assert run(entropy=2.0 + 0.2 * STILL_SHARE * noise, loss=1.0 + FLAT_SHARE * noise) == still
    assert run(entropy=np.linspace(2.0, 1.0, N)) == []
    assert run(loss=np.linspace(1.0, 0.8, N)) == []
    assert run(loss=np.where(STEPS < 50, 1.0, 0.9)) == []  # it has learned something, and is done
    assert run(loss=np.nan) == []
    curves = made_up({"loss": np.full(N, 1.0)})
    short = CheckpointCurves(
        "short", curves.names[:30], STEPS[:30], {name: values[:30] for name, values in curves.measures.items()}, 8
    )
    assert STEPS[29] == STILL_STEPS - 10
    assert find_alarms(short) == ()


# ---- real runs


def first_token_model(n_layers=1, n_heads=4):
    torch.manual_seed(0)
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"vocab_size": 12, "n_layer": n_layers, "n_head": n_heads, "n_embd": 32, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=0))


def learn_first_token(n_steps, *, every, meddle=None, rate=3e-3):
    """A GPT-2 that learns to say the first token at every token, and what a monitor says of it; somebody may meddle with its weights."""
    model, draws = first_token_model(), torch.Generator().manual_seed(1)
    monitor = AttentionMonitor(every=every)
    monitor.attach(model)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=rate), []
    for step in range(n_steps):
        ids = torch.randint(1, 12, (16, 12), generator=draws)
        logits = model(input_ids=ids).logits[:, 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, :1].expand(-1, 11).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if meddle is not None:
            with torch.no_grad():
                meddle(model.transformer.h[0].attn.c_attn.weight, step)
        losses.append(float(loss.detach()))
        monitor.step(model, loss=loss)
    return monitor, losses


def test_weights_that_explode_are_an_alarm_long_before_three_hundred_steps(caplog):
    def grow(weight, step):
        weight[:, :32] *= 1.3 if step >= 20 else 1.0  # W_Q

    with caplog.at_level(logging.WARNING, "marginlens"):
        monitor, _ = learn_first_token(60, every=100, meddle=grow, rate=1e-3)
    explosions = [alarm for alarm in monitor.alarms if alarm.kind is AlarmKind.EXPLODES]
    assert explosions[0].step <= 50
    assert explosions[0].sentence in caplog.text


def test_one_head_that_explodes_is_an_alarm_for_that_head():
    def grow(weight, step):
        weight[:, :8] *= 1.15 if step >= 20 else 1.0  # W_Q of head 0

    monitor, _ = learn_first_token(100, every=10, meddle=grow, rate=1e-4)
    explosions = [alarm for alarm in monitor.alarms if alarm.kind is AlarmKind.EXPLODES]
    assert [alarm.heads for alarm in explosions] == [(0,)]


@pytest.mark.parametrize("counts_last", [True, False])
def test_a_loop_that_stops_at_a_nonfinite_loss_has_an_alarm(counts_last, tmp_path, caplog):
    model, draws = first_token_model(), torch.Generator().manual_seed(2)
    with AttentionMonitor(tmp_path / "run.parquet", every=80) as monitor:  # every eighth step while the run begins
        monitor.attach(model)
        for step in range(40):
            ids = torch.randint(1, 12, (4, 12), generator=draws)
            if step == 21:
                with torch.no_grad():
                    model.transformer.h[0].mlp.c_fc.weight.fill_(float("nan"))
            loss = model(input_ids=ids, labels=ids).loss
            if torch.isfinite(loss) or counts_last:
                monitor.step(model)
            if not torch.isfinite(loss):
                break
        assert monitor.alarms == ()
    assert monitor.curves.steps.tolist() == [0, 8, 16]
    assert [alarm.kind for alarm in monitor.alarms] == [AlarmKind.LOSS_NOT_FINITE]
    assert monitor.alarms[0].sentence in caplog.text
    assert read_run(tmp_path / "run.parquet").notes == (
        Fact("note.recorded", {"sentence": monitor.alarms[0].sentence}),
    )
    assert monitor.alarms[0].sentence in monitor.write_page(tmp_path / "run.html").read_text(encoding="utf-8")


def test_a_healthy_run_that_selects_the_first_token_is_not_stuck():
    monitor, losses = learn_first_token(300, every=10, rate=1e-2)
    assert losses[-1] < 0.1 < 2.0 < losses[0]
    assert monitor.curves["entropy"][-1].min() < 0.1
    assert monitor.alarms == ()
    assert {found.kind for found in monitor.selections} == {AlarmKind.HAS_SELECTED}


def test_the_guide_states_the_forecast_warm_ups_and_threshold():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "monitor.md").read_text(encoding="utf-8")
    table = guide[guide.index("| watching |") :].partition("\n\n")[0].splitlines()
    shares = {cells[1].strip(): cells[-2].strip() for cells in (line.split("|") for line in table)}
    heading = shares["watching"]
    assert "collapses alarmed 100 steps before" in heading
    assert "warm-up 400 or 800" in heading
    threshold, forecast = (
        float(shares[name].rstrip("%")) for name in ("a largest logit of 100", "the forecast: 1,000 within 150 steps")
    )
    assert threshold > forecast  # so that the guide has to say what the forecast buys instead of time
    assert "fewer false alarms, not more time" in guide


def test_a_withdrawn_alarm_is_said_to_be_withdrawn(tmp_path, caplog):
    monitor = AttentionMonitor(tmp_path / "run.parquet")
    record = read_record_of(selecting(np.full(N, 2.5)))
    monitor._record = record
    with caplog.at_level(logging.WARNING, "marginlens"):
        monitor._raise_alarms(monitor.curves)
        (stuck,) = monitor.alarms
        for step in STEPS[-6:].astype(int).tolist():
            record.rows[step]["loss"] = np.full((LAYERS, HEADS), 0.5)  # the loss falls after all
        monitor._raise_alarms(monitor.curves)
    assert (stuck.kind, monitor.alarms) == (AlarmKind.STUCK, ())
    numbers = {"step": 400, "sentence": dataclasses.replace(stuck, is_over=True).sentence}
    assert monitor.curves.notes == (Fact(WITHDRAWN, numbers),)
    assert text(WITHDRAWN, **numbers) in caplog.text
    curves = dataclasses.replace(made_up_curves(), notes=monitor.curves.notes)
    assert checkpoint_page(curves, monitor.alarms).count(text(WITHDRAWN, **numbers)) == 1
    record.drop_after(390)
    assert monitor.curves.notes == ()


def read_record_of(curves):
    """The record of a monitor that has made these measurements."""
    rows = {
        int(step): {name: values[k] for name, values in curves.measures.items()} for k, step in enumerate(curves.steps)
    }
    return RunRecord({"model": curves.model, "n_inputs": 8}, rows)
