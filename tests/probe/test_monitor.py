"""The monitor beside the probe, beside training without it, over resumed runs, and in loops of several kinds."""

import json
import logging
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe import AttentionMonitor, probe_model, read_attention, read_run
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.page import checkpoint_page
from refusals import refused
from tiny_families import batch_for, small_model
from tiny_transformers import encoded, tiny_bert, tiny_gpt2, tiny_llama, tiny_vit
from tolerances import SIX_DIGITS

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
transformers = pytest.importorskip("transformers")

ROUNDING = 1e-5  # single precision, in which models train
MEDIANS = 0.01  # the probe counts margins in bins
N_WORDS, N_TOKENS = 20, 12


def padded(model):
    """The texts of `encoded` as one batch in their order."""
    ids = encoded(model).ids
    longest = max(map(len, ids))
    rows = [list(row) + [0] * (longest - len(row)) for row in ids]
    masks = [[1] * len(row) + [0] * (longest - len(row)) for row in ids]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}


def language_model(attention="sdpa", seed=0, **options):
    """A GPT-2 of two layers of two heads that trains in milliseconds, with dropout."""
    torch.manual_seed(seed)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": N_WORDS}
    config = transformers.GPT2Config(
        **sizes, bos_token_id=0, eos_token_id=0, attn_implementation=attention, loss_type="ForCausalLM", **options
    )
    return transformers.GPT2LMHeadModel(config).train()


def token_batches(count, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, N_WORDS, (4, N_TOKENS), generator=generator) for _ in range(count)]


def train(model, monitor=None, *, n_steps=6, first=1, batches=None, wrapped=None):
    """Plain training; the optimizer's steps are numbered from `first`."""
    called = model if wrapped is None else wrapped
    optimizer = torch.optim.AdamW(called.parameters(), lr=1e-2)
    torch.manual_seed(3)
    data = token_batches(n_steps) if batches is None else batches
    for step, ids in enumerate(data[:n_steps], first):
        called(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.step(called, step=step)
        optimizer.zero_grad()
    return model


def measured(model, batch, **options):
    """The curves of one pass of a model."""
    monitor = AttentionMonitor(**options)
    monitor.attach(model)
    model(**batch)
    monitor.step(model)
    return monitor


def same_weights(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# ---- the numbers


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama])
def test_monitor_numbers_equal_the_probes(make, attention):
    model = make().eval()
    found = probe_model(model, encoded(model))
    model.set_attn_implementation(attention)
    curves = measured(model, padded(model)).curves
    for name in ("entropy", "top_probability", "decisive_share", "relative_nnz"):
        np.testing.assert_allclose(curves[name][0], found[name], rtol=ROUNDING, atol=ROUNDING, err_msg=name)
    np.testing.assert_allclose(curves["margin_median"][0], found["margin_median"], rtol=MEDIANS, atol=0.0)
    if make is not tiny_llama:  # whose norms depend on the offset
        for name in ("frobenius", "spectral"):
            np.testing.assert_allclose(curves[name][0], found[name], rtol=ROUNDING, atol=0.0, err_msg=name)
    assert model.config._attn_implementation == attention


def test_largest_logit_and_entry_equal_those_of_the_weights():
    model = tiny_gpt2().eval()
    batch = padded(model)
    curves = measured(model, batch).curves
    for reading in read_attention(model, batch):
        layer, counts = reading.layer, (reading.visible.sum(dim=-1) >= 2)[:, None].expand(reading.logits.shape[:3])
        best = reading.logits.topk(2, dim=-1).values.abs().amax(dim=-1).masked_fill(~counts, 0.0)
        np.testing.assert_allclose(curves["max_logit"][0, layer], best.amax(dim=(0, 2)), rtol=ROUNDING, atol=0.0)
        for head in range(best.shape[1]):
            W = adapter_for(model).key_query(layer, head).matrix
            assert curves["largest_entry"][0, layer, head] == pytest.approx(np.abs(W).max(), rel=ROUNDING, abs=1e-12)


