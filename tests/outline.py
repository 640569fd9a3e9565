"""An HTML page as a list of elements, for tests."""

from html.parser import HTMLParser

_VOID = {"meta", "img", "br", "link", "hr", "wbr", "input"}


class Outline(HTMLParser):
    """Reads a page and refuses one whose elements are not closed in order; `text` is what a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.text += data

    def attributes(self, tag: str, name: str) -> list[str | None]:
        return [attributes[name] for element, attributes in self.elements if element == tag and name in attributes]
