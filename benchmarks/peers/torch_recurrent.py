"""Torch peers of DIEN, CRNN and DeepFM: the networks of examples/models, recurrences by torch's own
modules where it has them (nn.GRU, nn.LSTM)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Builder, TorchPeer
from examples.models import crnn, deepfm, dien

if TYPE_CHECKING:
    import torch


def _dien_module(config: dien.DienConfig) -> torch.nn.Module:
    import torch
    from torch import nn

    n = config.item

    class Dice(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(size, eps=1e-9, affine=False)
            self.slope = nn.Parameter(torch.full((size,), 0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate = torch.sigmoid(self.norm(x))
            return gate * x + (1 - gate) * self.slope * x

    class Augru(nn.Module):
        """nn.GRU takes no attention: one step after the other."""

        def __init__(self) -> None:
            super().__init__()
            self.input, self.state = nn.Linear(n, 3 * n), nn.Linear(n, 3 * n, bias=False)

        def forward(self, x: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
            h, gates = torch.zeros_like(x[:, 0]), self.input(x)
            for t in range(x.shape[1]):
                update_x, reset_x, new_x = gates[:, t].chunk(3, -1)
                update_h, reset_h, new_h = self.state(h).chunk(3, -1)
                update = torch.sigmoid(update_x + update_h) * attention[:, t, None]
                new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
                h = (1 - update) * h + update * new
            return h

    def scorer(n_in: int, wide: int, narrow: int) -> nn.Module:
        return nn.Sequential(nn.Linear(n_in, wide), nn.Sigmoid(), nn.Linear(wide, narrow),
                             nn.Sigmoid(), nn.Linear(narrow, 1))

    class Dien(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users = nn.Embedding(config.users, config.embedding)
            self.items = nn.Embedding(config.items, config.embedding)
            self.categories = nn.Embedding(config.categories, config.embedding)
            self.extractor = nn.GRU(n, n, batch_first=True)
            self.query = nn.Sequential(nn.Linear(n, n), nn.PReLU(n, init=0.1))
            self.attention = scorer(4 * n, *config.attention)
            self.evolution = Augru()
            features, (wide, narrow) = config.embedding + 4 * n, config.mlp
            self.mlp = nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, wide),
                                     Dice(wide), nn.Linear(wide, narrow), Dice(narrow),
                                     nn.Linear(narrow, 1))
            self.auxiliary = scorer(2 * n, *config.auxiliary)

        def embed(self, items: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.items(items), self.categories(categories)], -1)

        def logits(self, user: torch.Tensor, item: torch.Tensor, category: torch.Tensor,
                   items: torch.Tensor, categories: torch.Tensor, lengths: torch.Tensor,
                   ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            target, past = self.embed(item, category), self.embed(items, categories)
            mask = torch.arange(past.shape[1], device=past.device) < lengths[:, None]
            states, _ = self.extractor(past)
            query = self.query(target)[:, None].expand_as(states)
            x = torch.cat([query, states, query - states, query * states], -1)
            scores = self.attention(x)[..., 0].float().masked_fill(~mask, -3e38)
            evolved = self.evolution(states, scores.softmax(-1).to(states.dtype))
            total = (past * mask[..., None]).sum(1)
            x = torch.cat([self.users(user), target, total, target * total, evolved], -1)
            return self.mlp(x)[:, 0].float(), states, past

        def forward(self, *history: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.logits(*history)[0])

        def loss(self, *batch: torch.Tensor) -> torch.Tensor:
            from torch.nn import functional as F

            *history, clicked, other_items, other_categories = batch
            logits, states, past = self.logits(*history)
            others = self.embed(other_items, other_categories)

            def led(items: torch.Tensor) -> torch.Tensor:
                return self.auxiliary(torch.cat([states[:, :-1], items[:, 1:]], -1))[..., 0].float()

            known = torch.arange(1, past.shape[1], device=past.device) < history[5][:, None]
            auxiliary = F.softplus(-led(past)) + F.softplus(led(others))
            return F.binary_cross_entropy_with_logits(logits, clicked) + (auxiliary * known).mean()

    return Dien()


def _dien_history(config: dien.DienConfig, batch: int, generator: Any, device: str) -> list[Any]:
    import torch

    def ids(rows: int, *shape: int) -> torch.Tensor:
        return torch.randint(rows, shape, generator=generator, device=device)

    length = config.length
    return [ids(config.users, batch), ids(config.items, batch), ids(config.categories, batch),
            ids(config.items, batch, length), ids(config.categories, batch, length),
            torch.randint(length // 2, length + 1, (batch,), generator=generator, device=device)]


def _generator(seed: int, device: str) -> Any:
    import torch

    return torch.Generator(device).manual_seed(seed)


def _dien(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    config = dien.tiny() if tiny else dien.books()
    module = _dien_module(config).to(device, dtype).eval()
    return TorchPeer(module, lambda seed: tuple(
        _dien_history(config, batch, _generator(seed, device), device)),
        no_compile=None if tiny else _UNROLLED)


def _dien_train(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    import torch

    config = dien.tiny() if tiny else dien.books()
    module = _dien_module(config).to(device, dtype).train()
    parameters = list(module.parameters())

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        generator = _generator(seed, device)
        history = _dien_history(config, batch, generator, device)
        others = _dien_history(config, batch, generator, device)
        clicked = torch.randint(2, (batch,), generator=generator, device=device).float()
        return (*history, clicked, others[3], others[4])

    def call(module: Any, *args: torch.Tensor) -> torch.Tensor:
        loss = module.loss(*args)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=-0.1)
        return loss.detach()

    return TorchPeer(module, inputs, call, training=True,
                     no_compile=None if tiny else _UNROLLED)


def _crnn(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    import torch
    from torch import nn

    config = crnn.tiny() if tiny else crnn.base()
    a, b, c, d = config.channels
    width = 24 if tiny else 100

    class Crnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = nn.Sequential(
                nn.Conv2d(1, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(b, c, 3, padding=1), nn.ReLU(),
                nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)),
                nn.Conv2d(c, d, 3, padding=1), nn.BatchNorm2d(d), nn.ReLU(),
                nn.Conv2d(d, d, 3, padding=1), nn.BatchNorm2d(d), nn.ReLU(), nn.MaxPool2d((2, 1)),
                nn.Conv2d(d, d, 2), nn.ReLU())
            hidden = config.hidden
            self.first = nn.LSTM(d, hidden, batch_first=True, bidirectional=True)
            self.between = nn.Linear(2 * hidden, hidden)
            self.second = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
            self.out = nn.Linear(2 * hidden, config.classes)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = self.stack(image)[:, :, 0].transpose(1, 2)
            x = self.between(self.first(x)[0])
            return self.out(self.second(x)[0]).float().log_softmax(-1)

    module = Crnn().to(device, dtype).to(memory_format=torch.channels_last).eval()

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        image = torch.randn(batch, 1, 32, width, generator=_generator(seed, device),
                            device=device, dtype=dtype)
        return (image.to(memory_format=torch.channels_last),)

    return TorchPeer(module, inputs)


def _deepfm(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    import torch
    from torch import nn

    config = deepfm.tiny() if tiny else deepfm.base()
    categories, rows = config.categorical, config.categorical * config.vocabulary + config.dense

    class DeepFm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors = nn.Embedding(rows, config.embedding)
            self.weights = nn.Embedding(rows, 1)
            widths = ((categories + config.dense) * config.embedding, *config.mlp)
            layers: list[nn.Module] = []
            for n_in, n_out in itertools.pairwise(widths):
                layers += [nn.Linear(n_in, n_out), nn.ReLU()]
            self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

        def forward(self, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            starts = torch.arange(categories, device=ids.device) * config.vocabulary
            dense = torch.arange(categories * config.vocabulary, rows, device=ids.device)
            row = torch.cat([ids + starts, dense.expand(ids.shape[0], -1)], 1)
            x = torch.cat([torch.ones_like(ids, dtype=values.dtype), values], 1)[..., None]
            first = (self.weights(row) * x).float().sum((1, 2))
            embedded = self.factors(row) * x
            wide = embedded.float()
            pairs = wide.sum(1) ** 2 - (wide ** 2).sum(1)
            deep = self.mlp(embedded.flatten(1))[:, 0].float()
            return torch.sigmoid(first + 0.5 * pairs.sum(1) + deep)

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        generator = _generator(seed, device)
        ids = torch.randint(config.vocabulary, (batch, categories), generator=generator,
                            device=device)
        return ids, torch.randn(batch, config.dense, generator=generator, device=device,
                                dtype=dtype)

    return TorchPeer(DeepFm().to(device, dtype).eval(), inputs)


_UNROLLED = "its loop over 100 time steps is unrolled, which takes minutes to compile"

PEERS: dict[str, Builder] = {"dien": _dien, "dien_train": _dien_train, "crnn": _crnn,
                             "deepfm": _deepfm}
