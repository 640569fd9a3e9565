"""The pictures in the repository: the README's, which moves, and that of the page about optimizers, drawn by an example."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

import marginlens as ml
from marginlens.result.palette import GLOBAL, LOCAL
from marginlens.typing import FloatArray

FILM = "docs/images/start_decides.svg"
PICTURED_EXAMPLE = "examples/optimizers/five_optimizers_five_limits.py"
PICTURE_OF_EXAMPLE = "docs/images/five_limits.png"


def write_pictures(root: Path) -> None:
    """Write the film of the README, and the figure with which the example ends."""
    import matplotlib.pyplot as plt

    from marginlens.plotting.files import png

    (root / FILM).parent.mkdir(parents=True, exist_ok=True)
    (root / FILM).write_text(film_of_two_starts(), encoding="utf-8")
    plt.switch_backend("agg")  # whose plt.show() leaves the figure as it is
    runpy.run_path(str(root / PICTURED_EXAMPLE))
    (root / PICTURE_OF_EXAMPLE).write_bytes(png(plt.gcf()))


# ---- the film

STARTS = ((0.2, -1.5), (0.5, -1.5))
N_STEPS, STEPS_PER_FRAME = 60, 2
SECONDS, SECONDS_STILL = 9, (1.0, 3.0)  # of the film; of them before the first step, and after the last
UNIT, LARGEST, ARROW = 95.0, 52.0, 100.0  # pixels: of a key's unit, the radius at all of the attention, the arrow of p
CENTRES, HEIGHT = ((180.0, 250.0), (540.0, 250.0)), 430
CLASSES = ("global", "other", "local")  # of the tokens, in the style
STYLE = """
text { font: 25px system-ui, sans-serif; fill: #23272B; text-anchor: middle }
.small { font-size: 22px }
.global { fill: GLOBAL } .local { fill: LOCAL } .other { fill: #7A828A }
.weights { stroke: #23272B; stroke-width: 5; stroke-linecap: round }
.ground { fill: #FFFFFF }
.rule, .place { stroke: #7A828A; stroke-width: 2; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #E6E9EC } .weights { stroke: #E6E9EC } .ground { fill: #16191D } .rule, .place { stroke: #A4ABB3 }
  .global { fill: #FF8A5C } .local { fill: #63B3F0 } .other { fill: #A4ABB3 }
}
""".replace("GLOBAL", GLOBAL).replace("LOCAL", LOCAL)


def film_of_two_starts() -> str:
    """Attention trained twice on the problem "the start decides", as an SVG that moves, in light and dark.

    A disc is a token, and its area the attention that it has; the arrow is the direction of p, the weights that are trained.
    """
    data, head = ml.data.scored_tokens([[(-1.0, 0.6), (0.0, 0.0), (1.0, 0.6)]], [[1.0, 0.0, 0.8]])
    run = ml.descend(
        data.repeat(2),
        head,
        optimizer=ml.NormalizedGD(0.1),
        n_steps=N_STEPS,
        start=np.array(STARTS),
        record=ml.Record(STEPS_PER_FRAME, keep="x"),
    )
    before, after = SECONDS_STILL
    steps = np.asarray(run.saved.steps)
    moving = before + (SECONDS - before - after) * steps / steps[-1]
    times = np.array([0.0, *moving, SECONDS]) / SECONDS
    parts = []
    for points, centre, selected in zip(run.saved["x"], CENTRES, run.selected[:, 0].tolist(), strict=True):
        parts += _run(data.K[0], data.scores(head)[0], points, centre, selected, times)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {HEIGHT}" role="img">',
            "<title>Attention trained from two starts on the same three tokens picks a different token from each.</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="6" refY="5" markerWidth="4" markerHeight="4" orient="auto">'
            '<path d="M0 0 L10 5 L0 10 Z" fill="context-stroke"/></marker></defs>',
            f'<rect class="ground" width="720" height="{HEIGHT}" rx="12"/>',
            '<text x="360" y="42">Same three tokens, same training, two starts</text>',
            '<text class="small" x="360" y="76">a disc is the attention of a token, the arrow the weights</text>',
            f'<line class="rule" x1="360" y1="110" x2="360" y2="{HEIGHT - 20}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _run(
    keys: FloatArray,
    scores: FloatArray,
    points: FloatArray,
    centre: tuple[float, float],
    selected: int,
    times: FloatArray,
) -> list[str]:
    """One run around its centre: the tokens, whose discs grow and shrink, the arrow of p, which turns, and the score that it picks.

    Args:
        keys: (n_tokens, 2). scores: (n_tokens,). points: (n_frames, 2). selected: the token that the run ends with.
        times: (n_frames + 2,) of the frames, with both ends of the film, as shares of its length.
    """
    x, y = centre
    logits = points @ keys.T  # (n_frames, n_tokens)
    attention = np.exp(logits - logits.max(axis=1, keepdims=True))
    attention /= attention.sum(axis=1, keepdims=True)
    parts = []
    for token, (key, score) in enumerate(zip(keys, scores, strict=True)):
        at = x + UNIT * key[0], y - UNIT * key[1]
        radius = LARGEST * np.sqrt(attention[:, token])
        label = (x - 92.0, y + 62.0) if token == 1 else (at[0], at[1] - 64.0)
        parts += [
            f'<circle class="place" cx="{at[0]:.0f}" cy="{at[1]:.0f}" r="7"/>',
            f'<circle class="{CLASSES[token]}" cx="{at[0]:.0f}" cy="{at[1]:.0f}" r="{radius[0]:.1f}">'
            f"{_animated('r', radius, times)}</circle>",
            f'<text class="small" x="{label[0]:.0f}" y="{label[1]:.0f}">score {score:g}</text>',
        ]
    tips = np.array([x, y]) + ARROW * points / np.linalg.norm(points, axis=1, keepdims=True) * (1.0, -1.0)
    ends = "".join(_animated(name, tips[:, k], times) for k, name in enumerate(("x2", "y2")))
    verdict = _animated("opacity", (attention[:, selected] > 0.9).astype(float), times)
    return [
        *parts,
        f'<line class="weights" x1="{x}" y1="{y}" x2="{tips[0, 0]:.1f}" y2="{tips[0, 1]:.1f}" marker-end="url(#head)">{ends}</line>',
        f'<text class="{CLASSES[selected]}" x="{x}" y="{HEIGHT - 20}" opacity="1">picks score {scores[selected]:g}{verdict}</text>',
    ]


def _animated(attribute: str, values: FloatArray, times: FloatArray) -> str:
    """An attribute that takes these values (n_frames,), standing still at both ends of the film."""
    key_times = ";".join(f"{time:.4f}" for time in times)
    listed = ";".join(f"{value:.1f}" for value in (values[0], *values, values[-1]))
    return f'<animate attributeName="{attribute}" dur="{SECONDS}s" repeatCount="indefinite" keyTimes="{key_times}" values="{listed}"/>'
