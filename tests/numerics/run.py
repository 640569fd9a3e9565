"""The numerics job: tests whose numbers can move, under several kinds of arithmetic that one machine can do.

    python tests/numerics/run.py            every kind that applies to this machine, two at a time
    python tests/numerics/run.py --list     which kinds there are, and which apply

OpenBLAS adds up in another order for every type of processor it knows, and can be told to take this machine for another one. Two threads
split sums where one does not. A test that passes under one of these and fails under another passes by luck. The compiled core is not
concerned: it gives the same bits on every processor, which `tests/core/test_same_bits.py` checks.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 2
FILES = (
    "tests/contract/test_bilinear_svm.py",
    "tests/contract/test_graph_svm.py",
    "tests/contract/test_norm_solvers.py",
    "tests/contract/test_set_svm.py",
    "tests/contract/test_svm_solvers.py",
    "tests/contract/test_vocabulary_svm.py",
    "tests/theory/test_cyclic_statements.py",
    "tests/theory/test_general_position.py",
    "tests/dynamics/test_next_token_path_scales.py",
    "tests/theory/test_one_step.py",
    "tests/theory/test_residual.py",
    "tests/theory/test_smoothness.py",
    "tests/theory/test_svm_statements.py",
    "tests/theory/test_token_optimality.py",
    "tests/risk/test_attention_gradient.py",
    "tests/svm/test_structured_rows.py",
    "tests/nexttoken/test_correction.py",
    "tests/nexttoken/test_contexts.py",
    "tests/svm/test_attention_svm.py",
    "tests/svm/test_margin_solution.py",
)
_CORES = """
import numpy, scipy.linalg, threadpoolctl
print(*{one["architecture"].lower() for one in threadpoolctl.threadpool_info() if one["internal_api"] == "openblas"})
"""
# the oldest of several processors with the same kernels, by which OpenBLAS names them
_OTHER_NAMES = {"Prescott": ("katmai",)}
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MARGINLENS_THREADS": "1"}


@dataclass(frozen=True)
class Personality:
    """One kind of arithmetic.

    Attributes:
        name: how it is called. environment: the variables that bring it about.
        machines: the names of `platform.machine()` it applies to; any where empty. needs: a flag of the processor, or nothing.
    """

    name: str
    environment: Mapping[str, str]
    machines: tuple[str, ...] = ()
    needs: str = ""
    core: str = field(default="")

    @classmethod
    def of_core(cls, core: str, machines: tuple[str, ...], needs: str = "") -> Personality:
        """OpenBLAS on one thread, for this type of processor."""
        return cls(f"OpenBLAS for {core}", {"OPENBLAS_CORETYPE": core, **_ONE_THREAD}, machines, needs, core)

    def not_applicable(self, machine: str, flags: frozenset[str]) -> str:
        """Why this machine cannot do it; empty where it can."""
        if self.machines and machine not in self.machines:
            return f"not applicable: this is {machine}"
        if self.needs and self.needs not in flags:
            return f"not applicable: this processor has no {self.needs}"
        if self.core:
            taken = subprocess.run(
                [sys.executable, "-c", _CORES], env=self.full_environment(), capture_output=True, text=True
            )
            if taken.returncode:
                return "not applicable: this processor does not run it"
            cores = set(taken.stdout.split())
            if not cores or not cores <= {self.core.lower(), *_OTHER_NAMES.get(self.core, ())}:
                return f"not applicable: NumPy and SciPy take {taken.stdout.strip() or 'another library than OpenBLAS'}"
        return ""

    def full_environment(self) -> dict[str, str]:
        """This process's environment with the variables of the personality."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return {**inherited, **self.environment}


X86, ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
PERSONALITIES = (
    Personality.of_core("Prescott", X86),
    Personality.of_core("Haswell", X86, "avx2"),
    Personality.of_core("SkylakeX", X86, "avx512f"),
    Personality.of_core("ARMV8", ARM),
    Personality.of_core("CORTEXA53", ARM),
    Personality.of_core("THUNDERX", ARM),
    Personality.of_core("NEOVERSEV1", ARM, "sve"),
    Personality("two threads", {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "MARGINLENS_THREADS": "2"}),
)


def processor_flags() -> frozenset[str]:
    """What the processor says it can do; nothing where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    listed = [line.partition(":")[2] for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    return frozenset(" ".join(listed).split())


def run_tests(personality: Personality, files: Sequence[str]) -> tuple[bool, str]:
    """Whether the tests pass under a personality, and what to print: one line, after the whole output where they fail."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, env=personality.full_environment(), capture_output=True, text=True)
    passed = done.returncode == 0
    line = f"{personality.name}: {'passed' if passed else 'FAILED'} in {time.perf_counter() - began:.0f} s"
    if passed:
        return True, line
    variables = " ".join(f"{name}={value}" for name, value in personality.environment.items())
    return False, f"{done.stdout}{done.stderr}\n{line}; again with: {variables} python -m pytest {' '.join(files)}"


def main(arguments: Sequence[str]) -> int:
    """Run every personality that applies; the number of those that failed."""
    machine, flags, chosen = platform.machine(), processor_flags(), []
    for personality in PERSONALITIES:
        reason = personality.not_applicable(machine, flags)
        if reason or "--list" in arguments:
            print(f"{personality.name}: {reason or 'applies'}", flush=True)
        if not reason:
            chosen.append(personality)
    if "--list" in arguments:
        return 0
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for passed, text in pool.map(lambda one: run_tests(one, FILES), chosen):
            print(text, flush=True)
            failed += not passed
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
