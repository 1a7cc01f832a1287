# SPDX-License-Identifier: Apache-2.0
"""What the manifests of all kinds of artifacts share: typed fields read from JSON, every one checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from gristmill.errors import ArtifactError, InputError
from gristmill.runtime.program import ALIGNMENT, Signature
from gristmill.runtime.types import ArrayType, element_type_of

#: Raised when the archive's layout or the manifest's fields change.
FORMAT_VERSION = 2

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


def common_fields(
    kind: str,
    abi: int,
    name: str,
    signatures: tuple[Sequence[Signature], Sequence[Signature]],
    constants: Sequence[ConstantEntry],
    members: dict[str, Member],
) -> dict[str, Any]:
    """What every manifest says; ``signatures`` are those of inputs and outputs."""

    def signature(record: Signature) -> dict[str, Any]:
        return {**vars(record), "type": str(record.type)}

    return {
        "format": FORMAT_VERSION,
        "kind": kind,
        "abi": abi,
        "name": name,
        "inputs": [signature(s) for s in signatures[0]],
        "outputs": [signature(s) for s in signatures[1]],
        "constants": [
            {"offset": c.offset, "size": c.type.nbytes, "type": str(c.type)} for c in constants
        ],
        "members": {member: asdict(record) for member, record in members.items()},
    }


def render(content: dict[str, Any]) -> str:
    """A manifest's JSON text."""
    return json.dumps(content, indent=1, ensure_ascii=False)


def read_fields(data: bytes) -> Fields:
    """A manifest's fields, once its format is known to be this one."""
    try:
        content = Fields(json.loads(data), "manifest")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{MANIFEST} is not JSON: {error}") from None
    check_version(content, "format", FORMAT_VERSION)
    return content


def check_version(content: Fields, key: str, supported: int) -> None:
    """Raise ``ArtifactError`` unless ``key`` is the one version that is supported."""
    found = content.integer(key)
    if found != supported:
        raise ArtifactError(
            f"{key} version {found} is not supported, only {supported}; compile the model again"
        )


def read_signature(fields: Fields) -> Signature:
    """An input or output."""
    alias = None if fields.content.get("alias") is None else fields.size("alias")
    return Signature(fields.text("name"), fields.array_type(), fields.flag("donated"), alias)


def read_constant(fields: Fields) -> ConstantEntry:
    """An entry of the table of constants."""
    entry = ConstantEntry(fields.size("offset"), fields.array_type())
    if fields.size("size") != entry.type.nbytes:
        raise ArtifactError(f"{MANIFEST}: {fields.where} has a size that is not its type's")
    return entry


def read_members(fields: Fields) -> dict[str, Member]:
    """The archive's members."""
    members = {name: fields.fields(name) for name in fields.content}
    return {name: Member(f.size("size"), f.text("sha256")) for name, f in members.items()}


def check_consistency(
    code: Sequence[str],
    members: dict[str, Member],
    constants: Sequence[ConstantEntry],
    inputs: Sequence[Signature],
    outputs: Sequence[Signature],
) -> None:
    """Raise ``ArtifactError`` for members that are missing, constants outside theirs, or aliases that do not fit."""
    for name in (*code, CONSTANTS):
        if name not in members:
            raise ArtifactError(f"{MANIFEST}: no size and checksum for {name}")
    size = members[CONSTANTS].size
    for number, entry in enumerate(constants):
        if entry.offset % ALIGNMENT or entry.offset + entry.type.nbytes > size:
            raise ArtifactError(f"{MANIFEST}: constant {number} lies outside {CONSTANTS}")
    for here, there in (
        (inputs, outputs),
        (outputs, inputs),
    ):
        for record in here:
            if record.alias is None:
                continue
            if record.alias >= len(there) or there[record.alias].type != record.type:
                raise ArtifactError(f"{MANIFEST}: {record.name} aliases something that cannot fit")


class Fields:
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
        """An integer."""
        return self._get(key, int)

    def size(self, key: str) -> int:
        """An integer from 0 on."""
        value = self._get(key, int)
        if value < 0:
            raise ArtifactError(f"{MANIFEST}: {self.where} has a negative {key!r}")
        return value

    def text(self, key: str) -> str:
        """A string."""
        return self._get(key, str)

    def flag(self, key: str) -> bool:
        """A boolean."""
        return self._get(key, bool)

    def fields(self, key: str) -> Fields:
        """An object."""
        return Fields(self._get(key, dict), key)

    def records(self, key: str) -> list[Fields]:
        """A list of objects."""
        return [Fields(item, f"{key}[{i}]") for i, item in enumerate(self._get(key, list))]

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        items: list[object] = self._get(key, list)
        if not all(isinstance(item, str) for item in items):
            raise ArtifactError(f"{MANIFEST}: {self.where}: {key} holds more than strings")
        return cast("list[str]", items)

    def items(self, key: str) -> list[object]:
        """A list of anything."""
        return self._get(key, list)

    def integers(self, key: str, count: int) -> list[int]:
        """A list of ``count`` integers."""
        found = [n for n in self.items(key) if isinstance(n, int) and not isinstance(n, bool)]
        if len(found) != count or len(self.items(key)) != count:
            raise ArtifactError(f"{MANIFEST}: {self.where} has no valid {key!r} ({count} integers)")
        return found

    def array_type(self) -> ArrayType:
        """The array type in the field ``type``."""
        return self.parse_array_type(self.text("type"))

    def parse_array_type(self, text: str) -> ArrayType:
        """The array type that ``text`` spells."""
        try:
            kind = ArrayType.parse(text)
        except InputError as error:
            raise ArtifactError(f"{MANIFEST}: {self.where}: {error.message}") from None
        if any(size < 0 for size in kind.shape):
            raise ArtifactError(f"{MANIFEST}: {self.where} has a negative size")
        return kind
