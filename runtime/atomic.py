# SPDX-License-Identifier: Apache-2.0
"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Generator[IO[bytes], None, None]:
    """A temporary file beside ``path``, readable by its owner only, that takes its place when the block ends.

    After an error ``path`` is what it was and the temporary file is gone. The temporary file's name starts with
    ``path``'s and a dot. ``durable`` waits until the content is on the disk. Raises ``OSError``.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
