"""Feature maps φ: R^d → R^l with φ(q)ᵀφ(k) ≥ 0, the kernels of linear attention.

One registry, one class an entry. A map is applied row by row to the last dimension. Half-precision
inputs are mapped in float32 and returned in their own type, saturated at its largest number.

`query` is φ up to a positive factor per row: it cancels in the average, and is how the exponential
maps stay finite without looking at any other position, which keeps causal attention causal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

_HALF = (torch.float16, torch.bfloat16)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type sums are kept in: float32 for the half types, the type itself otherwise."""
    return torch.float32 if dtype in _HALF else dtype


class FeatureMap(nn.Module):
    """A feature map φ: (..., dim) → (..., num_features).

    Subclasses set the class attributes, ``num_features`` in ``__init__`` and define ``phi``;
    ``@register`` makes them known by name.

    Attributes:
        name: the registry's key.
        strictly_positive: φ(q)ᵀφ(k) > 0 for every pair, so that no row is without weight.
        source: where the map comes from.
        dim: width of what is mapped.
        num_features: l.
    """

    name: ClassVar[str]
    strictly_positive: ClassVar[bool]
    source: ClassVar[str]

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"a feature map needs dim ≥ 1, got {dim}")
        self.dim = dim
        self.num_features = dim

    # The map acts by element and knows ``write`` and ``slope``: the fused passes can use it.
    elementwise: ClassVar[bool] = False

    def phi(self, x: Tensor) -> Tensor:
        """φ(x) in the precision of x."""
        raise NotImplementedError

    def phi_query(self, x: Tensor) -> Tensor:
        """φ(x) up to a positive factor per row."""
        return self.phi(x)

    def write(self, x: Tensor, out: Tensor) -> Tensor:
        """φ(x) into ``out``, without gradient, for maps that act by element."""
        raise NotImplementedError

    def slope(self, phi: Tensor) -> Tensor:
        """dφ/dx as a function of φ, for maps that act by element."""
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch num_features"]:
        """φ(x), row by row. Raises ValueError if the last dimension is not ``dim``."""
        return self._in_float32(self.phi, x)

    def query(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch num_features"]:
        """φ(x) times a positive factor per row: for queries only, where it cancels."""
        return self._in_float32(self.phi_query, x)

    def _in_float32(self, phi: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x.shape[-1] != self.dim:
            raise ValueError(
                f"feature map {self.name!r} was built for dim {self.dim}, got {tuple(x.shape)}"
            )
        if x.dtype not in _HALF:
            return phi(x)
        largest = torch.finfo(x.dtype).max
        return phi(x.float()).clamp(-largest, largest).to(x.dtype)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"dim={self.dim}, num_features={self.num_features}"


_REGISTRY: dict[str, type[FeatureMap]] = {}


def register(cls: type[FeatureMap]) -> type[FeatureMap]:
    """Class decorator: make a feature map known under its ``name``."""
    _REGISTRY[cls.name] = cls
    return cls


def feature_map_names() -> tuple[str, ...]:
    """The names ``feature_map`` knows."""
    return tuple(_REGISTRY)


def feature_map(name: str, dim: int, **options: Any) -> FeatureMap:
    """Build the feature map ``name`` for vectors of width ``dim``.

    Options: ``favor+`` takes ``num_features`` (default: dim·ln(dim), at least dim) and
    ``generator``. Raises ValueError for an unknown name or dim < 1.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown feature map {name!r}; known: {', '.join(_REGISTRY)}")
    return _REGISTRY[name](dim, **options)


def elu_plus_one(x: Tensor) -> Tensor:
    """1 + ELU(x), as exp(min(x, 0)) + max(x, 0): 1 + expm1(x) would cancel to 0 at x = -17."""
    return x.clamp(max=0).exp() + x.relu()


def _bounded_exp(x: Tensor) -> Tensor:
    """exp, its argument kept where sums of millions of products neither overflow nor vanish."""
    bound = 600.0 if x.dtype == torch.float64 else 60.0
    return x.clamp(-bound, bound).exp()


@register
class EluPlusOne(FeatureMap):
    """φ(x) = 1 + ELU(x), element by element; l = d."""

    name = "elu+1"
    strictly_positive = True
    source = "Katharopoulos et al. 2020, Transformers are RNNs, eq. 7"
    elementwise = True

    def phi(self, x: Tensor) -> Tensor:
        """1 + ELU(x)."""
        return elu_plus_one(x)

    def write(self, x: Tensor, out: Tensor) -> Tensor:
        """1 + ELU(x), as elu_plus_one."""
        return torch.clamp(x, max=0, out=out).exp_().add_(x.relu())

    def slope(self, phi: Tensor) -> Tensor:
        """1 above zero, φ itself below."""
        return phi.clamp(max=1)


@register
class Relu(FeatureMap):
    """φ(x) = max(x, 0); l = d. Rows can be without weight: they give zeros."""

    name = "relu"
    strictly_positive = False
    source = "Cai et al. 2022, EfficientViT, eq. 2"
    elementwise = True

    def phi(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return x.relu()

    def write(self, x: Tensor, out: Tensor) -> Tensor:
        """max(x, 0)."""
        return torch.clamp(x, min=0, out=out)

    def slope(self, phi: Tensor) -> Tensor:
        """1 above zero, 0 below."""
        return (phi > 0).to(phi.dtype)


@register
class SquaredRelu(FeatureMap):
    """φ(x) = max(x, 0)²; l = d. Rows can be without weight: they give zeros."""

    name = "squared_relu"
    strictly_positive = False
    source = "So et al. 2021, Primer, section 4; as a kernel: Zhang et al. 2024, Hedgehog, table 1"

    def phi(self, x: Tensor) -> Tensor:
        """max(x, 0)²."""
        return x.relu().square()


@register
class Exp(FeatureMap):
    """φ(x) = exp(x), element by element; l = d. Saturates at |x| = 60 (600 in float64)."""

    name = "exp"
    strictly_positive = True
    source = "Zhang et al. 2024, Hedgehog, eq. 4 without projection"

    def phi(self, x: Tensor) -> Tensor:
        """exp(x)."""
        return _bounded_exp(x)

    def phi_query(self, x: Tensor) -> Tensor:
        """exp(x - max of the row)."""
        return (x - x.detach().amax(dim=-1, keepdim=True)).exp()


@register
class Taylor2(FeatureMap):
    """φ(q)ᵀφ(k) = 1 + s + s²/2 with s = qᵀk/√d, pairs a ≤ b once; l = 1 + d + d(d+1)/2."""

    name = "taylor2"
    strictly_positive = True  # 1 + s + s²/2 = ((s+1)² + 1)/2
    source = "Arora et al. 2024, Based, section 4.2"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.num_features = 1 + dim + dim * (dim + 1) // 2

    def phi(self, x: Tensor) -> Tensor:
        """(1, x/d^¼, w_ab x_a x_b / √(2d)), w = 1 on the diagonal and √2 off it."""
        d = self.dim
        one = torch.ones_like(x[..., :1])
        # d slices x_a · (x_a, √2 x_{a+1}, …, √2 x_d): no index tensors, no d² intermediate
        y = x / (2 * d) ** 0.25
        squares = [
            y[..., a : a + 1] * torch.cat([y[..., a : a + 1], math.sqrt(2) * y[..., a + 1 :]], -1)
            for a in range(d)
        ]
        return torch.cat([one, x / d**0.25, *squares], dim=-1)


@register
class Taylor2Full(FeatureMap):
    """φ(q)ᵀφ(k) = 1 + s + s²/2 with s = qᵀk/√d, all pairs; l = 1 + d + d²."""

    name = "taylor2_full"
    strictly_positive = True
    source = "Arora et al. 2024, Based, section 4.2"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.num_features = 1 + dim + dim * dim

    def phi(self, x: Tensor) -> Tensor:
        """(1, x/d^¼, vec(xxᵀ)/√(2d))."""
        y = x / (2 * self.dim) ** 0.25
        pairs = (y.unsqueeze(-1) * y.unsqueeze(-2)).flatten(-2)
        return torch.cat([torch.ones_like(x[..., :1]), x / self.dim**0.25, pairs], dim=-1)


@register
class FavorPlus(FeatureMap):
    """Positive orthogonal random features: E φ(q)ᵀφ(k) = exp(qᵀk); l = ``num_features``.

    The projection is drawn once, at construction, from ``generator`` (default: a generator of its
    own with seed 0) and is saved with the module.
    """

    name = "favor+"
    strictly_positive = True
    source = (
        "Choromanski et al. 2021, Rethinking Attention with Performers, lemma 1 and section 2.4"
    )
    projection: Tensor

    def __init__(
        self,
        dim: int,
        num_features: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(dim)
        if num_features is not None and num_features < 1:
            raise ValueError(f"favor+ needs num_features ≥ 1, got {num_features}")
        self.num_features = num_features or max(dim, int(dim * math.log(dim)))
        if generator is None:
            generator = torch.Generator().manual_seed(0)
        self.register_buffer("projection", self._draw(dim, self.num_features, generator))

    @staticmethod
    def _draw(dim: int, num_features: int, generator: torch.Generator) -> Tensor:
        """Blocks of orthogonal rows, each as long as a Gaussian vector of its own."""

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        def rotation() -> Tensor:
            # Signs of R's diagonal: without them a row would lean to one side, a bias in the kernel
            q, r = torch.linalg.qr(normal(dim, dim))
            rotated: Tensor = q * r.diagonal().sign()
            return rotated

        blocks = [rotation() for _ in range(-(-num_features // dim))]
        lengths = torch.linalg.vector_norm(normal(num_features, dim), dim=1, keepdim=True)
        projection: Tensor = (torch.cat(blocks)[:num_features] * lengths).float()
        return projection

    def _exponent(self, x: Tensor) -> Tensor:
        scores: Tensor = x @ self.projection.to(x).transpose(0, 1)
        return scores - x.square().sum(dim=-1, keepdim=True) / 2

    def phi(self, x: Tensor) -> Tensor:
        """exp(Wx - |x|²/2) / √l."""
        return _bounded_exp(self._exponent(x)) / math.sqrt(self.num_features)

    def phi_query(self, x: Tensor) -> Tensor:
        """The same over the row's largest feature."""
        exponent = self._exponent(x)
        return (exponent - exponent.detach().amax(dim=-1, keepdim=True)).exp()


@register
class Hedgehog(FeatureMap):
    """φ(x) = (softmax(Wx), softmax(-Wx)) with W learned, the identity at first; l = 2d."""

    name = "hedgehog"
    strictly_positive = True
    source = "Zhang et al. 2024, The Hedgehog & the Porcupine, section 4.2 and appendix"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.num_features = 2 * dim
        self.weight = nn.Parameter(torch.eye(dim))

    def phi(self, x: Tensor) -> Tensor:
        """softmax over the features bounds them without a look at other positions."""
        y: Tensor = F.linear(x, self.weight.to(x))
        return torch.cat([y.softmax(dim=-1), (-y).softmax(dim=-1)], dim=-1)


MapSpec = str | Callable[[Tensor], Tensor] | tuple[Any, Any]
_DEFAULTS: dict[tuple[str, int], FeatureMap] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _build_default(name: str, dim: int) -> bool:
    """Runs while a compiler traces too: a random projection is not to be drawn in the graph."""
    if (name, dim) not in _DEFAULTS:
        _DEFAULTS[name, dim] = feature_map(name, dim).requires_grad_(False)
    return True


def _default_map(name: str, dim: int) -> FeatureMap:
    _build_default(name, dim)
    return _DEFAULTS[name, dim]


def resolve(spec: MapSpec, dim: int) -> tuple[Any, Any]:
    """(query map, key map) of a name, a FeatureMap or function, or a pair of such.

    Raises ValueError for an unknown name or something that cannot be called.
    """
    pair = spec if isinstance(spec, tuple) else (spec, spec)
    if len(pair) != 2 or not all(isinstance(s, str) or callable(s) for s in pair):
        raise ValueError(f"feature_map is a name, a function or a pair of them, got {spec!r}")
    query, key = (_default_map(s, dim) if isinstance(s, str) else s for s in pair)
    return query, key


def map_queries(phi: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    """φ(q), up to a positive factor per row where the map has such a form."""
    mapped: Tensor = phi.query(q) if isinstance(phi, FeatureMap) else phi(q)
    return mapped
