"""The probe against loops over single inputs: averages, margins, examples, preferences, ties, and the checkpoints of a run."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from marginlens.probe import (
    ImageSettings,
    LoadedModel,
    MaxMarginSettings,
    ProbeSettings,
    TextInputs,
    example_sentences,
    load_model,
    probe_checkpoints,
    probe_model,
    probe_page,
    read_attention,
    sample_queries,
    select_tokens,
)
from marginlens.probe.findings import answers, main_results
from marginlens.probe.heads.max_margin import layer_margins
from marginlens.probe.heads.preferences import head_preferences, visible_types
from marginlens.probe.measures import rank_test
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.inputs import ImageInputs
from marginlens.probe.page import draw_curves
from marginlens.words import Fact
from refusals import refused
from tiny_families import small_model
from tiny_transformers import TEXT, TEXTS, WORDS, drawn, encoded, save, tiny_bert, tiny_llama, tiny_vit
from tolerances import ROUNDING, SIX_DIGITS

torch = pytest.importorskip("torch")

FUSED = 1e-4  # Llama's own softmax is in single precision, that of fused attention is not
EXACT = 1e-12  # float64 sums of a few dozen terms in another order


@pytest.fixture(scope="module")
def bert():
    return tiny_bert()


@pytest.fixture(scope="module")
def found(bert):
    return probe_model(bert, encoded(bert))


def without_special_tokens(texts):
    """Texts of `WORDS` as a model reads them whose tokenizer adds nothing."""
    tokens = tuple(tuple(text.split()) for text in texts)
    ids = tuple(tuple(WORDS.index(word) for word in row) for row in tokens)
    return TextInputs(tuple(texts), ids, tokens, 0, 16, 0)


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])
def test_inputs_of_one_token_do_not_count_and_alone_are_refused(make):
    model = make()
    several, ones = ["the dog ran", "a cat ?"], ["dog", "not"]
    alone = probe_model(model, without_special_tokens(several))
    mixed = probe_model(model, without_special_tokens([ones[0], *several, ones[1]]))
    assert mixed.n_queries == alone.n_queries
    assert mixed.n_inputs == alone.n_inputs + 2
    for name in ("nnz", "relative_nnz", "entropy", "top_probability", "tied_share"):
        assert np.allclose(mixed[name], alone[name], rtol=EXACT, atol=EXACT), name
    with refused("inputs"):
        probe_model(model, without_special_tokens(ones))


def test_the_order_of_inputs_does_not_matter(bert, found):
    turned = probe_model(bert, encoded(bert, TEXTS[::-1]))
    for name, values in found.measures.items():
        assert np.allclose(turned[name], values, rtol=EXACT, atol=EXACT), name


def test_examples_hold_the_attention_of_their_input(bert):
    result = probe_model(bert, encoded(bert), ProbeSettings(examples=3, longest_example=9))
    assert [one.name for one in result.examples] == [TEXTS[0], TEXTS[3], TEXTS[5]]
    for example in result.examples:
        batch = next(encoded(bert, [example.name]).batches())
        for reading in read_attention(bert, batch.inputs):
            attention = reading.attention[0].numpy()
            assert np.allclose(example.attention[reading.layer], attention, rtol=1e-6, atol=0.0)  # kept in float32
            assert np.array_equal(example.selected[reading.layer], attention.argmax(axis=-1))
            order = np.sort(reading.logits[0].numpy(), axis=-1)
            assert np.allclose(example.margins[reading.layer], order[..., -1] - order[..., -2], rtol=0.0, atol=1e-10)


def test_causal_models_omit_the_first_query():
    model = tiny_llama()
    result = probe_model(model, encoded(model))
    lengths = np.array([len(one) for one in encoded(model).ids])
    assert result.mean_tokens == pytest.approx(
        (lengths * (lengths + 1) / 2 - 1).sum() / (lengths - 1).sum(), rel=SIX_DIGITS, abs=ROUNDING
    )
    assert np.isnan(result["first_nnz"]).all()
    assert "first_nnz" not in [measure.name for measure in result.shown]
    assert all(one.selected[0, 0, 0] == -1 for one in result.examples)


def test_rotary_models_have_a_reason_for_no_w_and_take_an_offset():
    model = tiny_llama()
    without = probe_model(model, encoded(model), ProbeSettings(max_margin=True))
    assert np.isnan(without["frobenius"]).all()
    assert not without.has_max_margin
    assert [note.code for note in without.notes] == ["note.offset_needed_for_norms", "note.offset_needed_for_margins"]
    stated = probe_model(model, encoded(model), ProbeSettings(offset=1))
    assert np.isfinite(stated["frobenius"]).all()
    assert stated.notes == (Fact("note.norms_at_offset", {"offset": 1}),)
    assert np.array_equal(stated["nnz"], without["nnz"])


def test_images_are_probed_with_the_map_of_the_first_token():
    settings = ImageSettings(1, 6, 6, (2, 2))
    images = ImageInputs(np.random.default_rng(0).normal(size=(5, 1, 6, 6)).astype(np.float32), settings)
    result = probe_model(tiny_vit(), images, ProbeSettings(examples=2))
    assert (result.n_inputs, result.n_queries, result.mean_tokens) == (5, 50, 10.0)
    assert [one.grid for one in result.examples] == [(3, 3)] * 2
    assert result.examples[1].name == "image 1"
    assert result.examples[0].attention.shape == (2, 2, 1, 10)
    assert np.isfinite(result["first_nnz"]).all()


def test_json_is_plain_and_finite(bert):
    result = probe_model(bert, encoded(bert), ProbeSettings(max_margin=True))
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert np.allclose(plain["measures"]["nnz"], result["nnz"], rtol=1e-5, atol=0.0)  # six digits
    assert np.shape(plain["max_margin"]["correlation"]) == (2, 2)
    assert plain["examples"][0]["tokens"][0] == "[CLS]"
    assert plain["settings"]["max_margin"] is True
    assert set(plain["measures"]) | set(plain["max_margin"]) == set(result.measures)
    keys = {*plain, *plain["examples"][0], *plain["preferences"][0], *plain["graphs"][0]}
    page = (Path(__file__).parents[2] / "docs" / "probe.md").read_text(encoding="utf-8")
    assert not [one for one in keys if f"`{one}`" not in page]


def test_the_benchmark_times_probe_and_model(bert, monkeypatch):
    from benchmarks import probe as bench

    class Tokenizer:
        """Words of the tiny model, whatever the text."""

        pad_token_id = 0

        def __call__(self, texts, **options):
            return {"input_ids": [[2, *(5 + len(word) % 9 for word in text.split()[:12]), 3] for text in texts]}

        def convert_ids_to_tokens(self, ids):
            return [str(one) for one in ids]

    monkeypatch.setattr(bench, "load_model", lambda name: LoadedModel(bert, Tokenizer(), None, name))
    monkeypatch.setattr(bench, "SENTENCES", 230)
    monkeypatch.setattr(bench, "SEPARATED", 5)
    alone, plain, separated, summary = bench.bench_probe()
    assert [row["sentences"] for row in (alone, plain, separated)] == [230, 230, 5]
    assert summary["over_the_model_alone"] == plain["seconds"] / alone["seconds"]
    assert 0.0 < alone["peak_gigabytes"] <= separated["peak_gigabytes"]
    assert bench._sentences(201)[-1] == example_sentences()[0]


def test_preferences_follow_the_selections_of_a_head(bert):
    result, inputs = probe_model(bert, encoded(bert), ProbeSettings(preferences=3)), encoded(bert)
    selected = {}
    for batch in inputs.batches():
        (reading,) = read_attention(bert, batch.inputs, layers=[1])
        for row, place in enumerate(batch.index.tolist()):
            selected[place] = reading.attention[row, 0, : len(batch.tokens[row])].numpy().argmax(axis=-1)
    found = head_preferences(visible_types([*map(np.array, inputs.ids)]), [selected[k] for k in range(len(inputs))])
    assert result.preferences[1, 0] == found.strongest(3, inputs.names())
    assert result["contested_share"][1, 0] == pytest.approx(found.contested_share, rel=SIX_DIGITS, abs=ROUNDING)
    assert result["strict_share"][1, 0] == pytest.approx(found.strict_share, rel=SIX_DIGITS, abs=ROUNDING)
    assert result.graphs[1, 0].to_dict() == found.strongest_graph(inputs.names()).to_dict()
    none = probe_model(bert, encoded(bert), ProbeSettings(preferences=0))
    assert (none.preferences, none.graphs, none.notes) == ({}, {}, ())
    assert probe_model(bert, encoded(bert, TEXTS[:1])).notes[-1].code == "note.no_preferences"
    assert np.isnan(none["strict_share"]).all()


def test_a_heat_map_has_the_values_of_its_measure(found):
    axes = found.plot(measure="nnz")
    assert np.array_equal(axes.images[0].get_array(), found["nnz"])
    assert found.plot(axes) is axes
    assert str(main_results(found)[0]) in found._repr_html_()
    with refused("name"):
        found["sparsity"]


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])
def test_max_margin_numbers_equal_those_of_each_layer(make):
    """Rotary models are asked for the selections of W at the offset."""
    model, offset = make(), 2 if make is tiny_llama else None
    settings = ProbeSettings(max_margin=True, max_margin_inputs=4, queries=2, seed=3, offset=offset)
    result = probe_model(model, encoded(model), settings)
    inputs = encoded(model, [TEXTS[k] for k in (0, 1, 3, 4)])
    tokens, masks = {}, {}
    for batch in inputs.batches():
        (reading,) = read_attention(model, batch.inputs, layers=[1])
        for row, place in enumerate(batch.index.tolist()):
            n = len(batch.tokens[row])
            tokens[place], masks[place] = reading.inputs[row, :n].numpy(), reading.visible[row, :n, :n].numpy()
    options = MaxMarginSettings(queries_per_input=2, seed=3)
    sample = sample_queries([tokens[k] for k in range(4)], [masks[k] for k in range(4)], options)
    adapter = adapter_for(model)
    maps = [adapter.key_query(1, head, offset) for head in range(adapter.n_heads)]
    for head, expected in enumerate(layer_margins(sample, maps, options)):
        for name in ("correlation", "margin_ratio", "low_ratio", "n_constraints"):
            own = getattr(expected.own, name)
            assert result[name][1, head] == pytest.approx(own, rel=FUSED, abs=ROUNDING), name
        draws = [match.correlation for match in expected.random_head]
        assert result["correlation_random_head"][1, head] == pytest.approx(np.mean(draws), rel=FUSED, abs=ROUNDING)
    assert np.nanmax(result["margin_ratio"]) <= 1.0 + 1e-6  # the best margin is the best, to the solver's accuracy
    assert result.w_offset == offset
    about = [note.numbers for note in result.notes if note.code == "note.max_margin_of_w"]
    assert [(numbers["case"], numbers["offset"]) for numbers in about] == [("at_offset", 2)] * int(offset is not None)


def test_preferences_are_counted_among_visible_tokens():
    """A window in the second layer changes nothing in the first."""
    windows = ({}, {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1})
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    models = [drawn("Qwen2", {**TEXT, **heads, **window}).float() for window in windows]
    whole, windowed = (probe_model(model, encoded(model)) for model in models)
    for head in range(2):
        assert windowed.preferences[0, head] == whole.preferences[0, head]
        assert windowed.preferences[1, head] != whole.preferences[1, head]
        # a query that sees two tokens and both of a pair chooses between these
        assert all(one.met == one.wins + one.losses for one in windowed.preferences[1, head])
    assert np.array_equal(windowed["contested_share"][0], whole["contested_share"][0])
    assert windowed.mean_tokens < whole.mean_tokens


def silent(model, layer=0, name="key"):
    """The model with the first head of a layer without queries or keys, so that all its logits are equal."""
    module = getattr(adapter_for(model).attention_module(layer), name)
    with torch.no_grad():
        module.weight[: adapter_for(model).shape(layer).d_head] = 0.0
        if module.bias is not None:
            module.bias[: adapter_for(model).shape(layer).d_head] = 0.0
    return model


@pytest.fixture(scope="module")
def tied():
    model = silent(tiny_bert())
    return probe_model(model, encoded(model), ProbeSettings(max_margin=True, queries=2))


@pytest.mark.parametrize(("dtype", "most"), [("float16", 0.2), ("float32", 1e-3)])
def test_a_selection_changed_by_rounding_is_tied(dtype, most):
    model = tiny_bert(sharpness=2.0).to(getattr(torch, dtype))
    texts = [" ".join(np.random.default_rng(k).permutation(TEXTS[4].split())) for k in range(50)]
    changed, n_tied, n = 0, 0, 0
    for batch in encoded(model, texts).batches():
        for reading in read_attention(model, batch.inputs):
            X = reading.inputs.double().numpy()
            for head in range(2):
                map_ = adapter_for(model).key_query(reading.layer, head)
                exact = (X @ (map_.matrix @ X.transpose(0, 2, 1) + map_.bias_column[:, None])).transpose(0, 2, 1)
                rounding = reading.rounding[:, head].double().numpy()
                chosen = select_tokens(reading.logits[:, head].double().numpy(), rounding=rounding)
                differs = chosen.selected != exact.argmax(axis=-1)
                assert (chosen.n_tied[differs] > 1).all()
                changed, n_tied, n = changed + differs.sum(), n_tied + (chosen.n_tied > 1).sum(), n + differs.size
    assert n_tied <= most * n
    assert changed > 0 or dtype == "float32"


def test_a_head_with_equal_logits_selects_nothing(tied):
    assert tied["tied_share"][0, 0] == 1.0
    assert tied["tied_share"].ravel()[1:].tolist() == [0.0, 0.0, 0.0]
    for name in ("self_share", "first_share", "previous_share", "decisive_share", "margin_median", "margin_low"):
        assert tied[name][0, 0] == 0.0, name
    assert tied["relative_nnz"][0, 0] == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)
    assert (0, 0) not in tied.graphs
    assert tied.preferences[0, 0] == ()
    assert np.isnan(tied["contested_share"][0, 0])
    assert (tied.examples[0].selected[0, 0] == -1).all()
    assert (tied.examples[0].margins[0, 0] == 0.0).all()
    assert (tied.examples[0].selected[0, 1] >= 0).all()


def test_an_omitted_max_margin_part_is_counted(tied):
    assert tied["n_tied"][0, 0] > 0
    assert tied["n_constraints"][0, 0] == 0
    for name in ("correlation", "margin_ratio", "low_ratio", "correlation_random_head", "margin_ratio_random_head"):
        assert np.isnan(tied[name][0, 0]), name
    assert np.isfinite(tied["correlation"].ravel()[1:]).all()
    assert Fact("note.no_solution", {"count": 1, "case": "trivial"}) in tied.notes
    assert tied.notes[-1] == Fact("note.ties", {"n_heads": 1, "most": int(tied["n_tied"][0, 0])})


SHARPNESS = {"epoch-1": 0.2, "epoch-2": 1.0, "epoch-10": 5.0}  # by name epoch-10 comes second


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    training = tmp_path_factory.mktemp("training")
    for name, sharpness in SHARPNESS.items():
        save(tiny_bert(sharpness=sharpness), training / name)
    (training / "logs").mkdir()
    return training


def ranks(curves, name):
    return [test.correlation for test in curves.trends(name)]


@pytest.fixture(scope="module")
def curves(folder):
    return probe_checkpoints(folder, list(TEXTS))


def test_sparsity_of_scaled_checkpoints_falls_as_norms_grow(folder, curves):
    assert curves.names == tuple(SHARPNESS)
    assert curves.steps.tolist() == [1.0, 2.0, 10.0]
    assert np.allclose(ranks(curves, "relative_nnz"), -1.0, rtol=0.0, atol=EXACT)
    assert np.allclose(ranks(curves, "frobenius"), 1.0, rtol=0.0, atol=EXACT)
    growth = curves.measures["frobenius"] / curves.measures["frobenius"][0]
    # the keys of one model, multiplied; the weights are stored in float64 and loaded so
    assert np.allclose(growth, np.array([1.0, 5.0, 25.0])[:, None, None], rtol=1e-6, atol=0.0)
    alone = probe_model(load_model(folder / "epoch-10"), list(TEXTS))
    for name, values in alone.measures.items():
        assert np.array_equal(curves.measures[name][2], values, equal_nan=True), name


@pytest.fixture(scope="module")
def with_margins(folder):
    return probe_checkpoints(folder, list(TEXTS), ProbeSettings(max_margin=True, queries=2))


def test_every_checkpoint_has_its_max_margin_part(folder, with_margins):
    for k, name in enumerate(SHARPNESS):
        alone = probe_model(load_model(folder / name), list(TEXTS), ProbeSettings(max_margin=True, queries=2))
        for measure, values in alone.measures.items():
            assert np.array_equal(with_margins.measures[measure][k], values, equal_nan=True), measure
    assert alone.notes[0] in with_margins.notes
    figure = draw_curves(with_margins)
    drawn = {axes.get_title(): axes for axes in figure.axes}
    lines = drawn["correlation of W with the max-margin W"].lines
    assert [line.get_label() for line in lines[2:]] == ["baseline: random head"]
    random = with_margins.measures["correlation_random_head"]
    assert np.allclose(lines[-1].get_ydata(), np.nanmean(random, axis=(1, 2)), rtol=0.0, atol=EXACT)
    assert all(line.get_linestyle() == "--" for line in lines[2:])  # dashed, whatever the dashes
    assert len(drawn["smallest margin over the best"].lines) == 3
    assert with_margins.rows()[2]["correlation: this head"] == with_margins.by_layer("correlation")[2, -1]


def test_heads_without_a_solution_are_left_out_and_counted(folder, monkeypatch):
    def without(sample, heads, settings):
        first, *others = layer_margins(sample, heads, settings)
        return (dataclasses.replace(first, own=dataclasses.replace(first.own, correlation=float("nan"))), *others)

    monkeypatch.setattr("marginlens.probe.run.layer_margins", without)
    curves = probe_checkpoints(folder, list(TEXTS), ProbeSettings(max_margin=True))
    assert np.isnan(curves.measures["correlation"][:, :, 0]).all()
    assert np.array_equal(curves.by_layer("correlation"), curves.measures["correlation"][:, :, 1])
    counts = {"n_checkpoints": 3, "total": 3, "most": 2}
    assert curves.notes[-1] == Fact("note.checkpoints_without_solution", counts)
    assert "note.no_solution" not in [note.code for note in curves.notes]


def test_curves_convert_to_rows_json_and_a_figure(curves):
    rows = curves.rows()
    assert [row["checkpoint"] for row in rows] == list(SHARPNESS)
    assert rows[1]["nnz/T"] == curves.measures["relative_nnz"][1, -1].mean()
    assert curves.rows(0)[1]["nnz/T"] == curves.measures["relative_nnz"][1, 0].mean()
    plain = json.loads(json.dumps(curves.to_dict(), allow_nan=False))
    assert np.shape(plain["measures"]["entropy"]) == (3, 2, 2)
    assert plain["trends"]["frobenius"] == [1.0, 1.0]
    page = (Path(__file__).parents[2] / "docs" / "probe.md").read_text(encoding="utf-8")
    assert not [one for one in plain if f"`{one}`" not in page]
    figure = draw_curves(curves)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        "nnz/T, all queries",
        "nnz/T, query of the first token",
        "Frobenius norm of W",
        "median logit margin of the selection",
    ]
    line = curves.plot(figure.axes[0]).lines[1]
    assert np.array_equal(line.get_ydata(), curves.by_layer("relative_nnz")[:, 1])


@pytest.mark.parametrize("n", [4, 6])
def test_rank_tests_up_to_eight_points_are_exact(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n))
    exact = stats.permutation_test(
        (a,), lambda x: stats.spearmanr(x, b).statistic, permutation_type="pairings", n_resamples=np.inf
    )
    found = rank_test(a, b)
    assert found.correlation == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12, rel=0.0)
    assert found.p_value == pytest.approx(exact.pvalue, abs=1e-3, rel=0.0)


def test_perfect_orders_of_few_points_are_common_by_chance():
    assert rank_test(np.arange(2.0), np.arange(2.0)) == (pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING), 1.0)
    assert rank_test(np.arange(4.0), np.arange(4.0)).p_value == pytest.approx(2 / 24, rel=SIX_DIGITS, abs=ROUNDING)


def test_sinks_are_the_most_attended_tokens(bert):
    data, result = encoded(bert), probe_model(bert, encoded(bert))
    attention, seen = Counter(), Counter()
    for batch in data.batches():
        for reading in read_attention(bert, batch.inputs):
            for row, tokens in enumerate(batch.tokens):
                n = len(tokens)
                for k, token in enumerate(tokens):
                    for name in [repr(token)] + ["the first token"] * (k == 0):
                        attention[name] += float(reading.attention[row, :, :n, k].sum())
                        seen[name] += 2 * n
    first = ("the first token",)
    total, pairs = (sum(count for name, count in counts.items() if name not in first) for counts in (attention, seen))
    expected = sorted(attention, key=lambda name: seen[name] / pairs - attention[name] / total)[:3]
    assert {row.name for row in result.sinks} <= set(expected)
    for row in result.sinks:
        assert row.share == pytest.approx(attention[row.name] / total, rel=SIX_DIGITS, abs=ROUNDING)
        assert row.expected == pytest.approx(seen[row.name] / pairs, rel=SIX_DIGITS, abs=ROUNDING)
        assert row.share > row.expected
    assert any(result.sinks[0].name == row[0] for row in answers(result)[0].rows)


def test_decoder_maps_start_with_the_start_token():
    model = small_model("bart", torch.float64)
    ids = tuple(tuple(row) for row in ([7, 8, 9, 7, 11], [12, 7, 14, 15], [9, 8, 9, 21, 30]))
    names = tuple(tuple(f"w{k}" for k in row) for row in ids)
    inputs = TextInputs(tuple(map(str, ids)), ids, names, 0, 16, 0)
    result = probe_model(model, inputs, ProbeSettings(examples=3, max_margin=True))
    assert result.layer_names == ("encoder 0", "encoder 1", "decoder 0", "cross 0", "decoder 1", "cross 1")
    assert [result.head_name(0, 1), result.head_name(3, 0)] == ["encoder 0 H1", "cross 0 H0"]
    decoded = tuple((model.config.decoder_start_token_id, *row[:-1]) for row in ids)
    assert [example.decoder_tokens for example in result.examples] == [("[start]", *row[:-1]) for row in names]
    read = ("[start]", *names[0][:-1])
    for row in result.examples[0].to_frame().to_dict("records"):
        tower = result.layer_names[row["layer"]].split()[0]
        assert row["token"] == (names[0] if tower == "encoder" else read)[row["query"]]
        attended = read if tower == "decoder" else names[0]
        assert row["selected_token"] == (attended[row["selected"]] if row["selected"] >= 0 else "")
    received = Counter()
    for place, example in enumerate(result.examples):
        batch = {"input_ids": [ids[place]], "decoder_input_ids": [decoded[place]]}
        for reading in read_attention(model, batch):
            n_heads = reading.attention.shape[1]
            assert np.allclose(
                example.attention[reading.layer, :n_heads], reading.attention[0].numpy(), rtol=0.0, atol=1e-6
            )
            assert not example.attention[reading.layer, n_heads:].any()
            attended = decoded[place] if result.layer_names[reading.layer].startswith("decoder") else ids[place]
            counted = (reading.visible[0].sum(dim=-1) >= 2).numpy()
            for k, token in enumerate(attended):
                received[reading.layer, token] += float(reading.attention[0, 0, counted, k].sum())
    for (layer, head), row in result.head_sinks.items():
        if head == 0 and row.name.startswith("'w"):
            total = sum(mass for (other, _), mass in received.items() if other == layer)
            assert row.share == pytest.approx(
                received[layer, int(row.name[2:-1])] / total, rel=SIX_DIGITS, abs=ROUNDING
            )
    assert any(head == 0 and row.name.startswith("'w") for (_, head), row in result.head_sinks.items())
    assert "cross 1" in probe_page(result)
    assert any(layer == 5 for layer, _ in result.preferences)


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_a_long_input_allocates_no_quadratic_map(family, monkeypatch):
    """No operation of the model's run and of all that is measured gives a tensor of a quarter of such a map."""
    transformers = pytest.importorskip("transformers")
    from torch.utils._python_dispatch import TorchDispatchMode

    from marginlens.probe.heads import statistics

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            for part in found if isinstance(found, tuple) else (found,):
                self.size = max(self.size, part.untyped_storage().nbytes() if isinstance(part, torch.Tensor) else 0)
            return found

    n_tokens = 1024
    monkeypatch.setitem(statistics._BLOCK_ENTRIES, "cpu", 2**14)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1, "vocab_size": 12}
    sizes |= {"max_position_embeddings": n_tokens, "bos_token_id": 0, "eos_token_id": 0}
    options = {"intermediate_size": 16} if family == "Llama" else {}
    config = getattr(transformers, f"{family}Config")(**sizes, **options)
    model = getattr(transformers, f"{family}ForCausalLM" if family == "Llama" else "GPT2LMHeadModel")(config)
    ids = tuple(np.random.default_rng(0).integers(1, 12, size=n_tokens).tolist())
    inputs = TextInputs(("long",), (ids,), (tuple(map(str, ids)),), 0, n_tokens, 0)
    with Largest() as largest:
        result = probe_model(model, inputs)
    assert 0 < largest.size < 4 * n_tokens**2 / 4
    assert np.isfinite(result["entropy"]).all()
    assert result["nnz"].mean() > 100.0
