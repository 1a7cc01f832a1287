# SPDX-License-Identifier: Apache-2.0
"""The artifact's manifest: typed records to and from JSON, every field checked when read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from gristmill.errors import ArtifactError, InputError
from gristmill.runtime.program import ALIGNMENT, ENTRY_ABI_VERSION, CustomCall, Program, Signature
from gristmill.runtime.types import ArrayType, element_type_of

#: Raised when the archive's layout or the manifest's fields change.
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
CONSTANTS = "constants.bin"


@dataclass(frozen=True)
class Member:
    """Size in bytes and SHA-256 of one archive member."""

    size: int
    sha256: str


@dataclass(frozen=True)
class ConstantEntry:
    """Where a constant lies in ``constants.bin``: byte offset and type."""

    offset: int
    type: ArrayType

    @staticmethod
    def of(offset: int, array: np.ndarray[Any, Any]) -> ConstantEntry:
        """The entry of ``array`` at ``offset``."""
        return ConstantEntry(offset, ArrayType(array.shape, element_type_of(array.dtype)))


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says."""

    name: str
    entry: str
    parallel: bool
    arena_bytes: int
    scratch_bytes: int
    triple: str
    cpu: str
    features: str
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    objects: tuple[str, ...]
    constants: tuple[ConstantEntry, ...]
    custom_calls: tuple[CustomCall, ...]
    members: dict[str, Member]

    def program(
        self, objects: Sequence[bytes], constants: Sequence[np.ndarray[Any, Any]]
    ) -> Program:
        """The program, given its members' content."""
        return Program(
            name=self.name,
            inputs=self.inputs,
            outputs=self.outputs,
            objects=objects,
            constants=constants,
            arena_bytes=self.arena_bytes,
            scratch_bytes=self.scratch_bytes,
            custom_calls=self.custom_calls,
            entry=self.entry,
            parallel=self.parallel,
            target_triple=self.triple,
            target_cpu=self.cpu,
            target_features=self.features,
        )


