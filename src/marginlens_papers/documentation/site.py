"""Building the site: its source is put together beside the checkout's pages, built by Sphinx, and moved into place when it is whole."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from marginlens.errors import InputError, MissingExtra
from marginlens.papers import registered
from marginlens_papers.claim import Effort
from marginlens_papers.documentation.api_pages import FOLDER as API
from marginlens_papers.documentation.api_pages import api_pages, statement_anchor
from marginlens_papers.documentation.gallery import example_files, gallery_headers, is_example, uses_in
from marginlens_papers.documentation.public_names import PublicName, public_names, public_rooms
from marginlens_papers.report import ledger
from marginlens_papers.report.ledger import summary
from marginlens_papers.report.model_page import NUMBERS
from marginlens_papers.report.page import LAB as LAB_OF_REPORT

ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LEFT_OUT = ("README.md",)  # of docs: for readers of the folder
LAB_PAGE = "lab.md"
_PIXELS = re.compile(r'(?<="data:image/png;base64,)[^"]+')  # inside of an SVG
_COORDINATES = re.compile(r'(?<= [dxy]=")[^"]+|(?<=translate\()[^)]+')
_LONG_NUMBER = re.compile(r"\d+\.\d{3,}")
_LINK_TO_DOTS = re.compile(r' <a class="file" href="[^"]+\.png">PNG</a>')  # from a report's figure to its other form
LAB = "lab/index.html"  # the lab itself, beside the page lab.html that is about it
LAB_FRAME = f"""<p><a href="{LAB}"><strong>Open the lab</strong></a> on a page of its own, or use it right here:</p>
<iframe class="lab-frame" src="{LAB}" title="The lab" loading="lazy"></iframe>"""


@dataclass(frozen=True)
class SiteSettings:
    """What a build does.

    Attributes:
        runs_examples: whether the gallery's scripts are run; otherwise their pages have code and no pictures.
        report: "auto" takes the folder `report` of the checkout, which `make reproduce` writes, and where there is none runs the claims
            at reduced sizes; "quick" runs them in any case, and "none" leaves the report out.
    """

    runs_examples: bool = True
    report: str = "auto"


def build_site(root: Path, place: Path, settings: SiteSettings, *, checks_links: bool = False) -> Path:
    """Build the site of a checkout into a folder, and return its home page. An earlier site is replaced when the new one is whole.

    Args:
        root: of the checkout. place: the folder of the site; what later builds reuse is kept in a folder beside it.
        settings: what it does. checks_links: ask the network whether links to other sites work, instead of building.
    """
    started = time.monotonic()
    work = place.with_name(f"{place.name}-work")
    _say("Putting the pages together.")
    source = stage_source(root, work / "source")
    copy_report(_report_folder(root, work, settings), source / "extra" / "report")
    _write(source / "ledger.md", ledger_page(source / "extra" / "report"))
    _start_afresh_where_settings_changed(source, work)
    builder = "linkcheck" if checks_links else "html"
    output = work / builder
    run_sphinx(source, output, work / "doctrees", settings, builder=builder)
    if checks_links:
        return output / "output.txt"
    _replace(output, place)
    _say(f"The site is whole after {time.monotonic() - started:.0f} s. Open its home page:")
    return place / "index.html"


def run_sphinx(source: Path, output: Path, doctrees: Path, settings: SiteSettings, builder: str = "html") -> None:
    """Run Sphinx in a process of its own; a warning fails the build."""
    try:
        import furo  # noqa: F401
        import sphinx  # noqa: F401
    except ImportError:
        raise MissingExtra("The site needs Sphinx and its theme: pip install '.[site]' in the checkout.") from None
    variables = {"MARGINLENS_SITE_RUNS_EXAMPLES": "1" if settings.runs_examples else "0", "MPLBACKEND": "agg"}
    arguments = ["-b", builder, "-W", "--keep-going", "-j", "2", "-d", str(doctrees), str(source), str(output)]
    _run([sys.executable, "-m", "sphinx", *arguments], (0,), variables)


# ---- the source


def stage_source(root: Path, folder: Path) -> Path:
    """Put the source of the site into a folder: the pages of docs with links that hold in the site, the API, the examples and the lab.

    Files that are as they were are not touched, so that Sphinx and the gallery do again only what changed.
    """
    if not (root / "docs" / "conf.py").is_file():
        raise InputError(f"{root} is no checkout of marginlens: it has no docs/conf.py.")
    names = public_names()
    statements = registered()
    links = _Links(root, {f"{entry.defined_in[0]}.{entry.defined_in[1]}": entry for entry in names})
    contents = contents_of(root / "docs")
    written: set[Path] = set()

    def write(path: str, content: str | bytes) -> None:
        written.add(folder / path)
        _write(folder / path, content)

    for file in sorted((root / "docs").rglob("*")):
        name = file.relative_to(root / "docs").as_posix()
        if file.is_dir() or name in LEFT_OUT or "__pycache__" in name:
            continue
        if file.suffix != ".md":
            write(name, file.read_bytes())
            continue
        text = links.rewritten(f"docs/{name}", file.read_text(encoding="utf-8")) + contents.get(name, "")
        write(name, _with_lab(text) if name == LAB_PAGE else text)
    for origin, name in ROOT_PAGES.items():
        write(name, links.rewritten(origin, (root / origin).read_text(encoding="utf-8")))
    write(
        "citation.md",
        citation_page((root / "CITATION.cff").read_text(encoding="utf-8"), (root / "docs" / "citation.md")),
    )
    examples = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in example_files(root)}
    for name, text in examples.items():
        write(name, text)
    for name, text in gallery_headers(root).items():
        write(name, text)
    for name, text in api_pages(names, public_rooms(names), statements, uses_in(examples, names)).items():
        write(name, text)
    from marginlens.lab import lab_page

    write(f"extra/{LAB}", lab_page())
    for stale in {*folder.glob("*.md"), *(folder / API).glob("*"), *(folder / "examples").rglob("*.py")} - written:
        if stale.name != "ledger.md":
            stale.unlink()
    for page in (folder / "gallery").glob("*/*.rst"):  # of scripts that are gone
        group, stem = page.parent.name, page.stem
        if stem not in ("index", "sg_execution_times") and f"examples/{group}/{stem}.py" not in examples:
            for made in page.parent.glob(f"{stem}.*"):
                made.unlink()
    return folder


_LINK_OR_CODE = re.compile(
    r"^```.*?^```|(?P<link>(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)#\s]*)(?P<place>#[^)\s]*)?\))|`[^`\n]+`",
    re.DOTALL | re.MULTILINE,
)


def contents_of(docs: Path) -> dict[str, str]:
    """The hidden tables of contents, by the page that gets them: the home page's as docs/navigation.toml says, a folder's of its pages."""
    parts = tomllib.loads((docs / "navigation.toml").read_text(encoding="utf-8"))["part"]
    contents = {"index.md": "".join(_toctree(part["pages"], part["caption"]) for part in parts)}
    for readme in sorted(docs.glob("*/README.md")):
        pages = [path.stem for path in sorted(readme.parent.glob("*.md")) if path != readme]
        contents[readme.relative_to(docs).as_posix()] = _toctree(pages)
    return contents


def _toctree(pages: Sequence[str], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


class _Links:
    """Links of the checkout's Markdown as they hold in the site: between pages, to examples in the gallery, and to functions.

    Other files of the checkout are no part of the site: links to them become plain words.
    """

    def __init__(self, root: Path, names: Mapping[str, PublicName]) -> None:
        self.root, self.names = root, names

    def rewritten(self, origin: str, text: str) -> str:
        """The text of a page of the checkout, with its links changed; code is left as it is."""
        page = _staged(origin) or origin
        if origin == "docs/theorems.md":
            text = _with_anchors(text)
        return _LINK_OR_CODE.sub(lambda match: self._link(origin, page, match) if match["link"] else match[0], text)

    def _link(self, origin: str, page: str, match: re.Match[str]) -> str:
        text, target, place = match["text"], match["target"], match["place"] or ""
        if not target or "://" in target or match["image"]:
            return match[0]
        path = normpath(str(PurePosixPath(origin).parent / target))
        up = "../" * page.count("/")
        staged = _staged(path)
        if path in ("README.md", "docs/README.md", "docs"):
            staged = "index.md"
        elif path == "examples":
            return f"[{text}]({up}gallery/index.rst)"
        elif (self.root / path).is_file() and is_example(path):
            return f"[{text}]({up}{path.replace('examples/', 'gallery/', 1).removesuffix('.py')}.rst)"
        if staged and (staged == "index.md" or (self.root / path).is_file()):
            shown = _heading(self.root / path) if text == PurePosixPath(path).name and staged != "index.md" else text
            return f"[{shown}]({relpath(staged, str(PurePosixPath(page).parent))}{place})"
        if not (self.root / path).exists():
            return match[0]
        address = self._function(text, path)
        shown = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
        return f'<a href="{up}{address}">{shown}</a>' if address else text

    def _function(self, text: str, path: str) -> str | None:
        """Where the API describes a function that is named in a link to its file."""
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        name = text.strip("`")
        entry = self.names.get(f"{module}.{name}") or self.names.get(f"{module}.{name.partition('.')[0]}")
        return f"{API}/{entry.address}" if entry else None


def _heading(page: Path) -> str:
    """The title of a page of the checkout."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _staged(origin: str) -> str | None:
    """Where a page of the checkout stands in the site's source."""
    if origin in ROOT_PAGES:
        return ROOT_PAGES[origin]
    return origin.removeprefix("docs/") if origin.startswith("docs/") and origin.endswith(".md") else None


