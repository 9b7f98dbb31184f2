"""FlexAttention by blocks: of the blocks of scores that a block mask leaves out, nothing is computed.

Forward, a scan over the blocks of queries holds two loops over the blocks of keys that the mask lists for each: those that it
cuts, and those that lie in it whole, which need no ``mask_mod``. They keep a running maximum and sum (online softmax), so
that no more than a block of scores exists at a time. Backward, scores are made again from the saved logsumexp: once by query
blocks for the gradient of the queries and of captured buffers, once by key blocks for those of keys and values. ``score_mod``,
its joint graph and ``mask_mod`` are torch's graphs, mapped over a block.

Blocks stand in the first dimension: [blocks, batch, heads, positions, features]. A mask has one list of blocks for all batches
and heads, or lists of their own.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import (
    _permute_strides,
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)

from torch_tpu import _C

Function = Callable[..., Any]

# torch's form, which makes all scores, is as fast or faster where there are fewer blocks than these, and where a step of a loop
# has fewer scores and elements of keys, so that the step itself takes the time (bench/flex.py).
_MIN_BLOCKS, _MIN_STEP = 16, 1 << 15


@dataclass
class _Lists:
    """For each block of one side, the blocks of the other that the mask cuts and those that it holds whole."""

    cut_count: Tensor  # [masks of the batch, of the heads, blocks]
    cut: Tensor  # [..., blocks, places]
    whole_count: Tensor | None
    whole: Tensor | None

    def by_block(self) -> list[Tensor]:
        """The lists with the block in front, to scan; their places come next."""
        lists = [self.cut_count.movedim(2, 0), self.cut.permute(2, 3, 0, 1)]
        if self.whole_count is not None and self.whole is not None:
            lists += [self.whole_count.movedim(2, 0), self.whole.permute(2, 3, 0, 1)]
        return lists


class _Problem:
    """Sizes, index vectors and modifications of one call."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, score_mod: Function, block_mask: Sequence[Any], scale: float,
        score_buffers: Sequence[Any], mask_buffers: Sequence[Any],
    ) -> None:  # fmt: skip
        self.batch, self.heads, self.queries, _ = query.shape
        self.key_heads, self.keys = key.shape[1:3]
        self.group = self.heads // self.key_heads
        self.query_size, self.key_size = min(block_mask[-3], self.queries), min(block_mask[-2], self.keys)
        self.query_blocks, self.key_blocks = -(-self.queries // self.query_size), -(-self.keys // self.key_size)
        self.by_query, self.by_key = _Lists(*block_mask[2:6]), _Lists(*block_mask[6:10])
        self.scale, self.score_mod, self.mask_mod = scale, score_mod, block_mask[-1]
        self.score_buffers, self.mask_buffers = score_buffers, mask_buffers
        self.dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        self.device = query.device
        # One list of blocks for all batches and heads?
        self.is_shared = self.by_query.cut_count.shape[:2] == (1, 1)

    def split_queries(self, x: Tensor) -> Tensor:
        """[batch, heads, queries, ...] as blocks, in the precision of the scores."""
        return _split(x.to(self.dtype), self.query_blocks, self.query_size)

    def split_keys(self, x: Tensor) -> Tensor:
        """[batch, heads, keys, features] as blocks, in the precision of the scores."""
        return _split(x.to(self.dtype).expand(self.batch, -1, -1, -1), self.key_blocks, self.key_size)

    def grouped(self, x: Tensor, heads: int) -> Tensor:
        """[batch, heads, queries, ...] with the heads of one key's head in one."""
        return x.reshape(self.batch, heads, -1, *x.shape[3:])

    def per_head(self, blocks: Tensor) -> Tensor:
        """Numbers of blocks [masks of the batch, of the heads] for each batch and head; one number if they share it."""
        return blocks.reshape(()) if self.is_shared else blocks.expand(self.batch, self.heads)

    def take(self, x: Tensor, block: Tensor, group: int) -> Tensor:
        """Block number `block` of x, of which `group` heads share one of x."""
        if self.is_shared:
            return x.index_select(0, block[None])[0]
        batch = self.range(self.batch)[:, None]
        head = self.range(self.heads) // group
        return x[block, batch, head]

    def range(self, count: int) -> Tensor:
        """Integers as a TPU has them."""
        return torch.arange(count, dtype=torch.int32, device=self.device)

    def query_positions(self, block: Tensor) -> Tensor:
        """Of the queries in a block: [queries], or [batch, heads, queries] for one block per head."""
        return block[..., None] * self.query_size + self.range(self.query_size)

    def key_positions(self, block: Tensor) -> Tensor:
        """Of the keys in a block."""
        return block[..., None] * self.key_size + self.range(self.key_size)

    def mapped(
        self, function: Function, operands: Sequence[Tensor], m: Tensor, n: Tensor, *buffers: Any, **keywords: Any
    ) -> Any:
        """Maps a modification over a block; `operands` are [batch, heads, queries, keys]."""
        rest = operands[1:]
        own_m, own_n = 0 if m.ndim > 1 else None, 0 if n.ndim > 1 else None
        levels = [(None, None, None, 0), (None, None, 0, None), (None, 0, own_m, own_n), (0, None, own_m, own_n)]
        before, behind = (0,) * (len(operands) - len(rest)), (0,) * len(rest) + (None,) * len(buffers)
        for level in levels:
            function = torch.vmap(function, in_dims=before + level + behind, **keywords)
        # What fills the last block is no position: the modifications see the last one there.
        m, n = m.clamp(max=self.queries - 1), n.clamp(max=self.keys - 1)
        batch, head = self.range(self.batch), self.range(self.heads)
        return function(*operands[:1], batch, head, m, n, *rest, *buffers)

    def allowed(self, m: Tensor, n: Tensor, valid: Tensor | None, is_cut: bool) -> Tensor | None:
        """Which scores of a block the mask allows; None for all."""
        conditions: list[Tensor] = []
        if is_cut:
            conditions.append(self.mapped(self.mask_mod, [], m, n, *self.mask_buffers))
        if self.keys % self.key_size:
            conditions.append((n < self.keys)[..., None, :])
        if valid is not None:
            conditions.append(valid[..., None, None])
        return functools.reduce(torch.logical_and, conditions) if conditions else None

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """[batch, heads, queries, keys] of one block, before the modification."""
        product = self.grouped(query, key.shape[1]) @ key.transpose(-2, -1)
        return product.reshape(self.batch, self.heads, self.query_size, self.key_size) * self.scale

    def modified(self, scores: Tensor, m: Tensor, n: Tensor, allowed: Tensor | None) -> Tensor:
        """What the softmax is taken of."""
        modified = self.mapped(self.score_mod, [scores], m, n, *self.score_buffers).to(self.dtype)
        return modified if allowed is None else torch.where(allowed, modified, -math.inf)

    def each(self, lists: Sequence[Tensor], step: Function, state: list[Tensor]) -> list[Tensor]:
        """Runs step(state, block, valid, is_cut) for each block in the lists of one block of the other side."""
        for number, (count, blocks) in enumerate(zip(lists[::2], lists[1::2], strict=True)):
            most, is_cut = count.max(), number == 0

            def body(
                place: Tensor, *state: Tensor, count: Tensor = count, blocks: Tensor = blocks, is_cut: bool = is_cut
            ) -> list[Tensor]:
                block = self.per_head(blocks.index_select(0, place[None])[0]).int()
                valid = None if self.is_shared else place < self.per_head(count)
                return [place + 1, *step(list(state), block, valid, is_cut)]

            place = self.range(1)[0]
            _, *state = _C._record_while(lambda place, *_, most=most: [place < most], body, [place, *state])
        return state


def _split(x: Tensor, blocks: int, size: int) -> Tensor:
    """Dimension 2 in blocks, which come first; zeros fill the last one."""
    missing = blocks * size - x.shape[2]
    if missing:
        x = torch.cat([x, x.new_zeros(*x.shape[:2], missing, *x.shape[3:])], 2)
    return x.unflatten(2, (blocks, size)).movedim(2, 0)


def _join(x: Tensor, count: int) -> Tensor:
    """The opposite of _split."""
    return x.movedim(0, 2).flatten(2, 3)[:, :, :count]


def _is_better_dense(query: Tensor, key: Tensor, block_mask: Sequence[Any]) -> bool:
    batch, heads, queries, features = query.shape
    key_heads, keys = key.shape[1:3]
    query_size, key_size = min(block_mask[-3], queries), min(block_mask[-2], keys)
    blocks = -(-queries // query_size) * -(-keys // key_size)
    step = batch * key_size * (heads * query_size + key_heads * features)
    return blocks < _MIN_BLOCKS or step < _MIN_STEP


# --- forward ---------------------------------------------------------------------------------------------------------------


def _attend(p: _Problem, query: Tensor, number: Tensor, lists: Sequence[Tensor], keys: Tensor, values: Tensor) -> list[Tensor]:
    """One block of queries: output, logsumexp and maximum."""
    m = p.query_positions(number)
    group = p.group

    def step(state: list[Tensor], block: Tensor, valid: Tensor | None, is_cut: bool) -> list[Tensor]:
        maximum, total, output = state
        key, value, n = p.take(keys, block, group), p.take(values, block, group), p.key_positions(block)
        scores = p.modified(p.scores(query, key), m, n, p.allowed(m, n, valid, is_cut))
        new = torch.maximum(maximum, scores.amax(-1))
        base = torch.where(new == -math.inf, 0, new)  # of a row without scores so far
        weights = torch.exp(scores - base[..., None])
        old = torch.exp(maximum - base)
        added = (p.grouped(weights, value.shape[1]) @ value).reshape(output.shape)
        return [new, total * old + weights.sum(-1), output * old[..., None] + added]

    rows = (p.batch, p.heads, p.query_size)
    state = [
        torch.full(rows, -math.inf, dtype=p.dtype, device=p.device),
        torch.zeros(rows, dtype=p.dtype, device=p.device),
        torch.zeros((*rows, values.shape[-1]), dtype=p.dtype, device=p.device),
    ]
    maximum, total, output = p.each(lists, step, state)
    empty = total == 0
    logsumexp = torch.where(empty, -math.inf, maximum + total.log())
    return [output / torch.where(empty, 1, total)[..., None], logsumexp, maximum]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Function, block_mask: tuple[Any, ...], scale: float,
    kernel_options: dict[str, Any], score_mod_other_buffers: tuple[Any, ...] = (), mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, logsumexp and greatest score of each query, the last two divided by log 2."""
    if not _C._record_active() or _is_better_dense(query, key, block_mask):
        return sdpa_dense(
            query, key, value, score_mod, block_mask, scale, kernel_options, score_mod_other_buffers, mask_mod_other_buffers
        )
    p = _Problem(query, key, value, score_mod, block_mask, scale, score_mod_other_buffers, mask_mod_other_buffers)
    keys, values = p.split_keys(key), p.split_keys(value)
    numbers = p.range(p.query_blocks)
    xs = [p.split_queries(query), numbers, *p.by_query.by_block()]
    results = _C._record_scan(lambda q, i, *lists: _attend(p, q, i, lists, keys, values), p.query_blocks, [], xs)
    output, logsumexp, maximum = (_join(x, p.queries) for x in results)
    output = _permute_strides(output.to(query.dtype), query.stride())
    return output, logsumexp / math.log(2), maximum / math.log(2)


# --- backward ----------------------------------------------------------------------------------------------------------------


class _Gradients:
    """Gradients of the scores of one block."""

    def __init__(self, p: _Problem, joint_graph: Any) -> None:
        self.p, self.joint_graph = p, joint_graph
        *_, output = joint_graph.graph.nodes
        self.wanted = [i for i, grad in enumerate(output.args[0][5:]) if grad is not None]

    def buffers(self) -> list[Tensor]:
        """The captured buffers of which a gradient is wanted."""
        return [self.p.score_buffers[i] for i in self.wanted]

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Sequence[Tensor], m: Tensor, n: Tensor, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The softmax, the gradient of the scores as products give them, and those of captured buffers."""
        p, (grad_output, logsumexp, delta) = self.p, rows
        scores = p.scores(query, key)
        softmax = torch.exp(p.modified(scores, m, n, allowed) - logsumexp[..., None])
        of_softmax = (p.grouped(grad_output, value.shape[1]) @ value.transpose(-2, -1)).reshape(scores.shape)
        of_modified = softmax * (of_softmax - delta[..., None])
        of_scores, *others = p.mapped(
            self.joint_graph, [scores, of_modified], m, n, *p.score_buffers,
            out_dims=[0, None, None, None, None] + [None] * len(p.score_buffers),
        )  # fmt: skip
        of_scores = of_scores.to(p.dtype) * p.scale
        if allowed is not None:
            of_scores = torch.where(allowed, of_scores, 0)
        return softmax, of_scores, [others[4 + i] for i in self.wanted]


def _query_gradients(p: _Problem, gradients: _Gradients, rows: Sequence[Tensor], key: Tensor, value: Tensor) -> list[Tensor]:
    """Gradients of captured buffers, then that of the queries."""
    keys, values = p.split_keys(key), p.split_keys(value)

    def one(*operands: Tensor) -> list[Tensor]:
        count = len(gradients.wanted)
        sums, (query, number, *own_rows), lists = operands[:count], operands[count : count + 5], operands[count + 5 :]
        m = p.query_positions(number)

        def step(state: list[Tensor], block: Tensor, valid: Tensor | None, is_cut: bool) -> list[Tensor]:
            key, value, n = p.take(keys, block, p.group), p.take(values, block, p.group), p.key_positions(block)
            _, of_scores, others = gradients(query, key, value, own_rows, m, n, p.allowed(m, n, valid, is_cut))
            grad = (p.grouped(of_scores, key.shape[1]) @ key).reshape(state[-1].shape)
            return [*(a + b for a, b in zip(state[:-1], others, strict=True)), state[-1] + grad]

        return p.each(lists, step, [*sums, torch.zeros_like(query)])

    numbers = p.range(p.query_blocks)
    xs = [rows[0], numbers, *rows[1:], *p.by_query.by_block()]
    return _C._record_scan(one, p.query_blocks, [torch.zeros_like(x) for x in gradients.buffers()], xs)


def _key_gradients(p: _Problem, gradients: _Gradients, rows: Sequence[Tensor], key: Tensor, value: Tensor) -> list[Tensor]:
    """Gradients of keys and values."""

    def one(key: Tensor, value: Tensor, number: Tensor, *lists: Tensor) -> list[Tensor]:
        n = p.key_positions(number)

        def step(state: list[Tensor], block: Tensor, valid: Tensor | None, is_cut: bool) -> list[Tensor]:
            query, *own_rows = (p.take(x, block, 1) for x in rows)
            m = p.query_positions(block)
            softmax, of_scores, _ = gradients(query, key, value, own_rows, m, n, p.allowed(m, n, valid, is_cut))
            query, grad_output = p.grouped(query, p.key_heads), p.grouped(own_rows[0], p.key_heads)
            return [
                state[0] + p.grouped(of_scores, p.key_heads).transpose(-2, -1) @ query,
                state[1] + p.grouped(softmax, p.key_heads).transpose(-2, -1) @ grad_output,
            ]

        return p.each(lists, step, [torch.zeros_like(key), torch.zeros_like(value)])

    numbers = p.range(p.key_blocks)
    xs = [p.split_keys(key), p.split_keys(value), numbers, *p.by_key.by_block()]
    return _C._record_scan(one, p.key_blocks, [], xs)


def _rows(p: _Problem, query: Tensor, out: Tensor, logsumexp: Tensor, grad_out: Any, grad_logsumexp: Any) -> list[Tensor]:
    """Of each query, in blocks: itself, the gradient of its output, its logsumexp, and what the softmax takes off."""
    logsumexp = logsumexp.to(p.dtype) * math.log(2)
    # A row without scores has no softmax: exp(-inf - inf) is 0. So have the rows that fill the last block.
    logsumexp = torch.where(logsumexp == -math.inf, math.inf, logsumexp)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    delta = (out.to(p.dtype) * grad_out.to(p.dtype)).sum(-1)
    if grad_logsumexp is not None:
        delta = delta - grad_logsumexp.to(p.dtype) / math.log(2)
    missing = p.query_blocks * p.query_size - p.queries
    if missing:
        logsumexp = torch.cat([logsumexp, logsumexp.new_full((p.batch, p.heads, missing), math.inf)], 2)
    return [
        p.split_queries(query),
        p.split_queries(grad_out),
        _split(logsumexp, p.query_blocks, p.query_size),
        p.split_queries(delta),
    ]


def _backward(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, grad_out: Any, grad_logsumexp: Any,
    fw_graph: Function, joint_graph: Any, block_mask: tuple[Any, ...], scale: float, kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (), mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor, tuple[Any, ...]]:  # fmt: skip
    """Gradients of query, key, value and of captured buffers."""
    is_dense = not _C._record_active() or joint_graph is None or _is_better_dense(query, key, block_mask)
    if not is_dense:
        p = _Problem(query, key, value, fw_graph, block_mask, scale, score_mod_other_buffers, mask_mod_other_buffers)
        gradients = _Gradients(p, joint_graph)
        # Each block adds to the whole gradient of a captured buffer, which must not cost more than the block.
        block = p.batch * p.heads * p.query_size * p.key_size
        is_dense = sum(x.numel() for x in gradients.buffers()) > block
    if is_dense:
        return sdpa_dense_backward(
            query, key, value, out, logsumexp, grad_out, grad_logsumexp, fw_graph, joint_graph, block_mask, scale,
            kernel_options, score_mod_other_buffers, mask_mod_other_buffers,
        )  # fmt: skip
    rows = _rows(p, query, out, logsumexp, grad_out, grad_logsumexp)
    *of_buffers, of_query = _query_gradients(p, gradients, rows, key, value)
    of_key, of_value = (_join(x, p.keys) for x in _key_gradients(p, gradients, rows, key, value))
    if key.shape[0] < p.batch:
        of_key, of_value = of_key.sum(0, keepdim=True), of_value.sum(0, keepdim=True)
    results = [
        _permute_strides(grad.to(x.dtype), x.stride())
        for grad, x in ((_join(of_query, p.queries), query), (of_key, key), (of_value, value))
    ]
    of_buffer = dict(zip(gradients.wanted, of_buffers, strict=True))
    return results[0], results[1], results[2], tuple(of_buffer.get(i) for i in range(len(score_mod_other_buffers)))


def register() -> None:
    """Registers the operators' kernels for TPU tensors."""
    flex_attention.py_impl(torch._C.DispatchKey.PrivateUse1)(_forward)
    flex_attention_backward.py_impl(torch._C.DispatchKey.PrivateUse1)(_backward)
