"""Benchmarks in the terminal: nothing is lost, nothing is cut, and a table fits the width it has."""

from io import StringIO

from rich.console import Console

from marginlens.cli.timings import timings_table

LONG = "precomputed kernel, rows and their negatives"
SVM = [
    {
        "n": n,
        "T": 6,
        "solver": solver,
        "form": form,
        "seconds_per_problem": seconds,
        "kkt_residual": 4.321e-15,
        "note": note,
    }
    for n in (4, 20)
    for solver, form, seconds, note in (
        ("marginlens", "one call, threads: 2", 5.698e-06, None),
        ("scikit-learn LinearSVC", LONG, 0.0014, None),
        ("PIQP", "[dual]", None, "the package piqp is not installed"),
    )
]
SVM.insert(3, {"n": 4, "T": 6, "solver": "summary", "form": f"one call beside SVC, {LONG}", "times_faster": 6.6201})
SELECTION = [
    {"d": 10, "method": "fused", "seconds": 1.23456, "corr": 0.9998, "times_slower": None},
    {"d": 10, "method": "torch", "seconds": 0.5, "corr": 0.9, "times_slower": 1494.2},
    {"d": 100, "method": "fused", "seconds": 2.0, "corr": 1.0, "times_slower": None},
    {"d": None, "method": "summary", "seconds_d500_over_d10": 1.142},
]


def printed(rows, width=100):
    stream = StringIO()
    Console(file=stream, width=width).print(timings_table("Timings [all]", rows))
    return stream.getvalue()


def test_each_size_has_its_table_its_notes_and_its_summary():
    text = printed(SVM)
    assert text.startswith("Timings [all]\n\nn = 4, T = 6\n")
    first, second = text.split("n = 20, T = 6")
    assert f"times faster 6.62: one call beside SVC, {LONG}" in first
    assert "times faster" not in second
    for half in (first, second):
        assert "5.698 µs" in half
        assert "1.4 ms" in half
        assert "4e-15" in half
        assert "PIQP, [dual]: the package piqp is not installed" in half
        assert "scikit-learn LinearSVC" in half


def test_no_row_takes_more_than_two_lines_at_100_columns():
    lines = printed(SVM).splitlines()
    assert max(len(line) for line in lines) <= 100
    begun = next(k for k, line in enumerate(lines) if "LinearSVC" in line)
    assert LONG in " ".join(lines[begun].split()) or "negatives" in lines[begun + 1]


def test_one_size_is_a_column_and_the_summary_a_line():
    text = printed(SELECTION)
    for word in ("1.235 s", "500 ms", "0.9998", "1494", "–", "seconds d500 over d10 1.142"):
        assert word in text
    assert "summary" not in text
    assert text.count("method") == 1
    rows = [line.split()[:2] for line in text.splitlines()]
    begun = rows.index(["10", "fused"])
    assert rows[begun + 1 : begun + 4] == [["10", "torch"], [], ["100", "fused"]]  # a blank line parts the sizes


def test_nothing_measured_is_an_empty_table():
    assert printed([]).startswith("Timings [all]\n")


def test_no_word_of_a_heading_is_cut():
    assert " difference \n" in printed([{"method": "fused", "difference_of_W": 2e-16}])
