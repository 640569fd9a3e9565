"""How the sample files that ship with the library were made: all of them are made up here, by a fixed seed.

    PYTHONPATH=src python tests/make_samples.py

writes them into src/marginlens/data/sample_files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from random import Random

import numpy as np

from marginlens.data.random_tokens import scored_tokens
from marginlens.typing import FloatArray

_AGREE = 0.85  # share of a review's opinions that are those of its label: no classifier is right about all
_GOOD, _BAD = ("fine", "moving", "superb", "funny", "clever"), ("dull", "flat", "tedious", "silly", "clumsy")
_THINGS = ("film", "plot", "acting", "music", "ending", "camera", "story", "hero")
_OPINIONS = ("the {} is {}", "i found the {} {}", "what a {1} {0}", "the {} was {} from the first minute")
_DENIALS = ("the {} is not {}", "nobody can call the {} {}")
_REMARKS = ("we saw it on a rainy evening", "my sister chose it", "it runs for two hours", "there is a dog in it")
_ANIMALS = ("fox", "hare", "crow", "bear", "mouse", "wolf")
_PLACES = ("in the wood", "by the river", "on the hill", "under the old oak")
_FINDS = ("a golden ring", "a piece of cheese", "a broken bell", "a sack of corn")
_TALE = (
    "once upon a time there was a {0}, and the {0} lived {2}. one day the {0} found {4} {3}. the {0} met the {1}, "
    "and the {1} said to the {0}: what did the {0} find {3}? the {0} said to the {1}: the {0} found {4}. and the {0} "
    "and the {1} shared {4}, and the {1} lived {2} with the {0}."
)
_N_LAYERS, _N_HEADS, _HEAD_SIZE, _MAX_TOKENS = 2, 4, 8, 64
_TURNS = np.pi * np.array([0.9, 0.5, 0.23, 0.1])  # of the pairs of a position's numbers, from token to token
_SHARPNESS = 3.0  # at which a head gives about nine tenths of its attention to the token that it is made for


def samples() -> dict[str, bytes]:
    """Every sample by its name, as src/marginlens/data/sample_files has it."""
    random = Random(0)
    reviews = [_review(random, is_good=i % 2 == 0) for i in range(600)]
    sentences = [f"{_opinion(random, is_good=i % 2 == 0)} ." for i in range(40)]
    tales = [_tale(random) for _ in range(60)]
    problem = BytesIO()
    data, head = scored_tokens([[(-1.0, 0.6), (0.0, 0.0), (1.0, 0.6)]], [[1.0, 0.0, 0.8]])
    np.savez(problem, v=head, **data.arrays())
    model = _model(random, " ".join(sentences).split())
    return {
        "reviews.csv": "\n".join(["text,label", *reviews, ""]).encode(),
        "sentences.txt": "\n".join([*sentences, ""]).encode(),
        "book.txt": "\n".join([*tales, ""]).encode(),
        "problem.npz": problem.getvalue(),
        **{f"tiny-model/{name}": content for name, content in model.items()},
    }


# ---- texts


def _one(random: Random, words: Sequence[str]) -> str:
    """One of the words; by `random()` alone, whose numbers no version of Python changes."""
    return words[int(random.random() * len(words))]


def _opinion(random: Random, *, is_good: bool) -> str:
    is_denial = random.random() < 0.25
    words = _BAD if is_good == is_denial else _GOOD
    return _one(random, _DENIALS if is_denial else _OPINIONS).format(_one(random, _THINGS), _one(random, words))


def _review(random: Random, *, is_good: bool) -> str:
    """A row of the table: a remark and three opinions, some of them those of the other label."""
    opinions = [_opinion(random, is_good=(random.random() < _AGREE) == is_good) for _ in range(3)]
    return f'"{", ".join([_one(random, _REMARKS), *opinions])}.",{"good" if is_good else "bad"}'


def _tale(random: Random) -> str:
    hero = _one(random, _ANIMALS)
    guest = _one(random, [animal for animal in _ANIMALS if animal != hero])
    return _TALE.format(hero, guest, _one(random, _PLACES), _one(random, _PLACES), _one(random, _FINDS))


# ---- a transformer


def _model(random: Random, words: Sequence[str]) -> dict[str, bytes]:
    """The files of a BERT that knows these words.

    A token enters as (u, -u), where u holds the code of its position and the code of its word, each of norm 2 for all tokens: layer
    normalisation then changes no direction, and the heads read both codes as they are.
    """
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*words})]
    size = _N_HEADS * _HEAD_SIZE

    def noise(*shape: int) -> FloatArray:
        return np.reshape([random.random() - 0.5 for _ in range(int(np.prod(shape)))], shape)

    angles = np.arange(_MAX_TOKENS)[:, None] * _TURNS
    places = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(_MAX_TOKENS, _HEAD_SIZE)
    step = np.kron(np.diag(np.cos(_TURNS)), np.eye(2)) - np.kron(np.diag(np.sin(_TURNS)), [[0.0, 1.0], [-1.0, 0.0]])
    codes = np.sqrt(0.5) * (2.0 * (np.arange(len(vocabulary))[:, None] >> np.arange(_HEAD_SIZE) & 1) - 1.0)
    place, word = np.eye(_HEAD_SIZE, size), np.eye(_HEAD_SIZE, size, _HEAD_SIZE)  # what reads a code from a token
    key = np.array([[place, place, place, word], [word, 0.0 * word, word, word]])
    query, bias = np.zeros_like(key), np.zeros((_N_LAYERS, _N_HEADS, _HEAD_SIZE))
    # Each head asks for the key that is like its query: the place before, the place after, the first place, the same word;
    query[0, 0], query[0, 1], bias[0, 2], query[0, 3] = step.T @ place, step @ place, 2.0 * places[0], word
    # then the separator, nothing, and words that the word decides.
    bias[1, 0], query[1, 2:] = 2.0 * codes[3], 2.0 * noise(2, _HEAD_SIZE, _HEAD_SIZE) @ word
    weights = {
        "embeddings.word_embeddings": codes @ (word - np.roll(word, size // 2, axis=1)),
        "embeddings.position_embeddings": places @ (place - np.roll(place, size // 2, axis=1)),
        "embeddings.token_type_embeddings": np.zeros((2, size)),
        "embeddings.LayerNorm": np.ones(size),
        "pooler.dense": 0.1 * noise(size, size),
    }
    for k in range(_N_LAYERS):
        layer = f"encoder.layer.{k}"
        weights[f"{layer}.attention.self.query"] = _SHARPNESS * query[k].reshape(size, size)
        weights[f"{layer}.attention.self.key"] = key[k].reshape(size, size)
        for part in ("attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense"):
            weights[f"{layer}.{part}"] = 0.1 * noise(size, size)
        weights |= {f"{layer}.{part}.LayerNorm": np.ones(size) for part in ("attention.output", "output")}
    arrays = {f"{name}.weight": array for name, array in weights.items()}
    arrays |= {f"{name}.bias": np.zeros(size) for name in weights if not name.endswith("_embeddings")}
    arrays |= {f"encoder.layer.{k}.attention.self.query.bias": _SHARPNESS * bias[k].ravel() for k in range(_N_LAYERS)}
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(vocabulary), "hidden_size": size}
    config |= {"intermediate_size": size, "num_hidden_layers": _N_LAYERS, "num_attention_heads": _N_HEADS}
    return {
        "config.json": json.dumps({**config, "max_position_embeddings": _MAX_TOKENS}).encode(),
        "tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer", "do_lower_case": true}',
        "vocab.txt": "\n".join([*vocabulary, ""]).encode(),
        "model.safetensors": _safetensors(arrays),
    }


def _safetensors(arrays: Mapping[str, FloatArray]) -> bytes:
    """Arrays in the format safetensors: the length of a JSON header, the header, the numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    numbers = b""
    for name, array in arrays.items():
        of_array = array.astype("<f4").tobytes()
        offsets = [len(numbers), len(numbers) + len(of_array)]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
        numbers += of_array
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + numbers


if __name__ == "__main__":
    for name, content in samples().items():
        place = Path(__file__).parents[1] / "src" / "marginlens" / "data" / "sample_files" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
