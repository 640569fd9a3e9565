"""The probe against loops over single inputs: sums over batches, quantiles of margins, examples, and what is said instead of a number."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.probe.example_maps import ExampleMaps
from marginlens.probe.heads.max_margin import layer_margins
from marginlens.probe.heads.max_margin_sample import MaxMarginSettings
from marginlens.probe.models.image_inputs import ImageInputs, ImageSettings
from marginlens.probe.models.loading import LoadedModel
from marginlens.probe.models.reading import read_attention
from marginlens.probe.run import probe_model
from marginlens.probe.run_margins import layer_sample
from marginlens.probe.sentences import KINDS, own_sentences
from marginlens.probe.settings import ProbeSettings
from marginlens.runtime.progress import Silence
from marginlens.svm.solution import Status
from tiny_transformers import TEXTS, encoded, tiny_bert, tiny_llama, tiny_vit

EXACT = 1e-12  # float64 sums of a few dozen terms in another order
BIN = 10.0 ** (0.5 / 400) - 1.0  # half the width of a bin of margins


@pytest.fixture(scope="module")
def bert():
    return tiny_bert()


@pytest.fixture(scope="module")
def found(bert):
    return probe_model(bert, encoded(bert))


def by_hand(model, texts=TEXTS):
    """Every query of every text on its own, from the model's own attention: (layer, head) → rows of numbers."""
    import torch

    rows = {}
    inputs = encoded(model, texts)
    for ids in inputs.ids:
        with torch.no_grad():
            maps = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        for layer, one in enumerate(maps):
            for head, attention in enumerate(one[0].numpy()):
                for query, row in enumerate(attention):
                    seen = row[: query + 1] if model.config.model_type == "llama" else row
                    if len(seen) < 2:
                        continue
                    order = np.sort(np.log(seen))
                    chosen = int(np.argmax(seen))
                    numbers = {
                        "nnz": 1.0 / np.sum(seen**2),
                        "relative_nnz": 1.0 / np.sum(seen**2) / len(seen),
                        "entropy": -np.sum(seen * np.log(seen)),
                        "top_probability": seen.max(),
                        "decisive_share": seen.max() > 0.5,
                        "self_share": chosen == query,
                        "first_share": chosen == 0,
                        "last_share": chosen == len(seen) - 1,
                    }
                    rows.setdefault((layer, head), []).append((query, order[-1] - order[-2], numbers))
    return rows


def test_batches_give_the_averages_of_single_inputs(bert, found):
    for (layer, head), rows in by_hand(bert).items():
        for name in rows[0][2]:
            mean = np.mean([numbers[name] for _, _, numbers in rows])
            assert abs(found.measure(name)[layer, head] - mean) < EXACT, name
        first = [numbers for query, _, numbers in rows if query == 0]
        for name in ("nnz", "relative_nnz", "entropy", "top_probability"):
            assert abs(found.measure(f"first_{name}")[layer, head] - np.mean([one[name] for one in first])) < EXACT, (
                name
            )


def test_margins_have_the_quantiles_of_all_margins(bert, found):
    for (layer, head), rows in by_hand(bert).items():
        margins = np.sort([margin for _, margin, _ in rows])
        for name, share in (("margin_median", 0.5), ("margin_low", 0.05)):
            exact = np.quantile(margins, share, method="inverted_cdf")
            assert found.measure(name)[layer, head] == pytest.approx(exact, rel=1.01 * BIN)
        assert found.margins.counts[layer, head].sum() == len(margins) == found.n_queries


def test_sizes_are_those_of_the_inputs(found):
    lengths = np.array([len(text.split()) + 2 for text in TEXTS])
    assert found.n_inputs == len(TEXTS)
    assert found.n_queries == lengths.sum()
    assert found.mean_tokens == pytest.approx(np.sum(lengths**2) / lengths.sum())
    assert repr(found).startswith("ProbeResult(BertModel: 2 layers of 2 heads on 6 inputs, mean nnz/T 0.")


def test_norms_are_those_of_the_combined_matrix(bert, found):
    query = bert.encoder.layer[1].attention.self.query.weight.detach().numpy()[8:]
    key = bert.encoder.layer[1].attention.self.key.weight.detach().numpy()[8:]
    values = np.linalg.svd(key.T @ query / np.sqrt(8.0), compute_uv=False)
    assert found.heads.frobenius[1, 1] == pytest.approx(np.sqrt(np.sum(values**2)), rel=EXACT)
    assert found.heads.spectral[1, 1] == pytest.approx(values[0], rel=EXACT)
    assert found.heads.nuclear[1, 1] == pytest.approx(values.sum(), rel=EXACT)


