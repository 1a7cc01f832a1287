# SPDX-License-Identifier: Apache-2.0
"""The ``hlo`` and ``rt`` dialects: definitions, builders and verifiers."""
