"""Networks of transformers as they come: tiny configurations and random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.stock import TINY, Sizes, Stock

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
POSITIONS = {"max_position_embeddings": 256}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WIDE = {"initializer_range": 0.1}  # so that tokens and gradients are not all alike
TEXT = ("batch", "sequence", "hidden")  # queries, keys and values are one product: no heads
NONZERO = {"aten::nonzero": "which tokens an expert gets is data"}


def stock(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Returns what makes a model of transformers, which is imported only then."""

    def make() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return make


def causal_batch(sizes: Sizes) -> dict[str, Tensor]:
    batch = sizes.padded(left=True)
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def masked_batch(sizes: Sizes) -> dict[str, Tensor]:
    return {**sizes.padded(left=False), "labels": sizes.tokens()}


def translation_batch(sizes: Sizes) -> dict[str, Tensor]:
    return {**sizes.padded(left=False), "labels": sizes.tokens(sizes.length - 2)}


def picture_and_text(sizes: Sizes) -> dict[str, Any]:
    return {**sizes.padded(left=False), "pixel_values": sizes.images(), "return_loss": True}


def sound(sizes: Sizes) -> Tensor:
    return torch.randn(sizes.batch, 6, 2 * sizes.length)


def causal(name: str, make: Callable[[], nn.Module], sizes: Sizes, **settings: Any) -> Stock:
    inputs = functools.partial(causal_batch, sizes)
    return Stock(name, make, inputs, lambda: sizes.padded(left=True), **settings)


def networks(sizes: Sizes = TINY) -> list[Stock]:
    """Returns the table of the networks at these sizes."""
    return [*decoders(sizes), *experts(sizes), *encoders(sizes), *seq2seq(sizes)]


def common(sizes: Sizes) -> dict[str, Any]:
    """The settings that most configurations call by these names."""
    return {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.inner,
        **POSITIONS,
        **SPECIAL,
        **WIDE,
    }


