"""The reader of IDX files."""

import gzip

import pytest
import torch

from tests.idx_files import TYPES, idx_bytes
from tiledev.data import read_idx


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4, 5), (7,), (0, 3), ()], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_round_trip(tmp_path, dtype, shape, packed):
    expected = torch.randint(0, 120, shape).to(dtype)
    if dtype.is_signed:
        expected = -expected
    content = idx_bytes(expected)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    found = read_idx(path)
    assert found.dtype == dtype
    assert torch.equal(found, expected)


def test_bytes_are_big_endian(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes([0, 0, 0x0B, 1, 0, 0, 0, 2, 0x01, 0x02, 0xFF, 0xFE]))
    assert read_idx(path).tolist() == [258, -2]


def test_the_name_does_not_decide_about_compression(tmp_path):
    path = tmp_path / "plain.gz"
    path.write_bytes(idx_bytes(torch.arange(4, dtype=torch.int32)))
    assert read_idx(str(path)).tolist() == [0, 1, 2, 3]


def test_the_result_can_be_written_to(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(idx_bytes(torch.zeros(3)))
    assert read_idx(path).add_(1).tolist() == [1, 1, 1]


GOOD = idx_bytes(torch.arange(6, dtype=torch.uint8).view(2, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not an IDX file: .*\(none\)"),
        (b"\0\0", "not an IDX file"),
        (b"PNG\x01" + GOOD[4:], "not an IDX file: it starts with the bytes 50 4e 47 01"),
        (b"\0\0\x0a\x02" + GOOD[4:], "not an IDX file"),
        (GOOD[:9], "ends inside its header of 2 dimensions"),
        (GOOD[:-1], "announces 6 bytes of data .* but 5 follow"),
        (GOOD + b"\0", "announces 6 bytes of data .* but 7 follow"),
        (gzip.compress(GOOD, mtime=0)[:-9], "gzip data is damaged"),
        (gzip.compress(GOOD, mtime=0)[:12] + b"\xff" * 20, "gzip data is damaged"),
        (gzip.compress(GOOD, mtime=0)[:-8] + b"\0" * 8, "gzip data is damaged"),
        (gzip.compress(GOOD[:-2], mtime=0), "but 4 follow"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "nothing")
