# SPDX-License-Identifier: Apache-2.0
"""Files of figures that are written anew while a suite runs, so that one that is ended leaves what it has measured."""

import json
import os
import pathlib


def write(path, figures):
    """The whole file or none: what was there stays until the new one is. `path` None: nothing."""
    if path is None:
        return
    path = pathlib.Path(path)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)
