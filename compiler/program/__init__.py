# SPDX-License-Identifier: Apache-2.0
"""From a fused ``hlo`` module to an ``rt`` program and its native entry function.

:func:`~gristmill.compiler.program.build.build_program` schedules the steps, gives every value memory and writes
the ``rt`` module; :func:`~gristmill.compiler.program.entry.lower_entry` turns that module into the one
function that the runtime calls.
"""

from gristmill.compiler.program.build import RtProgram, build_program
from gristmill.compiler.program.entry import lower_entry
from gristmill.compiler.program.importer import Constant
from gristmill.compiler.program.profile import Profile

__all__ = ["Constant", "Profile", "RtProgram", "build_program", "lower_entry"]
