"""A random model of a few thousand weights for every family of models that has an adapter, and a batch that it reads."""

import warnings
from functools import cache

import numpy as np

SMALL = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 20}
TEXT = {"vocab_size": 40, "max_position_embeddings": 32}
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
GROUPED = {"num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 8}
IMAGE = {"image_size": 8, "patch_size": 2, "num_channels": 3}
DINOV2 = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "mlp_ratio": 2}
GPT2 = {
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "vocab_size": 40,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 8}
LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
BIASED = {"attention_bias": True}  # which these families leave out by default
COARSE_NORM = {"rms_norm_eps": 0.05}  # so large that to forget it shows
BERT_IDS = {**IDS, "cls_token_id": 0, "sep_token_id": 0}
STACKS = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
STACKS |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, **IDS, "decoder_start_token_id": 1}
T5 = {"vocab_size": 40, "d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 4}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0}
OPT = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 20, "word_embed_proj_dim": 24}
CLIP_TEXT = {**SMALL, **TEXT, **IDS, "num_hidden_layers": 2, "eos_token_id": 2}
CLIP_IMAGE = {**IMAGE, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
DEBERTA = {**SMALL, **TEXT, "relative_attention": True, "position_buckets": 8}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
GEMMA = {**SMALL, **TEXT, **WIDE, **IDS, **LOCAL, "query_pre_attn_scalar": 9}

MODELS = {  # name, whose first word is the family → class of transformers, its options
    "bert": ("BertModel", {**SMALL, **TEXT}),
    "bert decoder": ("BertModel", {**SMALL, **TEXT, "is_decoder": True, "add_cross_attention": True}),
    "roberta": ("RobertaModel", {**SMALL, **TEXT}),
    "xlm-roberta": ("XLMRobertaModel", {**SMALL, **TEXT}),
    "camembert": ("CamembertModel", {**SMALL, **TEXT}),
    "electra": ("ElectraModel", {**SMALL, **TEXT, "embedding_size": 10}),
    "distilbert": ("DistilBertForMaskedLM", {"dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 20, **TEXT}),
    "albert": ("AlbertModel", {**SMALL, **TEXT, "num_hidden_layers": 2, "embedding_size": 10, "inner_group_num": 2}),
    "albert in two groups": (
        "AlbertForMaskedLM",
        {**SMALL, **TEXT, "num_hidden_layers": 4, "embedding_size": 10, "num_hidden_groups": 2},
    ),
    "deberta-v2": ("DebertaV2Model", {**DEBERTA, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}),
    "deberta-v2 shared keys": (
        "DebertaV2Model",
        {**DEBERTA, "pos_att_type": ["p2c"], "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "deberta-v2 absolute": ("DebertaV2Model", {**SMALL, **TEXT}),
    "modernbert": (
        "ModernBertModel",
        {**SMALL, **TEXT, **BERT_IDS, **BIASED, "local_attention": 6, "global_attn_every_n_layers": 2},
    ),
    "vit": ("ViTForImageClassification", {**SMALL, **IMAGE}),
    "vit without biases": ("ViTModel", {**SMALL, **IMAGE, "qkv_bias": False}),
    "deit": ("DeiTModel", {**SMALL, **IMAGE}),
    "dinov2": ("Dinov2ForImageClassification", {**DINOV2, **IMAGE}),
    "dinov2 without biases": ("Dinov2Model", {**DINOV2, **IMAGE, "qkv_bias": False, "use_swiglu_ffn": True}),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", {**DINOV2, **IMAGE, "num_register_tokens": 3}),
    "swin": (
        "SwinModel",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "clip": ("CLIPModel", {"text_config": CLIP_TEXT, "vision_config": CLIP_IMAGE}),
    "clip_text_model": ("CLIPTextModelWithProjection", CLIP_TEXT),
    "clip_vision_model": ("CLIPVisionModel", CLIP_IMAGE),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 scaled by layer": ("GPT2Model", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2 unscaled": ("GPT2Model", {**GPT2, "scale_attn_weights": False, "add_cross_attention": True}),
    "opt": ("OPTForCausalLM", {**OPT, **TEXT}),
    "bloom": ("BloomForCausalLM", {"vocab_size": 40, "hidden_size": 24, "n_layer": 3, "n_head": 4}),
    "llama": ("LlamaForCausalLM", {**SMALL, **TEXT, **GROUPED}),
    "llama yarn, wide heads": (
        "LlamaModel",
        {**SMALL, **TEXT, **BIASED, "num_key_value_heads": 1, "head_dim": 8, "rope_parameters": YARN},
    ),
    "mistral": ("MistralModel", {**SMALL, **TEXT, **GROUPED, "sliding_window": 4}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**SMALL, **TEXT, **WIDE, **IDS, **LOCAL, **EXPERTS, "rope_parameters": {**YARN, "factor": 2.0}},
    ),
    "mixtral": ("MixtralModel", {**SMALL, **TEXT, **GROUPED, "num_local_experts": 2}),
    "gemma": ("GemmaModel", {**SMALL, **TEXT, "num_key_value_heads": 1, "head_dim": 8}),
    "starcoder2": ("Starcoder2Model", {**SMALL, **TEXT, **GROUPED, "sliding_window": 4}),
    "qwen2": (
        "Qwen2Model",
        {**SMALL, **TEXT, **GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "phi": ("PhiModel", {**SMALL, **TEXT, **GROUPED, "partial_rotary_factor": 0.67}),
    "qwen3": ("Qwen3ForCausalLM", {**SMALL, **TEXT, **WIDE, **BIASED, **COARSE_NORM}),
    "qwen3_moe": ("Qwen3MoeModel", {**SMALL, **TEXT, **WIDE, **MOE}),
    "gemma3_text": ("Gemma3TextModel", {**GEMMA, **BIASED, **COARSE_NORM}),
    "olmo2": ("Olmo2Model", {**SMALL, **TEXT, **IDS, **GROUPED, **BIASED, **COARSE_NORM}),
    "olmo3": ("Olmo3Model", {**SMALL, **TEXT, **IDS, **GROUPED, **LOCAL}),
    "gemma2": ("Gemma2Model", {**GEMMA, **BIASED, "attn_logit_softcapping": 20.0}),
    "gemma2 uncapped": ("Gemma2Model", {**GEMMA, "attn_logit_softcapping": None}),
    "phi3": ("Phi3ForCausalLM", {**SMALL, **TEXT, **IDS, **GROUPED}),
    "gpt_neox": ("GPTNeoXModel", {**SMALL, **TEXT, "rotary_pct": 0.34}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 encoder": ("T5EncoderModel", T5),
    "bart": ("BartModel", {**TEXT, **STACKS}),
    "whisper": (
        "WhisperModel",
        {"vocab_size": 40, **STACKS, "num_mel_bins": 6, "max_source_positions": 10, "max_target_positions": 16},
    ),
}
IMAGES = [name for name in MODELS if name.split()[0] in ("vit", "deit", "dinov2", "dinov2_with_registers", "swin")]
IMAGES += ["clip_vision_model"]
TEXTUAL = [name for name in MODELS if name not in (*IMAGES, "whisper")]
NO_FLOAT64 = ("gpt_oss", "mixtral", "qwen3_moe")  # whose experts torch multiplies in single precision at most


@cache
def small_model(name, dtype):
    """A random model with attention far from uniform, biases included; reading a model leaves it as it was."""
    import torch
    import transformers

    kind, options = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, name)))
        with warnings.catch_warnings():
            # DeBERTa's module compiles functions as torch no longer wishes
            warnings.simplefilter("ignore", DeprecationWarning)
            cls = getattr(transformers, kind)
        model = cls(cls.config_class(**options, attn_implementation="eager")).to(dtype).eval()
        with torch.no_grad():
            for place, parameter in model.named_parameters():
                parameter.add_(torch.randn(parameter.shape, dtype=torch.float64).to(dtype), alpha=0.3)
                if name.startswith("albert") and place.endswith(("query.weight", "key.weight")):
                    parameter.mul_(3.0)  # tokens become alike in layers that share weights
    return model


def three_texts():
    """Texts of random tokens as the probe takes them."""
    from marginlens.probe.models.inputs import TextInputs

    rng = np.random.default_rng(1)
    ids = tuple(tuple(rng.integers(3, 40, n).tolist()) for n in (9, 9, 6))
    return TextInputs(tuple(map(str, ids)), ids, tuple(tuple(map(str, row)) for row in ids), 0, 16, 0)


def batch_for(name, dtype, padding="none"):
    """Three inputs of a model; texts of 11 tokens, of which padding takes some of the second and the third."""
    import torch

    generator = torch.Generator().manual_seed(7)
    side = 16 if name == "swin" else 8
    images = {"pixel_values": torch.randn((3, 3, side, side), generator=generator, dtype=dtype)}
    if name in IMAGES:
        return images
    ids = torch.randint(3, 40, (3, 11), generator=generator)
    if name == "whisper":
        return {
            "input_features": torch.randn((3, 6, 20), generator=generator, dtype=dtype),
            "decoder_input_ids": ids,
        }
    texts = {"input_ids": ids}
    if padding != "none":
        mask = torch.ones_like(ids)
        for row, n_padded in ((1, 6), (2, 3)):
            mask[row, slice(11 - n_padded, None) if padding == "right" else slice(None, n_padded)] = 0
        texts = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    return {**texts, **images} if name == "clip" else texts