def test_the_order_of_inputs_does_not_matter(bert, found):
    turned = probe_model(bert, encoded(bert, TEXTS[::-1]))
    for name, values in found.heads:
        assert np.allclose(turned.measure(name), values, rtol=EXACT, atol=EXACT), name


def test_examples_hold_the_attention_of_their_input(bert):
    result = probe_model(bert, encoded(bert), ProbeSettings(examples=3, longest_example=9))
    assert [one.name for one in result.examples] == [TEXTS[0], TEXTS[3], TEXTS[5]]
    for example in result.examples:
        batch = next(encoded(bert, [example.name]).batches())
        for reading in read_attention(bert, batch.inputs):
            attention = reading.attention[0].numpy()
            assert np.allclose(example.attention[reading.layer], attention, rtol=1e-6)  # kept in float32
            assert np.array_equal(example.selected[reading.layer], attention.argmax(axis=-1))
            order = np.sort(reading.logits[0].numpy(), axis=-1)
            assert np.allclose(example.margins[reading.layer], order[..., -1] - order[..., -2], atol=1e-10)


def test_of_a_long_text_only_the_first_query_is_kept(bert):
    result = probe_model(bert, encoded(bert, [TEXTS[4]]), ProbeSettings(longest_example=5))
    (example,) = result.examples
    assert example.attention.shape == (2, 2, 1, 14)
    assert example.grid is None


def test_causal_models_leave_out_the_query_that_sees_itself():
    model = tiny_llama()
    result = probe_model(model, encoded(model))
    for (layer, head), rows in by_hand(model).items():
        for name in rows[0][2]:
            mean = np.mean([numbers[name] for _, _, numbers in rows])
            # the family takes its softmax in float32
            assert result.measure(name)[layer, head] == pytest.approx(mean, abs=1e-6), name
    lengths = np.array([len(one) for one in encoded(model).ids])
    assert result.mean_tokens == pytest.approx((lengths * (lengths + 1) / 2 - 1).sum() / (lengths - 1).sum())
    assert np.isnan(result.heads.first_nnz).all()
    assert "first_nnz" not in [one.name for one in result.measures]
    assert all(one.selected[0, 0, 0] == -1 for one in result.examples)


def test_rotary_models_say_why_w_is_missing_and_take_an_offset():
    model = tiny_llama()
    without = probe_model(model, encoded(model), ProbeSettings(max_margin=True))
    assert np.isnan(without.heads.frobenius).all()
    assert without.max_margin is None
    assert [note.split(":")[0] for note in without.notes] == [
        "W has no norms here",
        "There is no max-margin part",
    ]
    assert without.notes[1].endswith("State an offset to have it for W at that offset.")
    stated = probe_model(model, encoded(model), ProbeSettings(offset=1))
    assert np.isfinite(stated.heads.frobenius).all()
    assert stated.notes == ("W and its norms are those at offset 1, query position minus key position.",)
    assert np.array_equal(stated.heads.nnz, without.heads.nnz)


def test_rotary_models_are_asked_for_the_selections_of_w_at_the_offset():
    import torch

    from marginlens.probe.heads.max_margin import selected_tokens
    from marginlens.probe.models.adapters import adapter_for

    model, offset = tiny_llama(), 2
    result = probe_model(model, encoded(model), ProbeSettings(max_margin=True, offset=offset, queries=2))
    told = MaxMarginSettings(queries_per_input=2)
    agreed = np.zeros((2, 4))
    for layer in range(2):
        sample = layer_sample(model, encoded(model), layer, told)
        maps = [adapter_for(model).key_query(layer, head, offset) for head in range(4)]
        found = [one.own.correlation for one in layer_margins(sample, maps, told)]
        assert np.array_equal(result.max_margin.correlation[layer], found, equal_nan=True)
        starts = np.cumsum([0, *(len(ids) for ids in encoded(model).ids)])
        for head in range(4):
            made = selected_tokens(sample, maps[head])
            for (place, position), chosen in zip(sample.places, made, strict=True):
                ids = torch.tensor([encoded(model).ids[place]])  # one text without padding, by the model alone
                with torch.no_grad():
                    row = model(input_ids=ids, output_attentions=True).attentions[layer][0, head, position]
                agreed[layer, head] += (chosen == starts[place] + int(row.argmax())) / len(made)
    assert 0.0 < agreed.min() < agreed.max() < 1.0
    assert result.w_offset == 2
    assert result.notes[-1].startswith("The max-margin part is about W at offset 2, not about the heads at all offsets")
    assert result.notes[-1].endswith(
        f"They are the selections of the model itself in {agreed.mean():.0%} of these queries "
        f"(mean over heads, from {agreed.min():.0%} to {agreed.max():.0%})."
    )
    notes = probe_model(tiny_bert(), encoded(tiny_bert()), ProbeSettings(offset=2)).notes
    assert [note[:33] for note in notes if "offset" in note] == ["The offset 2 is without effect: t"]


