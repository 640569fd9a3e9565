"""Two checkers that share no code, verify() and docs/proofs/check.py: both confirm what is proved, and refuse what is not.

Whether a changed certificate states the truth is decided by formulas in doubles, which are neither of the two.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from made_up_proofs import changed, is_bracket, is_minimum, is_steepest, is_true, margin, minimum, steepest, tube
from marginlens.errors import InputError
from marginlens.losses import CorrelationLoss, Exponential, Logistic
from marginlens.theory import Certificate, SteepestCertificate
from typed_pages import blocks

PROOFS = Path(__file__).parents[2] / "docs/proofs"
LOSSES = (Logistic(), Exponential())


@pytest.fixture(scope="module")
def answer():
    """The function of check.py that reads the text of a file; its modules are removed again from those of the tests."""
    before = set(sys.modules)
    sys.path.insert(0, str(PROOFS))
    import check

    yield check.answer
    sys.path.remove(str(PROOFS))
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "proof.json"


def says_yes(answer, proof, place):
    """Whether check.py confirms a proof; what no file can hold is refused by `save`."""
    try:
        proof.save(place)
    except InputError:
        return False
    proved, sentence = answer(place.read_text())
    assert sentence.startswith("yes: " if proved else "no: ")
    assert "\n" not in sentence
    return proved


def truth(proof):
    kind = {Certificate: is_true, SteepestCertificate: is_steepest}
    return kind.get(type(proof), is_minimum)(proof)


def certificates(count, seed):
    """Certificates of X Theorems 1, 4 and 2 in turn, half of them of Theorem 4."""
    for k in range(count):
        if k % 2:
            yield steepest(k // 2, seed + 79)
        else:
            yield minimum(k // 8, seed + 78, LOSSES[k // 8 % 2]) if k % 8 == 6 else tube(k // 2, seed + 77)


# ---- what is proved


def check_agreement(answer, place, count, seed):
    """Both say yes to certificates of every kind, and so do the library and check.py to margins and to infeasible problems."""
    agreed = Counter()
    for proof in certificates(count * 4 // 5, seed):
        assert proof.verify().applies, proof
        assert says_yes(answer, proof, place), proof
        assert truth(proof)
        agreed[type(proof).__name__] += 1
    k = 0
    while agreed.total() < count:
        solution, k = margin(k, seed + 80), k + 1
        if solution.status is ml.Status.TRIVIAL:
            continue
        assert (
            solution.certificate_residual() <= 1e-13
            if solution.status is ml.Status.INFEASIBLE
            else solution.is_verified()
        )
        assert says_yes(answer, solution, place), solution
        assert is_bracket(json.loads(place.read_text()))
        agreed[solution.status.name] += 1
    return agreed


@pytest.mark.statement("X Thm 1")
@pytest.mark.statement("X Thm 2")
@pytest.mark.statement("X Thm 4")
def test_both_confirm_proofs_of_every_kind(answer, place):
    assert len(check_agreement(answer, place, 50, 0)) == 5


@pytest.mark.slow
def test_both_confirm_a_thousand_proofs(answer, place):
    agreed = check_agreement(answer, place, 1_000, 1_000)
    print(dict(agreed))
    assert agreed.total() == 1_000


# ---- what is not


def check_changes(answer, place, count, seed):
    """Change certificates at random: neither checker confirms one that the formulas in doubles refute."""
    rng, counts = np.random.default_rng(seed), Counter()
    right = list(certificates(min(count // 2, 80), 0))
    for k in range(count):
        proof = right[k % len(right)]
        wrong = other_steps(proof, rng) if rng.random() < 0.1 else changed(proof, rng)
        by_verify, by_fractions = bool(wrong.verify().applies), says_yes(answer, wrong, place)
        is_right = bool((by_verify or by_fractions) and truth(wrong))
        names = [field.name for field in fields(wrong) if getattr(wrong, field.name) is not getattr(proof, field.name)]
        assert is_right or not by_verify, ("verify", names, wrong)
        assert is_right or not by_fractions, ("fractions", names, wrong)
        assert by_verify == by_fractions, (names, wrong)
        counts[type(wrong).__name__, "confirmed" if by_verify else "refused"] += 1
    return counts


def other_steps(proof, rng):
    """A certificate for another loss, or for other steps."""
    if rng.random() < 0.5 or not isinstance(proof, Certificate | SteepestCertificate):
        return replace(proof, loss=(Logistic(), Exponential(), CorrelationLoss())[rng.integers(3)])
    size = float(10.0 ** rng.uniform(-3, 1))
    if isinstance(proof, Certificate):
        return replace(proof, optimizer=(None, ml.NormalizedGD(size), ml.GradientDescent(size))[rng.integers(3)])
    others = (ml.L1(), ml.L2(), ml.LInf(), ml.Lp(1.2), ml.Lp(2.5), ml.Lp(6.0), ml.Frobenius())
    return replace(proof, steepest_in=others[rng.integers(len(others))])


def confirmed_and_refused(counts):
    return tuple(
        sum(count for (_, verdict), count in counts.items() if verdict == each) for each in ("confirmed", "refused")
    )


def test_neither_confirms_random_changes_that_are_false(answer, place):
    confirmed, refused = confirmed_and_refused(check_changes(answer, place, 80, 3))
    assert confirmed > 8
    assert refused > 30


@pytest.mark.slow
def test_neither_confirms_any_of_many_changes_that_are_false(answer, place):
    counts = check_changes(answer, place, 2_400, 4)
    print(dict(counts))
    confirmed, refused = confirmed_and_refused(counts)
    assert confirmed > 240
    assert refused > 1_000


def wrong_entries(value):
    """What cannot stand in a file instead of an entry."""
    yield from (
        None,
        "x",
        {},
        [],
        True,
        [True],
        [[]],
        [[[[1.0]]]],
        "1.0",
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
    )
    yield from ([value], [value, value], {"0": value})
    if isinstance(value, list) and value:
        yield from (value[:-1], value + value[-1:], [None, *value[1:]], [float("nan"), *value[1:]], value[0])
        yield [*value[:-1], str(value[-1])]


def test_files_with_entries_of_another_kind_are_refused_in_one_sentence(answer, place):
    planted = 0
    for proof in (tube(1), minimum(0), steepest(10), steepest(12), margin(2)):
        proof.save(place)
        entries = json.loads(place.read_text())
        assert answer(json.dumps(entries))[0]
        for name, value in entries.items():
            for wrong in wrong_entries(value):
                if wrong == value or (name == "normalized" and type(wrong) is bool):
                    continue
                proved, sentence = answer(json.dumps(entries | {name: wrong}))
                planted += 1
                assert not proved, (name, wrong, sentence)
                assert sentence.startswith("no: ")
                assert "\n" not in sentence
            without = {other: entry for other, entry in entries.items() if other != name}
            assert not answer(json.dumps(without))[0] or name == "lengths"
    assert planted > 800


def falsehoods(entries):
    """Numbers that make a file false, by the direction in which each of them weakens or strengthens what is stated."""
    number = {name: value for name, value in entries.items() if isinstance(value, float)}
    yield from ((name, -value - 1e-300) for name, value in number.items() if name not in ("along", "low"))
    below_one = {name: 1.0 for name in ("share", "momentum") if name in entries}
    at_least_zero = {
        name: 0.0 for name in ("radius", "progress", "curvature", "rate", "longest", "share") if name in entries
    }
    yield from below_one.items()
    yield from at_least_zero.items()
    tube_fields = {"margin": (1.01, 0.99), "along": 2.0, "deviation": 0.5, "progress": 2.0, "direction": -1.0}
    steepest_fields = {"rate": 20.0, "witness": (1.01, -1.0), "head": -1.0, "weights": -1.0, "high": 0.9}
    steepest_fields |= {"memory": -1.0, "remembered": (-1.0, 1e6)}
    if len(entries.get("leading", [])) > 1 and not entries["turns"]:
        steepest_fields["longest"] = 1e4
    stated = {
        "marginlens-certificate-1": tube_fields,
        "marginlens-minimum-1": {"radius": 1e3, "curvature": 10.0, "tolerance": 1e12, "head": -1.0},
        "marginlens-steepest-2": steepest_fields,
        "marginlens-margin-1": {"low": 1.001, "high": 0.999, "multipliers": -1.0, "x": -1.0},
    }[entries["format"]]
    for name, factor in ((name, factor) for name, factors in stated.items() for factor in np.atleast_1d(factors)):
        wrong = (factor * np.array(entries[name])).tolist()
        # Zeros stay what they are, and 0 is the margin of what is infeasible, up to rounding.
        if wrong != entries[name] and not (entries.get("x") is not None and entries["low"] == 0.0):
            yield name, wrong


def test_directed_falsehoods_are_refused_by_both(answer, place, tmp_path):
    planted = 0
    right = [*certificates(24, 0), *(each for k in range(20) if (each := margin(k)).status is not ml.Status.TRIVIAL)]
    for proof in right:
        proof.save(place)
        entries = json.loads(place.read_text())
        for name, wrong in falsehoods(entries):
            planted += 1
            assert not answer(json.dumps(entries | {name: wrong}))[0], (entries["format"], name, wrong)
            if not entries["format"].endswith("margin-1"):
                value = np.array(wrong) if isinstance(wrong, list) else wrong
                if name not in ("size",):
                    assert not replace(proof, **{name: value}).verify().applies, (name, wrong)
    assert planted > 200


def test_steps_that_a_file_cannot_state_are_not_saved(place):
    for rule in (
        ml.Adam(0.1),
        ml.SignDescent(0.1),
        ml.NormalizedGD(0.1, momentum=0.9),
        ml.GradientDescent(0.1, weight_decay=0.1),
    ):
        for path in (place, place.with_suffix(".npz")):
            with pytest.raises(InputError, match="certificate"):
                replace(tube(0), optimizer=rule).save(path)


def test_margins_of_batches_and_of_nothing_are_not_proved_by_files(place):
    data, _ = ml.data.sphere_tokens(2, 2, 3, 4, rng=0)
    trivial = ml.att_svm(ml.TokenDataset(np.ones((1, 1, 2)), [1]), [0])
    for solution in (ml.att_svm(data, np.zeros((2, 2), dtype=int)), trivial):
        with pytest.raises(InputError, match="solution"):
            solution.save(place)


# ---- the program


def program(*arguments):
    return subprocess.run([sys.executable, "-S", PROOFS / "check.py", *arguments], capture_output=True, text=True)


def test_the_program_says_yes_or_no_in_one_sentence(place):
    tube(0).save(place)
    right = program(place)
    assert right.stdout.startswith("yes: X Theorem 1")
    assert right.returncode == 0
    place.write_text("[" * 100_000)
    for arguments in ((), (place,), (place.with_name("missing"),), (PROOFS,)):
        wrong = program(*arguments)
        assert wrong.stdout.startswith("no: ")
        assert wrong.stdout.count("\n") == 1
        assert not wrong.stderr
        assert wrong.returncode == 1


@pytest.mark.parametrize("name", ["attraction.md", "any_norm.md"])
def test_what_the_pages_of_the_proofs_say_to_type_prints_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace, confirmed = {}, 0
    for block in blocks(PROOFS / name):
        if block.language == "python":
            exec(compile(block.code, name, "exec"), namespace)
        elif block.language == "sh" and "check.py" in block.code:
            _, path, *arguments = block.code.split()
            assert path == "docs/proofs/check.py"
            assert program(*arguments).stdout == block.shown
            confirmed += 1
    assert confirmed == {"attraction.md": 3, "any_norm.md": 1}[name]


def test_the_program_is_short_and_needs_nothing_but_python():
    for path in PROOFS.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 200, path.name
        tree = ast.walk(ast.parse(path.read_text()))
        names = {name.name for node in tree if isinstance(node, ast.Import) for name in node.names}
        tree = ast.walk(ast.parse(path.read_text()))
        names |= {node.module for node in tree if isinstance(node, ast.ImportFrom)}
        own = {other.stem for other in PROOFS.glob("*.py")}
        assert names <= own | {"fractions", "itertools", "json", "math", "sys"}, path.name
