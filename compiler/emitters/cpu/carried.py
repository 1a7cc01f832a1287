# SPDX-License-Identifier: Apache-2.0
"""What a ``while`` carries that needs no copy: values it keeps, and arrays of which it replaces a part."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.compiler.graph import Graph

#: Operations that read a few elements of an array, wherever they are.
_READERS = frozenset({"dynamic_slice", "slice", "gather"})


@dataclass(frozen=True)
class Carried:
    """The carried values of a ``while``, by number.

    Attributes:
        kept: those that the body passes on as they are.
        updated: those that the body only replaces a part of, by a ``dynamic_update_slice``, and does not read.
    """

    kept: frozenset[int]
    updated: frozenset[int]

    @staticmethod
    def of(cond: Graph, body: Graph) -> Carried:
        """Look at what becomes of each parameter of the body."""
        kept: set[int] = set()
        updated: set[int] = set()
        for number, (parameter, result) in enumerate(
            zip(body.parameters, body.results, strict=True)
        ):
            if result is parameter:
                kept.add(number)
            elif (
                result.kind == "dynamic_update_slice"
                and result.operands[0] is parameter
                and result.operands.count(parameter) == 1
                and set(parameter.users) == {result}
                and not result.users
                and body.results.count(result) == 1
                and parameter not in body.results
                and not cond.parameters[number].users
            ):
                updated.add(number)
        return Carried(frozenset(kept), frozenset(updated))

    def is_read_in_parts(self, cond: Graph, body: Graph, number: int) -> bool:
        """Whether a kept array is only read by operations that take a few elements of it."""
        users = {*body.parameters[number].users, *cond.parameters[number].users}
        return number in self.kept and all(user.kind in _READERS for user in users)
