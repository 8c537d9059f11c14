"""Types of the module that setup.py writes at build."""

VERSION: str
TORCH_VERSION: str
COMPILER: str
BUILD_TYPE: str