def test_images_are_probed_with_the_map_of_the_first_token():
    settings = ImageSettings(1, 6, 6, (2, 2))
    images = ImageInputs(np.random.default_rng(0).normal(size=(5, 1, 6, 6)).astype(np.float32), settings)
    result = probe_model(tiny_vit(), images, ProbeSettings(examples=2))
    assert (result.n_inputs, result.n_queries, result.mean_tokens) == (5, 50, 10.0)
    assert [one.grid for one in result.examples] == [(3, 3)] * 2
    assert result.examples[1].name == "image 1"
    assert result.examples[0].attention.shape == (2, 2, 1, 10)
    assert np.isfinite(result.heads.first_nnz).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_examples_of_images_hold_their_bytes(channels):
    from marginlens.probe.models.image_inputs import prepare_images

    settings = ImageSettings(channels, 6, 6, (2, 2), mean=(0.3,) * channels, std=(0.4,) * channels)
    images = np.random.default_rng(0).integers(0, 256, size=(2, 6, 6, channels), dtype=np.uint8)
    examples = ExampleMaps(prepare_images(images, settings), ProbeSettings(examples=2), 4)
    assert np.array_equal([examples.image(place) for place in range(2)], images)
    levels = np.linspace(-9.0, 9.0, 36 * channels).reshape(1, channels, 6, 6)
    shares = ImageSettings(channels, 6, 6, (2, 2), mean=(0.0,), std=(1.0,), rescale=1.0)
    for inputs in (ImageInputs(levels, settings), ImageInputs((levels + 9.0) / 18.0, shares)):
        stretched = ExampleMaps(inputs, ProbeSettings(), 4).image(0)
        assert (stretched.min(), stretched.max()) == (0, 255)


def test_max_margin_numbers_are_those_of_each_layer(bert):
    from marginlens.probe.models.adapters import adapter_for

    asked = ProbeSettings(max_margin=True, max_margin_inputs=4, queries=2, seed=3)
    result = probe_model(bert, encoded(bert), asked)
    told = MaxMarginSettings(queries_per_input=2, seed=3)
    sample = layer_sample(bert, encoded(bert, [TEXTS[k] for k in (0, 1, 3, 4)]), 1, told)
    maps = [adapter_for(bert).key_query(1, head) for head in range(2)]
    assert result.max_margin is not None
    for head, expected in enumerate(layer_margins(sample, maps, told)):
        assert result.max_margin.correlation[1, head] == expected.own.correlation
        assert result.max_margin.margin_ratio[1, head] == expected.own.margin_ratio
        assert result.max_margin.n_constraints[1, head] == expected.own.n_constraints
        draws = [one.correlation for one in expected.random_head]
        assert result.max_margin.correlation_random_head[1, head] == np.mean(draws)
    assert (
        np.nanmax(result.max_margin.margin_ratio) <= 1.0 + 1e-6
    )  # the best margin is the best, to the solver's accuracy
    assert result.notes[-1].startswith("The max-margin part asks each head about up to 8 queries of 4 inputs")


def test_json_is_plain_and_finite(bert):
    result = probe_model(bert, encoded(bert), ProbeSettings(max_margin=True))
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert np.allclose(told["measures"]["nnz"], result.heads.nnz, rtol=1e-5)  # six digits
    assert np.shape(told["max_margin"]["correlation"]) == (2, 2)
    assert told["examples"][0]["tokens"][0] == "[CLS]"
    assert told["settings"]["max_margin"] is True
    assert set(told["measures"]) == {name for name, _ in result.heads}
    keys = {*told, *told["examples"][0], *told["preferences"][0], *told["graphs"][0]}
    page = (Path(__file__).parents[2] / "docs" / "probe.md").read_text(encoding="utf-8")
    assert not [one for one in keys if f"`{one}`" not in page]


def test_progress_reaches_what_it_promised(bert):
    class Counter(Silence):
        total = done = 0

        def expect(self, total):
            self.total = total

        def advance(self, units=1):
            self.done += units

    counter = Counter()
    probe_model(bert, encoded(bert), ProbeSettings(max_margin=True), progress=counter)
    assert counter.done == counter.total == len(TEXTS) + 4


def test_texts_need_a_tokenizer(bert):
    with pytest.raises(InputError, match="The 'inputs' argument must be TextInputs, ImageInputs, or texts together"):
        probe_model(bert, ["the cat"])
    one = dataclasses.replace(encoded(bert, ["ran"]), ids=((5,),), tokens=(("the",),))
    with pytest.raises(InputError, match="inputs with at least two tokens"):
        probe_model(LoadedModel(bert, None, None, "tiny"), one)