def grouped(sizes: Sizes) -> dict[str, Any]:
    """Attention in which two query heads share a key."""
    keys = sizes.heads // 2
    return {**common(sizes), "num_key_value_heads": keys, "head_dim": sizes.hidden // sizes.heads}


def decoders(sizes: Sizes) -> list[Stock]:
    plain = common(sizes)
    gpt2 = {"n_embd": sizes.hidden, "n_layer": sizes.layers, "n_head": sizes.heads}
    neo = {
        **{key: plain[key] for key in ("vocab_size", "hidden_size", "intermediate_size")},
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "attention_types": [[["global", "local"], sizes.layers // 2]],
        "window_size": 4,
        **POSITIONS,
        **SPECIAL,
        **WIDE,
    }
    mamba = {
        **{key: plain[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers")},
        "state_size": 4,
        "conv_kernel": 3,
        "time_step_rank": 3,
        **SPECIAL,
        **WIDE,
    }
    vocabulary = {"vocab_size": sizes.vocabulary, "n_positions": 256, **SPECIAL, **WIDE}
    return [
        causal(
            "GPT-2", stock("GPT2LMHeadModel", "GPT2Config", **gpt2, **vocabulary), sizes, axes=TEXT
        ),
        causal("GPT-Neo", stock("GPTNeoForCausalLM", "GPTNeoConfig", **neo), sizes),
        causal("GPT-NeoX", stock("GPTNeoXForCausalLM", "GPTNeoXConfig", **plain), sizes),
        causal("Llama", stock("LlamaForCausalLM", "LlamaConfig", **grouped(sizes)), sizes),
        causal(
            "Mistral",
            stock("MistralForCausalLM", "MistralConfig", **grouped(sizes), sliding_window=4),
            sizes,
        ),
        causal("Qwen2", stock("Qwen2ForCausalLM", "Qwen2Config", **grouped(sizes)), sizes),
        causal("Qwen3", stock("Qwen3ForCausalLM", "Qwen3Config", **grouped(sizes)), sizes),
        causal("Gemma", stock("GemmaForCausalLM", "GemmaConfig", **grouped(sizes)), sizes),
        causal("Phi", stock("PhiForCausalLM", "PhiConfig", **plain), sizes),
        causal(
            "Mamba",
            stock("MambaForCausalLM", "MambaConfig", **mamba),
            sizes,
            caches=(None,),
            axes=TEXT,
        ),
    ]


def experts(sizes: Sizes) -> list[Stock]:
    """Mixtral with each way of transformers to run its experts."""

    def mixtral(way: str, **settings: Any) -> Callable[[], nn.Module]:
        sizes_of = {**grouped(sizes), **EXPERTS, **settings, "experts_implementation": way}
        return stock("MixtralForCausalLM", "MixtralConfig", **sizes_of)

    return [
        causal("Mixtral (batched_mm)", mixtral("batched_mm"), sizes),
        causal("Mixtral (eager)", mixtral("eager"), sizes, fallbacks=NONZERO),
        # The CPU's grouped_mm reads where the groups end: the graph before it has run by the end.
        causal("Mixtral (grouped_mm)", mixtral("grouped_mm"), sizes, axes=("batch", "hidden")),
    ]


def encoders(sizes: Sizes) -> list[Stock]:
    distil = {
        "dim": sizes.hidden,
        "n_layers": sizes.layers,
        "n_heads": sizes.heads,
        "hidden_dim": sizes.inner,
        "vocab_size": sizes.vocabulary,
        "pad_token_id": 0,
        **POSITIONS,
        **WIDE,
    }
    picture = {
        **{key: value for key, value in common(sizes).items() if key.startswith(("hidden", "num"))},
        "intermediate_size": sizes.inner,
        "image_size": sizes.image,
        "patch_size": 4,
        **WIDE,
    }
    clip = {"text_config": common(sizes), "vision_config": picture, "projection_dim": 12}
    masked = functools.partial(masked_batch, sizes)
    vit = stock("ViTForImageClassification", "ViTConfig", **picture, num_labels=sizes.classes)
    return [
        Stock("BERT", stock("BertForMaskedLM", "BertConfig", **common(sizes)), masked),
        Stock("RoBERTa", stock("RobertaForMaskedLM", "RobertaConfig", **common(sizes)), masked),
        Stock("DistilBERT", stock("DistilBertForMaskedLM", "DistilBertConfig", **distil), masked),
        Stock(
            "ViT",
            vit,
            lambda: {"pixel_values": sizes.images(), "labels": sizes.labels()},
            axes=("batch", "hidden", "heads"),
        ),
        Stock(
            "CLIP",
            stock("CLIPModel", "CLIPConfig", **clip),
            functools.partial(picture_and_text, sizes),
        ),
    ]


def seq2seq(sizes: Sizes) -> list[Stock]:
    t5 = {
        "d_model": sizes.hidden,
        "d_kv": sizes.hidden // sizes.heads,
        "d_ff": sizes.inner,
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "vocab_size": sizes.vocabulary,
        **SPECIAL,
        "decoder_start_token_id": 0,
    }
    both = {
        **{f"{part}_layers": sizes.layers for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": sizes.heads for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": sizes.inner for part in ("encoder", "decoder")},
        "d_model": sizes.hidden,
        "vocab_size": sizes.vocabulary,
        "init_std": 0.1,
        **SPECIAL,
        "decoder_start_token_id": 1,
    }
    heard = {"num_mel_bins": 6, "max_source_positions": sizes.length, "max_target_positions": 256}
    translation = functools.partial(translation_batch, sizes)
    return [
        Stock(
            "T5",
            stock("T5ForConditionalGeneration", "T5Config", **t5),
            translation,
            lambda: sizes.padded(left=False),
        ),
        Stock(
            "BART",
            stock("BartForConditionalGeneration", "BartConfig", **both, **POSITIONS),
            translation,
            lambda: sizes.padded(left=False),
        ),
        Stock(
            "Whisper",
            stock("WhisperForConditionalGeneration", "WhisperConfig", **both, **heard),
            lambda: {"input_features": sound(sizes), "labels": sizes.tokens()},
            lambda: {"input_features": sound(sizes)},
            axes=("batch", "hidden", "heads"),
        ),
    ]
