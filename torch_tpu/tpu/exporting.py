"""Programs for machines without Python: a module's inference as StableHLO, with its weights and a manifest.

``torch.export`` captures the graph, and the core records it as it records graphs of torch.compile. docs/export.md tells what is
in a folder and how a C program runs it.
"""

import ctypes
import functools
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.tpu.modes import Precision

FORMATS = {"text": "program.mlir", "bytecode": "program.mlirbc", "portable": "program.stablehlo"}
_ALIGNMENT = 64  # of weights in their file: what a buffer may share with the host


@dataclass(frozen=True)
class Exported:
    """A program with its weights, to be written with ``save``."""

    #: StableHLO: text, MLIR bytecode or a portable artifact.
    program: bytes = field(repr=False)
    #: What manifest.json will hold; docs/export.md explains it.
    manifest: dict[str, Any] = field(repr=False)
    #: Tensors of the CPU in the order of their offsets.
    weights: list[torch.Tensor] = field(repr=False)

    def save(self, path: Any) -> None:
        """Writes the folder ``path``, which is made if need be; the manifest comes last."""
        folder = pathlib.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").unlink(missing_ok=True)
        (folder / self.manifest["program"]["file"]).write_bytes(self.program)
        with open(folder / self.manifest["weights"]["file"], "wb") as file:
            for weight in self.weights:
                file.write(bytes(-file.tell() % _ALIGNMENT))
                file.write(_bytes_of(weight))
        (folder / "manifest.json").write_text(json.dumps(self.manifest, indent=1) + "\n")


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements of a dense tensor of the CPU."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


# --- capturing -----------------------------------------------------------------------------------------------------------


class _Function(nn.Module):
    """A function as the module that torch.export wants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))  # with its names


def _capture(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """The module's graph of ATen ops, without in-place ops, on tpu."""
    target = module if isinstance(module, nn.Module) else _Function(module)
    with torch.no_grad():
        program = torch.export.export(target, args, kwargs, strict=False).run_decompositions({})
        tensors = [*program.state_dict.values(), *program.constants.values(), *pytree.tree_leaves((args, kwargs))]
        if any(isinstance(each, torch.Tensor) and each.device.type != "tpu" for each in tensors):
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, "tpu")
    return program


def _refuse(what: str) -> RuntimeError:
    return RuntimeError(f"torch.tpu.export: {what}")


def _refuse_node(node: fx.Node, error: Exception) -> RuntimeError:
    from torch_tpu.compiler import partition

    part = partition.refused(node, error)
    return _refuse(f"{part.op} cannot be a part of a program: {part.reason}")


def _tags(node: fx.Node) -> Any:
    return getattr(node.target, "tags", ())


def _nodes(module: fx.GraphModule) -> Iterator[fx.Node]:
    for each in module.modules():
        if isinstance(each, fx.GraphModule):
            yield from each.graph.nodes


def _check_graph(module: fx.GraphModule) -> None:
    """Refuses what no program can hold, by its name."""
    from torch_tpu.compiler import partition

    for node in _nodes(module):
        if node.op != "call_function":
            continue
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides):
            raise _refuse(f"the size of the result of {node.target} depends on the data")
        if part := partition.needs_host(node):
            raise _refuse(f"{part.op} cannot be a part of a program: {part.reason}")


@dataclass
class _Argument:
    """An input of the captured graph: a tensor of the CPU, or another constant value."""

    kind: str
    name: str
    value: Any
    position: int | None = None  # among the flattened arguments of the user


