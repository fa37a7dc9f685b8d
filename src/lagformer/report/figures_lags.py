"""What a trained model learned about lags: the weight its heads give to every distance."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from lagformer.attention import RelativeLinearAttention, reference
from lagformer.model import Lagformer, LagformerConfig
from lagformer.report.style import BLUE, GREY, new_figure
from lagformer.splits import VARIANTS, load_split
from lagformer.training.loop import Examples, fit, predict_logits, seeded
from lagformer.training.recipe import Recipe

SERIES = 256  # averaged over for the mean query


@dataclass(frozen=True)
class Trained:
    """A model, series (n, C, L) like those it was trained on, and a sentence about both."""

    model: Lagformer
    series: Float[Tensor, "n C L"]
    source: str


def from_run(run: Path) -> Trained:
    """Take a final model of a run folder of `lagformer forda`, a dithered one if there is one.

    Raises ValueError if there is none or its file is damaged.
    """
    paths = sorted((run / "models").glob("*-test-lagformer/model.safetensors"))
    if not paths:
        raise ValueError(
            f"{run} holds no finished model (models/*-test-lagformer/model.safetensors); give the "
            "folder of a finished `lagformer forda`"
        )
    path = next((p for p in paths if p.parent.name.startswith("dithered-")), paths[0])
    variant, seed = path.parent.name.split("-")[:2]
    values = load_split(variant).train.values[:SERIES]
    series = torch.from_numpy(values).float()
    model = load_model(path)
    if series.shape[1:] != (model.config.in_channels, model.config.series_length):
        raise ValueError(f"{path} is not a model of {variant}: it takes other series")
    source = f"trained by `lagformer forda` on {VARIANTS[variant]} ({variant}, {seed})"
    return Trained(model, series, source)


def load_model(path: Path) -> Lagformer:
    """Load the weights of a model of a run folder. ValueError if the file is damaged."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            config = LagformerConfig.from_json((file.metadata() or {})["config"])
        model = Lagformer(config)
        model.load_state_dict(load_file(path))
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged or no Lagformer model: {reason}") from None
    return model.eval()


# ----------------------------------------------------------------------------- a small example

TOKENS, PATCH, PERIOD = 40, 5, 4  # the period in tokens


def clicks(n: int, generator: torch.Generator) -> tuple[Float[Tensor, "n 1 L"], Tensor]:
    """Series of clicks in noise, and their class: 1 periodic, 0 at random places.

    Every series has as many clicks and every click starts a patch, so the tokens of both classes
    are alike: the distances between them alone tell the classes apart.
    """
    targets = torch.arange(n) % 2
    x = 0.05 * torch.randn(n, 1, TOKENS * PATCH, generator=generator)
    for row, target in zip(x[:, 0], targets, strict=True):
        if target:
            phase = torch.randint(PERIOD, (1,), generator=generator)
            tokens = phase + torch.arange(0, TOKENS, PERIOD)
        else:
            tokens = torch.randperm(TOKENS, generator=generator)[: TOKENS // PERIOD]
        row[tokens * PATCH] += 1
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), targets


def from_clicks(seed: int, *, epochs: int = 60) -> Trained:
    """Train one block with two heads on `clicks`, a few seconds, and test it on fresh ones."""
    generator = torch.Generator().manual_seed(seed)
    config = LagformerConfig(
        TOKENS * PATCH,
        1,
        2,
        patch_length=PATCH,
        embed_dim=16,
        num_heads=2,
        head_dim=8,
        num_blocks=1,
        mlp_dim=32,
    )
    with seeded(seed):
        model = Lagformer(config)
    recipe = Recipe(epochs=epochs, learning_rate=1e-2, amplitude=None)
    fit(model, Examples(*clicks(512, generator)), recipe, seed=seed)
    series, targets = clicks(SERIES, generator)
    accuracy = (predict_logits(model, series).argmax(1) == targets).double().mean()
    source = (
        f"trained on made-up clicks, one every {PERIOD * PATCH} samples or as many at random "
        f"places (test accuracy {accuracy:.2f})"
    )
    return Trained(model, series, source)


