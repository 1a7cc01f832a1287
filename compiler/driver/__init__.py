# SPDX-License-Identifier: Apache-2.0
"""The command line: ``gristmill`` with its subcommands, and ``gristmill-opt``."""
