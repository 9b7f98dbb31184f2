"""Rules of products of matrices and of attention."""

from typing import Any

import torch

from torch_tpu.compiler.bounded.layout import Padded, UnboundedError, as_padded, is_static
from torch_tpu.compiler.bounded.rules import Call, aligned, aten, broadcast, like, rule

# --- products ----------------------------------------------------------------------------------------------------------------


@rule(aten.mm, aten.bmm, aten.addmm, aten.baddbmm)
def _matmul(call: Call) -> Padded:
    names = ("batch1", "batch2") if "batch1" in call.arguments else ("mat1" if "mat1" in call.arguments else "self", "mat2")
    a, b = (call.padded(name) for name in names)
    rank = len(a.dims)
    inner, batch = (
        broadcast([Padded(a.tensor, a.dims[-1:]), Padded(b.tensor, b.dims[-2:-1])]),
        broadcast([Padded(x.tensor, x.dims[:-2]) for x in (a, b)]),
    )
    a = aligned(call.context, a, (*batch, a.dims[-2], *inner))
    b = aligned(call.context, b, (*batch, *inner, b.dims[-1]))
    changes = {names[0]: call.context.fill(a, [rank - 1], 0), names[1]: call.context.fill(b, [rank - 2], 0)}
    return Padded(call.run(**changes), (*batch, a.dims[-2], b.dims[-1]))


@rule(aten.mv, aten.dot)
def _vector_product(call: Call) -> Padded:
    a, b = (call.padded(name) for name in call.arguments)
    b = call.context.laid_out(b, 0, a.dims[-1])
    first, second = call.arguments
    changes = {first: call.context.fill(a, [len(a.dims) - 1], 0), second: call.context.fill(b, [0], 0)}
    return Padded(call.run(**changes), a.dims[:-1])


# --- attention ---------------------------------------------------------------------------------------------------------------


def _key_bias(call: Call, query: Padded, key: Padded) -> Any:
    """What the op adds to the scores so that padded keys weigh nothing."""
    bias, padded_keys = call.arguments.get("attn_bias"), key.dims[2]
    if is_static(padded_keys):
        return bias
    if call["is_causal"] and query.dims[2] == padded_keys and bias is None:
        return None  # padded keys come after all real queries
    mask = call.context.padding(padded_keys).view(1, 1, 1, -1)
    if bias is None:
        return torch.zeros((1, 1, 1, 1), dtype=query.tensor.dtype, device="tpu").masked_fill(mask, -torch.inf)
    return as_padded(bias).tensor.masked_fill(mask, -torch.inf)


# The dimensions that operands have in common.
_COMMON = (
    (2, ("query", "grad_out", "out", "logsumexp")),
    (2, ("key", "value")),
    (3, ("query", "key")),
    (3, ("value", "grad_out", "out")),
)


def _agreeing_heads(call: Call, *names: str) -> dict[str, Padded]:
    """Operands [batch, heads, length, width] with the padding of what they have in common in the same places."""
    operands = {name: call.padded(name) for name in names}
    batch = broadcast([Padded(x.tensor, x.dims[:1]) for x in operands.values()])
    for d, common in _COMMON:
        chosen = [name for name in common if name in operands]
        dim = broadcast([Padded(operands[name].tensor, operands[name].dims[d : d + 1]) for name in chosen])
        for name in chosen:
            x = operands[name]
            operands[name] = aligned(call.context, x, (*batch, *x.dims[1:d], *dim, *x.dims[d + 1 :]))
    return operands


def _scale_of_width(call: Call, query: Padded) -> Any:
    """What the query is multiplied by in place of the op, which would take its scale from the padded width."""
    if call.has("scale") or is_static(query.dims[3]):
        return None
    return call.context.count([query.dims[3]]).to(query.tensor.dtype).rsqrt()


@rule(aten._scaled_dot_product_fused_attention_overrideable)
def _attention(call: Call) -> Any:
    operands = _agreeing_heads(call, "query", "key", "value")
    query, key, value = operands.values()
    changes: dict[str, Any] = {"attn_bias": _key_bias(call, query, key)}
    changes |= {"query": call.context.fill(query, [3], 0), "key": call.context.fill(key, [2, 3], 0)}
    changes |= {"value": call.context.fill(value, [2], 0)}
    if (scale := _scale_of_width(call, query)) is not None:
        changes |= {"query": changes["query"] * scale, "scale": 1.0}
    results = list(call.run(**changes))
    batch = broadcast([Padded(x.tensor, x.dims[:2]) for x in (query, key, value)])
    results[0] = Padded(results[0], (*batch, query.dims[2], value.dims[3]))
    results[1] = Padded(results[1], (*batch, query.dims[2]))
    return results


@rule(aten._scaled_dot_product_fused_attention_overrideable_backward)
def _attention_backward(call: Call) -> Any:
    if call.has("attn_bias") and call["grad_input_mask"][3]:
        raise UnboundedError("the gradient of an attention mask")
    operands = _agreeing_heads(call, "query", "key", "value", "grad_out", "out", "logsumexp")
    changes: dict[str, Any] = {name: call.context.fill(x, range(2, len(x.dims)), 0) for name, x in operands.items()}
    changes["attn_bias"] = _key_bias(call, operands["query"], operands["key"])
    if (scale := _scale_of_width(call, operands["query"])) is not None:
        changes |= {"query": changes["query"] * scale, "scale": 1.0}
    results = list(call.run(**changes, max_q=call["max_q"], max_k=call["max_k"]))
    if scale is not None:
        results[0] = results[0] * scale
    return [*(like(operands[name], each) for name, each in zip(("query", "key", "value"), results, strict=False)), None]
