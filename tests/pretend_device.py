"""A device that is not there: finds code that mixes devices, on a machine that has only a CPU.

All memory stays the CPU's, so every kernel works and results are exactly those of the CPU. Only the place where tensors
live is pretended: a set of storages is known to be on the device, and

- a `TorchFunctionMode` answers `x.device`, `x.is_cuda`, `x.to(...)`, `x.cpu()`, `device=` of factories, generators,
  `x.numpy()` and the like, as a tensor on that device would;
- a `TorchDispatchMode` sees every aten operator, below autograd, in forward and backward. Operands that live in
  different places are an error, by CUDA's own rules: 0-dim CPU tensors may mix, CPU indices may index a device tensor,
  `copy_` may cross. What an operator makes of device tensors lives on the device.

    with PretendDevice("cuda") as device:
        report = fgai.audit(model.to("cuda"), data.to("cuda"))
    print(device.syncs.total())

`syncs` counts what makes the CPU wait for the device (`.item()`, `bool(x)`, `nonzero`, boolean indices, `.cpu()`), by
operator and line of the library. `PretendDevice("mps", without=(torch.float64,))` has no double precision, as Apple's.

Not seen: kernels that a real device lacks, streams, memory limits, and non-determinism. Inside torch's own Python
functions `device=x.device` cannot be seen; what they make while they work on a device tensor is taken to be there.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
CROSSING = {aten.copy_, aten._to_copy, aten.copy, aten._copy_from, aten.set_}  # may cross devices
INDEXING = {
    aten.index,
    aten._unsafe_index,
    aten.index_put,
    aten.index_put_,
    aten._index_put_impl_,
    aten._unsafe_index_put,
}
STRICT = {aten.cat, aten.stack, aten.equal, aten.repeat_interleave}  # not even 0-dim tensors may mix
SYNCS = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.equal,
    aten._unique2,
    aten.unique_dim,
    aten.masked_select,
    aten.unique_consecutive,
    aten.bincount,
    aten.is_nonzero,
}
LIBRARY = "/fgai/"  # in the path of the code under test


class PretendError(RuntimeError):
    """What a real device would have refused."""


class PretendDevice:
    """A device for the length of a block; see the module."""

    def __init__(self, name: str = "cuda", *, without: tuple[torch.dtype, ...] = ()) -> None:
        self.name, self.without = name, without
        self.device = torch.device(name, 0)
        self.syncs: Counter[tuple[str, str]] = Counter()  # by operator and line
        self.inside_device_call = 0  # depth inside torch functions that work on device tensors
        self.inside_call = 0  # depth inside torch functions called from Python
        self._here: dict[int, StorageWeakRef] = {}  # on the device; weak references keep addresses from reuse
        self._free: dict[int, StorageWeakRef] = {}  # made by autograd's C++: they live where they are first used
        self._undo = ExitStack()

    def holds(self, x: Any) -> bool:
        """Whether this tensor lives on the device."""
        return isinstance(x, Tensor) and any(s._cdata in self._here for s in _storages(x))

    def put(self, x: Tensor, here: bool = True) -> Tensor:
        """Say where a tensor lives; no copy is made."""
        if here and x.dtype in self.without:
            self.refuse(f"{self.name} has no {x.dtype}")
        for storage in _storages(x):
            if here:
                self._here[storage._cdata] = StorageWeakRef(storage)
            else:
                self._here.pop(storage._cdata, None)
        return x

    def leave_open(self, x: Tensor) -> None:
        """This tensor lives where it is first used."""
        for storage in _storages(x):
            self._free[storage._cdata] = StorageWeakRef(storage)

    def claim(self, x: Tensor) -> None:
        """The tensor is used on the device: if its place was open, it is there."""
        if any(s._cdata in self._free for s in _storages(x)):
            self.put(x)

    def refuse(self, what: str) -> None:
        """Raise what the device would have said."""
        raise PretendError(f"{what}; at {_line()}")

    def count(self, operator: str) -> None:
        """One more time that the CPU waits."""
        self.syncs[operator, _line()] += 1

    def __enter__(self) -> Self:
        functions, run = _Functions(self), torch.autograd.graph._engine_run_backward

        def backward(*args: Any, **kwargs: Any) -> Any:  # Tensor.backward has switched the function mode off
            before = self.inside_device_call, self.inside_call
            self.inside_device_call = self.inside_call = 0
            try:
                with functions:
                    return run(*args, **kwargs)
            finally:
                self.inside_device_call, self.inside_call = before

        for name, new in {
            "torch.autograd._engine_run_backward": backward,
            "torch._tensor.torch.Generator": _generator(self),
            f"torch.{self.name}.get_rng_state": lambda *_: torch.get_rng_state(),
            f"torch.{self.name}.set_rng_state": lambda state, *_: torch.set_rng_state(state),
        }.items():
            self._undo.enter_context(mock.patch(name, new))
        self._undo.enter_context(_Dispatch(self))
        self._undo.enter_context(functions)
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()


class _Functions(TorchFunctionMode):
    """What Python asks of a tensor."""

    def __init__(self, at: PretendDevice) -> None:
        super().__init__()
        self.at = at

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        at, kwargs, name = self.at, dict(kwargs or {}), getattr(func, "__name__", "")
        me = args[0] if args else kwargs.get("self")
        here = at.holds(me)
        if name == "__get__":
            return self._property(func, args, kwargs, here)
        if here and name in ("numpy", "__array__", "pin_memory"):
            at.refuse(f"{name} of a {at.name} tensor; use Tensor.cpu()")
        if here and name in ("tolist", "cpu"):
            at.count(name)
        if here and name == "get_device":
            return 0
        if name == "cpu":
            return _Move.apply(me, at, False) if here else me
        if name in ("cuda", "mps") and name == at.name:
            return me if here else _Move.apply(me, at, True)
        if name == "to" and isinstance(me, Tensor):
            return self._to(func, me, args[1:], kwargs)
        return self._called(func, name, args, kwargs, here)

    def _property(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], here: bool) -> Any:
        asked = getattr(getattr(func, "__self__", None), "__name__", "")
        if here and asked == "device":
            return self.at.device
        if here and asked in ("is_cuda", "is_cpu", "is_mps"):
            return asked == f"is_{self.at.name}"
        return func(*args, **kwargs)

    def _called(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], here: bool) -> Any:
        at, asked = self.at, self._asked(kwargs)
        if (generator := kwargs.get("generator")) is not None:
            wanted = here if asked is None else asked
            if wanted != getattr(generator, "on_device", False):
                at.refuse(f"{name}: expected a '{at.name if wanted else 'cpu'}' device type for generator")
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        involved = any(at.holds(x) for x in _tensors((args, kwargs)))
        at.inside_device_call += involved
        at.inside_call += 1
        try:
            out = func(*args, **kwargs)
        finally:
            at.inside_device_call -= involved
            at.inside_call -= 1
        if name == "new_tensor" and asked is None:
            asked = here
        if asked is not None:
            for x in _tensors(out):
                at.put(x, asked)
        return out

    def _asked(self, kwargs: dict[str, Any]) -> bool | None:
        """The call asks for the device (True), for the CPU (False), or for neither (None)."""
        device = kwargs.get("device")
        return None if device is None else torch.device(device).type == self.at.name

    def _to(self, func: Any, me: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        at, goal = self.at, self._asked(kwargs)
        for given in (*args, kwargs.get("other")):
            if isinstance(given, Tensor):
                goal = at.holds(given)
            elif isinstance(given, str | torch.device):
                goal = torch.device(given).type == at.name
        rest = [torch.device("cpu") if isinstance(x, str | torch.device) else x for x in args]
        kwargs |= {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}
        if goal is False and at.holds(me):
            at.count("to cpu")
            me, goal = _Move.apply(me, at, False), None
        inside, at.inside_device_call = at.inside_device_call, 1
        try:
            out = func(me, *rest, **kwargs) if rest or kwargs else me
        finally:
            at.inside_device_call = inside
        return _Move.apply(out, at, goal) if goal is not None and goal != at.holds(out) else out


class _Move(torch.autograd.Function):
    """A copy between devices; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, at: PretendDevice, there: bool) -> Tensor:
        ctx.at, ctx.there = at, there
        return at.put(x.clone(), there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return ctx.at.put(grad.clone(), not ctx.there), None, None


class _Dispatch(TorchDispatchMode):
    """What happens below autograd, operator by operator."""

    def __init__(self, at: PretendDevice) -> None:
        super().__init__()
        self.at = at

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        at, kwargs, op = self.at, kwargs or {}, func.overloadpacket
        given = _tensors((args, kwargs))
        there = [x for x in given if at.holds(x)]
        if there and len(there) < len(given) and op not in CROSSING:
            self._check(op, given, args)
        counted = op is aten.repeat_interleave and kwargs.get("output_size") is None  # it asks how many there are
        masked = op in INDEXING and any(x.dtype == torch.bool for x in there[1:])
        if there and (op in SYNCS or counted or masked):
            at.count(str(op).removeprefix("aten."))
        out = func(*args, **kwargs)
        for x in _tensors(out):
            if not any(x is y for y in given):
                self._place(x, op, args, given, there)
        return out

    def _place(self, x: Tensor, op: Any, args: tuple[Any, ...], given: list[Tensor], there: list[Tensor]) -> None:
        """What was made of device tensors is on the device, and so is what torch makes while it works on some."""
        crossing, at = op in CROSSING, self.at
        if (
            (there and not crossing)
            or (not given and at.inside_device_call)
            or (crossing and args and at.holds(args[0]))
        ):
            at.put(x)
        elif not there and not given and not at.inside_call:  # zeros for a gradient that is not there
            at.leave_open(x)

    def _check(self, op: Any, given: list[Tensor], args: tuple[Any, ...]) -> None:
        at = self.at
        for x in given:
            at.claim(x)
        strays = [x for x in given if not at.holds(x) and (x.dim() > 0 or op in STRICT)]
        if op in INDEXING and at.holds(args[0]):  # CUDA takes CPU indices, and copies them each time
            indices = {id(x) for x in _tensors(args[1])}
            strays = [x for x in strays if id(x) not in indices]
        if strays:
            where = ", ".join(f"{x.dtype}{list(x.shape)} on {at.name if at.holds(x) else 'cpu'}" for x in given)
            at.refuse(f"{str(op).removeprefix('aten.')} mixes devices: {where}")


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of nested arguments. torch's own walk takes several times as long, and this runs at every call."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for part in value for x in _tensors(part)]
    return _tensors(list(value.values())) if isinstance(value, dict) else []


def _storages(x: Tensor) -> list[Any]:
    """The memory behind a tensor of any layout."""
    with torch._C.DisableTorchFunction():
        if x.layout == torch.strided:
            return [x.untyped_storage()]
        if x.layout == torch.sparse_coo:
            return [x._indices().untyped_storage(), x._values().untyped_storage()]
        return [x.values().untyped_storage()]


def _line() -> str:
    """The innermost line of the library; its own function modes only pass on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if LIBRARY in path and not frame.f_code.co_name.startswith("__torch_"):
            return f"{path.rpartition(LIBRARY)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"


def _generator(at: PretendDevice) -> type:
    class Generator(torch.Generator):
        on_device: bool

        def __new__(cls, device: Any = "cpu") -> Any:
            made = super().__new__(cls, "cpu")  # pyright: ignore[reportCallIssue], torch takes a device here
            made.on_device = torch.device(device).type == at.name
            return made

    return Generator
