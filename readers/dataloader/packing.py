"""A batch of any Python objects as bytes in a slot, and back: pickle, with every tensor and array beside it.

    the arrays …    tensors and arrays, aligned; a collated tensor is made here, so that it costs one copy in all
    the pickle      all else, and what the arrays are: type, shape, strides
    the table       (offset, bytes) of each array
    the tail        where pickle and table begin

The bytes come from this pipeline's own loaders, over memory that only they and the trainer have inherited. Whoever can
write there runs as the same user and was started by the trainer.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import struct
import sys
from functools import partial
from typing import Any, Protocol

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 64
_IN_PICKLE = 256
"""Bytes of an array below which it stays in the pickle."""

_TAIL = struct.Struct("=qqq")
_MAIN = ("__main__", "__mp_main__")

Memory = NDArray[np.uint8]


class Slot(Protocol):
    """The memory of a batch, as a GrowingSlot is."""

    memory: Memory
    used: int

    def reserve(self, size: int) -> None:
        """Make `memory` at least `size` bytes; what was put there stays."""


class SlotWriter:
    """Puts arrays one behind the other into a slot. What it has put does not move if the slot grows.

    `lasting`: other programs read it too, so that classes without a module to import them from are refused.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        self.lasting = lasting
        self._slot: Slot | None = None
        self._end = 0
        self._begins: dict[int, int] = {}
        """By address of what lies in the slot, where that is."""

    def begin(self, slot: Slot) -> None:
        """Write into `slot` from now on, from its start."""
        self._slot, self._end = slot, 0
        self._begins.clear()

    def take(self, size: int) -> Memory:
        """Return the next `size` bytes, aligned, to be written to. Raises RingAllocationError."""
        assert self._slot is not None
        begin = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._end = begin + size
        if self._end > len(self._slot.memory):
            self._slot.reserve(max(self._end, min(2 * begin, begin + (8 << 20))))
        taken = self._slot.memory[begin : self._end]
        self._begins[taken.ctypes.data] = begin
        return taken

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], size: int) -> torch.Tensor:
        """Return a new contiguous tensor of `size` bytes in the slot."""
        return torch.frombuffer(self.take(size), dtype=dtype).view(shape)

    def place_of(self, address: int) -> int | None:
        """Return where what begins at `address` lies in the slot; None if it lies elsewhere."""
        return self._begins.get(address)

    def at(self, address: int, size: int) -> Memory:
        """Return `size` bytes of the slot, which begin at `address`."""
        assert self._slot is not None
        begin = self._begins[address]
        memory = self._slot.memory[begin : begin + size]
        self._begins[memory.ctypes.data] = begin  # the slot may have got a longer map meanwhile
        return memory

    def write(self, batch: object) -> None:
        """Put the whole batch into the slot; raises what pickling raises, and RingAllocationError."""
        assert self._slot is not None
        pickler: _Plain | _Cloud
        try:
            pickler = _Plain(self)
            pickler.dump(batch)
        except (pickle.PicklingError, AttributeError, TypeError):  # a class or function that cannot be imported
            if self.lasting:
                raise
            pickler = _Cloud(self)
            pickler.dump(batch)
        data, table = pickler.file.getbuffer(), np.array(pickler.table, np.int64).reshape(-1, 2)
        rest = self.take(len(data) + table.nbytes + _TAIL.size + _ALIGNMENT)
        begin, end = self._begins[rest.ctypes.data], len(data)
        rest[:end] = data
        rest[end : end + table.nbytes] = table.view(np.uint8).reshape(-1)
        end += table.nbytes
        _TAIL.pack_into(rest.data, end, begin, len(data), len(table))
        self._slot.used = begin + end + _TAIL.size


def read(memory: Memory, whole: Memory) -> Any:
    """Return the batch that `write` has put into `memory`; its arrays lie on `whole`, the same bytes or a copy."""
    begin, size, count = _TAIL.unpack_from(memory.data, len(memory) - _TAIL.size)
    end = begin + size
    places = memory[end : end + 16 * count].tobytes()
    buffers = [whole[at : at + length] for at, length in struct.iter_unpack("=qq", places)]
    return pickle.loads(memory[begin:end].data, buffers=buffers)


class _Plain(pickle.Pickler):
    """Pickles what can be imported, and classes of the script by their name. cloudpickle's takes 0.1 ms to begin."""

    def __init__(self, slot: SlotWriter) -> None:
        self.file, self.table, self._slot = io.BytesIO(), list[tuple[int, int]](), slot
        super().__init__(self.file, pickle.HIGHEST_PROTOCOL, buffer_callback=partial(_beside, slot, self.table))

    def reducer_override(self, thing: Any) -> Any:
        return _reduce(self._slot, thing)


