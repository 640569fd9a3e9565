"""HTML pages from Jinja2 templates: every text is escaped, and style, script and pictures are inside the page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(package: str, template: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """Render a page as text.

    Args:
        package: the package that holds the template, which may extend `base.html` of this one, and the files it includes with
            `{{ file(name) }}`.
        filters: functions that the template may apply to a value.
        values: the values for the template. Texts are escaped; only `Markup` is not.
    """
    environment = _environment(package).overlay()
    environment.filters = {**environment.filters, **(filters or {})}
    return environment.get_template(template).render(values)


def data_address(content: bytes, media_type: str) -> str:
    """Return a data address that holds the content itself, which keeps a page self-contained."""
    return f"data:{media_type};base64,{b64encode(content).decode('ascii')}"


@cache
def _environment(package: str) -> Environment:
    own = PackageLoader(package, "")
    environment = Environment(
        loader=ChoiceLoader([own, PackageLoader("marginlens.pages", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["file"] = lambda name: Markup(own.get_source(environment, name)[0])
    return environment