@pytest.mark.parametrize(("name", "towers"), [("t5", {"encoder", "decoder", "cross"}), ("clip", {"text", "vision"})])
def test_layers_of_several_stacks_have_the_names_that_the_probe_gives_them(name, towers, tmp_path):
    model, batch = small_model(name, torch.float32), batch_for(name, torch.float32)
    if name == "t5":
        batch["decoder_input_ids"] = batch["input_ids"]
    batch = {key: torch.as_tensor(value) for key, value in batch.items()}
    monitor = AttentionMonitor(tmp_path / "run.parquet")
    monitor.attach(model)
    model(**batch)
    logged = monitor.step(model)
    monitor.finish()
    curves = read_run(tmp_path / "run.parquet")
    page = checkpoint_page(curves, ())
    assert {layer.split()[0] for layer in curves.layer_names} == towers
    for layer in curves.layer_names:
        assert f'<th scope="row">{layer}</th>' in page
        assert f"attention/entropy/{layer.replace(' ', '_')}" in logged


# ---- training is not touched


def n_hooks(model):
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def checkpointed(reentrant):
    model = language_model()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    return model


@pytest.mark.filterwarnings(
    "ignore:.gradient_checkpointing_enable"
)  # the older name, which older transformers have too
@pytest.mark.parametrize(
    "make",
    [
        lambda: language_model("sdpa"),
        lambda: language_model("eager"),
        lambda: language_model().double(),
        lambda: checkpointed(False),
        lambda: checkpointed(True),
    ],
)
def test_training_gives_the_same_weights_bit_for_bit(make):
    unwatched = train(make())
    model, monitor = make(), AttentionMonitor(every=2)
    attention, hooks = model.config._attn_implementation, n_hooks(model)
    monitor.attach(model)
    watched = train(model, monitor)
    assert same_weights(unwatched, watched)
    assert monitor.curves.steps.tolist() == [0, 1, 2, 4]  # every step while the run begins
    assert model.config._attn_implementation == attention
    assert all(module.training for module in model.modules())
    monitor.finish()
    assert n_hooks(model) == hooks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch asks for it while it compiles
