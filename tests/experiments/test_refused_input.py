"""What the long runs refuse, each in one sentence that names the argument; their command lines end with exit code 2."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from experiments import encode, figure
from experiments.embeddings import __main__ as embeddings
from experiments.embeddings.settings import TrainingSettings
from experiments.reviews import YelpLines, encode_labelled, two_classes
from experiments.texts import TextPipeline
from experiments.vision import __main__ as vision
from experiments.vision.settings import VisionTrainingSettings
from refusals import refused

REFUSED = [
    ("layers", lambda: TrainingSettings.from_dict({"layers": 3})),
    ("learning_rate", lambda: TrainingSettings.from_dict({"learning_rate": "0.1"})),
    ("weight_decay", lambda: TrainingSettings.from_dict({"weight_decay": -1.0})),
    ("milestones", lambda: TrainingSettings.from_dict({"milestones": 5})),
    ("train_v", lambda: TrainingSettings.from_dict({"train_v": "no"})),
    ("dtype", lambda: TrainingSettings.from_dict({"dtype": "float16"})),
    ("settings", lambda: TrainingSettings.from_dict({"pace": 1, "age": 2})),
    ("affine", lambda: TrainingSettings(affine=True)),
    ("heads", lambda: VisionTrainingSettings.from_dict({"heads": 5})),
    ("precision", lambda: VisionTrainingSettings(precision="bfloat16")),
    ("cleaning", lambda: TextPipeline(cleaning=None)),
    ("stop_words", lambda: TextPipeline(stop_words=["the"])),
    ("min_count", lambda: TextPipeline(min_count=0)),
    ("empty", lambda: TextPipeline(empty="keep")),
    ("texts", lambda: encode_labelled(TextPipeline(), "good", [1])),
    ("texts", lambda: encode_labelled(TextPipeline(), ["good", None], [1, 1])),
    ("y", lambda: encode_labelled(TextPipeline(), ["good"], [1, 1])),
    ("y", lambda: encode_labelled(TextPipeline(), ["good", "bad"], [1, 0])),
    ("path", lambda: YelpLines("nowhere.json").read()),
    *(
        ("labels", lambda labels=labels: two_classes(labels))
        for labels in ([1, 1], [], ["a", "b", "c", "d", "e"], ["a", None], ["a", " "], [1.0, np.nan])
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_invalid_arguments_are_refused_by_name(case):
    argument, call = REFUSED[case]
    with refused(argument):
        call()


LINES = {
    encode: {
        "path": "r.csv --out x.npz --pieces gone.txt",
        "out": "r.csv --out x.txt --pieces t.txt",
        "file": "gone.csv --out x.npz --pieces t.txt",
        "sample": "r.csv --out x.npz --pieces t.txt --sample 0",
        "hold_out": "r.csv --out x.npz --pieces t.txt --hold-out 2",
        "text": "r.csv --out x.npz --pieces t.txt --text body",
        "label": "r.csv --out x.npz --pieces t.txt --label body",
        "part": "r.csv --out x.npz --pieces t.txt --part dev",
    },
    embeddings: {
        "file": "--out o",
        "path": "f.npz --out o; gone.npz --out o",
        "out": "--levels 8 --out r.csv",
        "epochs": "--levels 4 --epochs -1 --out o",
        "n_samples": "--levels 0 --out o",
        "levels": "f.npz --levels 8 --out o",
        "layers": "--levels 4 --set layers=9 --out o; --levels 4 --layers 3 --out o",
        "settings": """--levels 8 --out o --settings {; --levels 8 --out o --settings '{"pace": 1}'""",
        "set": "--levels 8 --out o --set pace=1; --levels 8 --out o --set d_model",
        "d_model": "--levels 8 --out o --set d_model=wide",
        "milestones": "--levels 8 --out o --set milestones=1,x",
        "data_seed": "f.npz --out o --data-seed 1",
        "length": "f.npz --out o --length 1",
        "split": "--levels 8 --out o --split train",
    },
    vision: {
        "file": "--out o; f.npz --digits --out o",
        "data": "gone.npz --out o",
        "settings": "--digits --out o --settings {",
        "save_models": "--digits --out o --save-models m",
    },
    figure: {"out": "gone x.gif", "run": "d x.png; nothing f.png"},
}
TYPED = [
    (module, argument, line)
    for module, lines in LINES.items()
    for argument, several in lines.items()
    for line in several.split("; ")
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files that the lines name."""
    monkeypatch.chdir(tmp_path)
    Path("r.csv").write_text("text,label,split\n" + "good good,1,train\nbad bad,0,train\n" * 10, encoding="utf-8")
    Path("t.txt").write_text("[UNK]\ngood\nbad\n", encoding="utf-8")
    Path("d").mkdir()
    np.savez("f.npz", x=np.ones(2))
    return tmp_path


@pytest.mark.parametrize(("module", "argument", "line"), TYPED, ids=[line for *_, line in TYPED])
def test_a_bad_command_line_exits_with_one_line_and_no_file(here, capsys, module, argument, line):
    before = set(here.rglob("*"))
    assert module.main(shlex.split(line)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"marginlens: The '{argument}' argument must be ")
    assert said.count("\n") == 1
    assert set(here.rglob("*")) == before
