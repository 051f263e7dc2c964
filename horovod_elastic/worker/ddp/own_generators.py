"""Generators of random numbers that a script has made itself, besides those of the libraries."""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import torch


def is_one(value: Any) -> bool:
    """Whether the value is a generator of PyTorch, Python or NumPy."""
    return isinstance(value, (torch.Generator, random.Random, *_of_numpy()))


def state(generator: Any) -> Any:
    """A generator's state, which can be pickled."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.get_state()


def set_state(generator: Any, theirs: Any) -> None:
    """The inverse of `state`, for a generator of the same kind."""
    if isinstance(generator, random.Random):
        generator.setstate(theirs)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = theirs
    else:
        generator.set_state(theirs)


def _of_numpy() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy.random")
    return () if numpy is None else (numpy.Generator, numpy.RandomState)
