"""Twenty families of models, small, from torch.nn alone. Each makes a model and one mini-batch of
inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Family:
    """`make`: the model. `inputs`: one mini-batch. The loss is the mean of squares of all outputs."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]


def images(channels: int = 3) -> tuple[Any, ...]:
    return (torch.randn(4, channels, 16, 16),)


def vectors() -> tuple[Any, ...]:
    return (torch.randn(8, 32),)


def tokens() -> tuple[Any, ...]:
    return (torch.randint(0, 50, (4, 12)),)


def sequences() -> tuple[Any, ...]:
    return (torch.randn(4, 12, 16),)


class Residual(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Any) -> Any:
        return x + self.inside(x)


def convolution(into: int, out: int, **how: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=1, **how), nn.BatchNorm2d(out), nn.ReLU(inplace=True)
    )


def resnet() -> nn.Module:
    blocks = [Residual(nn.Sequential(convolution(8, 8), nn.Conv2d(8, 8, 3, padding=1))) for _ in range(2)]
    return nn.Sequential(convolution(3, 8), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def mobilenet() -> nn.Module:
    separable = [nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish(inplace=True), nn.Conv2d(8, 8, 1)]
    return nn.Sequential(
        convolution(3, 8), Residual(nn.Sequential(*separable)), nn.Flatten(), nn.Linear(2048, 5)
    )


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3 + 4 * each, 4, 3, padding=1) for each in range(3)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.cat([x, functional.relu(layer(x))], 1)
        return x.mean((2, 3))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = convolution(3, 8), convolution(8, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x: Any) -> Any:
        down = self.down(x)
        return self.out(torch.cat([down, self.up(self.middle(functional.max_pool2d(down, 2)))], 1))


class TiedLanguageModel(nn.Module):
    """A decoder whose output weight is the embedding itself: two parameters of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.body(self.embed(x), mask=mask, is_causal=True))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.position = nn.Parameter(torch.zeros(1, 17, 16))
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Any) -> Any:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.body(x)[:, 0]


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.body(x, x.flip(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **how: Any) -> None:
        super().__init__()
        self.body = kind(16, 12, num_layers=2, batch_first=True, **how)

    def forward(self, x: Any) -> Any:
        return self.body(x)[0]


class Autoencoder(nn.Module):
    """A variational one: its noise comes from the default generator."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 8), nn.Linear(4, 32)

    def forward(self, x: Any) -> Any:
        mean, spread = self.into(x).chunk(2, 1)
        return self.out(mean + torch.randn_like(mean) * spread.exp())


class Generative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(32, 16), nn.Tanh())
        self.judge = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 1))

    def forward(self, x: Any) -> Any:
        return self.judge(self.maker(x))


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(8).roll(1, 0))
        self.first, self.second = nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.edges @ self.second(torch.relu(self.edges @ self.first(x)))


class Recommender(nn.Module):
    """Wide and deep: a bag of embeddings beside a dense part."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, mode="mean")
        self.deep = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Any) -> Any:
        return self.deep(self.bag(x))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 3)
        self.experts = nn.ModuleList([nn.Linear(32, 8) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        weights = self.gate(x).softmax(-1)
        return sum(weights[:, [each]] * expert(x) for each, expert in enumerate(self.experts))


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.out = nn.Conv2d(8, 3, 3, padding=1)
        self.register_buffer("schedule", torch.linspace(0.1, 0.9, 10))

    def forward(self, x: Any) -> Any:
        level = self.schedule[torch.randint(0, 10, (len(x),))].view(-1, 1, 1, 1)
        noise = torch.randn_like(x)
        return self.out(self.body(x * level + noise * (1 - level))) - noise


class Siamese(nn.Module):
    """One encoder and its averaged copy, which gets no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(32, 8)
        self.average = torch.optim.swa_utils.AveragedModel(self.encoder)

    def forward(self, x: Any) -> Any:
        self.average.update_parameters(self.encoder)
        return self.encoder(x) - self.average(x).detach()


FAMILIES: dict[str, Family] = {
    "perceptron": Family(lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 5)), vectors),
    "vgg": Family(
        lambda: nn.Sequential(convolution(3, 8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 5)), images
    ),
    "resnet": Family(resnet, images),
    "densenet": Family(DenseNet, images),
    "mobilenet": Family(mobilenet, images),
    "unet": Family(UNet, images),
    "vision transformer": Family(VisionTransformer, images),
    "language model, tied": Family(TiedLanguageModel, tokens),
    "translator": Family(Translator, sequences),
    "lstm": Family(lambda: Recurrent(nn.LSTM, bidirectional=True), sequences),
    "gru": Family(lambda: Recurrent(nn.GRU), sequences),
    "elman": Family(lambda: Recurrent(nn.RNN, dropout=0.2), sequences),
    "autoencoder": Family(Autoencoder, vectors),
    "generative": Family(Generative, vectors),
    "graph": Family(Graph, vectors),
    "recommender": Family(Recommender, tokens),
    "experts": Family(Experts, vectors),
    "diffusion": Family(Diffusion, images),
    "siamese": Family(Siamese, vectors),
    "lazy, half precision": Family(
        lambda: nn.Sequential(nn.LazyLinear(16), nn.LayerNorm(16), nn.Linear(16, 4)).to(torch.bfloat16),
        lambda: (torch.randn(8, 32, dtype=torch.bfloat16),),
    ),
}