def _with_lab(text: str) -> str:
    """The page of the lab with the lab itself behind its first paragraph."""
    title, first, rest = text.split("\n\n", 2)
    return "\n\n".join([title, first, LAB_FRAME, rest])


def _with_anchors(text: str) -> str:
    """The page of statements with a place for each of its rows that a link can name."""
    done, paper = [], ""
    for line in text.splitlines():
        if heading := re.match(r"## (\S+): ", line):
            paper = heading[1]
        row = re.match(r"\| ([^|]+?) \|", line)
        if paper and row and row[1] not in ("statement", "---"):
            line = f'| <span id="{statement_anchor(f"{paper} {row[1]}")}"></span>{line[2:]}'
        done.append(line)
    return "\n".join(done) + "\n"


# ---- the ledger and the citation


def ledger_page(report: Path) -> str:
    """The page of the ledger: every claim, with its verdict and the way to its numbers and figures where there is a report."""
    lines = ["# The ledger", "", "See what the papers claim, what this library measures, and whether they agree.", ""]
    entries = ledger(report)
    results = [entry.result for entry in entries if entry.result]
    if results:
        is_quick = any(result.effort is Effort.QUICK for result in results)
        sizes = "at reduced sizes; `make reproduce` runs them at the papers'" if is_quick else "at the papers' sizes"
        lines += [
            f"{summary(entries)}. They were run {sizes}.",
            "",
            '<a href="report/index.html"><strong>Open the report</strong></a>: every claim with its numbers, figures and notes.',
            "",
        ]
    else:
        lines += [
            "This copy of the site was built without a report: `make site` without `REPORT=none` brings one.",
            "",
        ]
    lines += [
        "A claim has a protocol, a number that the paper states or draws, and bounds that decide the verdict.",
        "`marginlens reproduce --only A-F9` reruns one, and `ml.ledger()` lists them in Python.",
        "",
    ]
    lines += ["| claim | about | what is checked | verdict |", "| --- | --- | --- | --- |"]
    for entry in entries:
        cell = " ".join(entry.title.split()).replace("|", "\\|")
        link = f'<a href="report/index.html#{entry.id}">{entry.verdict}</a>' if entry.result else "not run"
        lines.append(f"| {entry.id} | {entry.label} | {cell} | {link} |")
    return "\n".join(lines) + "\n"


