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
from marginlens.data import SequenceDataset, figure_2, figure_8, sphere_tokens, write_problem, write_sequences
from marginlens.errors import InputError, rename_arguments
from marginlens.lab import preset
from marginlens.lab import write_problem as write_lab_problem
from one_command import refusal

LINES = {  # what the sentence begins with -> the command lines that it refuses
    "FILE": """
        graph gone.txt; graph d; graph no.txt; graph short.npz; lab deep.npz; lab gone.npz; lab long.json; lab f3.npz;
        lab head.json; lab wide.json; predict bad.json; predict d; predict empty.npz; predict gone.npz; predict list.json;
        predict noy.npz; train short.npz; predict twice.json; predict /dev/zero; graph twice.json
    """,
    "'X[0][0][0]' in {}": "predict nan.json",
    "'tokens[0][0][1]' in {}": "lab word.json",
    "'y' in {}": "predict shape.npz; predict y3.npz",
    "'v' in {}": "predict vshape.npz",
    "'labels' in {}": "graph seqbad.json; predict lab.json; predict seqbad.json; train seqbad.json",
    "--start": """
        predict f.npz --start ٣,٤; predict f.npz --norm l1 --start 1,2; predict f.npz --start 1;
        predict f.npz --start 1,2 --selected 0,0; predict f.npz --start 2e151,1; predict f.npz --start a;
        train f.npz --start 1,-3e200; train f.npz --start 1,2,3; train f.npz --start inf,0; train s.json --start 1,2;
        train s.json --start 1e160,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0
    """,
    "--selected": """
        predict f.npz --selected 0; predict f.npz --selected 0,2; predict f.npz --selected 1,-77777777777777777777;
        predict f.npz --selected 9,9; predict f.npz --selected a,b; predict joint.json --selected 0,0,0
    """,
    "--norm": """
        predict f.npz --norm l0.5; predict f.npz --norm longest; predict f.npz --norm spectral; predict f.npz --norm x;
        predict s.json --norm l1; train f.npz --optimizer mirror-descent;
        train f.npz --optimizer mirror-descent --norm l-inf; train f.npz --optimizer sign-descent --norm l1;
        train f.npz --optimizer steepest-descent
    """,
    "--plot": """
        graph t.txt --plot p.gif; predict deep.npz --plot x.png; predict f.npz --plot /proc/x.png;
        predict f.npz --plot no/x.png; predict f.npz --plot x.gif; predict s.json --plot x.png; train deep.npz --plot x.png;
        train f.npz --plot d
    """,
    "--step-size": "train f.npz --constant --step-size 0; train f.npz --step-size -1; train f.npz --step-size nan",
    "--optimizer": """
        train f.npz --optimizer lion; train f.npz --optimizer muon --momentum 0.5;
        train f.npz --optimizer sign-descent --constant; train joint.json --optimizer adam
    """,
    "--limit": "probe m --limit 0",
    "--queries": "probe m --queries 0",
    "--offset": "probe m --offset -1",
    "--momentum": """
        train f.npz --momentum 2 --optimizer sign-descent; train f.npz --optimizer sign-descent --momentum 1
    """,
    "--eps": "train f.npz --eps 1; train f.npz --optimizer adam --eps -1; train joint.json --eps 0.1",
    "--decay": """
        train f.npz --decay -1 --optimizer sign-descent; train f.npz --decay 0.5;
        train f.npz --decay 2 --optimizer sign-descent; train f.npz --decay nan --optimizer sign-descent
    """,
    "--seed": "graph t.txt --seed -1; train f.npz --seed 1; train f.npz --start random --seed -1",
    "--loss": """
        train f.npz --loss hinge; train f.npz --loss log; train s.json --loss hinge; train s.json --loss logistic
    """,
    "'sequences' in {}": """
        graph far.json --sequences x.npz; graph mixed.json --held-out 0.5; graph none.json; predict mixed.json;
        train none.json
    """,
    "--window": """
        graph t.txt --window 10000; graph t.txt --window 0; graph t.txt --window 1; graph t.txt --window 40
    """,
    "--d-model": "graph t.txt --d-model 0",
    "--held-out": "graph t.txt --held-out 2; graph t.txt --held-out 1; graph t.txt --held-out nan",
    "--vocabulary": "graph t.txt --vocabulary 3; graph t.txt --words --vocabulary 0",
    "--prefix": "graph t.txt --prefix Ω; graph t.txt --prefix Z",
    "--tokens": "graph t.txt --prefix t --tokens -1; graph t.txt --tokens 5",
    "--sequences": "graph t.txt --sequences x.txt",
    "--tokenizer": """
        graph t.txt --tokenizer gone.json; graph t.txt --tokenizer t.txt; graph s.json --tokenizer t.json
    """,
    "--preset": "lab --preset nope; lab f.npz --preset A-F1b",
    "--out": """
        lab --out r.html/x.html; lab --out x.txt; lab --out notes.html; probe d --out f.npz; probe here --out .;
        probe here --out /proc/x; probe here --out t.txt; reproduce --out f.npz
    """,
    "LABEL": "statement A Thm 99; statement Q Thm 1",
    "--report": "claims --report f.npz",
    "--only": "reproduce --only NOPE",
    "--resume": "reproduce --resume --only A-F9; reproduce --resume --out nowhere",
    "MODEL_OR_PATH": "probe d; probe d --against gone; probe gone; probe run; probe someone/some-model",
    "--drop": "graph t.txt --drop; predict f.npz --drop",
    "--steps": "train f.npz --steps 0; train f.npz --steps 99999999999999999999; train joint.json --steps 0",
    "--encoding": """
        graph t.txt --encoding utf-9; graph latin.txt; graph s.json --encoding utf-8; graph t.txt --encoding klingon
    """,
    "--last": "graph t.txt --last q --window 2; graph t.txt --last xyz; graph t.txt --last Z",
    "--save": "graph - --save s.json; graph t.txt --save a.txt",
    "--words": "graph s.json --words; graph t.txt --words --tokenizer t.txt",
    "--images": "probe here --text t.txt --images x.npy",
}
REFUSED = [(line.strip(), name) for name, lines in LINES.items() for line in lines.split(";")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the lines name, which none of them changes."""
    place = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_files()
    return place


@pytest.fixture
def files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def write_files():
    write_problem("f.npz", *figure_8())
    write_problem("deep.npz", *sphere_tokens(2, 2, 3, 4, 0))
    write_problem("f3.npz", *sphere_tokens(3, 1, 3, 2, 0))  # a batch in the plane
    write_problem("long.json", *(part[0] for part in sphere_tokens(1, 1, 13, 2, 0)))  # more tokens than the page takes
    write_sequences("head.json", figure_2(), head=np.eye(4))
    write_sequences("wide.json", SequenceDataset([[0, 1]], [1], [[1.0, 2.0], [3.0, 5.0]]))  # not one-hot
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
        "twice.json": '{"X": [[[1, 2]]], "y": [1], "v": [1, 0], "X": [[[1, 3]]]}',
        "nan.json": '{"X": [[[1, null]]], "y": [1], "v": [1, 0]}',
        "seqbad.json": json.dumps({"sequences": [[0, 1], [1, 2]], "labels": [2, 1]}),
        "none.json": json.dumps({"sequences": [["a"], []], "labels": ["a", "a"]}),
        "mixed.json": json.dumps({"sequences": [[1], ["b", "b"]], "labels": [1, 1]}),
        "far.json": json.dumps({"sequences": [[3, 7000000]], "labels": [3]}),
        "lacking.json": json.dumps({"sequences": [[0, 1], [1, 0]], "labels": [2, 0]}),
        "short.npz": "PK",
        "lab.json": json.dumps({"format": "marginlens-problem", "tokens": [[[1, 2]]], "labels": [2], "head": [1, 0]}),
        "word.json": '{"format": "marginlens-problem", "tokens": [[[1, "x"]]], "head": [1, 0]}',
        "notes.html": "<title>notes</title>",
    }.items():
        Path(name).write_text(content, encoding="utf-8")
    np.savez("empty.npz")
    write_lab_problem("joint.json", preset("A-F3a").problem)
    Path("latin.txt").write_bytes(b"caf\xe9 au lait")
    for name in ("checkpoint-1", "checkpoint-2"):
        (Path("run") / name).mkdir(parents=True)
        (Path("run") / name / "config.json").write_text("{}")
    Path("d").mkdir()


@pytest.mark.parametrize(("line", "name"), REFUSED, ids=[line for line, _ in REFUSED])
def test_a_bad_command_line_exits_2_with_one_line_and_leaves_no_file(files, line, name):
    before = set(files.rglob("*"))
    sentence = refusal(CliRunner().invoke(cli.app, shlex.split(line)))
    assert sentence.startswith(f"{name.format(line.split()[1])} must be ")
    assert set(files.rglob("*")) == before
    unquoted = re.sub(r"'[^']*'", "", sentence)
    assert not re.search(r"argument|\bml\.|\bnp\.|`\w+[=`]", unquoted)


def test_an_input_error_has_its_parts():
    remedy = "Take `d_model=5`."
    with pytest.raises(InputError) as caught, rename_arguments("kept.json", path="path"), rename_arguments(d_model="d"):
        raise InputError("d_model", "at most 5", "9", remedy)
    problem = pickle.loads(pickle.dumps(caught.value))  # as it comes back from another process
    assert (problem.argument, problem.file, problem.expected) == ("d", "kept.json", "at most 5")
    assert (problem.got, problem.remedy) == ("9", "Take `d_model=5`.")
    assert str(problem) == "The 'd' entry of 'kept.json' must be at most 5; got 9 instead. Take `d_model=5`."
    with pytest.raises(InputError) as caught, rename_arguments("kept.json", path="path"):
        raise InputError("path", "a file", "none")
    assert (caught.value.argument, caught.value.file) == ("path", "")


def test_library_arguments_in_errors_become_options(files):
    sentence = refusal(CliRunner().invoke(cli.app, ["graph", "lacking.json"]))
    assert sentence.endswith("Leave them out with --drop.\n")


@pytest.mark.parametrize("line", ["predict {}", "graph {}", "{}", "lab --out {}.html"])
def test_a_very_long_path_is_shortened(files, line):
    result = CliRunner().invoke(cli.app, line.format("y" * 5000).split())
    assert result.exit_code == 2
    assert len(result.stderr) < 500
    assert "yyy…yyy" in result.stderr


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_a_file_of_many_entries_is_shortened(here, kind):
    names = [f"entry{k}" for k in range(900)]
    if kind == "json":
        Path("many.json").write_text(json.dumps(dict.fromkeys(names, 1)), encoding="utf-8")
    else:
        np.savez("many.npz", **dict.fromkeys(names, 1.0))
    sentence = refusal(CliRunner().invoke(cli.app, ["predict", f"many.{kind}"]))
    assert "'entry0', 'entry1', 'entry10'" in sentence
    assert "888 more" in sentence
    assert len(sentence) < 600


def test_an_error_quotes_at_most_a_thousand_characters():
    for length, expected in ((1000, 1000), (5000, 1003)):
        problem = InputError("labels", "short", "ab" * (length // 2))
        assert len(problem.got) == expected
        assert problem.got.startswith("abab")
        assert problem.got.endswith("abab")


def test_samples_report_existing_files_and_need_a_name(here):
    assert refusal(CliRunner().invoke(cli.app, ["samples", ""])).startswith("DIR must be the name of a folder")
    assert list(here.iterdir()) == []
    (here / "full").mkdir()
    for name in ("a.txt", "b.txt"):
        (here / "full" / name).write_text(name)
    told = CliRunner().invoke(cli.app, ["samples", "full"])
    assert (told.exit_code, (here / "full" / "a.txt").read_text()) == (0, "a.txt")
    assert "2 other files in full" in told.stdout
    assert "other file" not in CliRunner().invoke(cli.app, ["samples", "new"]).stdout
