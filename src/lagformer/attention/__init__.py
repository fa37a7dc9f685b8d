"""The attention mathematics: dense definitions, feature maps, linear-time forms and modules."""

from lagformer.attention import reference
from lagformer.attention.feature_maps import FeatureMap, feature_map, feature_map_names
from lagformer.attention.linear import linear_attention, softmax_attention
from lagformer.attention.modules import (
    LinearAttention,
    RelativeLinearAttention,
    ToeplitzLinearAttention,
)
from lagformer.attention.relative import relative_linear_attention
from lagformer.attention.streaming import StreamState
from lagformer.attention.toeplitz import toeplitz_linear_attention

__all__ = [
    "FeatureMap",
    "LinearAttention",
    "RelativeLinearAttention",
    "StreamState",
    "ToeplitzLinearAttention",
    "feature_map",
    "feature_map_names",
    "linear_attention",
    "reference",
    "relative_linear_attention",
    "softmax_attention",
    "toeplitz_linear_attention",
]