def citation_page(citation: str, written: Path) -> str:
    """How to cite the library and the papers: the words of docs/citation.md, entries for BibTeX, and the file CITATION.cff."""
    words = written.read_text(encoding="utf-8").rstrip()
    return f"{words}\n\n## BibTeX\n\n```bibtex\n{bibtex(citation)}```\n\n## CITATION.cff\n\n```yaml\n{citation.rstrip()}\n```\n"


def bibtex(citation: str) -> str:
    """The works of a CITATION.cff as entries for BibTeX: the software itself, then its references."""
    import yaml  # comes with the packages that build the site

    stated = yaml.safe_load(citation)
    entries = []
    for work in (stated, *stated.get("references", ())):
        is_software = work.get("type") == "software"
        names = [
            person.get("name") or f"{person['family-names']}, {person['given-names']}" for person in work["authors"]
        ]
        first = work["authors"][0].get("family-names", "").split()[-1:]
        authors = " and ".join(f"{{{name}}}" if "," not in name else name for name in names)
        fields = {"title": f"{{{work['title']}}}", "author": authors}
        fields |= {"year": str(work["year"])} if "year" in work else {}
        fields |= {"note": f"Software, version {work['version']}"} if is_software else {}
        lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
        key = re.sub(r"\W", "", f"{''.join(first)}{work.get('year', '')}{work['title'].split()[0]}".lower())
        entries.append(f"@misc{{{key},\n{lines}}}\n")
    return "\n".join(entries)


