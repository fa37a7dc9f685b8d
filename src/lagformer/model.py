"""The classifier network: a stem, encoder blocks, a mean over tokens, a linear head.

    series (B, C, L) → stem → tokens (B, T, D) → N × block → mean over T → LayerNorm → logits

The only thing that knows about order is the lag table inside each attention module.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from math import log2
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lagformer.attention import RelativeLinearAttention, ToeplitzLinearAttention
from lagformer.stems import GROUP, KERNEL, ConvStem, KernelStem, PatchStem
from lagformer.wide import WideReadout

# How a block's attention knows of lags: a vector or a positive scalar for each.
ATTENTIONS = {"relative": RelativeLinearAttention, "toeplitz": ToeplitzLinearAttention}

# Sizes of each preset; `LagformerConfig.preset` adds what the data decides.
PRESETS: dict[str, dict[str, Any]] = {
    # Macro F1 0.944 on FordA; 119,618 parameters for 500 samples and 2 classes.
    "olympiad": {
        "patch_length": 10,
        "embed_dim": 64,
        "num_heads": 4,
        "head_dim": 16,
        "num_blocks": 3,
        "mlp_dim": 128,
        "dropout": 0.1,
        "feature_map": "elu+1",
    },
    # Ours, for any data set (docs/research.md).
    "base": {
        "tokens": 25,
        "places": 125,
        "stem": "convolutions",
        "num_kernels": 64,
        "num_layers": 2,
        "embed_dim": 64,
        "num_heads": 4,
        "head_dim": 16,
        "num_blocks": 2,
        "mlp_dim": 128,
        "dropout": 0.2,
        "wide_groups": 32,
        "wide_share": 0.5,
    },
    # A small transformer alone, to follow many signals at once (docs/research.md).
    "fast": {
        "tokens": 12,
        "places": 62,
        "stem": "convolutions",
        "num_kernels": 32,
        "num_layers": 1,
        "embed_dim": 32,
        "num_heads": 2,
        "head_dim": 16,
        "num_blocks": 1,
        "mlp_dim": 64,
        "dropout": 0.2,
    },
}

# What a preset changes where it matters at what time something happens (docs/research.md).
PHASE_LOCKED: dict[str, dict[str, Any]] = {
    "base": {
        "stem": "kernels",
        "num_kernels": 32,
        "num_layers": 0,
        "wide_circular": False,
    },
    "fast": {"stem": "kernels", "num_kernels": 16, "num_layers": 0},
}

STEMS = ("patch", "kernels", "convolutions")


@dataclass(frozen=True)
class LagformerConfig:
    """Sizes of a `Lagformer`; checked when built, equal after a JSON round trip.

    `max_lag=None` gives every lag of a series of `series_length` its own vector (T − 1 lags to
    either side, T tokens). Both stems with filters read `num_kernels` (a multiple of 8; "kernels":
    for each dilation) and `stem_stride` (a divisor of the patch), "kernels" alone `num_dilations`
    and "convolutions" alone `num_layers`. With `wide_groups` > 0 there is a `WideReadout` with as
    many groups; its answer has the share `wide_share` in the logits.
    Raises ValueError, in one line, for a size out of range.
    """

    series_length: int
    in_channels: int
    num_classes: int
    patch_length: int
    embed_dim: int
    num_heads: int
    head_dim: int
    num_blocks: int
    mlp_dim: int
    dropout: float = 0.0
    feature_map: str = "elu+1"
    max_lag: int | None = None
    attention: str = "relative"
    stem: str = "patch"
    num_kernels: int = GROUP
    num_dilations: int = 1
    stem_stride: int = 1
    num_layers: int = 0
    wide_groups: int = 0
    wide_share: float = 0.5
    wide_circular: bool = True

    def __post_init__(self) -> None:
        # The field types are strings here (postponed annotations).
        least = {f.name: 1 for f in fields(self) if f.type == "int"} | {
            "num_blocks": 0,
            "num_layers": 0,
            "wide_groups": 0,
        }
        if self.max_lag is not None:
            least["max_lag"] = 0
        for name, low in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"{name} must be an integer ≥ {low}, got {value!r}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout!r}")
        if not isinstance(self.wide_share, int | float) or not 0 <= self.wide_share <= 1:
            raise ValueError(f"wide_share must lie in [0, 1], got {self.wide_share!r}")
        if not isinstance(self.wide_circular, bool):
            raise ValueError(f"wide_circular must be true or false, got {self.wide_circular!r}")
        if not isinstance(self.feature_map, str):
            raise ValueError(f"feature_map must be a name, got {self.feature_map!r}")
        if self.attention not in ATTENTIONS:
            known = ", ".join(ATTENTIONS)
            raise ValueError(f"unknown attention {self.attention!r}; known: {known}")
        if self.stem not in STEMS:
            raise ValueError(f"unknown stem {self.stem!r}; known: {', '.join(STEMS)}")
        if self.num_kernels % GROUP:
            raise ValueError(f"num_kernels must be a multiple of {GROUP}, got {self.num_kernels}")
        if self.patch_length % self.stem_stride:
            raise ValueError(
                f"stem_stride must divide patch_length {self.patch_length}, got {self.stem_stride}"
            )

    @classmethod
    def preset(
        cls,
        name: str,
        *,
        series_length: int,
        in_channels: int = 1,
        num_classes: int = 2,
        phase_locked: bool = False,
    ) -> LagformerConfig:
        """Return the preset `name` fitted to a data set. ValueError for an unknown name.

        With `phase_locked`, series start at moments that mean something, as outlines and gestures
        do, unlike windows of a running signal: `base` and `fast` then take another stem.
        """
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; known presets: {', '.join(PRESETS)}")
        sizes = PRESETS[name] | (PHASE_LOCKED.get(name, {}) if phase_locked else {})
        if "tokens" in sizes:
            sizes |= _derived(series_length, sizes.pop("tokens"), sizes.pop("places"))
        return cls(series_length, in_channels, num_classes, **sizes)

    @property
    def num_tokens(self) -> int:
        """Number of patches T of a series of `series_length` samples, the last one padded."""
        return -(-self.series_length // self.patch_length)

    def to_json(self) -> str:
        """Return the configuration as a one-line JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LagformerConfig:
        """Build a configuration from `to_json`'s text.

        ValueError, in one line, for text that is not JSON, unknown or missing keys and sizes out
        of range.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"model configuration is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ValueError("model configuration must be a JSON object")
        known = {field.name for field in fields(cls)}
        required = {field.name for field in fields(cls) if field.default is MISSING}
        if unknown := sorted(values.keys() - known):
            raise ValueError(f"unknown keys in the model configuration: {', '.join(unknown)}")
        if missing := sorted(required - values.keys()):
            raise ValueError(f"missing keys in the model configuration: {', '.join(missing)}")
        return cls(**values)


def _derived(series_length: int, tokens: int, places: int) -> dict[str, int]:
    """Return the sizes that follow from the length of the series.

    About `tokens` patches and `places` that the filters look at; the reach of dilated filters grows
    up to half of the series.
    """
    stride = max(round(series_length / places), 1)
    patch_length = stride * max(round(series_length / (tokens * stride)), 1)
    num_dilations = min(max(int(log2(series_length / (KERNEL - 1))), 1), 8)
    return {"patch_length": patch_length, "stem_stride": stride, "num_dilations": num_dilations}


class Block(nn.Module):
    """A pre-norm encoder block: x + attention(LN(x)), then x + MLP(LN(x))."""

    def __init__(self, config: LagformerConfig) -> None:
        super().__init__()
        max_lag = config.num_tokens - 1 if config.max_lag is None else config.max_lag
        self.attention_norm = nn.LayerNorm(config.embed_dim)
        self.attention = ATTENTIONS[config.attention](
            config.embed_dim,
            config.num_heads,
            config.head_dim,
            max_lag=max_lag,
            feature_map=config.feature_map,
        )
        self.mlp_norm = nn.LayerNorm(config.embed_dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.embed_dim, config.mlp_dim),
            nn.GELU(),
            nn.Linear(config.mlp_dim, config.embed_dim),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "B T D"], key_mask: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T D"]:
        """Map tokens to tokens; masked tokens are attended to by none."""
        x = x + self.dropout(self.attention(self.attention_norm(x), key_mask=key_mask))
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x


def _stem(config: LagformerConfig) -> nn.Module:
    sizes = config.in_channels, config.patch_length, config.embed_dim
    if config.stem == "patch":
        return PatchStem(*sizes)
    places = {"num_kernels": config.num_kernels, "stride": config.stem_stride}
    if config.stem == "kernels":
        return KernelStem(*sizes, num_dilations=config.num_dilations, **places)
    return ConvStem(*sizes, num_layers=config.num_layers, **places)


class Lagformer(nn.Module):
    """Encoder-only transformer whose only positions are the lags of its attention modules.

    `forward(x, key_mask=None)`: x (B, C, L) of any float dtype, key_mask (B, L) bool with True = a
    real sample; returns logits (B, num_classes). L may differ from `config.series_length`: lags
    beyond the table use its last vector. A length that is no multiple of the patch is padded at
    the end with zeros, nothing is cut off. A series without any real sample pools to zeros.
    While training the logits are the transformer's alone; in evaluation a model with a wide readout
    blends it in (`LagformerConfig.wide_share`).
    Raises ValueError for a wrong shape.
    """

    def __init__(self, config: LagformerConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = _stem(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_blocks))
        self.norm = nn.LayerNorm(config.embed_dim)
        self.head = nn.Linear(config.embed_dim, config.num_classes)
        self.wide = None
        if config.wide_groups:
            self.wide = WideReadout(
                config.in_channels,
                config.series_length,
                config.num_classes,
                groups=config.wide_groups,
                circular=config.wide_circular,
            )

    @property
    def num_parameters(self) -> int:
        """Count the weights that were fitted to data: the trained ones and the wide readout's."""
        readout = () if self.wide is None else (self.wide.weight, self.wide.offset)
        return sum(p.numel() for p in (*self.parameters(), *readout))

    def calibrate(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None = None
    ) -> None:
        """Fit the scale of an untrained stem to series like those of training."""
        if isinstance(self.stem, KernelStem | ConvStem):
            self.stem.calibrate(x, key_mask)

    def encode(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Bool[Tensor, "B T"] | None]:
        """Return the last block's tokens and which of them are real (None: all)."""
        if x.ndim != 3 or x.shape[1] != self.config.in_channels or x.shape[2] == 0:
            raise ValueError(
                f"series must have shape (batch, {self.config.in_channels}, length ≥ 1), "
                f"got {tuple(x.shape)}"
            )
        if key_mask is not None and key_mask.shape != (x.shape[0], x.shape[2]):
            raise ValueError(
                f"key_mask must have shape {(x.shape[0], x.shape[2])}, got {tuple(key_mask.shape)}"
            )
        tokens, token_mask = self.stem(x.to(self.head.weight.dtype), key_mask)
        for block in self.blocks:
            tokens = block(tokens, token_mask)
        return tokens, token_mask

    def forward(
        self, x: Float[Tensor, "B C L"], key_mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B classes"]:
        """Return the logits of each series."""
        tokens, token_mask = self.encode(x, key_mask)
        logits: Tensor = self.head(self.norm(masked_mean(tokens, token_mask)))
        if self.wide is None or self.training:
            return logits
        # The geometric mean of two answers, each found without the other.
        share = self.config.wide_share
        wide: Tensor = self.wide(x.to(logits.dtype), key_mask)
        return (1 - share) * logits.log_softmax(dim=1) + share * wide.log_softmax(dim=1)


def masked_mean(
    tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None
) -> Float[Tensor, "B D"]:
    """Return the mean over the real tokens of each series, zeros where there are none."""
    if mask is None:
        return tokens.mean(dim=1)
    total = tokens.masked_fill(~mask[..., None], 0.0).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)
