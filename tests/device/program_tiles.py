"""Names and tiles in random programs: lines that change no value."""

import random
import re

import torch

NAME = "random"  # one for all axes: two names could meet in one group


def with_tiles(lines: list[str], seed: int) -> list[str]:
    """The program with tiles that are chosen, changed and cleared between its lines."""
    rng = random.Random(seed)
    result = []
    for line in lines:
        result.append(line)
        made = re.match(r"(t\d+) = ", line)
        if made and rng.random() < 0.4:
            result.append(f"tile({made[1]}, {rng.randint(0, 3)}, {rng.randint(1, 3)})")
        elif rng.random() < 0.05:
            result.append("untile()")
    return [*result, "untile()"]


def tile(tensor: torch.Tensor, dim: int, size: int) -> None:
    """Names a dimension of a tensor and cuts all axes of that name; nothing on the CPU."""
    if tensor.device.type == "cpu" or 0 in tensor.shape or tensor.dim() == 0:
        return
    import tiledev

    tiledev.set_axis_group_name(tensor, {dim % tensor.dim(): NAME})
    tiledev.set_axis_group_tiling(NAME, size)


def untile() -> None:
    """Takes all chosen tiles back."""
    import tiledev

    tiledev.clear_axis_group_tiling()
