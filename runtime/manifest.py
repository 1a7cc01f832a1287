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
        constants=tuple(read_constant(f) for f in content.records("constants")),
        custom_calls=tuple(_custom_call(f) for f in content.records("custom_calls")),
        members=read_members(content.fields("members")),
    )
    check_consistency(
        manifest.objects, manifest.members, manifest.constants, manifest.inputs, manifest.outputs
    )
    return manifest


def _custom_call(fields: Fields) -> CustomCall:
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
        Fields(parsed, f"{fields.where}.config")
    return CustomCall(fields.text("target"), inputs, outputs, config, typed)
