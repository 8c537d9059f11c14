"""Networks of images: transformers' own, and two that it lacks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.language import stock
from tests.models.stock import Sizes, Stock

# Batch norm needs many pixels: over few, gradients are large and so is their rounding.
TINY = Sizes(batch=4, image=32)


class MixerBlock(nn.Module):
    """Mixes patches, then channels: Tolstikhin et al., "MLP-Mixer" (2021), figure 1."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_patches = self.mlp(patches, 2 * patches)
        self.over_channels = self.mlp(width, 2 * width)

    @staticmethod
    def mlp(width: int, inner: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(width, inner), nn.GELU(), nn.Dropout(0.1), nn.Linear(inner, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))


class MlpMixer(nn.Module):
    """An MLP-Mixer with patches of 4x4 pixels."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        patches = (sizes.image // 4) ** 2
        self.patches = nn.Conv2d(3, sizes.hidden, 4, stride=4)
        blocks = (MixerBlock(patches, sizes.hidden) for _ in range(sizes.layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(sizes.hidden)
        self.classifier = nn.Linear(sizes.hidden, sizes.classes)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.blocks(self.patches(pixel_values).flatten(2).transpose(1, 2))
        logits = self.classifier(self.norm(x).mean(1))
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}


def double_convolution(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Ronneberger et al., "U-Net" (2015), with three levels, padding and batch norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [sizes.hidden // 4, sizes.hidden // 2, sizes.hidden]
        self.down1 = double_convolution(3, widths[0])
        self.down2 = double_convolution(widths[0], widths[1])
        self.bottom = double_convolution(widths[1], widths[2])
        self.widen2 = nn.ConvTranspose2d(widths[2], widths[1], 2, stride=2)
        self.up2 = double_convolution(2 * widths[1], widths[1])
        self.widen1 = nn.Conv2d(widths[1], widths[0], 1)
        self.up1 = double_convolution(2 * widths[0], widths[0])
        self.head = nn.Conv2d(widths[0], sizes.classes, 1)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        first = self.down1(pixel_values)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = self.up2(torch.cat([second, self.widen2(x)], 1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = self.up1(torch.cat([first, self.widen1(x)], 1))
        logits = self.head(x)
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}


def networks(sizes: Sizes = TINY) -> list[Stock]:
    """Returns the table of the networks at these sizes."""
    half, whole = sizes.hidden // 2, sizes.hidden
    resnet = {"embedding_size": half, "hidden_sizes": [half, whole], "depths": [1, 2]}
    convnext = {"hidden_sizes": [half, whole], "depths": [1, 2], "num_stages": 2, "patch_size": 2}
    mobilenet = {"depth_multiplier": 0.25, "image_size": sizes.image, "output_stride": 8}
    # Over 52 random layers the corners of relu6 make another gradient of a change by 1e-7.
    mobilenet |= {"hidden_act": "silu", "classifier_dropout_prob": 0.1}
    labels = {"num_labels": sizes.classes}

    def pictures() -> dict[str, Tensor]:
        return {"pixel_values": sizes.images(), "labels": sizes.labels()}

    def masks() -> dict[str, Tensor]:
        shape = (sizes.batch, sizes.image, sizes.image)
        return {"pixel_values": sizes.images(), "labels": torch.randint(sizes.classes, shape)}

    def classifier(name: str, **settings: object) -> Callable[[], nn.Module]:
        return stock(f"{name}ForImageClassification", f"{name}Config", **settings, **labels)

    rows, both = ("batch",), ("batch", "hidden")
    return [
        Stock("ResNet", classifier("ResNet", **resnet, layer_type="basic"), pictures, axes=rows),
        Stock("ResNet (bottleneck)", classifier("ResNet", **resnet), pictures, axes=rows),
        # The CPU's own gradients, up to 3.5, are 1.5e-5 from those in float64.
        Stock(
            "MobileNetV2", classifier("MobileNetV2", **mobilenet), pictures, axes=rows, atol=5e-5
        ),
        Stock("ConvNeXt", classifier("ConvNext", **convnext), pictures, axes=rows),
        Stock("MLP-Mixer", lambda: MlpMixer(sizes), pictures, axes=both),
        Stock("U-Net", lambda: UNet(sizes), masks, axes=rows),
    ]
