"""Stems: how a series becomes tokens, without telling a token where it sits.

Each maps series (B, C, L) and the mask of their real samples to tokens (B, T, D) and the mask of
those that hold at least one.
"""

from __future__ import annotations

from math import log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import conv1d, gelu

KERNEL = 9  # taps of a filter
GROUP = 8  # filters that compete for a place
BANKS = 4  # lengths of the filters in a `ConvStem`, each twice the one before


class PatchStem(nn.Module):
    """Cuts a series into patches and maps each to a token by one linear layer."""

    def __init__(self, in_channels: int, patch_length: int, embed_dim: int) -> None:
        super().__init__()
        self.patch_length = patch_length
        self.proj = nn.Linear(in_channels * patch_length, embed_dim)

    def forward(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None
    ) -> tuple[Float[Tensor, "B T D"], Bool[Tensor, "B T"] | None]:
        """Return the tokens and which of them hold at least one real sample (None: all)."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, None], 0.0)
        patches = in_patches(x, self.patch_length)  # (B, C, T, P)
        tokens: Tensor = self.proj(patches.transpose(1, 2).flatten(2))
        return tokens, token_mask(key_mask, self.patch_length)


class KernelStem(nn.Module):
    """Filters of several dilations that compete in groups, averaged over each patch.

    Within a group of 8 filters the softmax of the responses says which pattern is there; a patch
    is described by how often each filter wins and by the responses of the winners. It is the
    competition of Hydra (Dempster, Schmidt and Webb 2023, section 3) with filters that are
    learned. An overlapping linear patch is added, which keeps the phase. The series is continued
    periodically at its ends, so that a token cannot tell where it sits.
    """

    def __init__(
        self,
        in_channels: int,
        patch_length: int,
        embed_dim: int,
        *,
        num_kernels: int,
        num_dilations: int,
        stride: int,
    ) -> None:
        super().__init__()
        self.patch_length, self.stride = patch_length, stride
        self.dilations = [2**i for i in range(num_dilations)]
        filters = torch.randn(num_dilations, num_kernels, in_channels, KERNEL)
        # A filter sees shapes, not the level.
        self.filters = nn.Parameter(filters - filters.mean(dim=-1, keepdim=True))
        self.log_sharpness = nn.Parameter(torch.full((num_dilations, 1, 1, 1), log(2.0)))
        self.proj = nn.Linear(2 * num_dilations * num_kernels, embed_dim)
        self.patch_proj = nn.Linear(2 * in_channels * patch_length, embed_dim)

    def forward(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None
    ) -> tuple[Float[Tensor, "B T D"], Bool[Tensor, "B T"] | None]:
        """Return the tokens and which of them hold at least one real sample (None: all)."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, None], 0.0)
        count = -(-x.shape[-1] // self.patch_length)
        half = max(KERNEL // 2 * self.dilations[-1], self.patch_length // 2 + 1)
        size = count * self.patch_length
        x = periodic(x, half, size + half, key_mask)  # position t now lies at half + t
        described = []
        for response, log_sharpness in zip(
            self.responses(x, half, size), self.log_sharpness, strict=True
        ):
            share = (response * log_sharpness.exp()).softmax(dim=2)
            described += [(share * response).flatten(1, 2), share.flatten(1, 2)]
        places = torch.cat(described, dim=1)
        mean = places.unflatten(-1, (count, -1)).mean(-1)  # (B, 2 · dilations · kernels, T)
        before = half - self.patch_length // 2
        patches = x[..., before : before + size + self.patch_length]
        patches = patches.unfold(-1, 2 * self.patch_length, self.patch_length)  # (B, C, T, 2 P)
        tokens: Tensor = self.proj(mean.transpose(1, 2))
        tokens = tokens + self.patch_proj(patches.transpose(1, 2).flatten(2))
        return tokens, token_mask(key_mask, self.patch_length)

    def responses(
        self, x: Float[Tensor, "B C E"], half: int, size: int
    ) -> list[Float[Tensor, "B groups 8 N"]]:
        """Return each dilation's responses at every `stride`-th of `size` places from `half` on."""
        found = []
        for filters, dilation in zip(self.filters, self.dilations, strict=True):
            reach = KERNEL // 2 * dilation
            window = x[..., half - reach : half + size - self.stride + reach + 1]
            response = conv1d(window, filters, stride=self.stride, dilation=dilation)
            found.append(response.unflatten(1, (-1, GROUP)))
        return found

    @torch.no_grad()
    def calibrate(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None = None
    ) -> None:
        """Scale the filters of each dilation so that their responses to `x` have variance 1.

        Without it the narrow filters hardly answer to smooth series.
        """
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, None], 0.0)
        half = KERNEL // 2 * self.dilations[-1]
        size = -(-x.shape[-1] // self.stride) * self.stride
        x = periodic(x, half, size + half, key_mask)
        for i, response in enumerate(self.responses(x, half, size)):
            scale = response.square().mean().sqrt()
            if scale > 0:
                self.filters[i] /= scale


class ConvStem(nn.Module):
    """Filters of four lengths, then residual convolutions at every `stride`-th place.

    The filters see the series and its first differences over 2, 4, 8 and 16 strides, as the
    branches of an inception module do (Ismail Fawaz et al. 2020, section 3); the differences raise
    the weaker, higher frequencies. Each layer adds what 9 neighbouring places say, and a token is
    a linear map of the places of its patch and half a patch to either side. Everything is
    continued periodically at the ends, so that a token cannot tell where it sits.
    """

    def __init__(
        self,
        in_channels: int,
        patch_length: int,
        embed_dim: int,
        *,
        num_kernels: int,
        num_layers: int,
        stride: int,
    ) -> None:
        super().__init__()
        self.patch_length, self.stride = patch_length, stride
        self.places = patch_length // stride  # of a patch
        self.register_buffer("step_scale", torch.ones(in_channels, 1))
        self.step_scale: Tensor
        self.banks = nn.ModuleList(
            nn.Conv1d(2 * in_channels, num_kernels // BANKS, 2**i * 2 * stride + 1, stride=stride)
            for i in range(BANKS)
        )
        self.norm = nn.LayerNorm(num_kernels)
        self.layer_norms = nn.ModuleList(nn.LayerNorm(num_kernels) for _ in range(num_layers))
        self.layers = nn.ModuleList(
            nn.Conv1d(num_kernels, num_kernels, KERNEL) for _ in range(num_layers)
        )
        self.proj = nn.Conv1d(num_kernels, embed_dim, 2 * self.places, stride=self.places)

    def forward(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None
    ) -> tuple[Float[Tensor, "B T D"], Bool[Tensor, "B T"] | None]:
        """Return the tokens and which of them hold at least one real sample (None: all)."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, None], 0.0)
        real = token_mask(key_mask, self.patch_length)
        N = -(-x.shape[-1] // self.patch_length) * self.places
        half = 2 ** (BANKS - 1) * self.stride + 1  # the longest filters reach so far
        x = periodic(x, half, N * self.stride + half, key_mask)  # position t now lies at half + t
        x = torch.cat([x[..., :-1], x.diff(dim=-1) * self.step_scale], dim=1)
        last = half + (N - 1) * self.stride
        found = []
        for i, bank in enumerate(self.banks):
            reach = 2**i * self.stride
            found.append(bank(x[..., half - reach : last + reach + 1]))
        h = gelu(over_channels(self.norm, torch.cat(found, dim=1)))  # (B, num_kernels, N)
        places = None if real is None else real.repeat_interleave(self.places, dim=1)
        side = KERNEL // 2
        for norm, layer in zip(self.layer_norms, self.layers, strict=True):
            h = h + gelu(layer(periodic(over_channels(norm, h), side, N + side, places)))
        before = self.places // 2
        h = periodic(h, before, N + self.places - before, places)
        tokens: Tensor = self.proj(h).transpose(1, 2)
        return tokens, real

    @torch.no_grad()
    def calibrate(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None = None
    ) -> None:
        """Scale the first differences of each channel to the deviation of its values in `x`."""
        if key_mask is None:
            key_mask = torch.ones_like(x[:, 0], dtype=torch.bool)
        x = x.masked_fill(~key_mask[:, None], 0.0)
        real = key_mask[:, None].to(x.dtype)
        pairs = real[..., 1:] * real[..., :-1]
        steps = (x.diff(dim=-1).square() * pairs).sum((0, 2)) / pairs.sum().clamp(min=1)
        mean = (x * real).sum((0, 2)) / real.sum().clamp(min=1)
        spread = ((x - mean[:, None]).square() * real).sum((0, 2)) / real.sum().clamp(min=1)
        scale = (spread / steps).sqrt()
        self.step_scale.copy_(torch.where(steps * spread > 0, scale, 1.0)[:, None])


def over_channels(norm: nn.Module, x: Float[Tensor, "B C N"]) -> Float[Tensor, "B C N"]:
    """Normalise each place over its channels."""
    y: Tensor = norm(x.transpose(1, 2)).transpose(1, 2)
    return y


def in_patches(x: Tensor, patch_length: int) -> Tensor:
    """Reshape (..., L) to (..., T, P), zeros (False) after the end."""
    count = -(-x.shape[-1] // patch_length)
    padded = nn.functional.pad(x, (0, count * patch_length - x.shape[-1]))
    return padded.reshape(*x.shape[:-1], count, patch_length)


def token_mask(
    key_mask: Bool[Tensor, "B L"] | None, patch_length: int
) -> Bool[Tensor, "B T"] | None:
    """Return which patches hold at least one real sample."""
    return None if key_mask is None else in_patches(key_mask, patch_length).any(dim=2)


def periodic(
    x: Float[Tensor, "B C L"], before: int, after: int, key_mask: Bool[Tensor, "B L"] | None
) -> Float[Tensor, "B C E"]:
    """Return the positions -before … after - 1 of each series, repeated with its own length.

    The length of a masked series ends with its last real sample.
    """
    L = x.shape[-1]
    position = torch.arange(-before, after, device=x.device)
    if key_mask is None:
        return x[..., position % L]
    step = torch.arange(1, L + 1, device=x.device)
    length: Int[Tensor, "B 1"] = (key_mask * step).amax(dim=1, keepdim=True).clamp(min=1)
    index = (position % length)[:, None].expand(-1, x.shape[1], -1)
    return x.gather(-1, index)
