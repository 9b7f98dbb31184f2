"""Steps of torch.optim inside a compiled function.

torch breaks the graph around each optimizer's step, "to ensure that aot respects the no_grad annotation", before a step whose
gradients were made in the same graph, and at ``zero_grad``. A graph that holds the backward pass needs none of these breaks
(torch/optim/optimizer.py says so), and they would make four programs of a training step. What is changed here, while graphs are
captured only:

- Dynamo's own registration (``substitute_in_graph``) replaces torch's wrapper around steps by one without the break.
- ``OptimizerVariable.call_method`` is patched: where Dynamo would break since the gradients are still to come, it traces the
  optimizer's ``_init_group``, as that of a class that it does not know.
- ``Optimizer.zero_grad`` is patched to be traced.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import substitute_in_graph
from torch._dynamo.variables import OptimizerVariable, UserMethodVariable
from torch.optim.optimizer import _use_grad_for_differentiable


def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    for group in self.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad.zero_()


def _unbroken(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step without torch's wrapper that breaks the graph."""

    def run(self: torch.optim.Optimizer, *arguments: Any, **keywords: Any) -> Any:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(self.defaults["differentiable"])
        result = step(self, *arguments, **keywords)
        torch.set_grad_enabled(before)
        return result

    return run


_CODE = _use_grad_for_differentiable(lambda: None).__code__


def _is_wrapper(step: Any) -> bool:
    """Is it torch's wrapper that breaks the graph?"""
    return getattr(step, "__code__", None) is _CODE


def _has_pending_mutation(optimizer: torch.optim.Optimizer, effects: Any) -> bool:
    """Does the graph so far change a parameter or its gradient?"""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            variable = effects.id_to_variable.get(id(parameter), None)
            if variable and effects.has_pending_mutation(variable):
                return True
    return False


def _patch_init_group() -> None:
    usual = OptimizerVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "_init_group" and _has_pending_mutation(self.value, tx.output.side_effects):
            function = inspect.unwrap(type(self.value)._init_group)
            return UserMethodVariable(function, self).call_function(tx, args, kwargs)
        return usual(self, tx, name, args, kwargs)

    OptimizerVariable.call_method = call_method  # type: ignore[method-assign]


def _patch_zero_grad() -> None:
    disabled = torch.optim.Optimizer.zero_grad

    @functools.wraps(disabled.__wrapped__)  # type: ignore[attr-defined]
    def zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        if torch.compiler.is_compiling():
            _zero_grad(self, set_to_none)
        else:
            disabled(self, set_to_none)

    torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]


@functools.cache
def register() -> None:
    """Tells Dynamo."""
    steps = [vars(each).get("step") for each in vars(torch.optim).values() if isinstance(each, type)]
    unwrapped = {inspect.unwrap(step, stop=_is_wrapper) for step in steps if step}
    for wrapper in filter(_is_wrapper, unwrapped):
        substitute_in_graph(wrapper, skip_signature_check=True)(_unbroken(wrapper.__wrapped__))
    _patch_init_group()
    _patch_zero_grad()
