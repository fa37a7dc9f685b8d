"""Stems: how a series becomes tokens, without telling a token where it sits.

Each maps series (B, C, L) and the mask of their real samples to tokens (B, T, D) and the mask of
those that hold at least one.
"""

from __future__ import annotations

from math import log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import conv1d

KERNEL = 9  # taps of a filter
GROUP = 8  # filters that compete for a place


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
