"""The benchmark of text classifiers at a small size: every part has its rows, and the archive names no folder."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks import text as benchmark
from made_up_reviews import reviews
from marginlens.errors import InputError
from marginlens.text import baselines
from marginlens_papers.archive import results_folder
from one_command import command

SMALL = {
    "N_COMMON": 60,
    "N_RARE": 20,
    "N_IMBALANCED_DRAWS": 2,
    "FEW": (20, 40),
    "N_FEW_DRAWS": 2,
    "N_TEST": 40,
    "N_YELP_SPLITS": 2,
    "EXCERPTS": (3,),
    "LENGTHS": (0, 10),
    "N_EXPLAINED": 5,
    "N_FLIPPED_SPLITS": 2,
    "NOISE_SIZES": (60, 200),
    "N_NOISE_DRAWS": 2,
    "N_NOISE_TEST": 100,
    "NOISE_WORDS": 4,
    "N_NOISE_VOCABULARY": 30,
    "N_SIGNAL_VOCABULARY": 2,
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(benchmark, name, value)
    monkeypatch.setattr(baselines, "INVERSE_PENALTIES", (1.0, 10.0))
    texts, labels = reviews(240)
    parts = ["train" if i < 160 else "test" for i in range(240)]
    stars = [str(1 + (i // 2) % 2 + 3 * (label == "good")) for i, label in enumerate(labels)]
    starred = [f"{text} It has {number} stars." for text, number in zip(texts, stars, strict=True)]
    tables = {
        "imdb": [("text", "label", "split"), *zip(texts, labels, parts, strict=True)],
        "yelp": [("text", "stars"), *zip(starred, stars, strict=True)],
    }
    for name, rows in tables.items():
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows(rows)
    return {name: tmp_path / f"{name}.csv" for name in tables}


def test_every_part_has_its_rows(files, tmp_path):
    rows = benchmark.bench_text(**files)
    by_part = {part: [row for row in rows if row["part"] == part] for part in benchmark.PARTS}
    assert all(by_part.values())
    for part in ("imdb", "yelp", "stars"):
        ours, tfidf, *others, summary = by_part[part]
        assert ours["model"] == "attention"
        assert ours["accuracy"] > 0.7  # of a few made-up texts
        assert min(ours["cpu_seconds"], tfidf["cpu_seconds"]) > 0.0
        assert 0.0 < tfidf["fit_seconds"] < tfidf["seconds"]
        assert ours["fit_seconds"] == ours["seconds"]  # nothing is tuned
        rest = [row["accuracy"] for row in (tfidf, *others) if "accuracy" in row]
        assert summary["lead"] == pytest.approx(ours["accuracy"] - max(rest))
    for part in ("lengths", "yelp-lengths"):
        settings = {row["setting"] for row in by_part[part] if "setting" in row}
        assert settings >= {"first 3 words", "from 10 words on"}
    assert {row["setting"] for row in by_part["few"]} == {"20 texts", "40 texts"}
    assert {row["model"] for row in by_part["imbalance"]} >= {"attention, balanced", "TF-IDF, balanced"}
    (even,) = by_part["even"]
    assert 0.0 < even["largest_attention"] < 1.0
    assert 0.0 < even["evenness"] <= 1.0
    assert {row["setting"] for row in by_part["flipped"]} == {"20% of labels wrong", "35% of labels wrong"}
    for setting in ("60 generated texts", "200 generated texts"):
        found = {row["model"]: row for row in by_part["noise"] if row["setting"] == setting}
        assert abs(found["best possible"]["accuracy"] - 0.896) < 0.07  # 0.8³ + 3 · 0.8² · 0.2, of 200 texts
        assert found["best possible"]["accuracy"] >= found["TF-IDF"]["accuracy"] - 0.05
    chosen, chance = by_part["faithfulness"][:2]
    assert chosen["comprehensiveness"] > chance["comprehensiveness"]
    assert chosen["sum_residual"] < 1e-12
    out = tmp_path / "result.json"
    for part in ("few", "imdb", "noise"):
        benchmark.write_archive(out, {**files, "seed": 0}, by_part[part])
    archive = json.loads(out.read_text(encoding="utf-8"))
    assert list(archive["parts"]) == ["imdb", "few", "noise"]
    assert archive["parts"]["noise"]["command"] == "marginlens bench text --only noise --seed 0 --json"
    assert archive["parts"]["few"]["command"] == "marginlens bench text --imdb imdb.csv --only few --seed 0 --json"
    assert str(tmp_path) not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "table", "columns"),
    [
        ("text.md", benchmark.TABLE, benchmark.COLUMNS),
        ("text-limits.md", benchmark.LIMITS, benchmark.LIMIT_COLUMNS),
    ],
)
def test_the_pages_of_texts_show_the_archived_numbers(page, table, columns):
    archive = json.loads((results_folder() / "text-benchmark.json").read_text(encoding="utf-8"))
    assert set(archive["parts"]) == set(benchmark.PARTS)
    shown = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    assert benchmark.markdown_table(archive, table, columns) in shown


def test_the_command_runs_a_part(files):
    _, numbers = command("bench")
    assert {row["part"] for row in numbers("text", "--yelp", files["yelp"], "--only", "stars")} == {"stars"}


def test_without_data_it_says_what_it_needs(files):
    with pytest.raises(InputError, match="--imdb FILE, --yelp FILE, or both"):
        benchmark.bench_text()
    with pytest.raises(InputError, match="The part few needs --imdb FILE"):
        benchmark.bench_text(yelp=files["yelp"], only=["few"])
    with pytest.raises(InputError, match=r"'only'.*imdb, lengths.*'nothing'"):
        benchmark.bench_text(imdb=files["imdb"], only=["nothing"])
    with pytest.raises(InputError, match=r"'label'.*which has 'text', 'stars'"):
        benchmark.bench_text(imdb=files["yelp"], only=["imdb"])
