# SPDX-License-Identifier: Apache-2.0
"""What holds for every test."""

from __future__ import annotations

import os

# Every test sees the compiler work; those of the cache name a directory of their own.
os.environ["GRISTMILL_CACHE"] = "0"
