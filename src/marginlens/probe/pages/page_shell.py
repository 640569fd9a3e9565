"""What the pages of a probe share: their head, their look, and the sentences on top."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files


def whole_page(title: str, facts: Sequence[str], body: str, back: str = "") -> str:
    """A page that needs no other file.

    Args:
        title: its heading. facts: what stands small below it; both are texts, which are escaped here.
        body: markup. back: address of the page that this one belongs to, linked at the top.
    """
    style = own_file("page.css")
    home = f'<a href="{escape(back, quote=True)}">marginlens</a>' if back else "marginlens"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>marginlens: {escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<p class="brand">{home}</p>\n<h1>{escape(title)}</h1>\n'
        f'<p class="facts">{escape(" · ".join(facts))}</p>\n</header>\n{body}</body>\n</html>\n'
    )


def own_file(name: str) -> str:
    """A file of this folder as text."""
    return files("marginlens.probe.pages").joinpath(name).read_text(encoding="utf-8")


def paragraphs(texts: Sequence[str]) -> str:
    """Texts as paragraphs."""
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def seen(findings: Sequence[str], notes: Sequence[str]) -> str:
    """What the numbers say, and what there is to know about them."""
    items = "".join(f"<li>{escape(one)}</li>\n" for one in findings)
    beside = "".join(f'<p class="note">{escape(one)}</p>\n' for one in notes)
    return f'<section class="seen">\n<h2>What one sees</h2>\n<ul>\n{items}</ul>\n{beside}</section>\n'
