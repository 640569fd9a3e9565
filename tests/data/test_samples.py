"""The sample files: every command reads its own, the model's heads do what they are made for, and nothing is overwritten."""

from io import BytesIO

import numpy as np
import pytest

import marginlens as ml
from make_samples import samples
from one_command import command
from refusals import refused


def test_samples_are_reproducible_and_overwrite_no_other_file(tmp_path):
    first = {path.name: path.read_bytes() for path in ml.data.write_samples(tmp_path)}
    assert {path.name: path.read_bytes() for path in ml.data.write_samples(tmp_path)} == first
    assert sum(map(len, first.values())) < 200_000
    (tmp_path / "book.txt").write_text("mine")
    (tmp_path / "reviews.csv").unlink()
    with refused("folder"):
        ml.data.write_samples(tmp_path)
    assert not (tmp_path / "reviews.csv").exists()
    (tmp_path / "file").write_text("no folder")
    with refused("folder"):
        ml.data.write_samples(tmp_path / "file")


def test_the_files_are_those_that_the_script_makes(tmp_path):
    made = samples()
    written = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in ml.data.write_samples(tmp_path)}
    assert written.keys() == made.keys()
    for name, content in made.items():
        if name.endswith(".safetensors"):  # whose last bits are those of the cosines of a machine
            start = 8 + int.from_bytes(content[:8], "little")
            assert written[name][:start] == content[:start]
            numbers = [np.frombuffer(one[start:], "<f4") for one in (written[name], content)]
            np.testing.assert_allclose(*numbers, rtol=0.0, atol=1e-6)
        elif name.endswith(".npz"):  # whose archive is that of a version of NumPy
            for one, other in zip(*(np.load(BytesIO(one)).items() for one in (written[name], content)), strict=True):
                np.testing.assert_array_equal(one[1], other[1])
        else:
            assert written[name] == content, name


def test_samples_command_lists_written_files(tmp_path):
    _, numbers = command("samples")
    written = numbers(tmp_path / "new")["written"]
    names = {path.removeprefix(f"{tmp_path}/new/") for path in written}
    assert names == samples().keys()


def test_limit_of_the_sample_problem_depends_on_the_start(tmp_path):
    ml.data.write_samples(tmp_path)
    data, head = ml.data.read_problem(tmp_path / "problem.npz")
    assert data.d_key == 2
    assert ml.locally_optimal_directions(data, head).selections.tolist() == [[0], [2]]
    ends = [ml.descend(data, head, n_steps=300, start=start).selected.tolist() for start in ([0.0, 0.0], [1.0, -1.0])]
    assert ends == [[0], [2]]


def test_heads_of_the_sample_model_attend_as_designed(tmp_path):
    pytest.importorskip("transformers")
    import torch
    from transformers import AutoModel, AutoTokenizer

    ml.data.write_samples(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny-model")
    model, facts = AutoModel.from_pretrained(
        tmp_path / "tiny-model", attn_implementation="eager", output_loading_info=True
    )
    assert not facts["missing_keys"]
    assert not facts["unexpected_keys"]
    for sentence in (tmp_path / "sentences.txt").read_text().splitlines():
        encoded = tokenizer(sentence, return_tensors="pt")
        ids = encoded["input_ids"][0].numpy()
        assert tokenizer.unk_token_id not in ids
        with torch.no_grad():
            layers = model.eval()(**encoded, output_attentions=True).attentions
        before, after, first, same = layers[0][0].numpy()
        separator, even, *_ = layers[1][0].numpy()
        place = np.arange(len(ids))
        assert (before.argmax(axis=1)[1:] == place[:-1]).all()
        assert (after.argmax(axis=1)[:-1] == place[1:]).all()
        assert (first.argmax(axis=1) == 0).all()
        assert (ids[same.argmax(axis=1)] == ids).all()
        assert (ids[separator.argmax(axis=1)] == tokenizer.sep_token_id).all()
        np.testing.assert_allclose(even, 1.0 / len(ids), rtol=1e-4, atol=0.0)
        assert min(head.max(axis=1)[1:-1].min() for head in (before, after, first)) > 0.9
