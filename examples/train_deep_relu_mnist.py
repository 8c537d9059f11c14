"""Trains DeepReLU on MNIST, on the CPU and on tiledev; installed as the command tiledev-mnist."""

import sys

from tiledev.tools.mnist import main

if __name__ == "__main__":
    sys.exit(main())