def test_truncated_texts_are_mentioned(bert):
    for count, texts in ((1, "1 text was"), (2, "2 texts were")):
        cut = dataclasses.replace(encoded(bert), n_truncated=count)
        assert f"{texts} cut to the 16 tokens that the model can read." in probe_model(bert, cut).notes


@pytest.mark.parametrize(("name", "value"), [("queries", 0), ("max_margin", 1), ("offset", -1), ("longest_example", 1)])
def test_settings_refuse_what_cannot_be(name, value):
    with pytest.raises(InputError, match=f"The '{name}' argument must be"):
        ProbeSettings(**{name: value})


def test_unknown_measures_are_refused(found):
    with pytest.raises(InputError, match="The 'name' argument must be one of nnz, relative_nnz"):
        found.measure("sparsity")


def test_the_sentences_are_two_hundred_different_ones():
    own = own_sentences()
    assert len(own) == len(set(own)) == 20 * len(KINDS) == 200
    assert all(5 <= len(one.split()) <= 25 for one in own)


def test_the_benchmark_times_the_probe_beside_the_model(bert, monkeypatch):
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
    assert bench._sentences(201)[-1] == own_sentences()[0]


def test_preferences_count_who_was_selected_over_whom(bert):
    result = probe_model(bert, encoded(bert), ProbeSettings(preferences=3))
    wins, met = {}, {}
    for text in TEXTS:
        inputs = encoded(bert, [text])
        for reading in read_attention(bert, next(inputs.batches()).inputs, layers=[1]):
            tokens = inputs.tokens[0]
            for chosen in reading.attention[0, 0].numpy().argmax(axis=-1):
                for other in set(tokens):
                    for one in set(tokens) - {other}:
                        met[one, other] = met.get((one, other), 0) + 1
                    if other != tokens[chosen]:
                        wins[tokens[chosen], other] = wins.get((tokens[chosen], other), 0) + 1
    assert len(result.preferences[1, 0]) == 3
    for row in result.preferences[1, 0]:
        assert row.wins == wins[row.preferred, row.over]
        assert row.losses == wins.get((row.over, row.preferred), 0)
        assert row.met == met[row.preferred, row.over]
    contested = sum((b, a) in wins for a, b in wins) / 2
    decided = len({frozenset(pair) for pair in wins})
    assert result.heads.contested_share[1, 0] == pytest.approx(contested / decided)
    graph = result.graphs[1, 0]
    for (i, j), count in zip(graph.graph.edges, graph.graph.counts, strict=True):
        assert count == wins[graph.names[i], graph.names[j]]
    clear = {pair for pair, n in wins.items() if n >= 2 and n >= 0.9 * (n + wins.get(pair[::-1], 0))}
    among = {(a, b) for a, b in clear if a in graph.names and b in graph.names}
    assert {(graph.names[i], graph.names[j]) for i, j in graph.graph.edges} == among
    assert {row.preferred for row in result.preferences[1, 0]} <= set(graph.names)
    none = probe_model(bert, encoded(bert), ProbeSettings(preferences=0))
    assert (none.preferences, none.graphs, none.notes) == ({}, {}, ())
    assert probe_model(bert, encoded(bert, TEXTS[:1])).notes[-1].startswith("What heads prefer over what is left out")
    assert np.isnan(none.heads.strict_share).all()


def test_models_with_very_many_heads_keep_fewer_examples(bert, monkeypatch):
    from marginlens.probe import example_maps

    monkeypatch.setattr(example_maps, "_ENTRIES", 2 * 4 * 24**2)
    assert len(probe_model(bert, encoded(bert)).examples) == 2
    monkeypatch.setattr(example_maps, "_ENTRIES", 1)
    assert len(probe_model(bert, encoded(bert)).examples) == 1
    assert probe_model(bert, encoded(bert), ProbeSettings(examples=0)).examples == ()


def test_heads_whose_selections_no_w_makes_are_counted(bert, monkeypatch):
    from marginlens.probe import run_margins

    def without(sample, heads, settings):
        solved = layer_margins(sample, heads, settings)
        own = dataclasses.replace(solved[0].own, correlation=float("nan"), status=Status.INFEASIBLE)
        lost = dataclasses.replace(solved[0], own=own)
        return (lost, *solved[1:])

    monkeypatch.setattr(run_margins, "layer_margins", without)
    result = probe_model(bert, encoded(bert), ProbeSettings(max_margin=True))
    assert result.notes[-1] == "For 2 heads there is no max-margin solution: no W makes all their selections."
    assert json.loads(json.dumps(result.to_json()))["max_margin"]["correlation"][0][0] is None
