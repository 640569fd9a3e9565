"""Random transformers of a few thousand weights, and how a folder with one of them is made."""

from pathlib import Path

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "saw", "a", "dog", "and", "ran", "not", "?", ".")
TEXTS = (
    "the cat saw a dog .",
    "a dog ran .",
    "the dog and the cat ran and ran .",
    "not a cat ?",
    "the cat and a dog saw the cat and a dog .",
    "ran",
)
_KEYS = ("key.weight", "key.bias", "k_proj.weight", "k_proj.bias")  # as versions of transformers name them


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "initializer_range": 0.3}
TEXT = {**SIZES, "vocab_size": len(WORDS), "max_position_embeddings": 16}


def tiny_bert(seed=0, *, sharpness=1.0):
    """A BERT of two layers of two heads in float64, whose key weights are multiplied by `sharpness`."""
    return drawn("Bert", {**TEXT, "num_attention_heads": 2}, seed, _KEYS, sharpness)


def tiny_vit(seed=0, *, sharpness=1.0):
    """A ViT of two layers of two heads for 6 × 6 grey images in patches of 2 × 2, in float32."""
    images = {"num_attention_heads": 2, "image_size": 6, "patch_size": 2, "num_channels": 1}
    return drawn("ViT", {**SIZES, **images}, seed, _KEYS, sharpness).float()


def tiny_llama(seed=0):
    """A Llama of two layers, four query heads and two key heads, in float64."""
    return drawn("Llama", {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}, seed)


def tiny_gpt2(seed=0):
    """A GPT-2 of two layers of two heads, in float64."""
    sizes = {"vocab_size": len(WORDS), "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return drawn("GPT2", {**sizes, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3}, seed)


def save(model, folder):
    """The model in a folder, with a tokenizer of `WORDS` where it reads texts."""
    from transformers.utils import logging

    place = Path(folder)
    bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(place)
    finally:
        if bar:
            logging.enable_progress_bar()
    if not hasattr(model.config, "image_size"):
        (place / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        (place / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    return place


def encoded(model, texts=TEXTS):
    """Texts of `WORDS` as a model reads them."""
    from marginlens.probe.models.inputs import TextInputs

    ids = {word: k for k, word in enumerate(WORDS)}
    tokens = tuple(("[CLS]", *text.split(), "[SEP]") for text in texts)
    return TextInputs(tuple(texts), tuple(tuple(ids[one] for one in row) for row in tokens), tokens, 0, 16, 0)


def drawn(family, options, seed=0, sharpened=(), sharpness=1.0):
    """A random model of a family of transformers, in float64."""
    import torch
    import transformers

    config = getattr(transformers, f"{family}Config")(**options, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{family}Model")(config).double().eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(sharpened):
                weights.mul_(sharpness)
    return model
