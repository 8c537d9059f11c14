"""The command line of tiledev-mnist."""

import re
from pathlib import Path

import pytest

from tiledev.tools.mnist_options import (
    AxisTiling,
    axis_tiling,
    build_parser,
    parse_options,
    wrong_tiling,
)


def parse(*argv):
    return parse_options(build_parser(), argv)


def test_defaults():
    options = parse()
    assert options.device == "tiledev"
    assert options.compare_torch
    assert options.batch_size is None
    assert (options.epochs, options.hidden_dim, options.depth) == (5, 256, 5)
    assert (options.ncpu, options.ncuda, options.runtime_mode) == (-1, 0, "graph")


ALL_FLAGS = """
    --epochs 2 --lr 0.1 --momentum 0 --seed 3 --hidden-dim 8 --depth 2
    --batch-size 64 --grad-accum-steps 2 --device tiledev --ncpu 2 --ncuda 1
    --no-compare-torch --runtime-mode eager --axis-tiling batch=16
    --axis-tiling hidden=4,3,1 --print-axis-groups --restrict-cpu -vv
    --output-dir out --plot --data-dir d --download
"""


def test_all_flags():
    options = parse(*ALL_FLAGS.split())
    assert options.axis_tiling == [AxisTiling("batch", (16,)), AxisTiling("hidden", (4, 3, 1))]
    assert options.restrict == "cpu"
    assert options.verbose == 2
    assert not options.compare_torch
    assert options.output_dir == Path("out")
    assert parse("--restrict-cuda").restrict == "cuda"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--epochs 0", "argument --epochs: '0' is not a whole number from 1"),
        ("--epochs 1.5", "argument --epochs: '1.5' is not a whole number"),
        ("--lr -1", "argument --lr: '-1' is not a number above 0"),
        ("--lr nan", "argument --lr: 'nan' is not a number above 0"),
        ("--lr inf", "argument --lr: 'inf' is not a number above 0"),
        ("--momentum 1", "argument --momentum: '1' is not a number from 0 to below 1"),
        ("--seed -1", "argument --seed: '-1' is not a whole number from 0"),
        ("--hidden-dim x", "argument --hidden-dim: 'x' is not a whole number"),
        ("--depth 0", "argument --depth: '0' is not"),
        ("--batch-size 0", "argument --batch-size: '0' is not"),
        ("--grad-accum-steps 0", "argument --grad-accum-steps: '0' is not"),
        ("--batch-size 4 --grad-accum-steps 5", "argument --grad-accum-steps: 5 parts of a batch"),
        ("--device cuda", "argument --device: invalid choice: 'cuda'"),
        ("--ncpu 0", "argument --ncpu: '0' is not -1 or a whole number from 1"),
        ("--ncuda -1", "argument --ncuda: '-1' is not a whole number from 0"),
        ("--runtime-mode lazy", "argument --runtime-mode: invalid choice: 'lazy'"),
        ("--axis-tiling batch", "'batch' is not NAME=SIZES"),
        ("--axis-tiling =4", "'=4' is not NAME=SIZES"),
        ("--axis-tiling 2d=4", "'2d=4' is not NAME=SIZES"),
        ("--axis-tiling batch=", "the sizes '' of axis group 'batch'"),
        ("--axis-tiling batch=0", "the sizes '0' of axis group 'batch'"),
        ("--axis-tiling batch=4,,4", "the sizes '4,,4' of axis group 'batch'"),
        ("--axis-tiling batch=4,-1", "the sizes '4,-1' of axis group 'batch'"),
        (f"--axis-tiling batch={2**63}", "of axis group 'batch' are more than any axis has"),
        ("--axis-tiling batch=1.5", "the sizes '1.5' of axis group 'batch'"),
        ("--axis-tiling b=4 --axis-tiling b=5", "axis group 'b' is given twice"),
        ("--restrict-cpu --restrict-cuda", "not allowed with argument --restrict-cpu"),
        ("--plot", "argument --plot: needs --output-dir"),
        ("--device cpu --restrict-cpu", "--restrict-cpu/--restrict-cuda: needs --device tiledev"),
        ("--device cpu --axis-tiling b=4", "--axis-tiling: needs --device tiledev"),
        ("--device cpu --runtime-mode eager", "--runtime-mode: needs --device tiledev"),
    ],
)
def test_bad_values(capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        parse(*arguments.split())
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_axis_tiling_keeps_order():
    assert axis_tiling("rows=3,1,2") == AxisTiling("rows", (3, 1, 2))


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ("--axis-tiling batch=100,200", None),
        ("--axis-tiling batch=7 --axis-tiling hidden=100,156 --axis-tiling classes=99", None),
        ("--axis-tiling features=700,84 --axis-tiling classes=3,7", None),
        ("--axis-tiling batch=10,40 --batch-size 100 --grad-accum-steps 2", None),
        ("--axis-tiling batch=10,40 --batch-size 50", None),
        ("--axis-tiling batch=100,100", "100,100 of axis group 'batch' add up to 200.* extent 300"),
        ("--axis-tiling batch=10,54 --batch-size 64", "add up to 64, .* extent 44 and 64;"),
        ("--axis-tiling batch=2,31 --batch-size 99 --grad-accum-steps 3", "extent 1 and 33;"),
        ("--axis-tiling hidden=1,2", "'hidden' add up to 3, .* extent 256; pass sizes that add up"),
        ("--axis-tiling rows=4", "no axis group 'rows'; .* batch, classes, features, hidden"),
        ("--depth 1 --axis-tiling hidden=4", "no axis group 'hidden'; .* batch, classes, features"),
    ],
)
def test_wrong_tilings(arguments, wrong):
    found = wrong_tiling(parse(*arguments.split()), images=300, pixels=784, classes=10)
    assert (found is None) == (wrong is None), found
    assert wrong is None or re.search(wrong, found)
