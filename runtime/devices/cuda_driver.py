# SPDX-License-Identifier: Apache-2.0
"""Typed access to the CUDA driver, with one check of every call.

All calls go through ``cuda.bindings.driver``, none through ``cuda.core``: ``cuda.core`` has no registered
host memory, raises errors of its own, and lets destructors pass over failures. One level means one check.

Handles and addresses are plain integers. Functions need the context current, as the driver's own do;
:meth:`CudaDriver.activate` makes it so. Nothing is imported before :func:`load`.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from gristmill.errors import DeviceError, GristmillError, ResourceExhaustedError

# Codes of the driver that decide what to do; the numbers are part of its interface.
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NO_DEVICE = 100
ALREADY_REGISTERED = 712
NOT_REGISTERED = 713
#: Not the driver's: it has no such function, or there is no driver at all.
_MISSING = -1
#: After these the context answers every call with the same code until it is reset.
FATAL = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})

# Constants of the interface (cuda.h).
STREAM_NON_BLOCKING = 1
EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING = 1, 2
HOST_PORTABLE, HOST_DEVICEMAP = 1, 2
ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1
ATTRIBUTE_WARP_SIZE = 10
ATTRIBUTE_MULTIPROCESSORS = 16
ATTRIBUTE_UNIFIED_ADDRESSING = 41
ATTRIBUTE_CAPABILITY_MAJOR, ATTRIBUTE_CAPABILITY_MINOR = 75, 76
ATTRIBUTE_SHARED_BYTES_OPT_IN = 97
ATTRIBUTE_MEMORY_POOLS = 115
ATTRIBUTE_HOST_NUMA_NODE = 134
FUNCTION_MAX_DYNAMIC_SHARED = 8
_POOL_RELEASE_THRESHOLD = 4
_POINTER_MEMORY_TYPE, _POINTER_ON_DEVICE, _POINTER_DEVICE = 2, 3, 9
_POINTER_RANGE_START, _POINTER_RANGE_SIZE = 11, 12
_MEMORY_TYPE_HOST, _MEMORY_TYPE_DEVICE = 1, 2
_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES = 5, 6
_CAPTURE_THREAD_LOCAL = 1

_RESET = (
    "close the device and open it again; run the program under compute-sanitizer to find the cause"
)
#: What codes mean and what to do about them; the driver's own words for all others.
_EXPLANATIONS = {
    1: ("an argument was not valid", "check addresses, sizes and launch dimensions"),
    2: ("out of memory", "close buffers, or use smaller or fewer ones"),
    3: ("the driver is not initialised", "open the device again"),
    100: ("there is no CUDA device", "check CUDA_VISIBLE_DEVICES and nvidia-smi"),
    101: ("there is no such device", "count the devices with CudaDevice.count()"),
    200: ("the image is not a module this driver can load", "rebuild it for this device"),
    201: ("no valid context is current", "open the device again"),
    209: ("the module has no code for this device", "build it for this device's compute capability"),
    214: ("the device had an uncorrectable memory error", "see nvidia-smi -q; the device may need a reset"),
    218: ("the PTX text does not compile", "see the log"),
    222: ("the PTX text is of a newer version than the driver knows", "update the driver"),
    400: ("a handle is not valid", "look for an object that was closed before"),
    500: ("there is nothing of that name", "check the name; C++ names are mangled"),
    700: ("a kernel used an address that is not mapped", _RESET),
    701: ("the launch needs more registers or shared memory than there are", "use smaller blocks"),
    702: ("a kernel ran longer than the display driver allows", _RESET),
    712: ("the host memory is registered already", "unregister it first, or use it as it is"),
    713: ("the host memory is not registered", "register it before"),
    715: ("a kernel met an illegal instruction", _RESET),
    716: ("a kernel used a misaligned address", _RESET),
    719: ("a kernel failed", _RESET),
    801: ("the device or driver does not support this", "use another device or driver"),
    802: ("the system is not ready to use CUDA", "check the fabric manager"),
    803: ("the driver library and the kernel module differ", "reboot after the driver's update"),
    900: ("this is not allowed while a graph is recorded", "do it before or after"),
    999: ("the driver gives no reason", "see dmesg"),
}  # fmt: skip


class CudaError(DeviceError):
    """A driver call failed.

    Attributes:
        function: the driver function.
        code: its error code.
        code_name: the code's name, ``CUDA_ERROR_...``.
    """

    def __init__(self, message: str, function: str, code: int, code_name: str):
        super().__init__(message)
        self.function = function
        self.code = code
        self.code_name = code_name


class CudaDeviceLostError(CudaError):
    """The context is broken: every further call fails until the device is closed and opened again."""


class CudaOutOfMemoryError(ResourceExhaustedError):
    """The driver ran out of memory; ``function`` says in which call."""

    def __init__(self, message: str, function: str):
        super().__init__(message)
        self.function = function


class CudaDriver:
    """The driver's functions, typed and checked.

    Each raises ``CudaError``, or ``CudaOutOfMemoryError`` where memory ran out.
    """

    def __init__(self, module: Any):
        self._module: Any = module

    def check(self, function: str, result: tuple[Any, ...], detail: str = "") -> tuple[Any, ...]:
        """The results of a call, without its code; raises the error that its code stands for."""
        code = int(result[0])
        if code:
            raise self.error(function, code, detail)
        return result[1:]

    def call(self, function: str, *arguments: object, detail: str = "") -> Any:
        """Call and check; the single result, a tuple of several, or None."""
        try:
            result: tuple[Any, ...] = getattr(self._module, function)(*arguments)
        except (RuntimeError, AttributeError) as error:
            raise CudaError(
                f"the CUDA driver has no {function}; update the driver ({error})",
                function,
                _MISSING,
                "missing",
            ) from error
        values = self.check(function, result, detail)
        return values[0] if len(values) == 1 else values or None

    def error(self, function: str, code: int, detail: str = "") -> CudaError | CudaOutOfMemoryError:
        """The error for ``code`` of ``function``: name, explanation, what to do."""
        try:
            name = str(self._module.CUresult(code).name)
        except ValueError:  # a code that cuda-python does not know
            name = f"error {code}"
        meaning, remedy = _EXPLANATIONS.get(code) or (self._words(code), "")
        message = f"{function} failed with {name}: {meaning}"
        message += f" ({detail})" if detail else ""
        message += f"; {remedy}" if remedy else ""
        if code == OUT_OF_MEMORY:
            return CudaOutOfMemoryError(message, function)
        kind = CudaDeviceLostError if code in FATAL else CudaError
        return kind(message, function, code, name)

    def _words(self, code: int) -> str:
        """The driver's own words for an error."""
        try:
            status, text = self._module.cuGetErrorString(self._module.CUresult(code))
        except (ValueError, RuntimeError):
            return "unknown to cuda-python"
        return text.decode() if int(status) == 0 and text else "unknown to the driver"

    # Devices and contexts

    def init(self) -> None:
        """Initialise the driver; more than once does no harm."""
        self.call("cuInit", 0)

    def version(self) -> int:
        """The newest CUDA version that the driver supports, as 1000 * major + 10 * minor."""
        return int(self.call("cuDriverGetVersion"))

    def device_count(self) -> int:
        """The number of devices."""
        return int(self.call("cuDeviceGetCount"))

    def device(self, ordinal: int) -> int:
        """The handle of device number ``ordinal``."""
        return int(self.call("cuDeviceGet", ordinal))

    def device_name(self, device: int) -> str:
        """The device's name."""
        return self.call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()

    def device_attribute(self, attribute: int, device: int) -> int:
        """One of the ``ATTRIBUTE_`` values."""
        key = self._module.CUdevice_attribute(attribute)
        return int(self.call("cuDeviceGetAttribute", key, device))

    def host_numa_node(self, device: int) -> int | None:
        """The NUMA node of the host's memory that is nearest to the device; None where nobody tells."""
        try:
            node = self.device_attribute(ATTRIBUTE_HOST_NUMA_NODE, device)
        except ValueError:  # cuda-python is older than CUDA 12.2
            return None
        except CudaError as error:
            if error.code == INVALID_VALUE:  # the driver is
                return None
            raise
        return node if node >= 0 else None

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        free, total = self.call("cuMemGetInfo")
        return int(free), int(total)

    def retain_primary_context(self, device: int) -> int:
        """The device's primary context, made when first retained."""
        return int(self.call("cuDevicePrimaryCtxRetain", device))

    def release_primary_context(self, device: int) -> None:
        """Undo one :meth:`retain_primary_context`."""
        self.call("cuDevicePrimaryCtxRelease", device)

    def reset_primary_context(self, device: int) -> None:
        """Destroy the primary context with all it holds, for every user in the process."""
        self.call("cuDevicePrimaryCtxReset", device)

    def push_context(self, context: int) -> None:
        """Make ``context`` the thread's current one."""
        self.call("cuCtxPushCurrent", context)

    def pop_context(self) -> None:
        """Return to the context that was current before."""
        self.call("cuCtxPopCurrent")

    @contextmanager
    def activate(self, context: int) -> Generator[None]:
        """``context`` is current inside. A failure to leave it is a warning: the work was done."""
        self.push_context(context)
        try:
            yield
        finally:
            try:
                self.pop_context()
            except GristmillError as error:
                warnings.warn(f"leaving a CUDA context: {error}", RuntimeWarning, stacklevel=3)

    # Memory

    def default_pool(self, device: int) -> int:
        """The device's default memory pool."""
        return int(self.call("cuDeviceGetDefaultMemPool", device))

    def keep_pool_memory(self, pool: int) -> None:
        """Let the pool keep all memory that is freed, for later allocations."""
        key = self._module.CUmemPool_attribute(_POOL_RELEASE_THRESHOLD)
        value = self._module.cuuint64_t((1 << 64) - 1)
        self.call("cuMemPoolSetAttribute", pool, key, value)

    def trim_pool(self, pool: int) -> None:
        """Give the pool's unused memory back to the system."""
        self.call("cuMemPoolTrimTo", pool, 0)

    def mem_alloc(self, nbytes: int) -> int:
        """Device memory."""
        return int(self.call("cuMemAlloc", nbytes, detail=f"{nbytes} bytes"))

    def mem_free(self, address: int) -> None:
        """Free :meth:`mem_alloc` memory; waits for the device."""
        self.call("cuMemFree", address)

    def mem_alloc_async(self, nbytes: int, stream: int) -> int:
        """Device memory for work that comes after this on ``stream``."""
        return int(self.call("cuMemAllocAsync", nbytes, stream, detail=f"{nbytes} bytes"))

    def mem_free_async(self, address: int, stream: int) -> None:
        """Free :meth:`mem_alloc_async` memory after the work on ``stream``."""
        self.call("cuMemFreeAsync", address, stream)

    def host_alloc(self, nbytes: int, flags: int) -> int:
        """Page-locked host memory."""
        return int(self.call("cuMemHostAlloc", nbytes, flags, detail=f"{nbytes} bytes"))

    def host_free(self, address: int) -> None:
        """Free :meth:`host_alloc` memory."""
        self.call("cuMemFreeHost", address)

    def host_register(self, address: int, nbytes: int, flags: int) -> None:
        """Page-lock existing host memory."""
        self.call("cuMemHostRegister", address, nbytes, flags)

    def host_unregister(self, address: int) -> None:
        """Undo :meth:`host_register`."""
        self.call("cuMemHostUnregister", address)

    def host_device_address(self, address: int) -> int:
        """The device's address of page-locked or registered host memory."""
        return int(self.call("cuMemHostGetDevicePointer", address, 0))

    def pointer_device(self, address: int) -> int | None:
        """The number of the device whose own memory holds ``address``; None: it is no device memory."""
        attribute = self._module.CUpointer_attribute
        try:
            kind = int(self.call("cuPointerGetAttribute", attribute(_POINTER_MEMORY_TYPE), address))
            ordinal = self.call("cuPointerGetAttribute", attribute(_POINTER_DEVICE), address)
        except CudaError as error:
            if error.code == INVALID_VALUE:  # not an address of the driver's
                return None
            raise
        return int(ordinal) if kind == _MEMORY_TYPE_DEVICE else None

    def host_pointer(self, address: int, nbytes: int) -> int | None:
        """The device's address of host memory the driver knows; None: it does not know all of it.

        With ``nbytes`` 0 the caller knows how far it goes.
        """

        def ask(attribute: int) -> int:
            kind = self._module.CUpointer_attribute(attribute)
            return int(self.call("cuPointerGetAttribute", kind, address))

        try:
            if ask(_POINTER_MEMORY_TYPE) != _MEMORY_TYPE_HOST:
                return None
            if nbytes:
                end = ask(_POINTER_RANGE_START) + ask(_POINTER_RANGE_SIZE)
                if address + nbytes > end:
                    return None
            return ask(_POINTER_ON_DEVICE) or None
        except CudaError as error:
            if error.code == INVALID_VALUE:  # not an address of the driver's
                return None
            raise

    def copy_h2d(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Host to device; from pageable memory the source may be reused on return."""
        self.call("cuMemcpyHtoDAsync", target, source, nbytes, stream)

    def copy_d2h(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Device to host; to pageable memory the call returns when the copy has ended."""
        self.call("cuMemcpyDtoHAsync", target, source, nbytes, stream)

    def copy_d2d(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Within the device."""
        self.call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def fill(self, target: int, value: int, width: int, count: int, stream: int) -> None:
        """Write ``count`` values of ``width`` (1, 2, 4) bytes."""
        self.call(f"cuMemsetD{8 * width}Async", target, value, count, stream)

    # Streams and events

    def stream_create(self, flags: int = STREAM_NON_BLOCKING, priority: int = 0) -> int:
        """A stream; a lower ``priority`` number goes first."""
        return int(self.call("cuStreamCreateWithPriority", flags, priority))

    def stream_destroy(self, stream: int) -> None:
        """Destroy a stream when its work has ended."""
        self.call("cuStreamDestroy", stream)

    def stream_synchronize(self, stream: int) -> None:
        """Block until the stream's work has ended."""
        self.call("cuStreamSynchronize", stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Let later work of the stream wait for the event's latest recording."""
        self.call("cuStreamWaitEvent", stream, event, 0)

    def event_create(self, flags: int) -> int:
        """An event."""
        return int(self.call("cuEventCreate", flags))

    def event_destroy(self, event: int) -> None:
        """Destroy an event."""
        self.call("cuEventDestroy", event)

    def event_record(self, event: int, stream: int) -> None:
        """Let the event stand for the stream's work so far."""
        self.call("cuEventRecord", event, stream)

    def event_synchronize(self, event: int) -> None:
        """Block until the event's work has ended."""
        self.call("cuEventSynchronize", event)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two events that were made with timing."""
        return float(self.call("cuEventElapsedTime", start, end))

    # Modules, launches, graphs

    def module_load(self, image: bytes) -> int:
        """Load PTX text (ended by a zero byte) or a cubin; a PTX error carries the compiler's log."""
        log = bytearray(8192)
        option = self._module.CUjit_option
        keys = [option(_JIT_ERROR_LOG), option(_JIT_ERROR_LOG_BYTES)]
        try:
            return int(self.call("cuModuleLoadDataEx", image, len(keys), keys, [log, len(log)]))
        except CudaError as error:
            text = bytes(log).split(b"\0")[0].decode(errors="replace").strip()
            if not text:
                raise
            message = f"{error.message}\n{text}"
            raise type(error)(message, error.function, error.code, error.code_name) from None

    def module_unload(self, module: int) -> None:
        """Unload a module."""
        self.call("cuModuleUnload", module)

    def module_function(self, module: int, name: str) -> int:
        """The module's kernel called ``name``."""
        return int(self.call("cuModuleGetFunction", module, name.encode(), detail=name))

    def function_parameters(self, function: int) -> list[tuple[int, int]]:
        """Offset and bytes of each of a kernel's parameters."""
        layout: list[tuple[int, int]] = []
        while True:
            try:
                offset, nbytes = self.call("cuFuncGetParamInfo", function, len(layout))
            except CudaError as error:
                if error.code == INVALID_VALUE:  # past the last
                    return layout
                raise
            layout.append((int(offset), int(nbytes)))

    def function_set_attribute(self, function: int, attribute: int, value: int) -> None:
        """Set one of the ``FUNCTION_`` attributes."""
        key = self._module.CUfunction_attribute(attribute)
        self.call("cuFuncSetAttribute", function, key, value)

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: int,
        parameters: int,
    ) -> None:
        """Launch a kernel; ``parameters``: address of an array of pointers to the values."""
        self.call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, parameters, 0)

    def begin_capture(self, stream: int) -> None:
        """Record the stream's work from now on into a graph, instead of running it."""
        mode = self._module.CUstreamCaptureMode(_CAPTURE_THREAD_LOCAL)
        self.call("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> int:
        """The graph recorded since :meth:`begin_capture`."""
        return int(self.call("cuStreamEndCapture", stream))

    def graph_instantiate(self, graph: int) -> int:
        """An executable form of a graph."""
        return int(self.call("cuGraphInstantiate", graph, 0))

    def graph_destroy(self, graph: int) -> None:
        """Destroy a graph."""
        self.call("cuGraphDestroy", graph)

    def graph_exec_destroy(self, executable: int) -> None:
        """Destroy an executable graph."""
        self.call("cuGraphExecDestroy", executable)

    def graph_launch(self, executable: int, stream: int) -> None:
        """Run an executable graph in stream order."""
        self.call("cuGraphLaunch", executable, stream)


_lock = threading.Lock()
_driver: CudaDriver | None = None


def load() -> CudaDriver:
    """The initialised driver.

    Raises ``DeviceError`` where cuda-python or the driver is missing, or the driver does not start.
    """
    global _driver
    with _lock:
        if _driver is None:
            try:
                module = importlib.import_module("cuda.bindings.driver")
            except ImportError as error:
                raise DeviceError(
                    f"the cuda device needs cuda-python ({error}); pip install 'gristmill[cuda]'"
                ) from error
            driver = CudaDriver(module)
            initialise(driver)
            _driver = driver
        return _driver


def initialise(driver: CudaDriver) -> None:
    """Start the driver; whatever cuda-python says when it finds none is a ``DeviceError``."""
    try:
        driver.init()
    except GristmillError as error:
        if not (isinstance(error, CudaError) and error.code == _MISSING):
            raise
        why: BaseException = error.__cause__ or error
    except Exception as error:  # of several modules, when cuda-python finds no driver
        why = error
    else:
        return
    raise DeviceError(f"there is no CUDA driver (libcuda.so.1) on this machine: {why}") from why
