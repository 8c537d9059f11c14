"""The frequencies of rotary embeddings, and the ways to stretch them for longer texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["rope_frequencies"]


def rope_frequencies(
    rotary_size: int, base: float = 10000.0, scaling: Mapping[str, Any] | None = None
) -> tuple[list[float], float]:
    """Angles per position of each rotated pair, and the factor for cosines and sines.

    Pair i of n turns by base^(-i/n) radians per position: Su et al., "RoFormer" (2021), sec. 3.2.2.

    Args:
        rotary_size: extent of the rotated part of a head: 2 n.
        base: the theta of the formula.
        scaling: None, or a dict as the `rope_scaling` of Hugging Face's configurations. Its
            "rope_type" (or "type") is one of

            - "default": as None;
            - "linear" with "factor": positions divided by the factor (Chen et al., 2023,
              "Extending context window of large language models via positional interpolation");
            - "ntk" with "factor": base multiplied by factor^(2n / (2n - 2)) ("NTK-aware");
            - "llama3" with "factor", "low_freq_factor", "high_freq_factor" and
              "original_max_position_embeddings": only long wavelengths are divided (Llama 3.1);
            - "yarn" with "factor", "original_max_position_embeddings", and optionally
              "beta_fast" (32), "beta_slow" (1), "attention_factor": Peng et al., "YaRN" (2023),
              sec. 3.

    Returns:
        n frequencies in radians per position, and the factor (1.0 but for "yarn").

    Raises:
        ValueError: rotary_size is not even and positive, the type is unknown, or a key is missing.

    Example:
        >>> rope_frequencies(4, scaling={"rope_type": "linear", "factor": 4.0})
        ([0.25, 0.0025], 1.0)
    """
    if rotary_size < 2 or rotary_size % 2:
        raise ValueError(f"[rope_frequencies] rotary_size is {rotary_size}: it must be even")
    scaling = dict(scaling or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return _plain(rotary_size, base), 1.0
    factor = _number(scaling, kind, "factor")
    if kind == "linear":
        return [f / factor for f in _plain(rotary_size, base)], 1.0
    if kind == "ntk":
        if rotary_size == 2:
            raise ValueError('[rope_frequencies] "ntk" needs a rotary_size above 2')
        return _plain(rotary_size, base * factor ** (rotary_size / (rotary_size - 2))), 1.0
    if kind == "llama3":
        return _llama3(_plain(rotary_size, base), factor, scaling), 1.0
    if kind == "yarn":
        return _yarn(rotary_size, base, factor, scaling)
    raise ValueError(
        f"[rope_frequencies] rope_type is {kind!r}: default, linear, ntk, llama3 and yarn are known"
    )


def _plain(rotary_size: int, base: float) -> list[float]:
    return [float(base ** (-i / rotary_size)) for i in range(0, rotary_size, 2)]


def _number(scaling: Mapping[str, Any], kind: str, key: str, default: float | None = None) -> float:
    value = scaling.get(key, default)
    if value is None:
        raise ValueError(f'[rope_frequencies] the scaling {kind!r} needs "{key}"')
    return float(value)


def _llama3(plain: list[float], factor: float, scaling: Mapping[str, Any]) -> list[float]:
    """Divides frequencies below low, keeps those above high, and blends between them."""
    low = _number(scaling, "llama3", "low_freq_factor")
    high = _number(scaling, "llama3", "high_freq_factor")
    length = _number(scaling, "llama3", "original_max_position_embeddings")
    result = []
    for frequency in plain:
        turns = length * frequency / (2 * math.pi)  # in the original context
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        result.append((1 - kept) * frequency / factor + kept * frequency)
    return result


def _yarn(
    rotary_size: int, base: float, factor: float, scaling: Mapping[str, Any]
) -> tuple[list[float], float]:
    length = _number(scaling, "yarn", "original_max_position_embeddings")
    default = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    attention = _number(scaling, "yarn", "attention_factor", default)

    def pair_that_turns(turns: float) -> float:
        return rotary_size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(pair_that_turns(_number(scaling, "yarn", "beta_fast", 32.0))), 0)
    last = math.ceil(pair_that_turns(_number(scaling, "yarn", "beta_slow", 1.0)))
    last = min(last, rotary_size - 1)
    width = max(last - first, 0.001)
    result = []
    for i, frequency in enumerate(_plain(rotary_size, base)):
        kept = 1.0 - min(1.0, max(0.0, (i - first) / width))
        result.append((1 - kept) * frequency / factor + kept * frequency)
    return result, attention
