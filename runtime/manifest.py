# SPDX-License-Identifier: Apache-2.0
"""The manifest of a program for a CPU: typed records to and from JSON, every field checked when read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.errors import ArtifactError
from gristmill.runtime.manifest_fields import (
    MANIFEST,
    ConstantEntry,
    Fields,
    Member,
    check_consistency,
    check_version,
    common_fields,
    read_constant,
    read_members,
    read_signature,
    render,
)
from gristmill.runtime.program import ENTRY_ABI_VERSION, CustomCall, Program, Signature

#: What the manifest calls this kind of program.
KIND = "host"


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says of a program for a CPU."""

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

    @property
    def target_name(self) -> str:
        """What the program was compiled for, for people."""
        return self.cpu

    @property
    def code(self) -> tuple[str, ...]:
        """The members that hold code."""
        return self.objects

    def program(
        self, code: Mapping[str, bytes], constants: Sequence[np.ndarray[Any, Any]]
    ) -> Program:
        """The program, given its members' content."""
        return Program(
            name=self.name,
            inputs=self.inputs,
            outputs=self.outputs,
            objects=[code[name] for name in self.objects],
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
    signatures = (program.inputs, program.outputs)
    return render(
        {
            **common_fields(KIND, ENTRY_ABI_VERSION, program.name, signatures, constants, members),
            "entry": program.entry,
            "parallel": program.parallel,
            "arena_bytes": program.arena_bytes,
            "scratch_bytes": program.scratch_bytes,
            "target": {
                "triple": program.target_triple,
                "cpu": program.target_cpu,
                "features": program.target_features,
            },
            "objects": list(objects),
            "custom_calls": [
                {
                    **vars(call),
                    "inputs": [str(kind) for kind in call.inputs],
                    "outputs": [str(kind) for kind in call.outputs],
                }
                for call in program.custom_calls
            ],
        }
    )


def parse_manifest(content: Fields) -> Manifest:
    """Check a manifest's fields; raises ``ArtifactError`` naming the faulty one."""
    check_version(content, "abi", ENTRY_ABI_VERSION)
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
        inputs=tuple(read_signature(f) for f in content.records("inputs")),
        outputs=tuple(read_signature(f) for f in content.records("outputs")),
        objects=tuple(content.texts("objects")),
<<<<<<< HEAD
        constants=tuple(_constant(f) for f in content.records("constants")),
        custom_calls=tuple(_custom_call(f) for f in content.records("custom_calls")),
        members=_members(content.fields("members")),
=======
        constants=tuple(read_constant(f) for f in content.records("constants")),
        custom_calls=tuple(_custom_call(f) for f in content.records("custom_calls")),
        members=read_members(content.fields("members")),
    )
    check_consistency(
        manifest.objects, manifest.members, manifest.constants, manifest.inputs, manifest.outputs
>>>>>>> 121fe9d (Device executables, plans, graphs, artifacts; gristmill compile and run for GPUs)
    )
    return manifest
<<<<<<< HEAD


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
=======
>>>>>>> 121fe9d (Device executables, plans, graphs, artifacts; gristmill compile and run for GPUs)