class _Cloud(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles the rest, by value."""

    def __init__(self, slot: SlotWriter) -> None:
        self.file, self.table, self._slot = io.BytesIO(), list[tuple[int, int]](), slot
        super().__init__(self.file, pickle.HIGHEST_PROTOCOL, buffer_callback=partial(_beside, slot, self.table))

    def reducer_override(self, thing: Any) -> Any:
        reduced = _reduce(self._slot, thing)
        return super().reducer_override(thing) if reduced is NotImplemented else reduced


def _reduce(slot: SlotWriter, thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return _reduce_tensor(slot, thing)
    if isinstance(thing, type) and thing.__module__ in _MAIN and "<locals>" not in thing.__qualname__:
        if slot.lasting:
            raise pickle.PicklingError(f"{thing.__qualname__} is a class of the script: put it into a module")
        return _of_script, (thing.__qualname__,)
    return NotImplemented


def _beside(slot: SlotWriter, table: list[tuple[int, int]], buffer: pickle.PickleBuffer) -> bool:
    """Put an array's bytes into the slot, unless they lie there already; return true to leave them in the pickle."""
    raw = buffer.raw()
    size = raw.nbytes
    if size == 0:
        return True
    memory = np.frombuffer(raw, np.uint8)
    if (place := slot.place_of(memory.ctypes.data)) is None:
        if size < _IN_PICKLE:
            return True
        there = slot.take(size)
        there[:] = memory
        place = slot.place_of(there.ctypes.data)
    assert place is not None
    table.append((place, size))
    return False


def _reduce_tensor(slot: SlotWriter, tensor: torch.Tensor) -> Any:
    if type(tensor) is not torch.Tensor:
        return _reduce_subclass(slot, tensor)
    special = tensor.is_nested or tensor.is_quantized or tensor.device.type != "cpu"
    plain = tensor.layout is torch.strided and not special
    size = tensor.numel() * tensor.element_size() if plain else 0
    if not size or not (tensor.is_leaf or not tensor.requires_grad):
        return NotImplemented
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    given, shape, strides = tensor, tuple(tensor.shape), None
    if not tensor.is_contiguous():
        # As torch's queues keep it, if it has no gaps: channels_last stays channels_last.
        order = sorted(range(tensor.dim()), key=lambda axis: (-given.stride()[axis], -shape[axis]))
        packed = tensor.detach().permute(order)
        if packed.is_contiguous():
            strides, tensor = tensor.stride(), packed
    address = tensor.data_ptr()
    if not tensor.is_contiguous():
        memory = slot.take(size)
        torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape).copy_(tensor.detach())
    elif slot.place_of(address) is None:
        memory = slot.take(size)
        ctypes.memmove(memory.ctypes.data, address, size)
    else:
        memory = slot.at(address, size)
    return _tensor, (pickle.PickleBuffer(memory.data), given.dtype, shape, strides, given.requires_grad)


def _reduce_subclass(slot: SlotWriter, tensor: torch.Tensor) -> Any:
    """As torch does, but with the values beside the pickle. A class that says how it is pickled is asked."""
    kind = type(tensor)
    if kind.__reduce_ex__ is not torch.Tensor.__reduce_ex__ or tensor.layout is not torch.strided:
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.as_subclass(torch.Tensor)
        reduced = _reduce_tensor(slot, plain)
    if reduced is NotImplemented:
        return NotImplemented
    return _subclass, (kind, *reduced[1]), _state_of(tensor), None, None, _set_state


_state_of: Any = torch._utils._get_obj_state
_set_state: Any = torch._utils._set_obj_state


def _tensor(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None, requires_grad: bool
) -> torch.Tensor:
    flat = torch.frombuffer(memory, dtype=dtype)
    tensor = flat.view(shape) if strides is None else flat.as_strided(shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor


def _subclass(kind: type[torch.Tensor], *tensor: Any) -> torch.Tensor:
    plain = _tensor(*tensor)
    if issubclass(kind, torch.nn.Parameter):
        return kind(plain.detach(), plain.requires_grad)
    return plain.as_subclass(kind)


def _of_script(name: str) -> Any:
    """Return a class of the user's script by its name: the trainer has it, and its copy in a loader is another."""
    found: Any = sys.modules["__main__"]
    for part in name.split("."):
        found = getattr(found, part)
    return found
