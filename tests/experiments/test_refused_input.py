"""What the long runs refuse, each in one sentence that names the argument; their command lines end with exit code 2."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from experiments import encode
from experiments.reviews import YelpLines, encode_labelled, two_classes
from experiments.texts import TextPipeline
from refusals import refused

REFUSED = [
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
def test_what_a_function_cannot_use_is_refused_by_name(case):
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
        "label": "r.csv --out x.npz --pieces t.txt --label text",
        "delimiter": "r.csv --out x.npz --pieces t.txt --delimiter ,,",
        "part": "r.csv --out x.npz --pieces t.txt --part dev",
    },
}
TYPED = [(module, argument, line) for module, lines in LINES.items() for argument, line in lines.items()]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files that the lines name."""
    monkeypatch.chdir(tmp_path)
    Path("r.csv").write_text("text,label,split\n" + "good good,1,train\nbad bad,0,train\n" * 10, encoding="utf-8")
    Path("t.txt").write_text("[UNK]\ngood\nbad\n", encoding="utf-8")
    Path("s.json").write_text(json.dumps([1]), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("module", "argument", "line"), TYPED, ids=[line for *_, line in TYPED])
def test_a_bad_command_line_is_one_sentence_and_leaves_no_file(here, capsys, module, argument, line):
    before = set(here.rglob("*"))
    assert module.main(shlex.split(line)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"marginlens: The '{argument}' argument must be ")
    assert said.count("\n") == 1
    assert set(here.rglob("*")) == before
