# SPDX-License-Identifier: Apache-2.0
"""The manifest of a program for a device that launches kernels, to and from JSON, every field checked when read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from gristmill.errors import ArtifactError, InputError
from gristmill.runtime.device_program import (
    DEVICE_ABI_VERSION,
    MOST_NESTED,
    BufferRange,
    ConditionalStep,
    CopyStep,
    DeviceKernel,
    DeviceProgram,
    Extents,
    Images,
    LaunchStep,
    SimulatorImage,
    Step,
    WhileStep,
    check_program,
)
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
from gristmill.runtime.program import Signature

#: What the manifest calls this kind of program.
KIND = "device"

PTX, CUBIN = "kernels.ptx", "kernels.cubin"


def code_members(images: Images) -> dict[str, bytes]:
    """The members that hold a program's code."""
    found: dict[str, bytes] = {}
    if images.ptx is not None:
        found[PTX] = images.ptx.encode()
    if images.cubin is not None:
        found[CUBIN] = images.cubin
    if images.simulator is not None:
        for number, data in enumerate(images.simulator.objects):
            found[f"simulator{number}.o"] = data
    return found


@dataclass(frozen=True)
class DeviceManifest:
    """What ``manifest.json`` says of a program for a device."""

    name: str
    chip: str
    arena_bytes: int
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    constants: tuple[ConstantEntry, ...]
    kernels: tuple[DeviceKernel, ...]
    steps: tuple[Step, ...]
    images: tuple[str, ...]
    simulator: SimulatorImage | None
    simulator_objects: tuple[str, ...]
    members: dict[str, Member]

    @property
    def target_name(self) -> str:
        """What the program was compiled for, for people."""
        return self.chip

    @property
    def code(self) -> tuple[str, ...]:
        """The members that hold code."""
        return (*self.images, *self.simulator_objects)

    def program(
        self, code: Mapping[str, bytes], constants: Sequence[np.ndarray[Any, Any]]
    ) -> DeviceProgram:
        """The program, given its members' content; raises ``ArtifactError`` when its steps are not sound."""
        simulator = self.simulator
        if simulator is not None:
            objects = tuple(code[name] for name in self.simulator_objects)
            simulator = SimulatorImage(objects, simulator.triple, simulator.cpu, simulator.features)
        ptx = code.get(PTX)
        try:
            images = Images(None if ptx is None else ptx.decode(), code.get(CUBIN), simulator)
            program = DeviceProgram(
                name=self.name,
                chip=self.chip,
                inputs=self.inputs,
                outputs=self.outputs,
                constants=constants,
                arena_bytes=self.arena_bytes,
                kernels=self.kernels,
                steps=self.steps,
                images=images,
            )
            check_program(program)
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{PTX} is not text: {error}") from None
        except InputError as error:
            raise ArtifactError(f"{MANIFEST}: {error.message}") from None
        return program


def render_manifest(
    program: DeviceProgram, constants: Sequence[ConstantEntry], members: dict[str, Member]
) -> str:
    """The manifest's JSON text."""
    signatures = (program.inputs, program.outputs)
    simulator = program.images.simulator
    return render(
        {
            **common_fields(KIND, DEVICE_ABI_VERSION, program.name, signatures, constants, members),
            "chip": program.chip,
            "arena_bytes": program.arena_bytes,
            "kernels": [asdict(kernel) for kernel in program.kernels],
            "steps": [_render_step(step) for step in program.steps],
            "images": [name for name in (PTX, CUBIN) if name in members],
            "simulator": None
            if simulator is None
            else {
                "triple": simulator.triple,
                "cpu": simulator.cpu,
                "features": simulator.features,
                "objects": [f"simulator{n}.o" for n in range(len(simulator.objects))],
            },
        }
    )


def parse_manifest(content: Fields) -> DeviceManifest:
    """Check a manifest's fields; raises ``ArtifactError`` naming the faulty one."""
    check_version(content, "abi", DEVICE_ABI_VERSION)
    images = tuple(content.texts("images"))
    if not set(images) <= {PTX, CUBIN}:
        raise ArtifactError(f"{MANIFEST}: images {images} are not among {PTX} and {CUBIN}")
    simulator, objects = _read_simulator(content)
    manifest = DeviceManifest(
        name=content.text("name"),
        chip=content.text("chip"),
        arena_bytes=content.size("arena_bytes"),
        inputs=tuple(read_signature(f) for f in content.records("inputs")),
        outputs=tuple(read_signature(f) for f in content.records("outputs")),
        constants=tuple(read_constant(f) for f in content.records("constants")),
        kernels=tuple(_read_kernel(f) for f in content.records("kernels")),
        steps=_read_steps(content, "steps", 0),
        images=images,
        simulator=simulator,
        simulator_objects=objects,
        members=read_members(content.fields("members")),
    )
    check_consistency(
        manifest.code, manifest.members, manifest.constants, manifest.inputs, manifest.outputs
    )
    return manifest


