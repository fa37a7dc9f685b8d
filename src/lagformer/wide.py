"""The wide readout: random filters that compete, averaged over a series, read by a linear map.

Nothing in it is trained by gradient descent: the filters stay as drawn, and the map is a ridge
regression, solved in closed form with its penalty chosen by leaving one out. It needs seconds, and
some dozens of series are enough, where a transformer has too few to learn from.
"""

from __future__ import annotations

from math import log2

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, pad

from lagformer.stems import GROUP, KERNEL, periodic

MAX_DILATIONS = 8
CHUNK = 4  # series at a time: what they need fits the cache of a core
CALIBRATION_SERIES = 16  # tell the scale of the responses and the biases
DEVIATION = 32.0  # of the responses; a near tie is one of less than 1
LEAST_PLACES = 32
MOST_SERIES = 10_000  # a readout is solved on so many at most
PENALTIES = [10 ** (step / 2) for step in range(-2, 13)]
SHARPNESS = [10 ** (step / 20) for step in range(-20, 41)]


class WideReadout(nn.Module):
    """Logits (B, classes) from a series' random features; zeros before `solve`.

    Filters of 9 taps and all dilations that fit, on the series and on its first differences.
    Groups of 8 compete at every place (Dempster, Schmidt and Webb 2023: Hydra, section 3). A
    filter is described by the mean of its wins, the share of places where it comes last, and the
    share where it exceeds a bias (Dempster et al. 2021: MiniRocket, section 3): means over time,
    which know nothing of when. With `circular`, series continue periodically, as in the stems;
    without, filters stay inside the series, and a series shorter than a filter has zeros.
    """

    def __init__(
        self, in_channels: int, series_length: int, num_classes: int, *, groups: int, circular: bool
    ) -> None:
        super().__init__()
        self.circular = circular
        fitting = 1 + int(log2(max(series_length - 1, KERNEL - 1) / (KERNEL - 1)))
        self.dilations = [2**i for i in range(min(fitting, MAX_DILATIONS))]
        # Two rows for a dilation: for the series, and for its differences.
        filters = torch.randn(2 * len(self.dilations), in_channels, KERNEL, GROUP * groups)
        filters = filters - filters.mean(dim=2, keepdim=True)  # a filter sees shapes, not levels
        self.register_buffer("filters", filters / filters.abs().sum(dim=(1, 2), keepdim=True))
        self.register_buffer("bias", torch.zeros(len(filters), GROUP * groups))
        size = 3 * self.bias.numel()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.zeros(size))
        self.register_buffer("weight", torch.zeros(num_classes, size))
        self.register_buffer("offset", torch.zeros(num_classes))
        self.filters: Tensor
        self.bias: Tensor
        self.mean: Tensor
        self.scale: Tensor
        self.weight: Tensor
        self.offset: Tensor

    def forward(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None
    ) -> Float[Tensor, "B classes"]:
        """Return the logits of each series."""
        return self.standardised(self.features(x, key_mask)) @ self.weight.T + self.offset

    def standardised(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Return features with mean 0 and deviation 1 over the training series."""
        return (features - self.mean) * self.scale

    def features(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None
    ) -> Float[Tensor, "B F"]:
        """Return the description of each series."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, None], 0.0)
        if torch.compiler.is_compiling():
            return self._described(x, key_mask)
        parts = x.split(CHUNK)
        masks = [None] * len(parts) if key_mask is None else key_mask.split(CHUNK)
        return torch.cat([self._described(*both) for both in zip(parts, masks, strict=True)])

    def _described(self, x: Tensor, key_mask: Tensor | None) -> Float[Tensor, "B F"]:
        found = []
        for i, bias in enumerate(self.bias):
            response, share = self.responses(x, key_mask, i)  # (B, N, K), (B, 1, N)

            def mean(z: Tensor, share: Tensor = share) -> Float[Tensor, "B K"]:
                return (share @ z.flatten(2))[:, 0]

            # A rival closer than 1 shares in the win: what rounding decides must not count.
            rivals = response.unflatten(2, (GROUP, -1))  # (B, N, 8, groups)
            best, worst = rivals.amax(2, keepdim=True), rivals.amin(2, keepdim=True)
            won = mean((rivals - best).clamp_(min=-1).add_(1).mul_(best))
            lost = mean((worst - rivals).clamp_(min=-1).add_(1))
            above = mean((response - bias).clamp_(-1, 1).add_(1)) / 2
            # Roots of means: the deviations of large and small ones become alike.
            found += [_root(won / DEVIATION), _root(lost), above]
        return torch.cat(found, dim=1)

    def responses(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None, i: int
    ) -> tuple[Float[Tensor, "B N K"], Float[Tensor, "B 1 N"]]:
        """Return what the i-th filters say at each place, and the place's share in the mean."""
        dilation, differences = self.dilations[i // 2], i % 2
        reach = (KERNEL - 1) * dilation
        L = x.shape[-1]
        real = torch.ones_like(x[:, 0], dtype=torch.bool) if key_mask is None else key_mask
        # Some places too many, with no share in the mean: products of very few rows round
        # otherwise than those of many, and a padded series would not equal the bare one.
        if self.circular:
            places = max(L, LEAST_PLACES)
            x = periodic(x, reach // 2, places + reach // 2 + 1, key_mask)
            real = pad(real, (0, places - L))
        else:
            ends = reach + differences  # how far behind its first sample a filter looks
            places = max(L - ends, LEAST_PLACES)
            last = (real * torch.arange(L, device=x.device)).amax(dim=1, keepdim=True)
            real = torch.arange(places, device=x.device) <= last - ends
            x = pad(x, (0, places + reach + 1 - L))
        x = x.diff(dim=-1) if differences else x[..., :-1]
        windows = x.unfold(-1, reach + 1, 1)[..., ::dilation]  # (B, C, N, 9)
        filters = self.filters[i].flatten(0, 1)
        share = real.to(x.dtype)
        share = share / share.sum(dim=1, keepdim=True).clamp(min=1)
        return windows.transpose(1, 2).flatten(2) @ filters, share[:, None]

    @torch.no_grad()
    def solve(
        self,
        x: Float[Tensor, "n C L"],
        targets: Int[Tensor, " n"],
        key_mask: Bool[Tensor, "n L"] | None = None,
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Fit biases, scales and the linear map to training series.

        More than 10,000 series are thinned out evenly; those of weight 0 are left out.
        """
        keep = torch.arange(len(x)) if weights is None else weights.nonzero()[:, 0].cpu()
        keep = keep[:: -(-len(keep) // MOST_SERIES)]
        x, targets = x[keep].to(self.filters.dtype), targets[keep]
        key_mask = None if key_mask is None else key_mask[keep]
        weight = torch.ones(len(x)) if weights is None else weights[keep]
        weight = (weight / weight.mean()).double()
        self._calibrate(x, key_mask)
        features = self.features(x, key_mask)
        mean = (weight @ features.double()) / weight.sum()
        spread = ((weight @ (features - mean).square().double()) / weight.sum()).sqrt()
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(spread > 1e-6, 1 / spread, 0.0))
        classes = len(self.offset)
        aims = 2 * one_hot(targets, classes).double() - 1
        z = self.standardised(features)
        coefficients, offset, unseen = ridge(z, aims, weight)
        sharpness = _sharpness(unseen, targets, weight)
        self.weight.copy_(sharpness * coefficients.T)
        self.offset.copy_(sharpness * offset)

    def _calibrate(self, x: Tensor, key_mask: Tensor | None) -> None:
        """Scale the responses, and draw each bias from those to a random place of some series."""
        some = torch.randperm(len(x))[:CALIBRATION_SERIES]
        x, key_mask = x[some], None if key_mask is None else key_mask[some]
        for i, bias in enumerate(self.bias):
            response, share = self.responses(x, key_mask, i)
            deviation = (share @ response.square()).mean().sqrt()
            scale = torch.where(deviation > 0, DEVIATION / deviation, 1.0)
            self.filters[i] *= scale
            series = torch.randint(len(x), bias.shape)
            real = (share > 0).sum(dim=(1, 2))[series].clamp(min=1)
            place = (torch.rand(bias.shape) * real).long()
            bias.copy_(scale * response[series, place, torch.arange(len(bias))])


def ridge(
    z: Float[Tensor, "n F"], aims: Float[Tensor, "n classes"], weight: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "F classes"], Float[Tensor, " classes"], Float[Tensor, "n classes"]]:
    """Solve a weighted ridge regression; return the map, its offset and answers left out.

    The penalty is the one of `PENALTIES` with the least squared error when each row is predicted
    by the solution without it, which needs no second solution (Hastie, Tibshirani and Friedman
    2009, section 7.10). The smaller of the two Gram matrices is decomposed, in double precision.
    """
    share = weight / weight.sum()
    centre, offset = share @ z.double(), share @ aims
    root = weight.sqrt()[:, None]
    a, t = root * (z.double() - centre), root * (aims - offset)
    wide = a.shape[0] <= a.shape[1]
    values, vectors = torch.linalg.eigh(a @ a.T if wide else a.T @ a)
    values = values.clamp(min=0)
    basis = vectors if wide else a @ vectors  # of the rows
    along = basis.T @ t
    power = values if wide else torch.ones_like(values)
    best = torch.inf, 0.0, t
    for penalty in PENALTIES:
        shrunk = power / (values + penalty)
        fitted = basis @ (shrunk[:, None] * along)
        leverage = basis.square() @ shrunk + share
        residual = (t - fitted) / (1 - leverage).clamp(min=1e-9)[:, None]
        error = float(residual.square().sum())
        if error < best[0]:
            best = error, penalty, residual
    _, penalty, residual = best
    solution = vectors @ (along / (values + penalty)[:, None])
    unseen = aims - residual / root
    coefficients = a.T @ solution if wide else solution
    return coefficients, offset - centre @ coefficients, unseen


def _sharpness(
    unseen: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], weight: Float[Tensor, " n"]
) -> float:
    """Return the factor that makes answers the logits of the least log-loss.

    A trace of label smoothing keeps it finite where every answer is right (Platt 1999, section 2).
    """

    def loss(factor: float) -> float:
        each: Tensor = cross_entropy(
            factor * unseen, targets, reduction="none", label_smoothing=1 / (len(targets) + 1)
        )
        return float(weight @ each)

    return min(SHARPNESS, key=loss)


def _root(share: Tensor) -> Tensor:
    """Return the root of a share, made smooth at zero."""
    return (share.clamp(min=0) + 1e-5).sqrt()
