# SPDX-License-Identifier: Apache-2.0
"""Artifacts: a compiled program as one file.

An artifact is a zip archive with stored (uncompressed) members:

- ``manifest.json``: format and ABI version, target, signature, sizes, the table of constants, and size and
  SHA-256 of every other member; for a device also its kernels and steps;
- ``object0.o``, ``object1.o``, …: relocatable objects for the target CPU; for a device ``kernels.ptx``,
  ``kernels.cubin`` and ``simulator0.o``, …, as far as they were made;
- ``constants.bin``: the constants' data, each 64-byte aligned in the *file*, so that it can be mapped
  and used in place.

Loading checks everything before it maps anything.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gristmill.errors import ArtifactError
from gristmill.runtime import manifest
from gristmill.runtime.atomic import replacing
from gristmill.runtime.cpu import check_cpu
from gristmill.runtime.manifest import Manifest
from gristmill.runtime.manifest_fields import (
    CONSTANTS,
    MANIFEST,
    ConstantEntry,
    Member,
    read_fields,
)
from gristmill.runtime.program import ALIGNMENT, Program, align_up

if TYPE_CHECKING:  # a device's part is imported once a program for one is met
    from gristmill.runtime.device_manifest import DeviceManifest
    from gristmill.runtime.device_program import DeviceProgram

    #: Whatever an artifact can hold.
    AnyProgram = Program | DeviceProgram
    AnyManifest = Manifest | DeviceManifest

Constants = Sequence[np.ndarray[Any, Any]]

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_PADDING_ID = 0x474D  # Private extra-field id of the alignment padding.
_EXTRA_HEADER_BYTES = 4
_ENCRYPTED = 1  # of a zip entry's flags
_CHUNK = 1 << 20


def save(program: AnyProgram, path: str | Path, *, durable: bool = True) -> None:
    """Write ``program`` to ``path``, readable by its owner only. The file appears complete or not at all.

    ``durable`` waits until it is on the disk; without that, a crash of the system can leave a damaged file, which
    :func:`load` refuses. Raises ``ArtifactError`` when it cannot be written.
    """
    path = Path(path)
    entries, size = _constant_table(program.constants)
    if isinstance(program, Program):
        code = {f"object{i}.o": data for i, data in enumerate(program.objects)}
    else:
        from gristmill.runtime import device_manifest

        code = device_manifest.code_members(program.images)
    members = {
        name: Member(len(data), hashlib.sha256(data).hexdigest()) for name, data in code.items()
    }
    digest = hashlib.sha256()
    for chunk in _constant_chunks(program.constants, entries, size):
        digest.update(chunk)
    members[CONSTANTS] = Member(size, digest.hexdigest())
    if isinstance(program, Program):
        text = manifest.render_manifest(program, list(code), entries, members)
    else:
        from gristmill.runtime import device_manifest

        text = device_manifest.render_manifest(program, entries, members)
    try:
        with (
            replacing(path, durable=durable) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        ):
            _write_member(archive, MANIFEST, [text.encode()])
            for name, data in code.items():
                _write_member(archive, name, [data])
            _write_member(archive, CONSTANTS, _constant_chunks(program.constants, entries, size))
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror or error}") from None


def load(path: str | Path) -> AnyProgram:
    """Read an artifact; constants are mapped from the file, not read.

    Raises ``ArtifactError`` when the file is missing, truncated or corrupt, has another format or
    ABI version, or was compiled for a CPU with features this one lacks.
    """
    path = Path(path)
    with _explained(path), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        found = _parse(_read_member(archive, MANIFEST))
        if isinstance(found, Manifest):
            check_cpu(found.triple, found.cpu, found.features)
        code = {name: _checked(archive, name, found) for name in found.code}
        offset = _check_constants(archive, file, found)
        constants = _map_constants(file, offset, found)
        return found.program(code, constants)


def read_manifest(path: str | Path) -> AnyManifest:
    """What an artifact says of itself; nothing else of it is read or checked. Raises as :func:`load`."""
    with _explained(Path(path)), zipfile.ZipFile(path) as archive:
        return _parse(_read_member(archive, MANIFEST))


def _parse(data: bytes) -> AnyManifest:
    fields = read_fields(data)
    kind = fields.text("kind")
    if kind == manifest.KIND:
        return manifest.parse_manifest(fields)
    from gristmill.runtime import device_manifest

    if kind == device_manifest.KIND:
        return device_manifest.parse_manifest(fields)
    raise ArtifactError(f"{MANIFEST}: programs of kind {kind!r} are not known to this version")


@contextmanager
def _explained(path: Path) -> Generator[None]:
    """Turn whatever goes wrong in reading ``path`` into an ``ArtifactError`` that names it."""
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error.message}") from None
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, EOFError, struct.error, NotImplementedError, ValueError) as error:
        # NotImplementedError: zipfile's word for a version it does not know; ValueError: for names that are no text.
        raise ArtifactError(f"{path} is not an artifact, or truncated: {error}") from None


def _constant_table(constants: Constants) -> tuple[list[ConstantEntry], int]:
    entries: list[ConstantEntry] = []
    offset = 0
    for array in constants:
        entries.append(ConstantEntry.of(offset, array))
        offset = align_up(offset + array.nbytes)
    return entries, offset


def _constant_chunks(
    constants: Constants, entries: list[ConstantEntry], size: int
) -> Iterator[memoryview | bytes]:
    """The content of ``constants.bin`` in pieces, without copying the arrays."""
    written = 0
    for entry, array in zip(entries, constants, strict=True):
        yield b"\0" * (entry.offset - written)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, data.size, _CHUNK):
            yield data[start : start + _CHUNK].data
        written = entry.offset + data.size
    yield b"\0" * (size - written)


def _write_member(
    archive: zipfile.ZipFile, name: str, chunks: list[bytes] | Iterator[memoryview | bytes]
) -> None:
    info = zipfile.ZipInfo(name)  # Its fixed date makes equal programs equal files.
    info.external_attr = 0o644 << 16
    assert archive.fp is not None
    zip64_bytes = 20
    start = archive.fp.tell() + _LOCAL_HEADER.size + len(name) + zip64_bytes + _EXTRA_HEADER_BYTES
    padding = -start % ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=True) as member:
        for chunk in chunks:
            member.write(chunk)


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    return archive.read(_stored(archive, name))


def _stored(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """The entry of a member, which is as this module writes it: neither compressed nor encrypted."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise ArtifactError(f"the artifact has no {name}; it is incomplete") from None
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
        raise ArtifactError(f"{name} is corrupt (compressed or encrypted)")
    return info


