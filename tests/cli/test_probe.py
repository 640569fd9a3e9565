"""`marginlens probe`: its tables, its page, its JSON, curves over checkpoints, and how it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marginlens.words import text as text_of
from one_command import command, refusal
from tiny_transformers import TEXTS, save, tiny_bert, tiny_llama, tiny_vit

transformers = pytest.importorskip("transformers")
run, numbers = command("probe")


def refused(*arguments):
    return refusal(run(*arguments))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save(tiny_bert(), tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return save(tiny_vit(), tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture
def text(here):
    Path("texts.txt").write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    return "texts.txt"


# ---- answers


def test_probe_compares_two_models(bert, text, tmp_path_factory):
    other = save(tiny_bert(seed=1), tmp_path_factory.mktemp("models") / "other")
    result = run(bert, "--text", text, "--against", other)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("bert against other: 2 layers of 2 heads; 6 inputs")
    assert "changed most" in result.stdout
    assert sorted(path.name for path in Path("probe-report").iterdir()) == ["index.html", "probe.json"]
    found = numbers(bert, "--text", text, "--against", other, "--no-max-margin")
    assert min(map(min, found["measures"]["total_variation"])) > 0.0
    assert "--checkpoints must be left out with --against" in refused(bert, "--against", other, "--checkpoints")


def test_two_models_with_the_same_name_are_distinguished(bert, text, tmp_path_factory):
    other = save(tiny_bert(seed=1), tmp_path_factory.mktemp("tuned") / "bert")
    found = numbers(bert, "--text", text, "--against", other, "--no-max-margin")
    assert [found["model"], found["against"]] == [f"{place.parent.name}/bert" for place in map(Path, (bert, other))]
    same = numbers(bert, "--text", text, "--against", bert, "--no-max-margin")
    assert (same["model"], same["against"]) == ("bert (first)", "bert (second)")


def test_two_models_of_different_architectures_are_refused(bert, vit, text):
    assert "a model of the same architecture, bert" in refused(bert, "--text", text, "--against", vit)


def test_probe_prints_findings_and_writes_a_page(bert, text):
    result = run(bert, "--text", text)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("bert: 2 layers of 2 heads; 6 inputs, ")
    assert "nnz/T" in result.stdout
    assert "max-margin" in result.stdout
    assert "Written to probe-report/index.html" in result.stdout
    assert sorted(path.name for path in Path("probe-report").iterdir()) == ["index.html", "lab.html", "probe.json"]
    page = Path("probe-report/index.html").read_text(encoding="utf-8")
    assert TEXTS[0] in page
    to_dict = json.loads(Path("probe-report/probe.json").read_text(encoding="utf-8"))
    assert np.isfinite(to_dict["measures"]["nnz"]).all()
    assert sorted(path.name for path in Path().iterdir()) == ["probe-report", "texts.txt"]
    again = run(bert, "--text", text, "--no-max-margin")  # over its own folder
    assert again.exit_code == 0, again.output
    assert "max-margin" not in again.stdout


def test_json_alone_writes_nothing(bert, text):
    to_dict = numbers(bert, "--text", text, "--limit", 3, "--queries", 2)
    assert to_dict["inputs"] == 3
    assert to_dict["settings"]["queries"] == 2
    assert np.shape(to_dict["max_margin"]["correlation_random_head"]) == (2, 2)
    assert [path.name for path in Path().iterdir()] == ["texts.txt"]
    numbers(bert, "--text", text, "--no-max-margin", "--out", "here")
    assert Path("here/index.html").is_file()


def test_probe_without_a_text_reads_the_built_in_sentences(bert, here):
    assert numbers(bert, "--no-max-margin")["inputs"] == 200


def test_probe_reads_images(vit, here):
    images = np.random.default_rng(0).integers(0, 256, size=(7, 6, 6), dtype=np.uint8)
    np.savez("images.npz", images=images)
    result = run(vit, "--images", "images.npz", "--limit", 5, "--no-max-margin")
    assert result.exit_code == 0, result.output
    assert "vit: 2 layers of 2 heads; 5 inputs, 50 queries" in result.stdout
    assert '"grid":[3,3]' in Path("probe-report/index.html").read_text(encoding="utf-8")


def test_probe_of_a_rotary_model_takes_an_offset(text, tmp_path):
    place = save(tiny_llama(), tmp_path / "llama")
    result = run(place, "--text", text)
    assert result.exit_code == 0, result.output
    assert text_of("note.offset_needed_for_norms") in " ".join(result.stdout.split())
    to_dict = numbers(place, "--text", text, "--offset", 2)
    assert np.isfinite(to_dict["measures"]["frobenius"]).all()
    assert np.shape(to_dict["max_margin"]["correlation"]) == (2, 4)
    assert "W at offset 2" in to_dict["notes"][-1]


@pytest.mark.slow
def test_probe_of_checkpoints_gives_curves(text):
    for epoch, sharpness in enumerate((0.2, 0.4, 0.7, 1.0, 2.0, 4.0)):
        save(tiny_bert(sharpness=sharpness), Path("run") / f"epoch-{epoch}")
    result = run("run", "--checkpoints", "--text", text, "--limit", 2, "--out", "curves")
    assert result.exit_code == 0, result.output
    assert "bert, 2 layers of 2 heads: 6 checkpoints; 2 inputs" in result.stdout
    assert "(−1)" in result.stdout
    assert "max-margin" not in result.stdout
    assert "Written to curves/index.html" in result.stdout
    files = ["checkpoints.json", "curves.png", "curves.svg", "index.html"]
    assert sorted(path.name for path in Path("curves").iterdir()) == files
    assert "What attention heads select over training" in Path("curves/index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_max_margin_shares_of_checkpoints_are_computed_on_request(text):
    for epoch, sharpness in enumerate((0.2, 1.0)):
        save(tiny_bert(sharpness=sharpness), Path("run") / f"epoch-{epoch}")
    result = run(
        "run", "--checkpoints", "--max-margin", "--text", text, "--limit", 2, "--queries", 1, "--out", "curves"
    )
    assert result.exit_code == 0, result.output
    assert "The correlation of W with the max-margin solution" in result.stdout
    to_dict = json.loads(Path("curves/checkpoints.json").read_text(encoding="utf-8"))
    assert to_dict["steps"] == [0.0, 1.0]
    assert np.shape(to_dict["measures"]["correlation_random_head"]) == (2, 2, 2)
    assert any(note.startswith("The max-margin part uses up to") for note in to_dict["notes"])


# ---- refusals


def test_unusable_models_are_refused(bert, text):
    import torch

    Path("t5").mkdir()
    Path("t5/config.json").write_text('{"model_type": "t5"}')
    Path("t5/model.safetensors").write_bytes(b"")
    assert "got 't5', of which transformers says" in refused("t5", "--text", text)
    assert "a device of this machine" in refused(str(bert), "--text", text, "--device", "abacus")
    Path("pickled").mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        Path("pickled", name).write_bytes((bert / name).read_bytes())
    torch.save(tiny_bert().state_dict(), "pickled/pytorch_model.bin")
    assert "--trust-pickle" in refused("pickled", "--text", text)
    assert numbers("pickled", "--text", text, "--trust-pickle", "--no-max-margin")["layers"] == 2


def test_user_files_in_an_earlier_probe_folder_are_kept(bert, text):
    assert run(bert, "--text", text, "--no-max-margin").exit_code == 0
    Path("probe-report/notes.txt").write_text("mine")
    assert "which holds something else (notes.txt)" in refused(bert, "--text", text, "--no-max-margin")
    assert Path("probe-report/notes.txt").read_text() == "mine"


def test_the_file_of_a_monitored_run_gives_a_page(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    from marginlens.probe import AttentionMonitor
    from tiny_transformers import tiny_gpt2

    monitor, model = AttentionMonitor(tmp_path / "run.parquet", every=1), tiny_gpt2(0)
    monitor.attach(model)
    for _ in range(2):
        model(input_ids=torch.tensor([[1, 2, 3, 4]]))
        monitor.step(model)
    monitor.finish()
    result = run(tmp_path / "run.parquet", "--out", tmp_path / "page")
    assert result.exit_code == 0, result.output
    assert "No alarm was raised." in result.output
    found = json.loads((tmp_path / "page" / "checkpoints.json").read_text(encoding="utf-8"))
    assert found["steps"] == [0, 1]
    assert found["alarms"] == []
    assert "2 measurements" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "nowhere",
        "empty",
        "bert --text gone.txt",
        "bert --against nowhere",
        "nowhere --checkpoints",
        "empty --checkpoints",
        "without-weights --checkpoints",
    ],
)
def test_missing_paths_are_reported_before_torch_is_imported(bert, here, line, monkeypatch):
    Path("empty").mkdir()
    for name in ("epoch-1", "epoch-2"):
        Path("without-weights", name).mkdir(parents=True)
        Path("without-weights", name, "config.json").write_text("{}", encoding="utf-8")
    for name in ("torch", "transformers", "marginlens.probe.models.loading", "marginlens.probe.run"):
        monkeypatch.setitem(sys.modules, name, None)  # whoever imports it now fails
    sentence = refused(*line.replace("bert", str(bert)).split())
    assert sentence.startswith(
        {"--text": "--text", "--against": "--against"}.get(line.split()[-2:][0], "MODEL_OR_PATH")
    )


def test_quiet_hides_the_notices_of_transformers(here):
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=9, state_size=2)
    transformers.MambaForCausalLM(config).save_pretrained("mamba")
    Path("texts.txt").write_text("a b", encoding="utf-8")
    (sentence,) = subprocess.run(
        [sys.executable, "-m", "marginlens", "probe", "mamba", "--text", "texts.txt", "--quiet"],
        capture_output=True, text=True, check=False,
    ).stderr.splitlines()  # fmt: skip
    assert sentence.startswith("marginlens: ")