def _read_simulator(content: Fields) -> tuple[SimulatorImage | None, tuple[str, ...]]:
    if content.content.get("simulator") is None:
        return None, ()
    fields = content.fields("simulator")
    image = SimulatorImage((), fields.text("triple"), fields.text("cpu"), fields.text("features"))
    return image, tuple(fields.texts("objects"))


def _read_kernel(fields: Fields) -> DeviceKernel:
    return DeviceKernel(
        fields.text("name"),
        _extents(fields, "grid"),
        _extents(fields, "block"),
        fields.size("shared_bytes"),
        fields.size("parameters"),
    )


def _extents(fields: Fields, key: str) -> Extents:
    x, y, z = fields.integers(key, 3)
    return x, y, z


def _render_range(place: BufferRange) -> list[str | int]:
    return [place.root, place.index, place.offset, place.nbytes]


def _render_step(step: Step) -> dict[str, Any]:
    def ranges(places: Sequence[BufferRange]) -> list[list[str | int]]:
        return [_render_range(place) for place in places]

    if isinstance(step, LaunchStep):
        return {
            "step": "launch",
            "kernel": step.kernel,
            "reads": ranges(step.reads),
            "writes": ranges(step.writes),
        }
    if isinstance(step, CopyStep):
        return {
            "step": "copy",
            "source": _render_range(step.source),
            "destination": _render_range(step.destination),
        }
    if isinstance(step, WhileStep):
        return {
            "step": "while",
            "predicate": _render_range(step.predicate),
            "cond": [_render_step(inner) for inner in step.cond],
            "body": [_render_step(inner) for inner in step.body],
        }
    return {
        "step": "conditional",
        "selector": _render_range(step.selector),
        "boolean": step.boolean,
        "branches": [
            {"steps": [_render_step(inner) for inner in branch]} for branch in step.branches
        ],
    }


def _read_steps(fields: Fields, key: str, depth: int) -> tuple[Step, ...]:
    if depth > MOST_NESTED:
        raise ArtifactError(f"{MANIFEST}: steps are nested more than {MOST_NESTED} deep")
    return tuple(_read_step(inner, depth + 1) for inner in fields.records(key))


def _read_step(fields: Fields, depth: int) -> Step:
    kind = fields.text("step")
    if kind == "launch":
        return LaunchStep(
            fields.size("kernel"), _read_ranges(fields, "reads"), _read_ranges(fields, "writes")
        )
    if kind == "copy":
        return CopyStep(_read_range(fields, "source"), _read_range(fields, "destination"))
    if kind == "while":
        return WhileStep(
            _read_range(fields, "predicate"),
            _read_steps(fields, "cond", depth),
            _read_steps(fields, "body", depth),
        )
    if kind == "conditional":
        branches = fields.records("branches")
        return ConditionalStep(
            _read_range(fields, "selector"),
            tuple(_read_steps(branch, "steps", depth) for branch in branches),
            fields.flag("boolean"),
        )
    raise ArtifactError(f"{MANIFEST}: {fields.where} is a step of unknown kind {kind!r}")


def _read_ranges(fields: Fields, key: str) -> tuple[BufferRange, ...]:
    return tuple(_range(item, fields, key) for item in fields.items(key))


def _read_range(fields: Fields, key: str) -> BufferRange:
    return _range(fields.items(key), fields, key)


def _range(item: object, fields: Fields, key: str) -> BufferRange:
    parts = cast("list[object]", item) if isinstance(item, list) else []
    if len(parts) == 4:
        root, *numbers = parts
        sizes = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
        if root in ("input", "output", "constant", "arena") and len(sizes) == 3:
            return BufferRange(root, *sizes)
    raise ArtifactError(f"{MANIFEST}: {fields.where} has no valid {key!r} (a range expected)")
