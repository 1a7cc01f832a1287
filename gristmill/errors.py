# SPDX-License-Identifier: Apache-2.0
"""Every error a user can meet derives from :class:`GristmillError`.

An error's text answers what failed, where (``file:line:col`` and op, when known), and what to do.
The command line prints it as one line; ``--debug`` adds the traceback.
"""

from __future__ import annotations


class GristmillError(Exception):
    """Base of all user-visible errors.

    Args:
        message: what is wrong and what to do about it, without a trailing newline.
        location: ``file:line:col`` of the offending source, when known.
        op: the name of the offending operation, when known.
    """

    def __init__(self, message: str, *, location: str | None = None, op: str | None = None):
        self.message = message
        self.location = location
        self.op = op
        where = f"{location}: " if location else ""
        what = f"{op}: " if op else ""
        super().__init__(f"{where}{what}{message}")


class ParseError(GristmillError):
    """The input is not a well-formed module of the format it claims to be."""


class VerifyError(GristmillError):
    """The IR breaks a shape, type or structure rule of its dialect."""


class UnsupportedError(GristmillError):
    """The program is valid but uses an op, type or form that is not implemented.

    ``items`` lists every unsupported thing found, so that one run reports them all.
    """

    def __init__(
        self,
        message: str,
        *,
        location: str | None = None,
        op: str | None = None,
        items: tuple[str, ...] = (),
    ):
        super().__init__(message, location=location, op=op)
        self.items = items or (message,)


class PassError(GristmillError):
    """A pass or a pipeline string failed or does not exist."""


class LoweringError(GristmillError):
    """An upstream MLIR pass rejected IR that we produced."""


class ToolchainError(GristmillError):
    """LLVM, the linker or a required library failed or is missing."""


class ArtifactError(GristmillError):
    """An artifact is missing, corrupt, truncated, or made for another target or version."""


class CacheError(GristmillError):
    """The compilation cache cannot be used or written; compiling goes on without it."""


class CacheWarning(UserWarning):
    """Compiling went on without the compilation cache, for the reason given."""


class InputError(GristmillError):
    """The arrays given to an executable do not fit its signature."""


class CustomCallError(GristmillError):
    """A custom call has no function, its function failed, or returned what does not fit.

    When a Python function raised an exception, that is the ``__cause__``.
    """


class ResourceExhaustedError(GristmillError):
    """Memory, address space or mappings ran out; the message names the limit to raise."""


class ClosedError(GristmillError):
    """A buffer, allocation, stream, device or manager was used after it was closed."""


class DeviceError(GristmillError):
    """A device or its driver failed, or cannot do what was asked."""


class DependencyError(DeviceError):
    """Work was not run because something it waits for failed; ``__cause__`` is that failure."""


class DeadlineError(GristmillError):
    """A wait ended because its timeout passed; what was waited for goes on."""


class TransferError(GristmillError):
    """A transfer broke its manager's rules, lost data, or was abandoned."""


class TransferCancelledError(TransferError):
    """A transfer was cancelled before it finished."""
