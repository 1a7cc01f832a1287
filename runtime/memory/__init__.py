# SPDX-License-Identifier: Apache-2.0
"""Memory for code, constants, temporaries and arrays."""
