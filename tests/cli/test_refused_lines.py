"""Bad command lines: each ends in one plain sentence that begins with what was typed, exit code 2, and no call of Python's."""

import json
import pickle
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from marginlens.cli import app as cli
from marginlens.data import figure_2, figure_8, sphere_tokens, write_problem, write_sequences
from marginlens.errors import InputError, calling, reject

LINES = {
    "solve gone.npz": "FILE",
    "solve bad.json": "FILE",
    "solve list.json": "FILE",
    "solve nan.json": "'X[0][0][0]' in FILE",
    "solve noy.npz": "FILE",
    "solve shape.npz": "'y' in FILE",
    "solve vshape.npz": "'v' in FILE",
    "solve y3.npz": "'y' in FILE",
    "solve d": "FILE",
    "solve seqbad.json": "'labels' in FILE",
    "solve f.npz --start 1": "--start",
    "solve f.npz --start a": "--start",
    "solve f.npz --selected 9,9": "--selected",
    "solve f.npz --selected 0": "--selected",
    "solve f.npz --selected 1,-77777777777777777777": "--selected",
    "solve f.npz --norm x": "--norm",
    "solve lab.json": "'labels' in FILE",
    "solve f.npz --plot x.gif": "--plot",
    "train seqbad.json": "'labels' in FILE",
    "train f.npz --start 1,2,3": "--start",
    "train f.npz --start 1,-3e200": "--start",
    "train s.json --start 1e160,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0": "--start",
    "solve f.npz --start 2e151,1": "--start",
    "train f.npz --step-size -1": "--step-size",
    "train f.npz --optimizer muon --momentum 0.5": "--optimizer",
    "train short.npz": "FILE",
    "train f.npz --momentum 2 --optimizer sign": "--momentum",
    "train f.npz --optimizer mirror": "--norm",
    "train f.npz --eps 1": "--eps",
    "train f.npz --decay -1 --optimizer sign": "--decay",
    "train f.npz --decay 2 --optimizer sign": "--decay",
    "train f.npz --decay nan --optimizer sign": "--decay",
    "train f.npz --seed 1": "--seed",
    "train f.npz --start random --seed -1": "--seed",
    "train f.npz --loss log": "--loss",
    "train s.json --loss logistic": "--loss",
    "train f.npz --plot d": "--plot",
    "train deep.npz --plot x.png": "--plot",
    "train f.npz --constant --step-size 0": "--step-size",
    "graph seqbad.json": "'labels' in FILE",
    "graph none.json": "'sequences' in FILE",
    "graph mixed.json --held-out 0.5": "'sequences' in FILE",
    "graph far.json --sequences x.npz": "'sequences' in FILE",
    "graph short.npz": "FILE",
    "train none.json": "'sequences' in FILE",
    "solve mixed.json": "'sequences' in FILE",
    "graph t.txt --window 0": "--window",
    "graph t.txt --window 1": "--window",
    "graph t.txt --d-model 0": "--d-model",
    "graph t.txt --held-out 2": "--held-out",
    "graph t.txt --held-out nan": "--held-out",
    "graph t.txt --seed -1": "--seed",
    "graph t.txt --words --vocabulary 0": "--vocabulary",
    "graph t.txt --prefix Z": "--prefix",
    "graph t.txt --prefix t --tokens -1": "--tokens",
    "graph t.txt --sequences x.txt": "--sequences",
    "graph t.txt t.txt": "FILE",
    "graph --stream t.txt --dtype foo": "--dtype",
    "graph --stream t.txt --tokenizer gone.json": "--tokenizer",
    "graph --stream gone.txt": "FILE",
    "graph d": "FILE",
    "lab gone.npz": "FILE",
    "lab deep.npz": "FILE",
    "lab --preset nope": "--preset",
    "lab f.npz --preset A-F1b": "--preset",
    "lab --out x.txt": "--out",
    "lab --out r.html/x.html": "--out",
    "statement Q Thm 1": "LABEL",
    "statement A Thm 99": "LABEL",
    "claims --report f.npz": "--report",
    "reproduce --only NOPE": "--only",
    "reproduce --out f.npz": "--out",
    "reproduce --resume --only A-F9": "--resume",
    "reproduce --resume --out nowhere": "--resume",
    "text train gone.csv": "FILE",
    "text train d": "FILE",
    "text train f.npz": "FILE",
    "text predict d f.npz": "MODEL",
    "probe d --against gone": "MODEL_OR_PATH",
    "text train r.csv --text x": "--text",
    "text train empty.csv": "FILE",
    "text train r.csv --label text": "--label",
    "text train r.csv --seed -1": "--seed",
    "text train r.csv --epochs 0": "--epochs",
    "text train r.csv --ngrams 4": "--ngrams",
    "text train r.csv --phrase-count 0": "--phrase-count",
    "text train r.csv --min-count 0": "--min-count",
    "text train r.csv --learning-rate -1": "--learning-rate",
    "text train r.csv --weight-decay -1": "--weight-decay",
    "text train r.csv --learning-rate nan": "--learning-rate",
    "text train rare.csv --min-count 2": "The texts of FILE",
    "text train one.csv --test 0.5": "--test",
    "text train r.csv --test gone.csv": "--test",
    "text train r.csv --train dev": "--train",
    "text train r.csv --train train --test train": "--test",
    "text train r.csv --out d/no/x": "--out",
    "text train r.csv --out .": "--out",
    "text explain d x": "MODEL",
    "text explain gone x": "MODEL",
    "text predict gone r.csv": "MODEL",
    "text predict d r.csv --out x.txt": "--out",
    "text evaluate gone r.csv": "MODEL",
    "text figure d --plot x.png": "MODEL_OR_RESULT",
    "text figure gone --plot x.gif": "--plot",
    "text explain d": "TEXT",
    "text train r.csv --class-weight 2": "--class-weight",
    "text train r.csv --tokenizer gone.json": "--tokenizer",
    "text encode r.csv --out x.npz --pieces gone.txt": "--pieces",
    "embeddings gone.npz --out o": "FILE",
    "embeddings f.npz --out o": "FILE",
    "embeddings --out o": "FILE",
    "embeddings --levels 0 --out o": "--levels",
    "embeddings --levels 4 --epochs -1 --out o": "--epochs",
    "embeddings --levels 4 --set layers=9 --out o": "--layers",
    "vision --out o": "FILE",
    "text encode r.csv --out x.txt --pieces t.txt": "--out",
    "text encode r.csv --out x.npz --pieces t.txt --sample 0": "--sample",
    "text encode r.csv --out x.npz --pieces t.txt --hold-out 2": "--hold-out",
    "text encode r.csv --out x.npz --pieces t.txt --part dev": "--part",
    "sweep gone.toml --out o": "PLAN",
    "sweep plan.toml --out o": "PLAN",
    "sweep plan2.toml --out o": "PLAN",
    "sweep small.toml --out o": "'step' in PLAN",
    "sweep wide.toml --out o": "'d' in PLAN",
    "sweep seed.toml --out o": "'seed' in PLAN",
    "sweep status gone": "DIR",
    "sweep summary d": "DIR",
    "sweep table d --out x.txt": "--out",
    "probe gone": "MODEL_OR_PATH",
    "probe d": "MODEL_OR_PATH",
    "probe d --out f.npz": "--out",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_problem("f.npz", *figure_8())
    write_problem("deep.npz", *sphere_tokens(2, 2, 3, 4, 0))
    write_sequences("s.json", figure_2(), ["e1", "e2", "e3", "e4"])
    ones = np.ones((1, 2, 2))
    np.savez("noy.npz", X=ones, v=np.ones(2))
    np.savez("shape.npz", X=ones, y=np.ones(3), v=np.ones(2))
    np.savez("vshape.npz", X=ones, y=np.ones(1), v=np.ones(3))
    np.savez("y3.npz", X=ones, y=np.full(1, 3.0), v=np.ones(2))
    for name, content in {
        "t.txt": "to be or not to be that is the question\n",
        "bad.json": "{",
        "list.json": "[1]",
        "nan.json": '{"X": [[[1, null]]], "y": [1], "v": [1, 0]}',
        "seqbad.json": json.dumps({"sequences": [[0, 1], [1, 2]], "labels": [2, 1]}),
        "r.csv": "text,label,split\n" + "good good,1,train\nbad bad,0,train\n" * 10,
        "one.csv": "text,label\ngood,1\nbad,0\n",
        "empty.csv": "",
        "rare.csv": "text,label\nalpha,1\nbeta,0\n",
        "plan.toml": "data='nothing'\n",
        "plan2.toml": "x=[",
        "none.json": json.dumps({"sequences": [["a"], []], "labels": ["a", "a"]}),
        "mixed.json": json.dumps({"sequences": [[1], ["b", "b"]], "labels": [1, 1]}),
        "far.json": json.dumps({"sequences": [[3, 7000000]], "labels": [3]}),
        "short.npz": "PK",
        "lab.json": json.dumps({"format": "marginlens-problem", "tokens": [[[1, 2]]], "labels": [2], "head": [1, 0]}),
        "small.toml": "n_problems=3\nn_inputs=1\nn_tokens=2\nd=3\nstep=-0.25\n",
        "wide.toml": "n_problems=2\nn_inputs=70000\nn_tokens=70000\nd=70000\n",
        "seed.toml": "n_problems=2\nn_inputs=1\nn_tokens=2\nd=3\nseed=-1\n",
    }.items():
        Path(name).write_text(content, encoding="utf-8")
    Path("d").mkdir()


@pytest.mark.parametrize("line", LINES)
def test_a_bad_command_line_is_refused_in_the_words_that_were_typed(files, line):
    result = CliRunner().invoke(cli.app, shlex.split(line))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(f"marginlens: {LINES[line]} must be ")
    assert result.stderr.count("\n") == 1
    unquoted = re.sub(r"'[^']*'", "", result.stderr)
    assert not re.search(r"argument|\bml\.|\bnp\.|`\w+[=`]", unquoted)


def test_a_refusal_carries_its_parts_and_is_worded_once():
    with pytest.raises(InputError) as caught, calling("kept.json", path="path"), calling(d_model="d"):
        raise reject("d_model", "at most 5", "9", "Take `d_model=5`.")
    problem = pickle.loads(pickle.dumps(caught.value))  # as it comes back from another process
    assert (problem.argument, problem.file, problem.expected) == ("d", "kept.json", "at most 5")
    assert (problem.got, problem.remedy) == ("9", "Take `d_model=5`.")
    assert str(problem) == "The 'd' entry of 'kept.json' must be at most 5; got 9 instead. Take `d_model=5`."
    with pytest.raises(InputError) as caught, calling("kept.json", path="path"):
        raise reject("path", "a file", "none")
    assert (caught.value.argument, caught.value.file) == ("path", "")


def test_other_arguments_of_a_sentence_are_written_as_options(files):
    Path("columns.csv").write_text("one,two\ngood,1\nbad,0\n", encoding="utf-8")
    told = CliRunner().invoke(cli.app, ["text", "train", "columns.csv"]).stderr
    assert told.endswith("Name it with --text. Where the first row is data, give --no-header.\n")


@pytest.mark.parametrize("line", ["solve {}", "graph {}", "text train {}", "{}", "lab --out {}.html"])
def test_a_very_long_path_is_not_repeated_whole(files, line):
    result = CliRunner().invoke(cli.app, line.format("y" * 5000).split())
    assert result.exit_code == 2
    assert len(result.stderr) < 500
    assert "yyy…yyy" in result.stderr
