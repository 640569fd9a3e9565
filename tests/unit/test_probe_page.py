"""The page of a probe: it holds the numbers of the result, needs no other file, and no text of a user becomes markup."""

import base64
import dataclasses
import json
import re
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from made_up_probe import EVIL, HEADS, LAYERS, made_up_result
from marginlens.probe.measures import MEASURES, MaxMarginMeasures
from marginlens.probe.pages.findings import _share, findings
from marginlens.probe.pages.page import page_data, probe_page
from marginlens.probe.result import Example


def embedded(page):
    (text,) = re.findall(r'<script type="application/json" id="probe">(.*?)</script>', page, flags=re.S)
    return json.loads(text, parse_constant=pytest.fail)


def test_the_page_holds_every_measure():
    result = made_up_result()
    data = embedded(probe_page(result))
    assert [one["name"] for one in data["measures"]] == [one.name for one in MEASURES]
    for one in data["measures"]:
        assert np.allclose(one["values"], result.measure(one["name"]), rtol=1e-5)  # six digits
    assert data["preferences"] == {"1.2": [[EVIL, "two", 5, 1, 8]]}
    assert [name for *_, name in data["graphs"]["1.2"]["names"]] == ["two", EVIL[:15] + "…"]
    assert np.sum(data["margins"]["counts"]) == LAYERS * HEADS * 200


def test_a_page_that_belongs_to_another_links_to_it():
    assert '<a href="index.html">marginlens</a>' in probe_page(made_up_result(), back="index.html")


def test_maps_are_kept_to_the_nearest_of_256_levels():
    result = made_up_result()
    (example,) = page_data(result)["examples"]
    levels = np.frombuffer(base64.b64decode(example["maps"]), dtype=np.uint8).reshape(LAYERS, HEADS, 4, 4)
    assert np.abs(levels / 255.0 - result.examples[0].attention).max() <= 0.5 / 255.0 + 1e-7  # float32
    assert example["selected"] == result.examples[0].selected.tolist()


def test_images_stand_beside_maps_with_a_scale_of_their_own():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
    attention = (rng.dirichlet(np.ones(13), size=(LAYERS, HEADS, 1)) * 0.01).astype(np.float32)
    tokens = ("[CLS]", *(f"{k // 4},{k % 4}" for k in range(12)))
    chosen = attention.argmax(axis=-1)
    example = Example("image 0", tokens, np.arange(1), attention, chosen, rng.random((LAYERS, HEADS, 1)), (3, 4), image)
    (told,) = page_data(made_up_result(examples=(example,)))["examples"]
    levels = np.frombuffer(base64.b64decode(told["maps"]), dtype=np.uint8).reshape(attention.shape)
    peaks = np.array(told["peaks"])[..., None, None]
    assert (levels.max(axis=-1) == 255).all()
    assert np.abs(levels / 255.0 * peaks - attention).max() <= 0.51 / 255.0 * attention.max()  # peaks have six digits
    start, png = told["image"].split(",")
    assert start == "data:image/png;base64"
    assert np.array_equal(Image.open(BytesIO(base64.b64decode(png))), image)
    grey = dataclasses.replace(example, image=image[..., :1])
    png = page_data(made_up_result(examples=(grey,)))["examples"][0]["image"].split(",")[1]
    assert np.array_equal(Image.open(BytesIO(base64.b64decode(png))), image[..., 0])
    assert page_data(made_up_result())["examples"][0]["image"] is None


def test_what_has_no_number_is_left_out_or_null():
    result = made_up_result()
    frobenius = result.heads.frobenius.copy()
    frobenius[0, 1] = np.nan
    heads = dataclasses.replace(result.heads, frobenius=frobenius, first_nnz=np.full((LAYERS, HEADS), np.nan))
    data = embedded(probe_page(made_up_result(heads=heads, max_margin=None, seconds=float("nan"))))
    shown = {one["name"]: one["values"] for one in data["measures"]}
    assert shown["frobenius"][0][1] is None
    assert "first_nnz" not in shown
    assert "correlation" not in shown


def test_a_head_and_its_baselines_share_one_scale():
    result = made_up_result()
    shown = {one["name"]: one["range"] for one in page_data(result)["measures"]}
    together = [values for name, values in result.max_margin if name.startswith("correlation")]
    assert shown["correlation"] == shown["correlation_random_head"]
    assert shown["correlation"] == pytest.approx([np.min(together), np.max(together)], rel=1e-5)
    assert shown["nnz"] == pytest.approx([result.heads.nnz.min(), result.heads.nnz.max()], rel=1e-5)


def test_the_sentences_follow_the_numbers():
    flat = np.linspace(0.1, 0.9, LAYERS * HEADS).reshape(LAYERS, HEADS)
    heads = dataclasses.replace(
        made_up_result().heads, relative_nnz=flat, frobenius=10.0 - flat, first_share=np.where(flat > 0.5, 0.8, 0.2)
    )
    margin = dataclasses.replace(
        made_up_result().max_margin,
        correlation=flat,
        correlation_random_selections=np.full((LAYERS, HEADS), -0.25),
        correlation_random_head=np.full((LAYERS, HEADS), 0.5),
    )
    sparsity, layers, weights, selections, preferences, correlation, _ = findings(
        made_up_result(heads=heads, max_margin=margin)
    )
    assert "The sparsest head is L0H0 with nnz/T 0.10, the most even one L2H3 with 0.90." in sparsity
    assert layers.endswith("is 0.21, 0.50, 0.79.")
    assert "is −1.000: heads with larger key-query weights are on the whole sparser." in weights
    assert "6 select the first token" in selections
    assert preferences.startswith(f"A head decides {heads.contested_share.mean():.0%} of the pairs")
    assert "median 0.500 over heads (from 0.100 to 0.900)" in correlation
    assert "−0.250 at random selections" in correlation
    assert "that of random selections in 12 of 12 heads" in correlation
    assert "that of a random W at its own selections in 6 of 12: by this measure" in correlation
    assert "the typical head is about as max-margin as a random one." in correlation
    assert "that of L2H3, 0.900" in correlation
    margin = dataclasses.replace(margin, correlation_random_head=np.full((LAYERS, HEADS), 0.3))
    assert "is more max-margin than a random one." in findings(made_up_result(max_margin=margin))[-2]
    margin = dataclasses.replace(margin, correlation_random_head=np.full((LAYERS, HEADS), 0.7))
    assert "is less max-margin than a random one." in findings(made_up_result(max_margin=margin))[-2]
    at_offset = findings(made_up_result(max_margin=margin, w_offset=3))[-2]
    assert "W at offset 3 with the max-margin solution for the selections that this W makes has" in at_offset


def test_sentences_go_without_what_was_not_measured():
    nothing = np.full((LAYERS, HEADS), np.nan)
    heads = dataclasses.replace(made_up_result().heads, frobenius=nothing)
    said = findings(made_up_result(heads=heads, max_margin=None))
    assert len(said) == 4
    margin = MaxMarginMeasures(**{name: nothing for name, _ in made_up_result().max_margin})
    assert findings(made_up_result(max_margin=margin))[-1].startswith(
        "No head can be compared with a max-margin solution"
    )


@pytest.mark.parametrize(
    ("share", "words"), [(1.0, "100%"), (0.9991, "99.9%"), (0.99, "99%"), (0.5, "50%"), (0.001, "0.1%"), (0.0, "0%")]
)
def test_only_all_is_said_to_be_all_and_only_none_none(share, words):
    assert _share(share) == words
