"""The device is there without `import tiledev`, and what stands in its way is said clearly."""

import shutil
import textwrap
from pathlib import Path

import pytest
import torch

from tests.device import scripts

pytestmark = pytest.mark.tiledev_only


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the metadata of an installed tiledev, so that a mere checkout has it, too."""
    metadata = tmp_path / "tiledev-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiledev\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\ntiledev = tiledev:_autoload\n")
    return tmp_path


def copy_package(folder: Path, torch_version: str) -> Path:
    """A copy of the package that claims to be built with another torch; returns its folder."""
    skipped = shutil.ignore_patterns("__pycache__", "models", "tools", "data")
    package = shutil.copytree(scripts.PACKAGE, folder / "tiledev", ignore=skipped)
    info = package / "_build_info.py"
    info.write_text(info.read_text() + f"\nTORCH_VERSION = {torch_version!r}\n")
    return folder


@pytest.mark.parametrize(
    "imports", ["import torch", "import torch, tiledev", "import tiledev, torch", "import tiledev"]
)
def test_any_order_of_imports_gives_a_device(installed, imports):
    code = f"""
        {imports}
        import torch
        print(torch.zeros(3, device="tiledev").tolist(), torch.tiledev.device_count())
    """
    env = scripts.environment(installed, autoload=True)
    assert scripts.check(code, env) == "[0.0, 0.0, 0.0] 1\n"


@pytest.mark.parametrize("imports", ["import torch, tiledev", "import tiledev, torch"])
def test_without_autoload_the_import_of_tiledev_registers(imports):
    code = f"{imports}; print(torch.ones(2, device='tiledev').sum().item())"
    assert scripts.check(code) == "2.0\n"


def test_import_is_light(installed):
    code = """
        import sys, threading, torch
        heavy = {"torch._dynamo", "torch._inductor", "numpy.testing", "rich"} & set(sys.modules)
        print(sorted(heavy), threading.active_count(), torch.tiledev.is_initialized())
    """
    env = scripts.environment(installed, autoload=True)
    assert scripts.check(code, env) == "[] 1 False\n"


def test_modules_can_be_reloaded_from_any_place():
    code = """
        import importlib, torch
        importlib.import_module("torch.tiledev")
        from torch.tiledev import manual_seed
        assert torch.get_device_module("tiledev") is torch.tiledev
        assert torch.get_device_module() is torch.tiledev
        print(torch.device("tiledev").type, torch._C._get_privateuse1_backend_name())
    """
    assert scripts.check("import tiledev\n" + textwrap.dedent(code)) == "tiledev tiledev\n"


def test_a_second_backend_is_named():
    code = """
        import torch
        torch.utils.rename_privateuse1_backend("npu")
        import tiledev
    """
    done = scripts.run(code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "RuntimeError: [import tiledev] the backend 'npu'"
    )


def test_another_torch_version_is_an_import_error(tmp_path):
    env = scripts.environment(copy_package(tmp_path, "1.13.1+cu117"))
    done = scripts.run("import tiledev", env)
    message = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert message.startswith("ImportError: [import tiledev]")
    assert "1.13.1+cu117" in message
    assert torch.__version__ in message
    assert "pip install" in message
    assert "During handling" not in done.stderr


def test_another_patch_version_is_fine(tmp_path):
    minor = ".".join(torch.__version__.split(".")[:2])
    env = scripts.environment(copy_package(tmp_path, f"{minor}.99"))
    assert (
        scripts.check("import tiledev; print(tiledev.is_context_initialized())", env) == "False\n"
    )


def test_autoload_of_another_torch_version_names_both(installed):
    env = scripts.environment(copy_package(installed, "1.13.1"), autoload=True)
    done = scripts.run("import torch", env)
    assert done.returncode == 1
    assert "ImportError: [import tiledev]" in done.stderr
    assert done.stderr.count("Traceback") == 2  # the cause, and torch's own line about it


def test_a_package_that_is_not_built_says_so(tmp_path):
    copy_package(tmp_path, "0")
    (tmp_path / "tiledev/_build_info.py").unlink()
    done = scripts.run("import tiledev", scripts.environment(tmp_path))
    assert "ImportError: [import tiledev] the package is not built" in done.stderr.splitlines()[-1]


def test_a_broken_extension_says_so_and_may_be_tried_again(tmp_path):
    copy_package(tmp_path, torch.__version__)
    for path in (tmp_path / "tiledev").glob("_C*.so"):
        path.write_bytes(b"not a library")
    code = """
        for attempt in range(2):
            try:
                import tiledev
            except ImportError as error:
                print(str(error).split("(")[0])
    """
    line = "[import tiledev] the compiled module tiledev._C does not load \n"
    assert scripts.check(code, scripts.environment(tmp_path)) == line * 2
