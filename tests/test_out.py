"""out= tensors: of another dtype, without elements, overlapping the operands. The CPU is the oracle."""

import pytest
import torch

X = torch.tensor([[1.5, -2.0, 3.0], [0.5, 2.5, -1.0]])
AT = torch.tensor([0, 1])
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
    "cumsum": (lambda x, out: torch.cumsum(x, 1, out=out), 1),
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
        if fitting[wrong] == dtype or (case, dtype) == ("cumsum", torch.bool):  # CUDA has that sum, the CPU has not
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