@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_training_is_measured_and_gives_the_same_weights(in_place):
    """What a hook hands on from a compiled model is what it reads in one that is not."""

    def compiled():
        torch._dynamo.reset()
        model = language_model(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        if in_place:
            model.compile(backend="aot_eager")
            return model, model
        return model, torch.compile(model, backend="aot_eager")

    model, wrapped = compiled()
    unwatched = train(model, wrapped=wrapped, n_steps=3)
    model, wrapped = compiled()
    monitor, plain = AttentionMonitor(every=1), AttentionMonitor(every=1)
    monitor.attach(wrapped)
    assert same_weights(unwatched, train(model, monitor, wrapped=wrapped, n_steps=3))
    eager = language_model(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    plain.attach(eager)
    train(eager, plain, n_steps=3)
    for name in ("max_logit", "entropy", "loss", "frobenius"):
        np.testing.assert_allclose(monitor.curves[name], plain.curves[name], rtol=1e-3, atol=0.0)
    monitor.finish()
    n_measured = len(monitor.curves.steps)
    wrapped(input_ids=token_batches(1)[0])  # the graph still has the operation, which finds nobody
    assert len(monitor.curves.steps) == n_measured


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch asks for it while it compiles
def test_a_model_compiled_before_the_monitor_is_refused():
    torch._dynamo.reset()
    model = language_model()
    model.compile(backend="eager")
    train(model, n_steps=1)
    monitor = AttentionMonitor()
    monitor.attach(model)
    with pytest.raises(InputError) as refused:
        train(model, monitor, n_steps=1)
    assert refused.value.argument == "model"
    assert refused.value.remedy


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_data_parallel_and_sharded_models_are_watched(one_process):
    from torch.distributed.fsdp import fully_shard

    def replicated(monitor):
        model = language_model()
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        if monitor is not None:
            monitor.attach(wrapped)
        return [weight.detach() for weight in train(model, monitor, wrapped=wrapped).parameters()]

    def sharded(monitor):
        model = language_model()
        for block in model.transformer.h:
            fully_shard(block, mesh=one_process)
        fully_shard(model, mesh=one_process)
        if monitor is not None:
            monitor.attach(model)
        return [weight.full_tensor().detach() for weight in train(model, monitor).parameters()]

    curves = []
    for run in (replicated, sharded):
        monitor = AttentionMonitor(every=2)
        assert all(torch.equal(a, b) for a, b in zip(run(None), run(monitor), strict=True))
        curves.append(monitor.curves)
    for name, values in curves[0].measures.items():
        np.testing.assert_allclose(values, curves[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_mesh_that_splits_heads_is_refused(one_process):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = tiny_bert()
    parallelize_module(
        model.encoder.layer[0].attention.self, one_process, {"query": ColwiseParallel(), "key": ColwiseParallel()}
    )
    with refused("model"):
        measured(model, padded(model))


def test_passes_without_gradient_and_later_batches_of_a_step_are_not_read():
    model, (first, second, third) = language_model().eval(), token_batches(3)
    monitor = AttentionMonitor(every=1)
    monitor.attach(model)
    with torch.no_grad():
        model(input_ids=third)  # an evaluation
    model(input_ids=first, labels=first).loss.backward()
    model(input_ids=second, labels=second).loss.backward()  # a gradient that is accumulated
    monitor.step(model)
    alone = measured(model, {"input_ids": first})
    np.testing.assert_array_equal(monitor.curves["entropy"], alone.curves["entropy"])


def test_the_loss_is_the_mean_of_all_steps_since_the_measurement_before():
    model, losses = language_model(), []
    monitor = AttentionMonitor(every=30)
    monitor.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids in token_batches(4):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        monitor.step(model)
    assert monitor.curves.steps.tolist() == [0, 3]
    np.testing.assert_allclose(monitor.curves["loss"][:, 0, 0], [losses[0], np.mean(losses[1:])], rtol=1e-6, atol=0.0)


# ---- loops


def test_a_module_that_contains_a_model_is_watched():
    class Module(torch.nn.Module):
        """What a LightningModule looks like: the model is an attribute, and the loop calls `training_step`."""

        def __init__(self):
            super().__init__()
            self.model = language_model()
            self.logged = {}

        def training_step(self, ids):
            return self.model(input_ids=ids, labels=ids).loss

    module, monitor = Module(), AttentionMonitor(every=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for ids in token_batches(4):
        optimizer.zero_grad()
        module.training_step(ids).backward()
        optimizer.step()
        module.logged |= monitor.step(module)  # on_train_batch_end; the first time puts the hooks there
    assert monitor.curves.steps.tolist() == [1, 2]
    means = monitor.curves.by_layer("entropy")[-1]
    assert [module.logged[f"attention/entropy/layer_{layer}"] for layer in range(2)] == means.tolist()


def trainer(folder, model, monitor=None, **options):
    pytest.importorskip("accelerate")
    rows = [{"input_ids": row, "labels": row} for batch in token_batches(10) for row in batch]
    usual = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 3,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
    }
    arguments = transformers.TrainingArguments(str(folder), **(usual | options))
    callbacks = None if monitor is None else [monitor]
    return transformers.Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)


def test_trainer_steps_are_counted_and_weights_unchanged(tmp_path):
    unwatched, watched = language_model(), language_model()
    monitor = AttentionMonitor(tmp_path / "run.parquet", every=2)
    assert isinstance(monitor, transformers.TrainerCallback)
    trainer(tmp_path, unwatched, gradient_accumulation_steps=2, max_steps=5).train()
    trainer(tmp_path, watched, monitor, gradient_accumulation_steps=2, max_steps=5).train()
    assert same_weights(unwatched, watched)
    assert monitor.curves.steps.tolist() == [0, 1, 2, 4]
    assert np.isfinite(monitor.curves["loss"]).all()
    written = read_run(tmp_path / "run.parquet")
    assert written.steps.tolist() == [0, 1, 2, 4]
    np.testing.assert_allclose(written["spectral"], monitor.curves["spectral"], rtol=1e-6, atol=0.0)


def test_the_trainer_reports_means_of_layers_to_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monitor = AttentionMonitor(every=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
        trainer(tmp_path, language_model(), monitor, report_to=["tensorboard"]).train()
    (events,) = (tmp_path / "logs").glob("events*")
    found = EventAccumulator(str(events))
    found.Reload()
    points = found.Scalars("train/attention/entropy/layer_1")
    assert [point.step for point in points] == [0, 1, 2, 3]
    np.testing.assert_allclose(
        [point.value for point in points], monitor.curves.by_layer("entropy")[:, 1], rtol=1e-6, atol=0.0
    )


def test_the_trainer_reports_to_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    logged = []
    log = wandb.Run.log
    monkeypatch.setattr(
        wandb.Run, "log", lambda run, data, *args, **kw: (logged.append(data), log(run, data, *args, **kw))
    )
    monitor = AttentionMonitor(every=3)
    trainer(tmp_path, language_model(), monitor, report_to=["wandb"]).train()
    wandb.finish()
    points = [row for row in logged if "train/attention/entropy/layer_1" in row]
    assert [row["train/global_step"] for row in points] == [0, 1, 2, 3]
    values = [row["train/attention/entropy/layer_1"] for row in points]
    np.testing.assert_allclose(values, monitor.curves.by_layer("entropy")[:, 1], rtol=ROUNDING, atol=0.0)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore")  # of Lightning's own
def test_the_monitor_works_in_lightnings_on_train_batch_end(tmp_path):
    lightning = pytest.importorskip("lightning")
    monitor = AttentionMonitor(tmp_path / "run.parquet", every=2)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = language_model()

        def training_step(self, batch, index):
            return self.model(**batch, labels=batch["input_ids"]).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_start(self):
            monitor.attach(self, step=self.trainer.global_step)

        def on_train_batch_end(self, outputs, batch, index):
            self.log_dict(monitor.step(self, step=self.trainer.global_step))

        def on_train_end(self):
            monitor.finish()

    rows = [{"input_ids": row} for batch in token_batches(6) for row in batch]
    options = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    fitting = lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=2, default_root_dir=tmp_path, enable_checkpointing=False, **options
    )
    fitting.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=2))
    assert fitting.global_step == 6
    assert read_run(tmp_path / "run.parquet").steps.tolist() == [0, 1, 2, 4]
    assert float(fitting.logged_metrics["attention/entropy/layer_1"]) == pytest.approx(
        monitor.curves.by_layer("entropy")[-1, 1], rel=SIX_DIGITS, abs=1e-12
    )


def test_processes_other_than_the_first_do_nothing(tmp_path):
    monitor, other = AttentionMonitor(tmp_path / "run.parquet"), SimpleNamespace(is_world_process_zero=False)
    for event in (monitor.on_train_begin, monitor.on_step_end, monitor.on_save, monitor.on_train_end):
        event(None, other, None, model=None)
    with pytest.MonkeyPatch.context() as patch:  # a loop of one's own in the second of two processes
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_rank", lambda: 1)
        assert measured(language_model(), {"input_ids": token_batches(1)[0]})._reader is None
        monitor.finish()
    assert list(tmp_path.iterdir()) == []


# ---- the file


def rows_of(path):
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in ("step", "layer", "head")), strict=True))


