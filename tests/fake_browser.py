"""A page with its script, without a browser: QuickJS runs the script on a small document that is read from the page's own text."""

import json
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import quickjs

_DOCUMENT = Path(__file__).with_name("fake_document.js").read_text(encoding="utf-8")
_EMPTY = {"meta", "link", "img", "br"}


class FakeBrowser:
    """A page that is open at an address, and what a reader does there; an error in the page's script is raised here."""

    def __init__(self, page, address=""):
        tree, scripts = read(page)
        self._context = quickjs.Context()
        self._context.eval(_DOCUMENT)
        self._call("open", tree, address)
        for script in scripts:
            self._context.eval(script)

    def see(self, selector):
        """The elements, in the order of the page: name, text, given (the attributes), background, stop (the tab index), svg."""
        return [SimpleNamespace(**one) for one in json.loads(self._call("see", selector))]

    def texts(self, selector):
        return [one.text for one in self.see(selector)]

    def tables(self, selector):
        """The texts of every such table, row by row, by the texts of its head."""
        tables = json.loads(self._call("tables", selector))
        return {tuple(head): rows for head, *rows in tables}

    def where(self):
        """What has the focus, as `see` tells it, with hash (the address) and scrolled (the id of what was scrolled to)."""
        return SimpleNamespace(**json.loads(self._call("where")))

    def click(self, selector, place=0):
        self._call("click", selector, place)

    def focus(self, selector, place=0):
        self._call("focus", selector, place)

    def press(self, key):
        """Press a key; whether the page left to the browser what the key usually does."""
        return self._call("press", key)

    def visit(self, address):
        self._call("visit", address)

    def _call(self, name, *arguments):
        return self._context.eval(f"reader.{name}({', '.join(json.dumps(one) for one in arguments)})")


def read(page):
    """(tree, scripts) of an HTML page: an element is its name, its attributes and what it holds."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"not closed: {[one[0] for one in reader.open[1:]]}"
    (tree,) = [one for one in reader.open[0][2] if not isinstance(one, str)]
    return tree, reader.scripts


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = [["", {}, []]]
        self.scripts = []

    def handle_starttag(self, tag, attrs):
        element = [tag, {key: value or "" for key, value in attrs}, []]
        self.open[-1][2].append(element)
        if tag not in _EMPTY:
            self.open.append(element)

    def handle_endtag(self, tag):
        element = self.open.pop()
        assert element[0] == tag, f"</{tag}> closes <{element[0]}>"
        if tag == "script" and "type" not in element[1]:
            self.scripts.append("".join(element[2]))

    def handle_data(self, data):
        self.open[-1][2].append(data)
