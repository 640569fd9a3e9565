"""Check a proof with exact fractions alone: python check.py proof.json

The file is one that `save` of a certificate or of a margin solution wrote. This program needs nothing but Python, and shares no
code with marginlens. It answers yes only if every condition holds for all numbers between exact bounds, and otherwise names the
first that may fail. Read one page and the file that follows it:

    X Theorem 1   attraction.md   theorem_1.py
    X Theorem 2   attraction.md   theorem_2.py
    X Theorem 4   any_norm.md     theorem_4.py
    margins       margins.py

They rely on setting.py, which reads the problem, on dual_norms.py and singular_values.py, which bound norms, and on enclosures.py,
which bounds roots, exponentials and logarithms.
"""

import json
import sys

import margins
import theorem_1
import theorem_2
import theorem_4
from setting import NotProved

CHECKS = {
    "marginlens-certificate-1": theorem_1.check,
    "marginlens-minimum-1": theorem_2.check,
    "marginlens-steepest-2": theorem_4.check,
    "marginlens-margin-1": margins.check,
}


def answer(text):
    """Whether the proof in a file is right, and a sentence."""
    try:
        proof = json.loads(text)
        check = CHECKS.get(proof["format"])
        if check is None:
            return False, "no: the file is not a proof in a format that is checked here"
        return True, f"yes: {check(proof)}"
    except NotProved as condition:
        return False, f"no: {condition}"
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        return False, f"no: the file is not a complete proof ({type(problem).__name__})"


if __name__ == "__main__":
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            proved, sentence = answer(file.read())
    except (IndexError, OSError, ValueError):
        proved, sentence = False, "no: name a .json file that holds a proof"
    print(sentence)
    sys.exit(not proved)
