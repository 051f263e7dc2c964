"""Handwritten digits, and the two models of them that benchmarks train."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1,797 digits that scikit-learn ships: images of shape (1797, 64) from 0 to 1, and labels."""
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def make_model(name: str) -> torch.nn.Module:
    """A "cnn", a network of convolutions with 58 thousand weights, or an "mlp", with 4.3 million."""
    torch.manual_seed(0)
    if name == "mlp":
        return torch.nn.Sequential(
            torch.nn.Linear(64, 2048), torch.nn.ReLU(),
            torch.nn.Linear(2048, 2048), torch.nn.ReLU(),
            torch.nn.Linear(2048, 10),
        )  # fmt: skip
    return convolutions(32)


def convolutions(width: int) -> torch.nn.Module:
    """Three convolutions, the first one with `width` channels, with weights from torch's present seed."""
    twice = 2 * width
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, width, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(width, twice, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(twice, twice, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(4 * twice, 10),
    )  # fmt: skip