# ------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class LagKernels:
    """The lag kernels of N blocks with H heads each and M lags. Their mean over the lags is 1."""

    lags: NDArray[np.int64]
    """(M,) j - i in samples."""
    similarity: NDArray[np.float64]
    """(N, H, M): mean over queries of φ(q_i)ᵀφ(r_m), over its mean over m."""
    untrained: NDArray[np.float64]
    """(N, H, 2): the middle 95 % of `similarity` for lag vectors as they are drawn at first."""
    share: NDArray[np.float64]
    """(N, H): part of the similarities of all pairs that comes from lags, not from keys."""


@torch.no_grad()
def lag_kernels(trained: Trained, *, seed: int = 0) -> LagKernels:
    """What the heads give to every lag, averaged over the queries of the series."""
    model = copy.deepcopy(trained.model).double().eval()
    modules = [m for m in model.modules() if isinstance(m, RelativeLinearAttention)]
    inputs: list[Tensor] = []
    hooks = [m.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for m in modules]
    model(trained.series.double())
    for hook in hooks:
        hook.remove()
    with seeded(seed):
        heads = [head_kernels(m, x) for m, x in zip(modules, inputs, strict=True)]
    similarity, untrained, share = (
        torch.stack(parts).numpy() for parts in zip(*heads, strict=True)
    )
    R = modules[0].max_lag
    lags = model.config.patch_length * np.arange(-R, R + 1)
    return LagKernels(lags, similarity, untrained, share)


def head_kernels(
    module: RelativeLinearAttention, x: Float[Tensor, "n T D"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return one module's parts of `LagKernels` for its input x: (H, M), (H, 2) and (H,).

    The untrained band is drawn from torch's global generator: call it within `seeded`.
    """
    phi, H, T = module.feature_map, module.num_heads, x.shape[1]
    phi_q, phi_k = (
        phi(proj(x).unflatten(-1, (H, -1)).transpose(1, 2))  # (n, H, T, l)
        for proj in (module.q_proj, module.k_proj)
    )
    phi_r = phi(module.lags)  # (H, M, l)
    query = phi_q.mean(dim=(0, 2))  # (H, l)
    similarity = torch.einsum("hl,hml->hm", query, phi_r)
    fresh = RelativeLinearAttention(module.embed_dim, 1, module.head_dim, max_lag=2048)
    at_first = query @ phi(fresh.lags[0].to(x)).T
    at_first = at_first / at_first.mean(dim=1, keepdim=True)
    untrained = at_first.quantile(torch.tensor([0.025, 0.975], dtype=x.dtype), dim=1).T
    # Mean similarity of a pair, from its lag and from its key.
    lag = torch.einsum("htl,hml->htm", phi_q.mean(0), phi_r)
    index = reference.lag_index(T, T, module.max_lag)
    from_lag = lag.gather(2, index.expand(H, T, T)).mean(dim=(1, 2))
    from_key = torch.einsum("nhl,nhl->h", phi_q.mean(2), phi_k.mean(2)) / len(x)
    return (
        similarity / similarity.mean(1, keepdim=True),
        untrained,
        from_lag / (from_lag + from_key),
    )


def lag_figure(kernels: LagKernels, source: str) -> Figure:
    """One panel per block and head: its lag kernel, with the band of an untrained one."""
    N, H, _ = kernels.similarity.shape
    columns = min(4, N * H)
    rows = -(-N * H // columns)
    figure, panels = new_figure(
        "Learned lag kernels",
        f"Model {source}. Line: φ(q)ᵀφ(r) of the mean query, over its mean over the lags. Grey: "
        "where 95 % of the lags lie before training. From lags: this part of the head's "
        "similarities comes from lags, the rest from keys.",
        columns=columns,
        rows=rows,
        height=2.2 + 1.6 * rows,
    )
    for index, panel in enumerate(panels):
        panel.set(xlabel="lag j - i (samples)", ylabel="weight / mean")
        if index >= N * H:
            panel.set_visible(False)
            continue
        block, head = divmod(index, H)
        panel.axhspan(*kernels.untrained[block, head], color=GREY, alpha=0.25, lw=0)
        panel.plot(kernels.lags, kernels.similarity[block, head], color=BLUE, lw=1.2)
        share = 100 * kernels.share[block, head]
        panel.set_title(f"block {block + 1}, head {head + 1}\n{share:.0f} % from lags", fontsize=9)
        panel.sharey(panels[0])
        panel.label_outer()
    return figure
