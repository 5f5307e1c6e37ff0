"""Where Chromium and axe-core are; None if they are not installed (`make browser` installs both where it can)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
AXE = next(
    (
        path
        for folder in (os.environ.get("GRASH_AXE", ""), str(Path(__file__).parents[1] / ".venv" / "axe"))
        if folder and (path := Path(folder) / "node_modules" / "axe-core" / "axe.min.js").is_file()
    ),
    None,
)
