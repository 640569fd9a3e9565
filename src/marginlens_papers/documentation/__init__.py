"""Pages written from the code: the tables of statements, the page of texts, what claims observed, and the pictures of README and docs.

They belong to a checkout, because tests and examples are among what they list. `python -m marginlens_papers.documentation` in its root
(`make docs`) writes the tables, and with `pictures` (`make pictures`) the pictures.
"""

from __future__ import annotations

import sys
from pathlib import Path

from marginlens.errors import InputError
from marginlens_papers.documentation.pictures import write_pictures
from marginlens_papers.documentation.statements import write_pages


def main() -> None:
    """Write the tables or the pictures of the checkout in the current folder."""
    writers = {(): write_pages, ("pictures",): write_pictures}
    writer = writers.get(tuple(sys.argv[1:]))
    if writer is None:
        sys.exit("marginlens: write `python -m marginlens_papers.documentation`, or the same with `pictures`.")
    try:
        writer(Path.cwd())
    except InputError as problem:
        sys.exit(f"marginlens: {problem}")
