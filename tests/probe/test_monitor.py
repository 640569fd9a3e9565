"""The monitor beside the probe, beside training without it, over resumed runs, and in loops of several kinds."""

import copy
import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe import AttentionMonitor, ProbeSettings, probe_model, read_run
from marginlens.probe.page.checkpoints import checkpoint_page
from tiny_families import batch_for, small_model
from tiny_transformers import encoded, tiny_bert, tiny_gpt2, tiny_llama, tiny_vit

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
transformers = pytest.importorskip("transformers")

HALF_OF_THE_DIGITS = 1e-7  # norms from Gram matrices; all other numbers agree to rounding
ROUNDING = 1e-9
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


def train(model, monitor=None, *, n_steps=6, first=1, batches=None):
    """Plain training; the optimizer's steps are numbered from `first`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = token_batches(n_steps) if batches is None else batches
    for step, ids in enumerate(data[:n_steps], first):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.step(model, {"input_ids": ids}, step=step)
        optimizer.zero_grad()
    return model


def same_weights(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# ---- the numbers


@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama])
def test_numbers_are_those_of_the_probe_on_the_same_inputs(make):
    model, offset = make(), 2 if make is tiny_llama else None
    found = probe_model(model, encoded(model), ProbeSettings(max_margin=True, offset=offset))
    monitor = AttentionMonitor(padded(model), offset=offset)
    monitor.step(model)
    curves = monitor.curves
    expected = {"relative_nnz", "entropy", "top_probability", "decisive_share", "sink_share", "margin_median"}
    expected |= {"frobenius", "spectral", "nuclear", "correlation", "correlation_random_head", "margin_ratio"}
    assert expected <= set(curves.measures)
    for name, values in curves.measures.items():
        rtol = HALF_OF_THE_DIGITS if name in ("frobenius", "spectral", "nuclear") else ROUNDING
        rtol = 1e-4 if make is tiny_llama else rtol  # whose own softmax is in single precision, and the probe's is not
        np.testing.assert_allclose(values[0], found[name], rtol=rtol, atol=ROUNDING, err_msg=name)


@pytest.mark.parametrize(("name", "towers"), [("t5", {"encoder", "decoder", "cross"}), ("clip", {"text", "vision"})])
def test_layers_of_several_stacks_have_the_names_that_the_probe_gives_them(name, towers, tmp_path):
    model, batch = small_model(name, torch.float32), batch_for(name, torch.float32)
    monitor = AttentionMonitor(batch, path=tmp_path / "run.parquet", max_margin_every=0)
    logged = monitor.step(model)
    monitor.finish()
    curves = read_run(tmp_path / "run.parquet")
    page = checkpoint_page(curves, ())
    assert {layer.split()[0] for layer in curves.layer_names} == towers
    for layer in curves.layer_names:
        assert f'<th scope="row">{layer}</th>' in page
        assert f"attention/entropy/{layer.replace(' ', '_')}" in logged


def test_half_precision_weights_are_measured_in_single_and_stay_what_they_are():
    model = language_model("sdpa").bfloat16()
    single = copy.deepcopy(model).float()
    batch = {"input_ids": token_batches(1)[0]}
    weights = dict(model.named_parameters())
    half, whole = (AttentionMonitor(batch, max_margin_every=0) for _ in range(2))
    half.step(model)
    whole.step(single)
    for name, values in half.curves.measures.items():
        np.testing.assert_allclose(values, whole.curves[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert all(weights[name] is weight for name, weight in model.named_parameters())
    assert model.dtype == torch.bfloat16


# ---- training is not touched


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_training_gives_the_same_weights_bit_for_bit(attention):
    unwatched = train(language_model(attention))
    model = language_model(attention)
    watched = train(model, AttentionMonitor(every=2))
    assert same_weights(unwatched, watched)
    assert model.config._attn_implementation == attention
    assert all(module.training for module in model.modules())


def test_gradients_random_numbers_modes_and_autocast_are_left_alone():
    model = language_model()
    model.transformer.drop.eval()  # a part that somebody froze
    model(input_ids=token_batches(1)[0], labels=token_batches(1)[0]).loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    monitor, state = AttentionMonitor({"input_ids": token_batches(1)[0]}), torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        monitor.step(model)
        assert torch.is_autocast_enabled("cpu")
    plain = AttentionMonitor({"input_ids": token_batches(1)[0]})
    plain.step(model)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(weight.grad, before) for weight, before in zip(model.parameters(), gradients, strict=True))
    assert model.training
    assert not model.transformer.drop.training
    np.testing.assert_array_equal(monitor.curves["entropy"], plain.curves["entropy"])  # in float32 both times


# ---- loops


def test_the_first_batch_is_the_fixed_one_and_later_ones_are_not_looked_at():
    model, batches = language_model(), token_batches(2)
    monitor = AttentionMonitor(every=1)
    monitor.step(model, {"input_ids": batches[0]})
    monitor.step(model, {"input_ids": batches[1]})
    np.testing.assert_array_equal(*monitor.curves["entropy"])


def test_a_long_batch_of_the_loop_is_cut_and_a_chosen_one_is_not():
    model = language_model(n_ctx=200)
    model.config.n_positions = 32
    ids = torch.randint(0, N_WORDS, (20, 30))
    cut, chosen = AttentionMonitor(max_margin_every=0), AttentionMonitor({"input_ids": ids}, max_margin_every=0)
    cut.step(model, {"input_ids": ids})
    chosen.step(model)
    assert (cut.curves.n_inputs, chosen.curves.n_inputs) == (8, 20)


def test_a_module_with_a_model_inside_is_watched_as_lightning_has_it():
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
        module.logged |= monitor.step(module, {"input_ids": ids})  # on_train_batch_end
    assert monitor.curves.steps.tolist() == [1, 2, 4]
    means = monitor.curves.by_layer("entropy")[-1]
    assert [module.logged[f"attention/entropy/layer_{layer}"] for layer in range(2)] == means.tolist()


def trainer(folder, model, monitor=None, evaluation=None, **options):
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
    data = {"train_dataset": rows, "eval_dataset": evaluation}
    return transformers.Trainer(model, arguments, **data, callbacks=callbacks)


def test_in_the_trainer_optimizer_steps_are_counted_and_weights_are_the_same(tmp_path):
    unwatched, watched = language_model(), language_model()
    monitor = AttentionMonitor(path=tmp_path / "run.parquet", every=2)
    assert isinstance(monitor, transformers.TrainerCallback)
    trainer(tmp_path, unwatched, gradient_accumulation_steps=2, max_steps=5).train()
    trainer(tmp_path, watched, monitor, gradient_accumulation_steps=2, max_steps=5).train()
    assert same_weights(unwatched, watched)
    assert monitor.curves.steps.tolist() == [0, 2, 4, 5]
    written = read_run(tmp_path / "run.parquet")
    assert written.steps.tolist() == [0, 2, 4, 5]
    np.testing.assert_allclose(written["nuclear"], monitor.curves["nuclear"], rtol=1e-6)
    assert np.isfinite(written["correlation"]).any(axis=(1, 2)).tolist() == [True, False, False, False]


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
    assert [point.step for point in points] == [0, 3, 6]
    np.testing.assert_allclose([point.value for point in points], monitor.curves.by_layer("entropy")[:, 1], rtol=1e-6)


def test_the_trainers_evaluation_data_are_what_is_measured(tmp_path):
    monitor = AttentionMonitor(every=3)
    rows = [{"input_ids": row, "labels": row} for batch in token_batches(3, seed=9) for row in batch]
    evaluation = {"one": rows, "other": rows[:2]}
    training = trainer(tmp_path, language_model(), monitor, evaluation, eval_strategy="steps", eval_steps=2)
    training.train()
    assert monitor.curves.steps.tolist() == [0, 3, 6]
    alone = AttentionMonitor({"input_ids": torch.stack([row["input_ids"] for row in rows[:8]])}, max_margin_every=0)
    alone.step(training.model)
    np.testing.assert_allclose(alone.curves["entropy"][0], monitor.curves["entropy"][-1], rtol=ROUNDING)


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
    assert [row["train/global_step"] for row in points] == [0, 3, 6]
    values = [row["train/attention/entropy/layer_1"] for row in points]
    np.testing.assert_allclose(values, monitor.curves.by_layer("entropy")[:, 1], rtol=ROUNDING)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore")  # of Lightning's own
def test_in_lightning_it_stands_in_on_train_batch_end(tmp_path):
    lightning = pytest.importorskip("lightning")
    monitor = AttentionMonitor(path=tmp_path / "run.parquet", every=2)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = language_model()

        def training_step(self, batch, index):
            return self.model(**batch, labels=batch["input_ids"]).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_batch_end(self, outputs, batch, index):
            self.log_dict(monitor.step(self, batch, step=self.trainer.global_step))

    rows = [{"input_ids": row} for batch in token_batches(6) for row in batch]
    options = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    fitting = lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=2, default_root_dir=tmp_path, enable_checkpointing=False, **options
    )
    fitting.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=2))
    monitor.finish()
    assert fitting.global_step == 6
    assert read_run(tmp_path / "run.parquet").steps.tolist() == [0, 2, 4, 6]
    assert float(fitting.logged_metrics["attention/entropy/layer_1"]) == pytest.approx(
        monitor.curves.by_layer("entropy")[-1, 1]
    )


def test_a_process_that_is_not_the_first_does_nothing(tmp_path):
    monitor, other = AttentionMonitor(path=tmp_path / "run.parquet"), SimpleNamespace(is_world_process_zero=False)
    for event in (monitor.on_train_begin, monitor.on_step_end, monitor.on_save, monitor.on_train_end):
        event(None, other, None, model=None)
    with pytest.MonkeyPatch.context() as patch:  # a loop of one's own in the second of two processes
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_rank", lambda: 1)
        assert monitor.step(language_model(), {"input_ids": token_batches(1)[0]}) == {}
        monitor.finish()
    assert list(tmp_path.iterdir()) == []


# ---- the file


def rows_of(path):
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in ("step", "layer", "head")), strict=True))


def test_a_resumed_run_goes_on_in_its_file_without_double_rows(tmp_path):
    path, batches = tmp_path / "run.parquet", token_batches(12)
    fixed = {"input_ids": batches[0]}
    whole = AttentionMonitor(fixed, every=2, max_margin_every=3)
    model = train(language_model(dropout=0.0), None, batches=batches, n_steps=0)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(model.config, name, 0.0)
    model.eval()
    optimizer, saved = torch.optim.SGD(model.parameters(), lr=0.1), {}
    killed = AttentionMonitor(fixed, path, every=2, max_margin_every=3)
    for step, ids in enumerate(batches, 1):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole.step(model, step=step)
        if step <= 9:
            killed.step(model, step=step)  # and then it is killed, with nothing more written
        saved[step] = copy.deepcopy(model)
    assert {step for step, _, _ in rows_of(path)} == {1, 2, 4, 6, 8}
    resumed = AttentionMonitor(fixed, path, every=2, max_margin_every=3)
    for step in range(6, 13):  # from the checkpoint of step 5
        resumed.step(saved[step], step=step)
    resumed.finish()
    rows = rows_of(path)
    assert len(rows) == len(set(rows)) == 7 * 2 * 2
    curves = read_run(path)
    assert curves.steps.tolist() == whole.curves.steps.tolist()
    for name, values in whole.curves.measures.items():
        np.testing.assert_allclose(curves[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert not any("another batch" in note for note in curves.notes)


def test_the_trainer_resumes_from_a_checkpoint(tmp_path):
    path = tmp_path / "run.parquet"
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    trainer(tmp_path, language_model(), AttentionMonitor(path=path, every=2), **options).train()
    before = read_run(path)
    again = AttentionMonitor(path=path, every=2)
    trainer(tmp_path, language_model(), again, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert read_run(path).steps.tolist() == before.steps.tolist() == [0, 2, 4, 6]
    assert len(rows_of(path)) == len(set(rows_of(path)))
    np.testing.assert_allclose(read_run(path)["entropy"], before["entropy"], rtol=1e-5)


def test_a_new_run_renames_the_file_of_an_earlier_one(tmp_path):
    path = tmp_path / "run.parquet"
    train(language_model(), AttentionMonitor(path=path, every=2))
    first = path.read_bytes()
    AttentionMonitor({"input_ids": token_batches(1)[0]}, path).step(language_model(), step=1)
    assert (tmp_path / "run-1.parquet").read_bytes() == first
    assert {step for step, _, _ in rows_of(path)} == {1}


def test_another_batch_after_a_resume_is_noted(tmp_path):
    path = tmp_path / "run.parquet"
    AttentionMonitor({"input_ids": token_batches(1)[0]}, path, every=2).step(language_model(), step=2)
    AttentionMonitor({"input_ids": token_batches(1, seed=6)[0]}, path, every=2).step(language_model(), step=4)
    assert any("another batch" in note for note in read_run(path).notes)


def test_a_write_that_fails_leaves_the_file_before(tmp_path, monkeypatch):
    import pyarrow.parquet

    path = tmp_path / "run.parquet"
    monitor = AttentionMonitor({"input_ids": token_batches(1)[0]}, path, every=1)
    monitor.step(language_model())
    before = path.read_bytes()

    def full(table, place, **options):
        place.write_bytes(b"PAR1 and then the disk was full")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pyarrow.parquet, "write_table", full)
        assert monitor.step(language_model())  # training goes on, and loggers have the numbers
        with pytest.raises(InputError, match="No space left"):  # at the first measurement nothing is lost yet
            AttentionMonitor({"input_ids": token_batches(1)[0]}, tmp_path / "new.parquet").step(language_model())
    assert path.read_bytes() == before
    assert any("No space left" in note for note in monitor.curves.notes)
    monitor.finish()
    assert len(read_run(path).names) == 2
    assert [place.name for place in tmp_path.iterdir()] == ["run.parquet"]


# ---- bad input, one sentence each


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": [[1, 2, N_WORDS]]},
        {"input_ids": [[1, 2, -3]]},
        {"input_ids": [[1] * 40]},
        {"input_ids": [[1.0, 2.0]]},
        {"input_ids": [[1, 2], [3]]},
        {"input_ids": [[1], [2]]},
        {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1]]},
        {"words": [[1, 2]]},
        ["a text"],
        None,
    ],
)
def test_a_batch_that_does_not_fit_is_refused(batch):
    with pytest.raises(InputError) as refused:
        AttentionMonitor(batch).step(language_model())
    assert refused.value.argument == "batch"


def test_settings_models_and_files_that_cannot_be_used_are_refused(tmp_path, monkeypatch):
    fused, spread = language_model("sdpa"), language_model()
    next(spread.parameters()).ds_id = 0  # as DeepSpeed ZeRO-3 marks weights that are spread over processes
    (tmp_path / "other.parquet").write_bytes(b"something else")
    fixed = AttentionMonitor({"input_ids": token_batches(1)[0]})
    for argument, call in (
        ("every", lambda: AttentionMonitor(every=0)),
        ("report", lambda: AttentionMonitor(report="all")),
        ("path", lambda: AttentionMonitor(path=tmp_path / "a.csv")),
        ("path", lambda: read_run(tmp_path / "other.parquet")),
        ("model", lambda: fixed.step(torch.nn.Linear(2, 2))),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert refused.value.argument == argument
    monkeypatch.setattr(type(fused), "_can_set_attn_implementation", classmethod(lambda cls: False))
    for model, said in ((spread, "ZeRO-3"), (fused, 'attn_implementation="eager"')):  # how to load it
        with pytest.raises(InputError, match=said):
            fixed.step(model)
    assert fused.config._attn_implementation == "sdpa"


def test_a_problem_in_the_middle_of_training_is_noted_and_training_goes_on(caplog):
    model = language_model()
    monitor = AttentionMonitor({"input_ids": token_batches(1)[0]}, every=1)
    monitor.step(model)
    model.config.vocab_size = 3  # a change that the batch does not fit
    with caplog.at_level(logging.WARNING, "marginlens"):
        assert monitor.step(model) == {}
    assert "could not be measured" in caplog.text
    assert any("At step 2" in note for note in monitor.curves.notes)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_memory_that_runs_out_is_noted_and_training_goes_on(kind, monkeypatch):
    model = language_model()
    monitor = AttentionMonitor({"input_ids": token_batches(1)[0]}, every=1)
    monitor.step(model)

    def full(*arguments, **options):
        raise kind("no memory")

    with monkeypatch.context() as patched:
        patched.setattr("marginlens.probe.monitor.measuring.read_attention", full)
        assert monitor.step(model) == {}
        with pytest.raises(kind):
            AttentionMonitor({"input_ids": token_batches(1)[0]}).step(model)
    assert monitor.step(model)
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert monitor.curves.steps.tolist() == [1, 3]
    assert any("memory ran out" in note for note in monitor.curves.notes)


@pytest.mark.parametrize("kind", ["vit", "without W"])
def test_images_and_models_whose_weights_are_not_read_are_watched_too(kind):
    if kind == "vit":
        model, batch = (
            tiny_vit().train(),
            {"pixel_values": torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))},
        )
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
        torch.manual_seed(0)
        model = transformers.ConvBertModel(transformers.ConvBertConfig(vocab_size=N_WORDS, embedding_size=16, **sizes))
        batch = {"input_ids": token_batches(1)[0]}
    monitor = AttentionMonitor(batch, every=1)
    monitor.step(model)
    monitor.step(model)
    frame = monitor.curves.to_frame()
    assert len(frame) == 2 * monitor.curves.n_layers * monitor.curves.n_heads
    assert np.isfinite(monitor.curves["entropy"]).all()
    assert np.isfinite(monitor.curves["frobenius"]).all() == (kind == "vit")
    assert monitor.alarms == ()


def test_weights_that_are_not_finite_raise_an_alarm_and_not_an_error(caplog):
    model = language_model()
    monitor = AttentionMonitor({"input_ids": token_batches(1)[0]}, every=1)
    monitor.step(model)
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight.fill_(float("nan"))
    with caplog.at_level(logging.WARNING, "marginlens"):
        monitor.step(model)
    assert [(alarm.layer, alarm.heads) for alarm in monitor.alarms] == [(1, (0, 1))]
    assert "not finite from step 2 on" in caplog.text


# ---- the page


def test_the_page_names_the_run_and_shows_every_head(tmp_path):
    monitor = AttentionMonitor(every=1)
    train(language_model(), monitor, n_steps=3)
    text = monitor.write_page(tmp_path / "run.html").read_text(encoding="utf-8")
    assert "3 measurements" in text
    assert "What deserves a look" not in text
    assert "→ –" not in text  # the max-margin part was due at the first measurement only
    data = json.loads(text.split('id="curves">')[1].split("</script>")[0])
    (entropy,) = (measure for measure in data["measures"] if measure["name"] == "entropy")
    np.testing.assert_allclose(np.array(entropy["values"]), monitor.curves["entropy"], rtol=1e-3)
    assert entropy["steps"] == [1, 2, 3]
