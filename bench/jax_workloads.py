"""The small GPT of workloads.py in JAX, for bench/compile.py: the same sizes, loss and AdamW under one jax.jit."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, LAYERS, WORDS, LENGTH, BATCH = 256, 4, 4, 1024, 128, 4
Tree = dict[str, Any]


def _linear(random: np.random.Generator, inputs: int, outputs: int) -> Tree:
    bound = inputs**-0.5
    weight, bias = random.uniform(-bound, bound, (inputs, outputs)), random.uniform(-bound, bound, outputs)
    return {"weight": jnp.asarray(weight, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}


def _norm() -> Tree:
    return {"weight": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}


def parameters() -> Tree:
    """Random parameters in torch's ranges."""
    random = np.random.default_rng(0)
    blocks = [
        {
            "norm1": _norm(),
            "norm2": _norm(),
            "qkv": _linear(random, WIDTH, 3 * WIDTH),
            "out": _linear(random, WIDTH, WIDTH),
            "wide": _linear(random, WIDTH, 4 * WIDTH),
            "narrow": _linear(random, 4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    tokens, positions = random.standard_normal((WORDS, WIDTH)), random.standard_normal((LENGTH, WIDTH))
    head = _linear(random, WIDTH, WORDS)["weight"]
    tables = {"tokens": jnp.asarray(tokens, jnp.float32), "positions": jnp.asarray(positions, jnp.float32)}
    return {**tables, "blocks": blocks, "norm": _norm(), "head": head}


def _apply_norm(p: Tree, x: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-5) * p["weight"] + p["bias"]


def _apply_linear(p: Tree, x: jax.Array) -> jax.Array:
    return x @ p["weight"] + p["bias"]


def _attention(p: Tree, x: jax.Array) -> jax.Array:
    batch, length, _ = x.shape
    parts = jnp.split(_apply_linear(p["qkv"], x), 3, axis=2)
    q, k, v = (part.reshape(batch, length, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3) for part in parts)
    scores = q @ k.transpose(0, 1, 3, 2) * (WIDTH // HEADS) ** -0.5
    weights = jax.nn.softmax(jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf), axis=-1)
    return _apply_linear(p["out"], (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH))


def loss_of(p: Tree, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy of the next tokens."""
    x = p["tokens"][tokens] + p["positions"][: tokens.shape[1]]
    for block in p["blocks"]:
        x = x + _attention(block, _apply_norm(block["norm1"], x))
        wide = jax.nn.gelu(_apply_linear(block["wide"], _apply_norm(block["norm2"], x)), approximate=False)
        x = x + _apply_linear(block["narrow"], wide)
    logs = jax.nn.log_softmax(_apply_norm(p["norm"], x) @ p["head"], axis=-1)
    return -jnp.take_along_axis(logs, labels[..., None], axis=-1).mean()


@functools.partial(jax.jit, donate_argnums=0)
def _step(state: Any, tokens: jax.Array, labels: jax.Array) -> Any:
    """AdamW as torch has it: decay 0.01, betas 0.9 and 0.999, epsilon 1e-8, rate 1e-3."""
    p, first, second, count = state
    loss, gradients = jax.value_and_grad(loss_of)(p, tokens, labels)
    count = count + 1
    first = jax.tree.map(lambda m, g: m + 0.1 * (g - m), first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    rate, root = 1e-3 / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
    p = jax.tree.map(lambda w, m, v: w * (1 - 1e-5) - rate * m / (jnp.sqrt(v) / root + 1e-8), p, first, second)
    return (p, first, second, count), loss


def _training() -> Callable[[], float]:
    p = parameters()
    zeros = jax.tree.map(jnp.zeros_like, p)
    state: Any = (p, zeros, jax.tree.map(jnp.zeros_like, p), jnp.zeros((), jnp.float32))
    random = np.random.default_rng(1)
    tokens, labels = (jnp.asarray(random.integers(0, WORDS, (BATCH, LENGTH))) for _ in range(2))

    def step() -> float:
        nonlocal state
        state, loss = _step(state, tokens, labels)
        return float(loss)

    return step


def gpt_whole(_: None) -> tuple[Callable[[], Any], int]:
    """Training steps, five to a round."""
    step = _training()
    return (lambda: [step() for _ in range(5)]), 5
