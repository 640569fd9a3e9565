"""What is written from the code: the tables of statements and of what is implemented, the pictures, and the site.

They belong to a checkout, because tests and examples are among what they list. `python -m marginlens_papers.documentation` in its root
(`make docs`) writes the tables, with `pictures` (`make pictures`) those of README and docs, and with `site` (`make site`) the site.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from marginlens.errors import InputError
from marginlens_papers.documentation.pictures import write_pictures
from marginlens_papers.documentation.site import SiteSettings, build_site
from marginlens_papers.documentation.statements import write_pages


def main() -> None:
    """Write the pages, the pictures or the site of the checkout in the current folder."""
    parser = argparse.ArgumentParser(description="Write the pages of this checkout that come from the code.")
    parser.add_argument("what", nargs="?", choices=("pages", "pictures", "site"), default="pages")
    parser.add_argument(
        "--no-run", action="store_true", help="site: do not run the examples; their pages have no pictures"
    )
    parser.add_argument(
        "--report", choices=("auto", "quick", "none"), default="auto", help="site: which report it holds"
    )
    parser.add_argument(
        "--check-links", action="store_true", help="site: ask the network whether links to other sites work"
    )
    options = parser.parse_args()
    root = Path.cwd()
    try:
        if options.what == "site":
            settings = SiteSettings(runs_examples=not options.no_run, report=options.report)
            print(build_site(root, root / "build" / "site", settings, checks_links=options.check_links))
        else:
            (write_pictures if options.what == "pictures" else write_pages)(root)
    except InputError as problem:
        sys.exit(f"marginlens: {problem}")