def test_the_trainer_resumes_from_a_checkpoint_without_double_rows(tmp_path):
    path = tmp_path / "run.parquet"
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    trainer(tmp_path, language_model(), AttentionMonitor(path, every=2), **options).train()
    before = read_run(path)
    again = AttentionMonitor(path, every=2)
    trainer(tmp_path, language_model(), again, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    after = read_run(path)
    assert before.steps.tolist() == [0, 1, 2, 4]
    assert after.steps.tolist() == [0, 1, 2, 3, 4]  # the first step after a resume is read too
    assert len(rows_of(path)) == len(set(rows_of(path)))
    np.testing.assert_allclose(after["entropy"][[0, 1, 2, 4]], before["entropy"], rtol=1e-5, atol=0.0)


def test_a_new_run_renames_the_file_of_an_earlier_one(tmp_path):
    path = tmp_path / "run.parquet"
    monitor = AttentionMonitor(path, every=2)
    train(language_model(), monitor)
    monitor.finish()
    first = path.read_bytes()
    measured(language_model(), {"input_ids": token_batches(1)[0]}, path=path)
    assert (tmp_path / "run-1.parquet").read_bytes() == first
    assert {step for step, _, _ in rows_of(path)} == {0}


@pytest.mark.parametrize("said_to", ["attach", "step"])
def test_a_resumed_custom_loop_continues_its_file(tmp_path, said_to):
    path, model = tmp_path / "run.parquet", language_model()
    with AttentionMonitor(path, every=10) as monitor:
        monitor.attach(model)
        train(model, monitor, n_steps=23)
    assert read_run(path).steps.tolist() == [*range(11), 20]
    before = read_run(path)["entropy"]
    with AttentionMonitor(path, every=10) as monitor:
        monitor.attach(model, **({"step": 23} if said_to == "attach" else {}))
        train(model, monitor, n_steps=19, first=24)
    after = read_run(path)
    assert after.steps.tolist() == [*range(11), 20, *range(23, 33), 40]
    np.testing.assert_array_equal(after["entropy"][:12], before)
    assert [place.name for place in tmp_path.iterdir()] == ["run.parquet"]


@pytest.mark.parametrize("end", ["with", "del", "finish"])
def test_measurements_are_written_when_the_monitor_ends(tmp_path, end):
    path, model = tmp_path / "run.parquet", language_model()
    monitor = AttentionMonitor(path, every=4)
    with monitor if end == "with" else nullcontext():
        monitor.attach(model)
        train(model, monitor, n_steps=7)
    if end == "finish":
        monitor.finish()
    hooks = n_hooks(model)
    del monitor
    assert read_run(path).steps.tolist() == [0, 1, 2, 3, 4]
    assert hooks == 0 or end == "del"
    assert n_hooks(model) == 0


ENDS = {"of itself": "", "by an error": "raise SystemExit(3)"}


@pytest.mark.parametrize("end", ENDS)
def test_measurements_are_written_when_the_process_ends(tmp_path, end):
    path = tmp_path / "run.parquet"
    script = f"""
import torch, transformers
from marginlens.probe import AttentionMonitor
sizes = {{"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 11}}
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
monitor = AttentionMonitor({str(path)!r}, every=3)
monitor.attach(model)
for step in range(8):
    model(input_ids=torch.randint(0, 11, (2, 6))).logits.sum().backward()
    monitor.step(model)
{ENDS[end]}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == (3 if ENDS[end] else 0)
    assert done.stderr == ""
    assert read_run(path).steps.tolist() == [0, 1, 2, 3, 6]


def test_the_first_measurement_is_written_at_once_and_later_ones_periodically(tmp_path, monkeypatch):
    path, model = tmp_path / "run.parquet", language_model()
    monitor = AttentionMonitor(path, every=1)
    monitor.attach(model)
    train(model, monitor, n_steps=3)
    assert {step for step, _, _ in rows_of(path)} == {0}
    monkeypatch.setattr("marginlens.probe.monitor.record.WRITE_SECONDS", 0.0)
    train(model, monitor, n_steps=1, first=4)
    assert {step for step, _, _ in rows_of(path)} == {0, 1, 2, 3}


def test_a_failed_write_keeps_the_previous_file(tmp_path, monkeypatch):
    import pyarrow.parquet

    monkeypatch.setattr("marginlens.probe.monitor.record.WRITE_SECONDS", 0.0)
    path, model = tmp_path / "run.parquet", language_model()
    monitor = AttentionMonitor(path, every=1)
    monitor.attach(model)
    train(model, monitor, n_steps=1)
    before = path.read_bytes()

    def full(table, place, **options):
        place.write_bytes(b"PAR1 and then the disk was full")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pyarrow.parquet, "write_table", full)
        train(model, monitor, n_steps=1, first=2)  # training goes on
        with refused("path"):  # at the first measurement nothing is lost yet
            measured(language_model(), {"input_ids": token_batches(1)[0]}, path=tmp_path / "new.parquet")
    assert path.read_bytes() == before
    assert any("No space left" in str(note) for note in monitor.curves.notes)
    monitor.finish()
    assert len(read_run(path).names) == 2
    assert [place.name for place in tmp_path.iterdir()] == ["run.parquet"]


# ---- bad input, one sentence each


def test_unusable_settings_models_and_files_are_refused(tmp_path):
    spread, sizes = (
        language_model(),
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24},
    )
    next(spread.parameters()).ds_id = 0  # as DeepSpeed ZeRO-3 marks weights that are spread over processes
    (tmp_path / "other.parquet").write_bytes(b"something else")
    for argument, call in (
        ("every", lambda: AttentionMonitor(every=0)),
        ("report", lambda: AttentionMonitor(report="all")),
        ("path", lambda: AttentionMonitor(tmp_path / "a.csv")),
        ("path", lambda: read_run(tmp_path / "other.parquet")),
        ("model", lambda: AttentionMonitor().attach(torch.nn.Linear(2, 2))),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert refused.value.argument == argument
    unknown = transformers.ConvBertModel(transformers.ConvBertConfig(vocab_size=N_WORDS, embedding_size=16, **sizes))
    for model, got in ((spread, "ZeRO-3"), (unknown, "ConvBertModel")):
        with pytest.raises(InputError) as refused:
            AttentionMonitor().attach(model)
        assert refused.value.argument == "model"
        assert got in refused.value.got


def test_a_step_without_layers_is_refused_first_and_noted_later():
    model = language_model()
    monitor = AttentionMonitor(every=1)
    monitor.attach(model)
    with pytest.raises(InputError) as refused:
        monitor.step(model)
    assert refused.value.argument == "model"
    monitor = measured(model, {"input_ids": token_batches(1)[0]}, every=1)
    assert monitor.step(model) == {}
    assert len(monitor.curves.notes) == 1


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama])
def test_passes_without_a_choice_are_noted_without_alarm(make):
    whole = {"input_ids": torch.tensor([[5, 7, 8, 6], [6, 9, 5, 11]])}
    one_token = {"input_ids": torch.tensor([[7], [11], [5]])}
    padded_to_one = {**whole, "attention_mask": torch.tensor([[1, 0, 0, 0]] * 2)}
    for alone in (one_token, padded_to_one):
        with AttentionMonitor(every=1) as monitor:
            model = make().train()
            monitor.attach(model)
            for batch in (whole, alone, alone, whole):
                model(**batch)
                monitor.step(model, loss=1.0)
        assert monitor.curves.steps.tolist() == [0, 3]
        assert (monitor.curves["entropy"] > 0.0).all()
        assert [str(note).split()[:3] for note in monitor.curves.notes] == [["At", "step", "1"], ["At", "step", "2"]]
        assert monitor.alarms == ()
        assert monitor.selections == ()
    monitor = AttentionMonitor(every=1)
    monitor.attach(model)
    model(**one_token)
    with pytest.raises(InputError) as refused:
        monitor.step(model)
    assert refused.value.argument == "model"


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError, ValueError])
def test_a_problem_during_training_is_noted_and_training_continues(kind, monkeypatch, caplog):
    model = language_model()
    monitor = AttentionMonitor(every=1)
    monitor.attach(model)
    train(model, monitor, n_steps=1)

    def broken(*arguments, **options):
        raise kind("no memory")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "marginlens"):
        patched.setattr("marginlens.probe.monitor.measuring.attention_statistics", broken)
        train(model, monitor, n_steps=1, first=2)
    train(model, monitor, n_steps=1, first=3)
    assert monitor.curves.steps.tolist() == [0, 2]
    assert all(str(note) in caplog.text for note in monitor.curves.notes)
    assert len(monitor.curves.notes) == 1


def test_images_are_watched_too():
    model = tiny_vit().train()
    batch = {"pixel_values": torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))}
    curves = measured(model, batch).curves
    assert len(curves.to_frame()) == curves.n_layers * curves.n_heads
    assert np.isfinite(curves["entropy"]).all()
    assert np.isfinite(curves["frobenius"]).all()


def test_nonfinite_weights_raise_an_alarm_not_an_error(caplog):
    model = language_model()
    monitor = AttentionMonitor(every=1)
    monitor.attach(model)
    train(model, monitor, n_steps=1)
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight.fill_(float("nan"))
    with caplog.at_level(logging.WARNING, "marginlens"):
        train(model, monitor, n_steps=1, first=2)
    # One alarm for the loss of the model, and one for the layer.
    assert [(alarm.layer, alarm.heads) for alarm in monitor.alarms] == [(None, ()), (1, (0, 1))]
    assert all(alarm.sentence in caplog.text for alarm in monitor.alarms)


# ---- the page


def test_the_page_names_the_run_and_shows_every_head(tmp_path):
    model, monitor = language_model(), AttentionMonitor(every=1)
    monitor.attach(model)
    train(model, monitor, n_steps=3)
    text = monitor.write_page(tmp_path / "run.html").read_text(encoding="utf-8")
    assert "3 measurements" in text
    assert "What deserves a look" not in text
    data = json.loads(text.split('id="curves">')[1].split("</script>")[0])
    (entropy,) = (measure for measure in data["measures"] if measure["name"] == "entropy")
    np.testing.assert_allclose(np.array(entropy["values"]), monitor.curves["entropy"], rtol=1e-3, atol=0.0)
    assert entropy["steps"] == [0, 1, 2]
