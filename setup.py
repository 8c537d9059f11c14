"""Builds tiledev._C from every .cpp under csrc/; everything else stands in pyproject.toml.

Environment:
    MAX_JOBS: parallel compile jobs (default: one for each usable core).
    TILEDEV_DEBUG: "1" builds with assertions, graph verification and line tables.
    TILEDEV_SANITIZE: comma-separated sanitizers: "address", "undefined", "thread".
    TORCH_NO_COMPILER_WRAPPER: set, compiles without ccache even where ccache is on PATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# A tiledev that is already installed must not load, or stop torch from loading, during a build.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

ROOT = Path(__file__).resolve().parent
MACOS = sys.platform == "darwin"
DEBUG = os.environ.get("TILEDEV_DEBUG", "0") not in ("", "0")
SANITIZERS = [name for name in os.environ.get("TILEDEV_SANITIZE", "").split(",") if name]
KNOWN_SANITIZERS = ("address", "thread", "undefined")


def usable_cores() -> int:
    """Counts the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def torch_requirement() -> str:
    """Names the torch minor version that the extension is compiled against, without a local tag."""
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return f"torch=={major}.{minor}.*"


def build_type() -> str:
    """Names the kind of build: "release", "debug", or the sanitizers."""
    return "+".join(SANITIZERS) or ("debug" if DEBUG else "release")


def sanitizer_flags() -> list[str]:
    """Returns the flags that compiler and linker both need.

    Raises:
        SystemExit: a name in TILEDEV_SANITIZE is not a known sanitizer.
    """
    for name in SANITIZERS:
        if name not in KNOWN_SANITIZERS:
            known = ", ".join(KNOWN_SANITIZERS)
            raise SystemExit(f"[setup] TILEDEV_SANITIZE names {name!r}; choose from {known}")
    if not SANITIZERS:
        return []
    # vptr needs the type information of torch's classes, which torch does not export.
    return [f"-fsanitize={','.join(SANITIZERS)}", "-fno-sanitize=vptr", "-fno-omit-frame-pointer"]


def stable_torch_includes() -> list[str]:
    """Returns torch's include folders through a link under build/ whose path stays the same.

    pip builds in a folder with a random name; without the link no build would find the
    last one's objects in ccache.
    """
    link = ROOT / "build" / "torch-include"
    real = Path(include_paths()[0])
    link.parent.mkdir(exist_ok=True)
    if link.is_symlink():
        link.unlink()
    link.symlink_to(real, target_is_directory=True)
    return [str(link / Path(path).relative_to(real)) for path in include_paths()]


def compile_flags() -> list[str]:
    """Returns the C++ flags; torch's headers are system headers, so their warnings stay silent."""
    flags = ["-std=c++20", "-fvisibility=hidden", "-fvisibility-inlines-hidden"]
    flags += ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
    # Vectors pass between inlined functions only, so the ABI for them does not matter.
    flags += ["-Wno-psabi"]
    # Square roots of vectors; nobody here asks for errno.
    flags += ["-fno-math-errno"]
    if DEBUG:
        flags += ["-O0", "-g1", "-UNDEBUG", "-DTILEDEV_DEBUG=1"]
    elif SANITIZERS:
        flags += ["-O1", "-g1"]
    else:
        flags += ["-O2", "-g0"]
    if MACOS:
        flags += ["-mmacosx-version-min=14.0"]
    for path in stable_torch_includes():
        flags += ["-isystem", path]
    return flags + sanitizer_flags()


def link_flags() -> list[str]:
    """Returns the linker flags: torch is found beside the package, wherever both are installed."""
    origin = "@loader_path" if MACOS else "$ORIGIN"
    rpaths = [origin, f"{origin}/../torch/lib"]
    return [f"-Wl,-rpath,{path}" for path in rpaths] + sanitizer_flags()


def extension() -> Extension:
    """Describes tiledev._C."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp"))
    module: Extension = CppExtension(  # type: ignore[no-untyped-call]
        "tiledev._C",
        sources,
        extra_compile_args=compile_flags(),
        extra_link_args=link_flags(),
    )
    module.include_dirs = [str(ROOT / "csrc")]
    return module


def compiler_version(command: list[str]) -> str:
    """Returns the first line of `c++ --version`, or "unknown"."""
    try:
        done = subprocess.run(
            [command[0], "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0]


class BuildTiledev(BuildExtension):
    """Compiles the extension and writes tiledev/_build_info.py beside it."""

    def finalize_options(self) -> None:
        """Drops the virtual environment's own, empty include folder: its path would miss ccache."""
        super().finalize_options()
        own = os.path.join(sys.exec_prefix, "include")
        folders: list[str] = self.include_dirs  # type: ignore[has-type]
        self.include_dirs = [path for path in folders if path != own]

    def run(self) -> None:
        """Builds, then records what it was built with."""
        os.environ.setdefault("MAX_JOBS", str(usable_cores()))
        super().run()
        package = ROOT / "src/tiledev" if self.inplace else Path(self.build_lib) / "tiledev"
        package.mkdir(parents=True, exist_ok=True)
        facts = {
            "VERSION": self.distribution.get_version(),
            "TORCH_VERSION": str(torch.__version__),
            "COMPILER": compiler_version(self.compiler.compiler_cxx),
            "BUILD_TYPE": build_type(),
        }
        lines = ['"""What this copy of tiledev was built with (written by setup.py)."""', ""]
        lines += [f"{name} = {value!r}" for name, value in facts.items()]
        (package / "_build_info.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


setup(
    ext_modules=[extension()],
    cmdclass={"build_ext": BuildTiledev},
    install_requires=[torch_requirement()],
)
