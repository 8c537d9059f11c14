"""The examples in the docstrings run and print what they say."""

import doctest
import importlib

import pytest
import torch

import tiledev

MODULES = (
    "tiledev",
    "tiledev._entry_point",
    "tiledev.amp",
    "tiledev.context",
    "tiledev.device_module",
    "tiledev.graph",
    "tiledev.info",
    "tiledev.memory",
    "tiledev.nn",
    "tiledev.nn.attention",
    "tiledev.nn.rms_norm",
    "tiledev.nn.rope",
    "tiledev.nn.rope_scaling",
    "tiledev.nn.silu_mul",
    "tiledev.nn.weight_layout",
    "tiledev.random",
    "tiledev.streams",
    "tiledev.training",
    "tiledev.training.checkpoint",
    "tiledev.training.full_batch",
    "tiledev.training.loss",
    "tiledev.training.optimizers",
    "tiledev.training.weights",
)


@pytest.mark.tiledev_only
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    tiledev.shutdown_context()
    module = importlib.import_module(name)
    results = doctest.testmod(module, extraglobs={"torch": torch, "tiledev": tiledev})
    tiledev.shutdown_context()
    assert results.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in tests) > 20