def _report_folder(root: Path, work: Path, settings: SiteSettings) -> Path | None:
    """The report that the site takes in, run first where it must be; None without one."""
    if settings.report == "none":
        return None
    if settings.report == "auto" and (root / "report" / "index.html").is_file():
        return root / "report"
    made, stamp = work / "report", work / "report.sha256"
    now = _digest(sorted((root / "src").rglob("*.py")))
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == now):  # or by other code
        _say("Running the papers' claims at reduced sizes. REPORT=none leaves them out.")
        _run([sys.executable, "-m", "marginlens", "reproduce", "--quick", "--out", str(made)], (0, 1))
        _write(stamp, now)
    return made


def copy_report(found: Path | None, place: Path) -> None:
    """Put the pages and figures of a report into the site, with its own lab; data and PNG files of figures that are SVG too stay behind."""
    shutil.rmtree(place, ignore_errors=True)
    if found is None:
        return
    left_behind = shutil.ignore_patterns("*.npz", "*.pdf", "*.parquet", NUMBERS, LAB_OF_REPORT)
    shutil.copytree(found, place, ignore=left_behind)
    for page in place.rglob("*.html"):
        text = _LINK_TO_DOTS.sub("", page.read_text(encoding="utf-8"))
        page.write_text(text.replace(f'"{LAB_OF_REPORT}', f'"../{LAB}'), encoding="utf-8")
    for picture in place.rglob("*.png"):
        if picture.with_suffix(".svg").exists():
            picture.unlink()


def lighten(folder: Path) -> None:
    """Halve the pictures of a folder, to the same look: at most 256 colours, and in SVG coordinates to .01 point and no indentation."""
    for path in folder.rglob("*.png"):
        path.write_bytes(_with_few_colours(path.read_bytes()))
    for path in folder.rglob("*.svg"):
        text = path.read_text(encoding="utf-8")
        text = _PIXELS.sub(lambda found: base64.b64encode(_with_few_colours(base64.b64decode(found[0]))).decode(), text)
        text = _COORDINATES.sub(
            lambda found: _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}", found[0]), text
        )
        path.write_text(re.sub(r"\s*\n\s*", "\n", text), encoding="utf-8")


def _with_few_colours(png: bytes) -> bytes:
    """A PNG with a palette, or as it is where that is no smaller."""
    from PIL import Image  # comes with matplotlib

    picture, lighter = Image.open(BytesIO(png)).convert("RGBA"), BytesIO()
    if picture.getchannel("A").getextrema()[0] == 255:
        picture = picture.convert("RGB")  # whose palettes keep white white
    picture.quantize(dither=Image.Dither.NONE).save(lighter, "PNG", optimize=True)
    return min(png, lighter.getvalue(), key=len)


# ---- files and processes


def _write(path: Path, content: str | bytes) -> None:
    """Write a file unless it holds this already."""
    content = content.encode() if isinstance(content, str) else content
    if not (path.is_file() and path.read_bytes() == content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _start_afresh_where_settings_changed(source: Path, work: Path) -> None:
    """Forget what Sphinx built by other settings or another extension: it rebuilds only pages whose text has changed."""
    files = [source / "conf.py", *sorted((source / "extensions").glob("*.py")), *sorted((source / "_static").glob("*"))]
    now = _digest(files)
    stamp = work / "settings.sha256"
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == now):
        for folder in ("html", "doctrees"):
            shutil.rmtree(work / folder, ignore_errors=True)
        _write(stamp, now)


def _digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _replace(built: Path, place: Path) -> None:
    """Put a copy of what was built, with light pictures, into its place by renaming, so that the site is never half there."""
    new, old = place.with_name(f"{place.name}.new"), place.with_name(f"{place.name}.old")
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(built, new, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo*", "objects.inv", "*.map"))
    for pictures in ("_images", "report"):
        lighten(new / pictures)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _run(command: Sequence[str], accepted: Sequence[int], variables: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, env={**os.environ, **(variables or {})})
    if done.returncode not in accepted:
        raise InputError(
            f"The site was not built: {' '.join(command[1:4])} ended with {done.returncode}. Its messages are above."
        )


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
