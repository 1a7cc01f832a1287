# SPDX-License-Identifier: Apache-2.0
"""Names, donation and aliasing of the entry function's arguments and results.

In: the attributes and locations that JAX puts on ``@main``, or the module attribute that HLO text's
``input_output_alias`` becomes. Out: the ``gristmill.*`` attributes that
:mod:`gristmill.compiler.frontends` documents.
"""

from __future__ import annotations

from jaxlib.mlir import ir as source_ir
from mlir import ir
from mlir.dialects import func

from gristmill.compiler.frontends.views import Value, arguments, first_block


def annotate(source: source_ir.Operation, target: func.FuncOp) -> None:
    """Set the argument and result attributes of ``target`` from the source entry function."""
    parameters = arguments(first_block(source))
    dictionaries = _dictionaries(source, "arg_attrs", len(parameters))
    aliases = _module_aliases(source)
    argument_attributes = [
        _argument(argument, attributes, aliases.get(index))
        for index, (argument, attributes) in enumerate(zip(parameters, dictionaries, strict=True))
    ]
    count = len(target.type.results)
    results = [_result(attributes) for attributes in _dictionaries(source, "res_attrs", count)]
    if any(argument_attributes):
        target.operation.attributes["arg_attrs"] = _array(argument_attributes)
    if any(results):
        target.operation.attributes["res_attrs"] = _array(results)


def _array(dictionaries: list[dict[str, ir.Attribute]]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.DictAttr.get(entries) for entries in dictionaries])


def _dictionaries(
    source: source_ir.Operation, name: str, count: int
) -> list[dict[str, source_ir.Attribute]]:
    if name not in source.attributes:
        return [{} for _ in range(count)]
    dictionaries = source_ir.ArrayAttr(source.attributes[name])
    return [
        {named.name: named.attr for named in source_ir.DictAttr(entry)} for entry in dictionaries
    ]


def _module_aliases(source: source_ir.Operation) -> dict[int, int]:
    """Argument index to result index, from HLO's ``input_output_alias`` (tuple parts excepted)."""
    module = source.parent
    if module is None or "mhlo.input_output_alias" not in module.attributes:
        return {}
    aliases: dict[int, int] = {}
    for item in source_ir.ArrayAttr(module.attributes["mhlo.input_output_alias"]):
        entry = source_ir.DictAttr(item)
        alias = source_ir.DictAttr(entry["alias"])
        output = list(source_ir.DenseI64ArrayAttr(entry["output_index"]))
        if len(output) <= 1 and not list(source_ir.DenseI64ArrayAttr(alias["parameter_index"])):
            number = source_ir.IntegerAttr(alias["parameter_number"]).value
            aliases[number] = output[0] if output else 0
    return aliases


def _argument(
    argument: Value,
    attributes: dict[str, source_ir.Attribute],
    alias: int | None,
) -> dict[str, ir.Attribute]:
    found: dict[str, ir.Attribute] = {}
    location = argument.location
    if isinstance(location, source_ir.NameLoc):
        found["gristmill.name"] = ir.StringAttr.get(str(location.name_str))
    if "tf.aliasing_output" in attributes:
        alias = source_ir.IntegerAttr(attributes["tf.aliasing_output"]).value
    if alias is not None:
        found["gristmill.alias"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), alias)
    if alias is not None or "jax.buffer_donor" in attributes:
        found["gristmill.donated"] = ir.UnitAttr.get()
    return found


def _result(attributes: dict[str, source_ir.Attribute]) -> dict[str, ir.Attribute]:
    info = attributes.get("jax.result_info")
    if info is None or not source_ir.StringAttr(info).value:
        return {}
    return {"gristmill.name": ir.StringAttr.get(source_ir.StringAttr(info).value)}