def render_manifest(
    program: Program,
    objects: Sequence[str],
    constants: Sequence[ConstantEntry],
    members: dict[str, Member],
) -> str:
    """The manifest's JSON text."""

    def signature(record: Signature) -> dict[str, Any]:
        return {**vars(record), "type": str(record.type)}

    content = {
        "format": FORMAT_VERSION,
        "abi": ENTRY_ABI_VERSION,
        "name": program.name,
        "entry": program.entry,
        "parallel": program.parallel,
        "arena_bytes": program.arena_bytes,
        "scratch_bytes": program.scratch_bytes,
        "target": {
            "triple": program.target_triple,
            "cpu": program.target_cpu,
            "features": program.target_features,
        },
        "inputs": [signature(s) for s in program.inputs],
        "outputs": [signature(s) for s in program.outputs],
        "objects": list(objects),
        "constants": [
            {"offset": c.offset, "size": c.type.nbytes, "type": str(c.type)} for c in constants
        ],
        "custom_calls": [
            {
                **vars(call),
                "inputs": [str(kind) for kind in call.inputs],
                "outputs": [str(kind) for kind in call.outputs],
            }
            for call in program.custom_calls
        ],
        "members": {name: asdict(member) for name, member in members.items()},
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def parse_manifest(data: bytes) -> Manifest:
    """Read and check a manifest; raises ``ArtifactError`` naming the faulty field."""
    try:
        content = _Fields(json.loads(data), "manifest")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{MANIFEST} is not JSON: {error}") from None
    for key, supported in (("format", FORMAT_VERSION), ("abi", ENTRY_ABI_VERSION)):
        found = content.integer(key)
        if found != supported:
            raise ArtifactError(
                f"{key} version {found} is not supported, only {supported}; compile the model again"
            )
    target = content.fields("target")
    manifest = Manifest(
        name=content.text("name"),
        entry=content.text("entry"),
        parallel=content.flag("parallel"),
        arena_bytes=content.size("arena_bytes"),
        scratch_bytes=content.size("scratch_bytes"),
        triple=target.text("triple"),
        cpu=target.text("cpu"),
        features=target.text("features"),
        inputs=tuple(_signature(f) for f in content.records("inputs")),
        outputs=tuple(_signature(f) for f in content.records("outputs")),
        objects=tuple(content.texts("objects")),
        constants=tuple(_constant(f) for f in content.records("constants")),
        custom_calls=tuple(_custom_call(f) for f in content.records("custom_calls")),
        members=_members(content.fields("members")),
    )
    _check_consistency(manifest)
    return manifest


def _signature(fields: _Fields) -> Signature:
    alias = None if fields.content.get("alias") is None else fields.size("alias")
    return Signature(fields.text("name"), fields.array_type(), fields.flag("donated"), alias)


def _constant(fields: _Fields) -> ConstantEntry:
    entry = ConstantEntry(fields.size("offset"), fields.array_type())
    if fields.size("size") != entry.type.nbytes:
        raise ArtifactError(f"{MANIFEST}: {fields.where} has a size that is not its type's")
    return entry


def _custom_call(fields: _Fields) -> CustomCall:
    inputs, outputs = (
        tuple(fields.parse_array_type(text) for text in fields.texts(key))
        for key in ("inputs", "outputs")
    )
    config, typed = fields.text("config"), fields.flag("typed")
    if typed:
        try:
            parsed = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(
                f"{MANIFEST}: {fields.where}: config is not JSON: {error}"
            ) from None
        _Fields(parsed, f"{fields.where}.config")
    return CustomCall(fields.text("target"), inputs, outputs, config, typed)


def _members(fields: _Fields) -> dict[str, Member]:
    members = {name: fields.fields(name) for name in fields.content}
    return {name: Member(f.size("size"), f.text("sha256")) for name, f in members.items()}


def _check_consistency(manifest: Manifest) -> None:
    for name in (*manifest.objects, CONSTANTS):
        if name not in manifest.members:
            raise ArtifactError(f"{MANIFEST}: no size and checksum for {name}")
    size = manifest.members[CONSTANTS].size
    for number, entry in enumerate(manifest.constants):
        if entry.offset % ALIGNMENT or entry.offset + entry.type.nbytes > size:
            raise ArtifactError(f"{MANIFEST}: constant {number} lies outside {CONSTANTS}")
    for here, there in (
        (manifest.inputs, manifest.outputs),
        (manifest.outputs, manifest.inputs),
    ):
        for record in here:
            if record.alias is None:
                continue
            if record.alias >= len(there) or there[record.alias].type != record.type:
                raise ArtifactError(f"{MANIFEST}: {record.name} aliases something that cannot fit")


class _Fields:
    """A JSON object whose fields are read with the type they must have."""

    def __init__(self, content: object, where: str) -> None:
        if not isinstance(content, dict):
            raise ArtifactError(f"{MANIFEST}: {where} is not an object")
        self.content = cast("dict[str, object]", content)
        self.where = where

    def _get(self, key: str, kind: type[Any]) -> Any:
        value = self.content.get(key)
        # bool is a subclass of int, and true is no size.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ArtifactError(
                f"{MANIFEST}: {self.where} has no valid {key!r} ({kind.__name__} expected)"
            )
        return value

    def integer(self, key: str) -> int:
        return self._get(key, int)

    def size(self, key: str) -> int:
        value = self._get(key, int)
        if value < 0:
            raise ArtifactError(f"{MANIFEST}: {self.where} has a negative {key!r}")
        return value

    def text(self, key: str) -> str:
        return self._get(key, str)

    def flag(self, key: str) -> bool:
        return self._get(key, bool)

    def fields(self, key: str) -> _Fields:
        return _Fields(self._get(key, dict), key)

    def records(self, key: str) -> list[_Fields]:
        return [_Fields(item, f"{key}[{i}]") for i, item in enumerate(self._get(key, list))]

    def texts(self, key: str) -> list[str]:
        items: list[object] = self._get(key, list)
        if not all(isinstance(item, str) for item in items):
            raise ArtifactError(f"{MANIFEST}: {self.where}: {key} holds more than strings")
        return cast("list[str]", items)

    def array_type(self) -> ArrayType:
        return self.parse_array_type(self.text("type"))

    def parse_array_type(self, text: str) -> ArrayType:
        try:
            kind = ArrayType.parse(text)
        except InputError as error:
            raise ArtifactError(f"{MANIFEST}: {self.where}: {error.message}") from None
        if any(size < 0 for size in kind.shape):
            raise ArtifactError(f"{MANIFEST}: {self.where} has a negative size")
        return kind
