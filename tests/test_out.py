"""out= tensors: of another dtype, without elements, overlapping the operands. The CPU is the oracle."""

import pytest
import torch

X = torch.tensor([[1.5, -2.0, 3.0], [0.5, 2.5, -1.0]])
AT = torch.tensor([0, 1])


def unique_rows(x, out):
    results = {f"out{i}": each for i, each in enumerate(out or ())}
    overload = torch.ops.aten.unique_dim.out if out else torch.ops.aten.unique_dim
    return overload(x, 0, True, True, True, **results)


OUTS = {  # a call and how many results it has
    "abs": (lambda x, out: torch.abs(x, out=out), 1),
    "ceil": (lambda x, out: torch.ceil(x, out=out), 1),
    "neg": (lambda x, out: torch.neg(x, out=out), 1),
    "round": (lambda x, out: torch.round(x, out=out), 1),
    "sign": (lambda x, out: torch.sign(x, out=out), 1),
    "gelu": (lambda x, out: torch._C._nn.gelu(x, out=out), 1),
    "softplus": (lambda x, out: torch._C._nn.softplus(x, out=out), 1),
    "clamp": (lambda x, out: torch.clamp(x, 0, 1, out=out), 1),
    "exp": (lambda x, out: torch.exp(x, out=out), 1),
    "add": (lambda x, out: torch.add(x, x, out=out), 1),
    "kthvalue": (lambda x, out: torch.kthvalue(x, 2, out=out), 2),
    "frexp": (lambda x, out: torch.frexp(x, out=out), 2),
    "where": (lambda x, out: torch.where(x > 0, x, x, out=out), 1),
    "index_select": (lambda x, out: torch.index_select(x, 0, AT.to(x.device), out=out), 1),
    "take": (lambda x, out: torch.take(x, AT.to(x.device), out=out), 1),
    "nan_to_num": (lambda x, out: torch.nan_to_num(x, out=out), 1),
    "any": (lambda x, out: torch.any(x, out=out), 1),
    "all": (lambda x, out: torch.all(x, 1, out=out), 1),
    "amax": (lambda x, out: torch.amax(x, 1, out=out), 1),
    "sum": (lambda x, out: torch.sum(x, 1, out=out), 1),
    "prod": (lambda x, out: torch.prod(x, 1, out=out), 1),
    "any_dims": (lambda x, out: torch.any(x, (0, 1), out=out), 1),
    "all_no_dims": (lambda x, out: torch.all(x, None, out=out), 1),
    "cumsum": (lambda x, out: torch.cumsum(x, 1, out=out), 1),
    "cumprod": (lambda x, out: torch.cumprod(x, 1, out=out), 1),
    "nansum": (lambda x, out: torch.nansum(x, 1, out=out), 1),
    "sum_dtype": (lambda x, out: torch.sum(x, 1, dtype=torch.float32, out=out), 1),
    "prod_dtype": (lambda x, out: torch.prod(x, 1, dtype=torch.int64, out=out), 1),
    "nansum_dtype": (lambda x, out: torch.nansum(x, 1, dtype=torch.float32, out=out), 1),
    "cumsum_dtype": (lambda x, out: torch.cumsum(x, 1, dtype=torch.int64, out=out), 1),
    "addr": (lambda x, out: torch.addr(x, x[:, 0], x[0], out=out), 1),
    "bernoulli": (lambda x, out: torch.bernoulli((x > 0).float(), out=out), 1),
    "unique_dim": (lambda x, out: unique_rows(x, out), 3),
    "logsumexp": (lambda x, out: torch.logsumexp(x, 1, out=out), 1),
    "histc": (lambda x, out: torch.histc(x, 3, out=out), 1),
    "cat": (lambda x, out: torch.cat([x, x], out=out), 1),
    "signbit": (lambda x, out: torch.signbit(x, out=out), 1),
    "searchsorted": (lambda x, out: torch.searchsorted(x[0], x, out=out), 1),
    "qr": (lambda x, out: torch.linalg.qr(x, out=out), 2),
    "pool": (lambda x, out: torch._C._nn.adaptive_max_pool2d(x[None], 2, out=out), 2),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("case", OUTS)
def test_out_of_another_dtype(case, dtype):
    call, results = OUTS[case]
    fitting = [x.dtype for x in (call(X, None) if results > 1 else [call(X, None)])]
    for wrong in range(results):
        if fitting[wrong] == dtype:
            continue
        outcomes = []
        for device in ("cpu", "tpu"):
            dtypes = [dtype if i == wrong else fitting[i] for i in range(results)]
            out = tuple(torch.empty(0, dtype=each, device=device) for each in dtypes)
            try:
                call(X.to(device), out if results > 1 else out[0])
                outcomes.append([x.cpu() for x in out] if case != "qr" else None)
            except (RuntimeError, TypeError) as error:
                outcomes.append((type(error), str(error)))
        if isinstance(outcomes[0], list):
            torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-6, atol=1e-6)
        else:
            assert outcomes[0] == outcomes[1]


def test_logic_into_bytes_and_back():
    for x, dtype in ((X, torch.uint8), (X.to(torch.uint8), torch.bool)):
        for call in (torch.any, torch.all):
            for dims in ((1,), ((0, 1),)):
                x = x.clamp(1)
                out = torch.empty(0, dtype=dtype, device="tpu")
                call(x.to("tpu"), *dims, out=out)
                assert torch.equal(out.cpu(), call(x, *dims, out=torch.empty(0, dtype=dtype)))


OVERLAPS = {
    "a row of it": lambda m: torch.addr(m, m[0], m[:, 1], out=m),
    "its vectors": lambda m: torch.addr(torch.ones_like(m), m[:, 0], m[1], out=m),
    "a part of it": lambda m: torch.addr(m.view(-1)[:4].view(2, 2), m[2, :2], m[2, :2], out=m.view(-1)[1:5].view(2, 2)),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_addr_into_what_it_reads(case):
    texts = []
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError) as error:
            OVERLAPS[case](torch.arange(9.0, device=device).view(3, 3))
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_addr_in_place():
    x = torch.arange(9.0, device="tpu").view(3, 3)
    assert torch.equal(
        torch.addr(x, torch.ones_like(x[0]), torch.ones_like(x[0]), out=x).cpu(), torch.arange(9.0).view(3, 3) + 1
    )
