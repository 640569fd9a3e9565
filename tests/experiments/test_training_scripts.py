"""Settings, exit codes, progress lines and archived commands of training scripts."""

import json
import sys
from dataclasses import fields
from functools import partial

import pytest

from experiments.archive import command_without_paths
from experiments.embeddings.settings import TrainingSettings
from experiments.training.loop import epoch_display
from experiments.training.options import settings_lines
from experiments.training.script import in_one_sentence, parse_settings, time_left
from experiments.training.settings import settings_or_default, torch_device
from experiments.vision.settings import VisionTrainingSettings
from marginlens.errors import InputError, MissingExtra
from refusals import refused

# ---- settings


@pytest.mark.parametrize("settings", [TrainingSettings(milestones=(3, 4)), VisionTrainingSettings(width=24)])
def test_settings_round_trip_through_json_and_are_documented(settings):
    assert type(settings).from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert settings_or_default(settings, type(settings)) is settings
    assert settings_or_default(None, type(settings)) == type(settings)()
    rows = [line.split(": ", 1)[0].split(" = ") for line in settings_lines(type(settings))]
    assert {name: json.loads(usual) for name, usual in rows} == type(settings)().to_dict()
    assert set(settings.meanings()) == set(settings.CHECKS) == {field.name for field in fields(settings)}


def test_a_resumed_run_can_change_only_free_settings():
    assert VisionTrainingSettings().differences(VisionTrainingSettings(epochs=1, device="cuda", compiled=True)) == []
    assert TrainingSettings().differences(TrainingSettings(epochs=1, device="cuda")) == []
    assert TrainingSettings(seed=4).differences(TrainingSettings(milestones=(3,))) == [
        "milestones [3] there, [100, 200] here",
        "seed 0 there, 4 here",
    ]


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("settings", lambda: settings_or_default({}, VisionTrainingSettings)),
        *(
            ("settings", partial(parse_settings, text))
            for text in ("{", "[1]", "", "none.json", '{"a":' * 100_000, "\0")
        ),
        *(("device", partial(torch_device, name)) for name in ("gpu", "meta", "cuda:x", "cuda:2")),
        ("command", lambda: command_without_paths(None)),
    ],
)
def test_invalid_settings_devices_and_commands_are_refused(monkeypatch, argument, call):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch_device("cuda:1").index == 1
    with refused(argument):
        call()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError):
        torch_device("cuda")


# ---- scripts


def raising(problem):
    def work():
        raise problem

    return work


def test_script_errors_are_one_line_with_an_exit_code(capsys):
    noted = InputError("Unusable.")
    noted.add_note("c.npz is kept.")
    for problem, code, said in (
        (noted, 2, "marginlens: Unusable. c.npz is kept.\n"),
        (MissingExtra("It needs torch."), 2, "marginlens: It needs torch.\n"),
        (FileNotFoundError(2, "No such file", "x"), 2, "marginlens: [Errno 2] No such file: 'x'\n"),
        (MemoryError(), 2, "marginlens: Not enough memory.\n"),
        (KeyboardInterrupt(), 130, "marginlens: interrupted.\n"),
    ):
        assert in_one_sentence(raising(problem)) == code
        assert capsys.readouterr().err == said
    assert in_one_sentence(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):  # a defect keeps its traceback
        in_one_sentence(raising(ZeroDivisionError()))


def test_reading_the_data_counts_towards_the_time_limit():
    assert time_left(None)() is None
    assert 0.0 < time_left(1e-9)() < 0.01  # a run takes a step and stops
    assert 50.0 < time_left(60.0)() <= 60.0


class Record:
    def __init__(self, epoch):
        self.epoch = epoch

    def __str__(self):
        return f"epoch {self.epoch}"


@pytest.mark.parametrize("rich", [True, False])
def test_progress_without_terminal_or_rich_is_plain_lines(monkeypatch, capsys, rich):
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with epoch_display(4, str, seconds_between=1000.0) as show:
        for epoch in range(1, 5):
            show(Record(epoch))
    assert capsys.readouterr() == ("", "epoch 1 of 4 epochs\nepoch 4 of 4 epochs\n")


# ---- archived runs


def test_archived_commands_lose_only_local_paths():
    command = "python -m m --data /a/b/c.npz --out=/o --checkpoint '/x y/c.npz' --settings '{\"a\": 1}' --every 5"
    assert command_without_paths(command) == "python -m m --data c.npz --settings '{\"a\": 1}' --every 5"
    assert command_without_paths("run -- --o=/o --check /x/c.npz --set /a/s.json --save-m /m --data-seed 3 -") == (
        "run -- --settings s.json --data-seed 3 -"
    )
