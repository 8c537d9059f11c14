"""`tiledev-mnist`: trains DeepReLU on MNIST, on the CPU and on tiledev, and compares the two."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

import tiledev
from tiledev.data import Mnist, download_mnist, load_mnist, load_mnist_sample
from tiledev.models import DeepReLU
from tiledev.tools.mnist_options import (
    DEFAULT_DOWNLOAD_DIR,
    Options,
    build_parser,
    parse_options,
    wrong_tiling,
)
from tiledev.tools.mnist_report import disagree, print_report, write_plot, write_results
from tiledev.tools.mnist_train import Phase, train

__all__ = ["main"]

CLASSES = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: its arguments (default: those of the process).

    Returns:
        The exit status: 0, or 1 if the CPU and tiledev do not agree.

    Raises:
        SystemExit: with status 2, a bad argument, or data or workers that are not to be had.
    """
    parser = build_parser()
    options = parse_options(parser, argv)
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error('argument --plot: run `pip install "tiledev[examples]"` to get matplotlib')
    try:
        data = _load(options)
        if options.device == "tiledev":
            _set_up_device(options)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    if options.grad_accum_steps > len(data):
        parser.error(
            f"argument --grad-accum-steps: {options.grad_accum_steps} parts of "
            f"{len(data)} images: make it smaller"
        )
    if wrong := wrong_tiling(options, len(data), data.images.shape[1], CLASSES):
        parser.error(f"argument --axis-tiling: {wrong}")
    phases = _train_all(data, options)
    print_report(phases)
    _write(phases, options)
    return int(disagree(phases))


def _load(options: Options) -> Mnist:
    folder = options.data_dir
    if options.download:
        folder = folder or DEFAULT_DOWNLOAD_DIR
        download_mnist(folder)
    return load_mnist(folder) if folder else load_mnist_sample()


def _set_up_device(options: Options) -> None:
    tiledev.init_context(options.ncpu, options.ncuda, verbose=options.verbose)
    if options.restrict == "cpu":
        tiledev.restrict_cpu()
    elif options.restrict == "cuda":
        tiledev.restrict_cuda()


def _train_all(data: Mnist, options: Options) -> list[Phase]:
    pixels = data.images.shape[1]
    model = DeepReLU(pixels, options.hidden_dim, CLASSES, options.depth, seed=options.seed)
    widths = [str(layer.in_features) for layer in model.layers] + [str(CLASSES)]
    print(f"DeepReLU {'-'.join(widths)} on {data.source}, seed {options.seed}", flush=True)
    compare = options.compare_torch and options.device != "cpu"
    devices = ["cpu", options.device] if compare else [options.device]
    return [train(model, data, device, options) for device in devices]


def _write(phases: list[Phase], options: Options) -> None:
    if options.output_dir is None:
        return
    options.output_dir.mkdir(parents=True, exist_ok=True)
    write_results(options.output_dir / "results.json", phases, options)
    if options.plot:
        write_plot(options.output_dir / "losses.png", phases)


if __name__ == "__main__":
    sys.exit(main())
