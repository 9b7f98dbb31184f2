"""Steps of torch.optim inside a compiled function.

torch breaks the graph around each optimizer's step, "to ensure that aot respects the no_grad annotation", before a step whose
gradients were made in the same graph, and at ``zero_grad``. A graph that holds the backward pass needs none of these breaks
(torch/optim/optimizer.py says so), and they would make four programs of a training step. What is changed here, while graphs are
captured only:

- Dynamo's own registration (``substitute_in_graph``) replaces torch's wrapper around steps by one without the break.
- ``OptimizerVariable.call_method`` is patched: where Dynamo would break since the gradients are still to come, it traces the
  optimizer's ``_init_group``, as that of a class that it does not know, after it has created the states that are missing.
- ``OptimizerVariable.var_getattr`` is patched: Dynamo makes the parameters that it first sees in ``param_groups`` constants of
  the graph, where ``loss.backward()`` does not find them, so that a step that begins with ``zero_grad`` would train nothing.
- ``Optimizer.zero_grad`` is patched to be traced.
- ``TensorVariable.var_getattr`` is patched: a gradient that the graph has set to None is Dynamo's only None, and Dynamo notes
  on it that it is that gradient. From then on, in this and all later graphs, a None that is returned would be read from there.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import substitute_in_graph
from torch._dynamo.variables import OptimizerVariable, TensorVariable, UserMethodVariable
from torch._dynamo.variables.constant import CONSTANT_VARIABLE_NONE
from torch.optim.optimizer import _use_grad_for_differentiable


def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    for group in self.param_groups:
        for parameter in group["params"]:
            if set_to_none:
                parameter.grad = None  # not looked at before: a graph would be good for one or the other only
            elif parameter.grad is not None:
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


def _has_new_gradient(parameter: torch.Tensor, effects: Any) -> bool:
    """Is its gradient None so far, and one that the graph makes?"""
    variable = effects.id_to_variable.get(id(parameter), None)
    if parameter.grad is not None or not variable or not effects.has_pending_mutation_of_attr(variable, "grad"):
        return False
    return not effects.load_attr(variable, "grad").is_constant_none()


def _create_momentum(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Creates the buffers that SGD leaves to its first step, where that step takes the gradient instead of a buffer.

    From zeros the later steps' rule gives the same, unless it dampens the gradient: then SGD is compiled once more.
    """
    if type(optimizer) is torch.optim.SGD and group["momentum"] != 0 and group["dampening"] == 0:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


@torch.no_grad()
def _create_states(optimizer: torch.optim.Optimizer, effects: Any, list_count: int) -> None:
    """Creates the states that the step would create, as Dynamo does where the gradients are there already.

    A graph that creates them is good for the first step only, and the second step would be compiled anew.
    """
    for group in optimizer.param_groups:
        new = [each for each in group["params"] if not optimizer.state.get(each) and _has_new_gradient(each, effects)]
        if not new:
            continue
        # In graphs a step counts on the device: Dynamo sets this for all optimizers that know it.
        given = group | {"params": new} | ({"capturable": True} if "capturable" in group else {})
        try:
            for parameter in new:
                parameter.grad = torch.empty_like(parameter)
            optimizer._init_group(given, *([] for _ in range(list_count)))  # type: ignore[attr-defined]
            _create_momentum(optimizer, given)
        finally:
            for parameter in new:
                parameter.grad = None


def _patch_init_group() -> None:
    usual = OptimizerVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "_init_group" and _has_pending_mutation(self.value, tx.output.side_effects):
            _create_states(self.value, tx.output.side_effects, len(args) + len(kwargs) - 1)
            function = inspect.unwrap(type(self.value)._init_group)
            return UserMethodVariable(function, self).call_function(tx, args, kwargs)
        return usual(self, tx, name, args, kwargs)

    OptimizerVariable.call_method = call_method  # type: ignore[method-assign]


def _patch_param_groups() -> None:
    usual = OptimizerVariable.var_getattr

    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        devices = {parameter.device.type for group in self.value.param_groups for parameter in group["params"]}
        if name != "param_groups" or "tpu" not in devices:
            return usual(self, tx, name)
        self._set_capturable(tx)
        return super(OptimizerVariable, self).var_getattr(tx, name)

    OptimizerVariable.var_getattr = var_getattr  # type: ignore[method-assign]


def _patch_zero_grad() -> None:
    disabled = torch.optim.Optimizer.zero_grad

    @functools.wraps(disabled.__wrapped__)  # type: ignore[attr-defined]
    def zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        if torch.compiler.is_compiling():
            _zero_grad(self, set_to_none)
        else:
            disabled(self, set_to_none)

    torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]


def _patch_gradients() -> None:
    usual = TensorVariable.var_getattr

    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        result = usual(self, tx, name)
        if result is CONSTANT_VARIABLE_NONE:
            result.source = None
        return result

    TensorVariable.var_getattr = var_getattr  # type: ignore[method-assign]


@functools.cache
def register() -> None:
    """Tells Dynamo."""
    steps = [vars(each).get("step") for each in vars(torch.optim).values() if isinstance(each, type)]
    unwrapped = {inspect.unwrap(step, stop=_is_wrapper) for step in steps if step}
    for wrapper in filter(_is_wrapper, unwrapped):
        substitute_in_graph(wrapper, skip_signature_check=True)(_unbroken(wrapper.__wrapped__))
    _patch_init_group()
    _patch_param_groups()
    _patch_zero_grad()
    _patch_gradients()
