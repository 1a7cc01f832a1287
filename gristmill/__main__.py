# SPDX-License-Identifier: Apache-2.0
"""``python -m gristmill``: the command line."""

import sys

from gristmill.compiler.driver.main import main

if __name__ == "__main__":
    sys.exit(main())
