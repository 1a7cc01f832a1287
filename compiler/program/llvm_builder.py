# SPDX-License-Identifier: Apache-2.0
"""A thin typed builder for the few LLVM-dialect operations that the entry function is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlir import ir

_PREDICATES = {"eq": 0, "ne": 1, "ult": 6}
_STATIC_LIMIT = 1 << 31
_DYNAMIC = -(1 << 31)


class FunctionBuilder:
    """Builds one function at a time at the end of ``module`` (current context and location)."""

    def __init__(self, module: ir.Module):
        self.module = module
        self.ptr = ir.Type.parse("!llvm.ptr")
        self.i64 = ir.IntegerType.get_signless(64)
        self.i32 = ir.IntegerType.get_signless(32)
        self.i8 = ir.IntegerType.get_signless(8)
        self.i1 = ir.IntegerType.get_signless(1)
        self._void = "!llvm.void"
        self._constants: dict[tuple[int, str], ir.Value] = {}
        self._point = ir.InsertionPoint(module.body)
        self._region: ir.Region | None = None
        self._entry: ir.Block | None = None
        self._i8_attribute = ir.TypeAttr.get(self.i8)
        self._no_bundles = ir.Attribute.parse("array<i32>")
        self._no_overflow = ir.Attribute.parse("#llvm.overflow<none>")

    def _declare(self, name: str, kinds: Sequence[ir.Type], linkage: str) -> ir.Operation:
        text = ", ".join(map(str, kinds))
        with ir.InsertionPoint(self.module.body):
            return ir.Operation.create(
                "llvm.func",
                attributes={
                    "sym_name": ir.StringAttr.get(name),
                    "function_type": ir.TypeAttr.get(ir.Type.parse(f"!llvm.func<void ({text})>")),
                    "linkage": ir.Attribute.parse(f"#llvm.linkage<{linkage}>"),
                },
                regions=1,
            )

    def declare(self, name: str, kinds: Sequence[ir.Type]) -> None:
        """An external function without result."""
        self._declare(name, kinds, "external")

    def function(
        self, name: str, kinds: Sequence[ir.Type], passthrough: Sequence[str] = ()
    ) -> list[ir.Value]:
        """Start an internal function without result, replacing its declaration; returns its arguments.

        ``passthrough`` are LLVM function attributes.
        """
        for view in self.module.body.operations:
            if ir.StringAttr(view.operation.attributes["sym_name"]).value == name:
                view.operation.erase()
                break
        function = self._declare(name, kinds, "internal")
        if passthrough:
            names: list[ir.Attribute] = [ir.StringAttr.get(item) for item in passthrough]
            function.attributes["passthrough"] = ir.ArrayAttr.get(names)
        self._region = function.regions[0]
        self._entry = self._region.blocks.append(*kinds)
        self.at(self._entry)
        return list(self._entry.arguments)

    def block(self) -> ir.Block:
        """A new block at the end of the function."""
        assert self._region is not None
        return self._region.blocks.append()

    def at(self, block: ir.Block) -> None:
        """Continue at the end of ``block``."""
        self._point = ir.InsertionPoint(block)

    def create(
        self,
        name: str,
        operands: Sequence[ir.Value] = (),
        result: ir.Type | None = None,
        attributes: Mapping[str, ir.Attribute] | None = None,
        successors: Sequence[ir.Block] = (),
    ) -> ir.Operation:
        """Any operation with at most one result."""
        return ir.Operation.create(
            name,
            results=[] if result is None else [result],
            operands=list(operands),
            attributes=dict(attributes or {}),
            successors=list(successors),
            ip=self._point,
        )

    def constant(self, value: int, kind: ir.Type) -> ir.Value:
        """An integer constant, made once, at the start of the function."""
        key = (value, str(kind))
        known = self._constants.get(key)
        if known is None:
            assert self._entry is not None
            known = ir.Operation.create(
                "llvm.mlir.constant",
                results=[kind],
                attributes={"value": ir.IntegerAttr.get(kind, value)},
                ip=ir.InsertionPoint.at_block_begin(self._entry),
            ).results[0]
            self._constants[key] = known
        return known

    def integer(self, value: int) -> ir.Value:
        """An i64 constant."""
        return self.constant(value, self.i64)

    def binary(self, name: str, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        """``llvm.<name>`` of two integers."""
        attributes = {"overflowFlags": self._no_overflow} if name in ("mul", "add", "sub") else {}
        return self.create(f"llvm.{name}", [lhs, rhs], lhs.type, attributes).results[0]

    def minimum(self, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        """The smaller of two unsigned integers."""
        return self.create("llvm.intr.umin", [lhs, rhs], lhs.type).results[0]

    def compare(self, predicate: str, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        """``llvm.icmp``; predicates eq, ne, ult."""
        attribute = ir.IntegerAttr.get(self.i64, _PREDICATES[predicate])
        return self.create("llvm.icmp", [lhs, rhs], self.i1, {"predicate": attribute}).results[0]

    def offset(self, base: ir.Value, nbytes: int) -> ir.Value:
        """``base`` plus a constant number of bytes."""
        if nbytes == 0:
            return base
        if nbytes >= _STATIC_LIMIT:  # static indices are 32 bits wide
            return self.dynamic_offset(base, self.integer(nbytes))
        return self._gep([base], nbytes)

    def dynamic_offset(self, base: ir.Value, nbytes: ir.Value) -> ir.Value:
        """``base`` plus ``nbytes`` bytes."""
        return self._gep([base, nbytes], _DYNAMIC)

    def _gep(self, operands: Sequence[ir.Value], index: int) -> ir.Value:
        attributes: Mapping[str, ir.Attribute] = {
            "elem_type": self._i8_attribute,
            "rawConstantIndices": ir.DenseI32ArrayAttr.get([index]),
        }
        return self.create("llvm.getelementptr", operands, self.ptr, attributes).results[0]

    def load(self, pointer: ir.Value, kind: ir.Type) -> ir.Value:
        """Load a ``kind`` from ``pointer``."""
        return self.create("llvm.load", [pointer], kind, {"ordering": self._order()}).results[0]

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        """Store a value at ``pointer``."""
        self.create("llvm.store", [value, pointer], None, {"ordering": self._order()})

    def _order(self) -> ir.Attribute:
        return ir.IntegerAttr.get(self.i64, 0)  # not atomic

    def memcpy(self, target: ir.Value, source: ir.Value, nbytes: ir.Value) -> None:
        """Copy ``nbytes`` bytes between disjoint buffers."""
        volatile = {"isVolatile": ir.IntegerAttr.get(self.i1, 0)}
        self.create("llvm.intr.memcpy", [target, source, nbytes], None, volatile)

    def call(self, name: str, operands: Sequence[ir.Value]) -> None:
        """Call a function without result."""
        attributes: Mapping[str, ir.Attribute] = {
            "callee": ir.FlatSymbolRefAttr.get(name),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0]),
            "op_bundle_sizes": self._no_bundles,
        }
        self.create("llvm.call", operands, None, attributes)

    def call_pointer(
        self, function: ir.Value, operands: Sequence[ir.Value], result: ir.Type
    ) -> ir.Value:
        """Call the function at an address."""
        attributes: Mapping[str, ir.Attribute] = {
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands) + 1, 0]),
            "op_bundle_sizes": self._no_bundles,
        }
        return self.create("llvm.call", [function, *operands], result, attributes).results[0]

    def select(self, condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
        """``then`` when the i1 is true."""
        return self.create("llvm.select", [condition, then, otherwise], then.type).results[0]

    def branch(self, target: ir.Block) -> None:
        """Jump."""
        self.create("llvm.br", successors=[target])

    def branch_if(self, condition: ir.Value, then: ir.Block, otherwise: ir.Block) -> None:
        """Jump to ``then`` when the i1 is true."""
        attributes: Mapping[str, ir.Attribute] = {
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0])
        }
        self.create("llvm.cond_br", [condition], None, attributes, [then, otherwise])