def _user_values(program: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of the call, flattened in the order of the graph."""
    from torch.export._tree_utils import reorder_kwargs

    in_spec = program.call_spec.in_spec
    assert in_spec is not None
    return pytree.tree_leaves((args, reorder_kwargs(kwargs, in_spec) if kwargs else {}), is_leaf=lambda x: x is None)


def _arguments(program: torch.export.ExportedProgram, user_values: list[Any]) -> list[_Argument]:
    kinds = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant", "USER_INPUT": "user_input"}
    found = []
    positions = iter(range(len(user_values)))
    for spec in program.graph_signature.input_specs:
        kind = kinds.get(spec.kind.name)
        if kind is None:
            raise _refuse(f"the input {spec.arg.name} is a {spec.kind.name}")
        if kind == "user_input":
            position = next(positions)
            value, name = user_values[position], spec.arg.name
        else:
            assert spec.target is not None
            position, name = None, spec.target
            stored = program.state_dict if spec.target in program.state_dict else program.constants
            value = stored[spec.target]
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().contiguous()
        found.append(_Argument(kind, name, value, position))
    return found


# --- recording -----------------------------------------------------------------------------------------------------------


@dataclass
class _Output:
    """An output of the captured graph."""

    kind: str
    name: str
    constant: Any = None
    is_tensor: bool = True


def _outputs(program: torch.export.ExportedProgram) -> list[_Output]:
    found = []
    for spec in program.graph_signature.output_specs:
        if spec.kind.name == "USER_OUTPUT":
            is_tensor = isinstance(spec.arg, torch.export.graph_signature.TensorArgument)
            found.append(_Output("user_output", spec.arg.name, getattr(spec.arg, "value", None), is_tensor))
        elif spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
            found.append(_Output(spec.kind.name.lower(), spec.target or spec.arg.name))
        else:
            raise _refuse(f"it writes its input {spec.target or spec.arg.name} in place")
    return found


def _record(module: fx.GraphModule, arguments: list[_Argument], outputs: list[_Output]) -> tuple[bytes, list[Any], list[Any]]:
    """The program's text, inputs (-1 or the number of a tensor among the arguments) and outputs."""
    from torch_tpu.compiler.backend import _Recording

    recording = _Recording(module)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        values = [next(given) if isinstance(each.value, torch.Tensor) else each.value for each in arguments]
        results = recording.run(*values)
        # Each output is a value of its own, row by row, whatever it shares with others.
        return [result.contiguous().clone() for result, output in zip(results, outputs, strict=True) if output.is_tensor]

    try:
        return _C._export_program([each.value.to("tpu") for each in arguments if isinstance(each.value, torch.Tensor)], run)
    except NotImplementedError as error:
        if recording.failed is None:  # what the whole program needs
            drawing = [str(node.target) for node in _nodes(module) if torch.Tag.nondeterministic_seeded in _tags(node)]
            raise _refuse(f"{error}" + (f" ({', '.join(drawing)})" if drawing else "")) from error
        raise _refuse_node(recording.failed, error) from error
    except Exception as error:
        if recording.failed is None:
            raise
        raise _refuse_node(recording.failed, error) from error


# --- the manifest --------------------------------------------------------------------------------------------------------


def _precision() -> str:
    chosen = _C._get_precision()
    names = [each.value for each in Precision]
    return names[chosen] if 0 <= chosen < len(names) else torch.get_float32_matmul_precision()


class _Weights:
    """Weights and their places in the file."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.size = 0

    def place(self, tensor: torch.Tensor) -> dict[str, int]:
        offset = self.size + -self.size % _ALIGNMENT
        self.tensors.append(tensor)
        self.size = offset + tensor.nbytes
        return {"offset": offset, "bytes": tensor.nbytes}


def _describe_inputs(inputs: list[Any], arguments: list[_Argument], weights: _Weights) -> list[dict[str, Any]]:
    tensors = [each for each in arguments if isinstance(each.value, torch.Tensor)]
    described: list[dict[str, Any]] = []
    for slot, dtype, shape, data in inputs:
        if slot < 0:
            argument = _Argument("constant", f"constant_{len(described)}", torch.frombuffer(bytearray(data), dtype=torch.uint8))
        else:
            argument = tensors[slot]
            assert list(argument.value.shape) == shape
        entry: dict[str, Any] = {"kind": argument.kind, "name": argument.name, "dtype": dtype, "shape": shape}
        if argument.kind == "user_input":
            entry["position"] = argument.position
        else:
            entry |= weights.place(argument.value)
        described.append(entry)
    return described


def _describe_outputs(outputs: list[Any], named: list[_Output]) -> list[dict[str, Any]]:
    tensors = iter([each for each in named if each.is_tensor])
    described: list[dict[str, Any]] = []
    for dtype, shape, message, code in outputs:
        if message is None:
            output = next(tensors)
            described.append({"kind": output.kind, "name": output.name, "dtype": dtype, "shape": shape})
        else:
            name = f"check_{len(described)}"
            described.append({"kind": "check", "name": name, "dtype": dtype, "shape": shape, "message": message, "error": code})
    return described


def _tree(spec: Any) -> Any:
    """How results are nested; None where only this process knows the containers."""
    try:
        return json.loads(pytree.treespec_dumps(spec))
    except Exception:
        return None


def _returns(named: list[_Output]) -> list[dict[str, Any]]:
    """For each value that the module returns: the number of the output, or a constant."""
    found = []
    number = 0
    for output in named:
        if output.kind == "user_output":
            found.append({"output": number} if output.is_tensor else {"constant": output.constant})
        number += output.is_tensor
    return found


# --- the formats ---------------------------------------------------------------------------------------------------------


def _serialize(text: bytes, format: str, version: str | None) -> tuple[bytes, str | None]:
    """The program in the format, and the version of StableHLO that it has, where there is one."""
    if format == "text":
        return text, None
    from torch_tpu import _stablehlo

    return _stablehlo.bytecode(text) if format == "bytecode" else _stablehlo.portable(text, version)


def export(
    module: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    format: str = "text",
    path: Any = None,
    stablehlo_version: str | None = None,
) -> Exported:
    """Exports a module's or function's inference as a StableHLO program with weights and a manifest.

    Args:
        module: an ``nn.Module``, as it is (call ``.eval()`` first), or a function of tensors; on tpu or on the CPU.
        args: example arguments, whose sizes and dtypes the program gets; numbers among them are compiled in.
        kwargs: further ones, by name.
        format: ``"text"``; ``"bytecode"``, MLIR's, smaller; or ``"portable"``, a StableHLO portable artifact, which later
            versions of compilers read. The last two need the package jaxlib (``pip install 'torch_tpu[export]'``).
        path: a folder to write; None for none.
        stablehlo_version: of a portable artifact, "1.0.0" for example; None for the package's current one.

    Raises:
        RuntimeError: what no program can hold, by its name: an op that runs on the CPU, sizes that depend on the data, random
            numbers, writes to inputs.
        ImportError: the format needs jaxlib.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be 'text', 'bytecode' or 'portable', got {format!r}")
    if stablehlo_version is not None and format != "portable":
        raise ValueError("stablehlo_version is for the format 'portable'")
    captured = _capture(module, args, kwargs or {})
    _check_graph(captured.graph_module)
    arguments = _arguments(captured, _user_values(captured, args, kwargs or {}))
    named = _outputs(captured)
    text, inputs, outputs = _record(captured.graph_module, arguments, named)
    if not outputs:
        raise _refuse("nothing is computed")
    program, version = _serialize(text, format, stablehlo_version)
    weights = _Weights()
    described = _describe_inputs(inputs, arguments, weights)
    manifest = {
        "format": "torch_tpu.export",
        "version": 1,
        "name": type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", "function"),
        "program": {"file": FORMATS[format], "encoding": format, "stablehlo_version": version},
        "weights": {"file": "weights.bin", "bytes": weights.size},
        "exact": True,
        "matmul_precision": _precision(),
        "versions": {"torch": torch.__version__, "torch_tpu": importlib.metadata.version("torch_tpu")},
        "inputs": described,
        "outputs": _describe_outputs(outputs, named),
        "arguments": [each.name for each in arguments if each.kind == "user_input"],
        "in_tree": _tree(captured.call_spec.in_spec),
        "out_tree": _tree(captured.call_spec.out_spec),
        "returns": _returns(named),
    }
    exported = Exported(program, manifest, weights.tensors)
    if path is not None:
        exported.save(path)
    return exported


# --- running it again ------------------------------------------------------------------------------------------------------


class LoadedProgram:
    """An exported program on a device, called like the module that it was."""

    def __init__(self, path: Any, device: torch.device) -> None:
        self._program = _C._Exported(str(path), device.index or 0)
        self.device = torch.device("tpu", device.index or 0)
        #: What manifest.json says.
        self.manifest: dict[str, Any] = json.loads((pathlib.Path(path) / "manifest.json").read_text())
        self._used = [each["position"] for each in self.manifest["inputs"] if each["kind"] == "user_input"]
        self._kinds = [kind for kind, _, _, _ in self._program.outputs()]

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        tree = self.manifest["in_tree"]
        if tree is None or not kwargs:
            return pytree.tree_leaves((args, kwargs), is_leaf=lambda x: x is None)
        from torch.export._tree_utils import reorder_kwargs

        ordered = reorder_kwargs(kwargs, pytree.treespec_loads(json.dumps(tree)))
        return pytree.tree_leaves((args, ordered), is_leaf=lambda x: x is None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it; tensors of the CPU are copied to the device. What changes buffers is in ``run`` alone."""
        values = self._flatten(args, kwargs)
        names = self.manifest["arguments"]
        if len(values) != len(names):
            raise TypeError(f"{self.manifest['name']} takes {len(names)} arguments, but got {len(values)}")
        results = self.run([values[position] for position in self._used])
        returned = [results[each["output"]] if "output" in each else each["constant"] for each in self.manifest["returns"]]
        tree = self.manifest["out_tree"]
        return returned if tree is None else pytree.tree_unflatten(returned, pytree.treespec_loads(json.dumps(tree)))

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """All outputs of the program, new values of buffers among them, from its user inputs."""
        for each in inputs:
            if not isinstance(each, torch.Tensor):
                raise TypeError(f"expected tensors, but got {type(each).__name__}")
        return self._program([each.detach().to(self.device) for each in inputs])


def load_exported(path: Any, device: Any = None) -> LoadedProgram:
    """Loads a folder that ``export`` wrote.

    Args:
        path: the folder.
        device: a tpu device; None for the current one.

    Raises:
        ValueError: a file is missing or damaged.
    """
    wanted = torch.device("tpu" if device is None else device)
    if wanted.type != "tpu":
        raise ValueError(f"expected a tpu device, but got {wanted}")
    return LoadedProgram(path, torch.device("tpu", _C._current_device() if wanted.index is None else wanted.index))