def _checked(archive: zipfile.ZipFile, name: str, found: AnyManifest) -> bytes:
    data = _read_member(archive, name)
    member = found.members[name]
    if len(data) != member.size or hashlib.sha256(data).hexdigest() != member.sha256:
        raise ArtifactError(f"{name} is corrupt (its checksum does not match)")
    return data


def _check_constants(archive: zipfile.ZipFile, file: IO[bytes], found: AnyManifest) -> int:
    """Verify ``constants.bin`` and return the offset of its data in the file."""
    info, member = _stored(archive, CONSTANTS), found.members[CONSTANTS]
    if info.file_size != member.size:
        raise ArtifactError(f"{CONSTANTS} is corrupt (its size is not the manifest's)")
    file.seek(info.header_offset)
    header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    offset = info.header_offset + _LOCAL_HEADER.size + header[9] + header[10]
    if offset % ALIGNMENT:
        raise ArtifactError(f"{CONSTANTS} is not aligned in the file; write the artifact again")
    file.seek(offset)
    digest, left = hashlib.sha256(), member.size
    while left and (chunk := file.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    if left or digest.hexdigest() != member.sha256:
        raise ArtifactError(f"{CONSTANTS} is corrupt (its checksum does not match)")
    return offset


def _map_constants(file: IO[bytes], offset: int, found: AnyManifest) -> list[np.ndarray[Any, Any]]:
    if not found.members[CONSTANTS].size:
        return [np.zeros(c.type.shape, c.type.element.dtype) for c in found.constants]
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return [
        np.ndarray(c.type.shape, c.type.element.dtype, buffer=mapped, offset=offset + c.offset)
        for c in found.constants
    ]
