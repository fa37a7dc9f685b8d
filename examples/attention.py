"""Linear attention with relative positions in ten lines, beside its dense definition."""

import torch

from lagformer.attention import reference, relative_linear_attention

generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(2, 4, 1000, 16, generator=generator) for _ in "qkv")  # (B, H, T, d)
lags = torch.randn(4, 2 * 999 + 1, 16, generator=generator)  # one vector per head and lag
out = relative_linear_attention(q, k, v, lags)  # no 1000 × 1000 matrix is formed
dense = reference.relative_linear_attention(q[:, :1], k[:, :1], v[:, :1], lags[:1])
print(f"output {tuple(out.shape)}, at most {(out[:, :1] - dense).abs().max():.0e} off")
