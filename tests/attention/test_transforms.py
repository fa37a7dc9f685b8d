"""Under torch.compile, torch.export and torch.func the numbers are those of eager calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lagformer.attention import (
    LinearAttention,
    RelativeLinearAttention,
    ToeplitzLinearAttention,
)

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]
Results = Callable[..., list[Tensor]]
Agree = Callable[..., None]


def compiles(test: Any) -> Any:
    """Slow; and inductor and dynamo warn of what they do themselves."""
    for message in ("`torch.jit.script_method` is deprecated", ".*should not be instantiated"):
        test = pytest.mark.filterwarnings(f"ignore:{message}:DeprecationWarning")(test)
    return pytest.mark.slow(test)


# inductor where graphs are small; aot_eager stops before code generation, which takes minutes
COMPILED = [
    ("linear", {}, False, "inductor"),
    ("linear", {"causal": True}, True, "aot_eager"),
    ("relative", {"method": "block"}, False, "inductor"),
    ("relative", {"method": "fft"}, True, "aot_eager"),
    ("relative", {"method": "fft", "causal": True}, False, "aot_eager"),
    ("relative", {"method": "band", "causal": True}, True, "aot_eager"),
    ("toeplitz", {"method": "block", "causal": True}, False, "aot_eager"),
    ("toeplitz", {"method": "fft"}, True, "aot_eager"),
    ("toeplitz", {"method": "band"}, False, "aot_eager"),
]


@compiles
@pytest.mark.parametrize(("op", "options", "masked", "backend"), COMPILED)
def test_compiled(
    op: str,
    options: dict[str, Any],
    masked: bool,
    backend: str,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    """Outputs and gradients, in one graph."""
    fast, _ = ops[op]
    mask = torch.arange(5) != 1 if masked else None

    def attend(*inputs: Tensor) -> Tensor:
        return fast(*inputs, key_mask=mask, **options)

    torch._dynamo.reset()
    inputs = make(op, 5, d=2, c=1, R=2, batch=(2,))
    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    agree(results(compiled, inputs), results(attend, inputs), floor=1e-3)


@compiles
def test_a_compiled_module_takes_other_lengths(agree: Agree) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = RelativeLinearAttention(2, 1, 2, max_lag=4).double()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for n in (9, 13, 4):
        x = torch.randn(2, n, 2, dtype=torch.float64)
        gradients = []
        for attend in (compiled, module):
            y = attend(x)
            gradients.append(
                [y.detach(), *torch.autograd.grad(y.square().sum(), module.parameters())]
            )
        agree(*gradients)


def modules() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        LinearAttention(6, 2, 3),
        LinearAttention(6, 2, 3, causal=True),
        RelativeLinearAttention(6, 2, 3, max_lag=8),
        RelativeLinearAttention(6, 2, 3, max_lag=2, causal=True),
        ToeplitzLinearAttention(6, 2, 3, max_lag=8),
        ToeplitzLinearAttention(6, 2, 3, max_lag=2, causal=True),
    ]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("i", range(6))
def test_exported_program(i: int, masked: bool, agree: Agree) -> None:
    module = modules()[i].double().eval()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    args = (x, torch.arange(9).expand(2, 9) > 2) if masked else (x,)
    program = torch.export.export(module, args).module()
    agree([program(*args)], [module(*args)])
    other = torch.randn_like(x)
    agree([program(other, *args[1:])], [module(other, *args[1:])])


CASES = [
    *(("linear", {"causal": causal}) for causal in (False, True)),
    *(
        (op, {"method": method, "causal": causal})
        for op in ("relative", "toeplitz")
        for method in ("dense", "block", "fft", "band", "auto")
        for causal in (False, True)
    ),
]
every_case = pytest.mark.parametrize(
    ("op", "options"), CASES, ids=["-".join([op, *map(str, o.values())]) for op, o in CASES]
)


@every_case
@pytest.mark.parametrize("masked", [False, True])
def test_vmap_is_a_loop(
    op: str, options: dict[str, Any], masked: bool, ops: Ops, make: Make, agree: Agree
) -> None:
    fast, _ = ops[op]
    q, k, v, *table = make(op, 7, c=2, R=3, batch=(4, 2))
    mask = torch.rand(4, 1, 7, generator=torch.Generator().manual_seed(0)) > 0.4

    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor, *t: Tensor) -> Tensor:
        return fast(q, k, v, *t, key_mask=m if masked else None, **options)

    shared = [None] * len(table)  # one table for every sample, as per-sample gradients have it
    found = torch.func.vmap(attend, in_dims=(0, 0, 0, 0, *shared))(q, k, v, mask, *table)
    looped = torch.stack([attend(*(x[i] for x in (q, k, v, mask)), *table) for i in range(4)])
    agree([found], [looped])
    # keys of one sample for all, mapped along another dimension; a table of each sample's own
    own = [torch.stack([t * (1 + s) for s in range(4)]) for t in table]
    found = torch.func.vmap(attend, in_dims=(1, None, None, 0, *(0 for _ in table)))(
        q.transpose(0, 1), k[0], v[0], mask, *own
    )
    looped = torch.stack(
        [attend(q[i], k[0], v[0], mask[i], *(t[i] for t in own)) for i in range(4)]
    )
    agree([found], [looped])


@every_case
def test_gradients_per_sample_are_a_loop(
    op: str, options: dict[str, Any], ops: Ops, make: Make, agree: Agree
) -> None:
    fast, _ = ops[op]
    q, k, v, *table = make(op, 7, c=2, R=3, batch=(4, 2))

    def loss(*inputs: Tensor) -> Tensor:
        return fast(*inputs, **options).square().sum()

    every = tuple(range(len(table) + 3))
    per_sample = torch.func.vmap(
        torch.func.grad(loss, argnums=every), in_dims=(0, 0, 0, *(None for _ in table))
    )(q, k, v, *table)
    for i in range(4):
        leaves = [x.clone().requires_grad_() for x in (q[i], k[i], v[i], *table)]
        agree([g[i] for g in per_sample], list(torch.autograd.grad(loss(*leaves), leaves)))


@every_case
def test_functional_transforms_agree_with_autograd(
    op: str, options: dict[str, Any], ops: Ops, make: Make, agree: Agree
) -> None:
    """grad, vjp and the Hessian by reverse over reverse."""
    fast, _ = ops[op]
    inputs = make(op, 3, d=2, c=1, R=1, batch=(2,))

    def loss(*inputs: Tensor) -> Tensor:
        return fast(*inputs, **options).square().sum()

    every = tuple(range(len(inputs)))
    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    agree(list(torch.func.grad(loss, argnums=every)(*inputs)), list(expected))
    _, pull = torch.func.vjp(loss, *inputs)
    agree(list(pull(torch.ones((), dtype=torch.float64))), list(expected))
    hessian = torch.func.jacrev(torch.func.grad(loss))(*inputs)
    expected_hessian = torch.autograd.functional.hessian(lambda q: loss(q, *inputs[1:]), inputs[0])
    agree([hessian], [expected_hessian])


def test_per_sample_gradients_of_a_module(agree: Agree) -> None:
    for module in modules():
        module.double()
        x = torch.randn(3, 7, 6, dtype=torch.float64)
        parameters = dict(module.named_parameters())

        def loss(p: dict[str, Tensor], x: Tensor, module: nn.Module = module) -> Tensor:
            return torch.func.functional_call(module, p, (x.unsqueeze(0),)).square().sum()

        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        for i in range(3):
            expected = torch.autograd.grad(loss(parameters, x[i]), list(parameters.values()))
            agree([per_sample[n][i] for n in parameters], list(expected))
