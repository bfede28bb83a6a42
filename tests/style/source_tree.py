# SPDX-License-Identifier: Apache-2.0
"""SourceTree: the files that belong to the repository, as the style rules read them."""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

CPP_SUFFIXES = (".h", ".cc", ".cu", ".cuh")
CODE_SUFFIXES = CPP_SUFFIXES + (".py", ".sh", ".proto")
TEXT_SUFFIXES = CODE_SUFFIXES + (".md", ".txt", ".cmake", ".json", ".yaml", ".yml", ".service")
DATA_FOLDERS = {"testdata", "goldens", "golden", "data"}


@dataclass(frozen=True)
class Finding:
    rule: str
    path: str
    line: int
    message: str
    warning: bool = False

    def __str__(self):
        kind = "warning" if self.warning else "error"
        return f"{self.path}:{self.line}: {kind}: {self.message} [{self.rule}]"


_TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<delimiter>[^(\s"\\]*)\(.*?\)(?P=delimiter)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)


def strip_comments_and_strings(text):
    """Blanks C++ comments and literals, and keeps every line where it was."""

    def blank(match):
        body = match.group(0)
        kept = '""' if body.endswith('"') else ""
        return kept + "\n" * body.count("\n")

    return _TOKENS.sub(blank, text)


def line_comments(text):
    """The line and the words of each C++ comment that begins with two slashes."""
    for match in _TOKENS.finditer(text):
        if match.group(0).startswith("//"):
            yield text.count("\n", 0, match.start()) + 1, match.group(0).lstrip("/").strip()


@dataclass
class SourceFile:
    path: str  # Relative to the root, with forward slashes.
    text: str
    executable: bool
    _code: str = field(default=None, repr=False)

    @property
    def name(self):
        return self.path.rsplit("/", 1)[-1]

    @property
    def suffix(self):
        return os.path.splitext(self.path)[1]

    @property
    def lines(self):
        return self.text.split("\n")

    @property
    def code(self):
        """The text without comments and literals; C++ only."""
        if self._code is None:
            self._code = strip_comments_and_strings(self.text)
        return self._code

    def is_cpp(self):
        return self.suffix in CPP_SUFFIXES

    def is_data(self):
        return bool(DATA_FOLDERS & set(self.path.split("/")[:-1]))

    def is_text(self):
        known = self.suffix in TEXT_SUFFIXES or self.name == "CMakeLists.txt"
        return (known or self.text.startswith("#!")) and not self.is_data()


class SourceTree:
    """Every tracked file, and every untracked one that git does not ignore.

    Outside a git checkout (a release archive, a temporary tree of the self test) every file but
    those under build/.
    """

    def __init__(self, root):
        self.root = Path(root)
        self.paths = sorted(self._list())
        self.files = [f for f in map(self._read, self.paths) if f is not None]

    def exists(self, path):
        return (self.root / path).exists()

    def _list(self):
        command = ["git", "-C", str(self.root), "ls-files", "-co", "--exclude-standard", "-z"]
        if (self.root / ".git").exists():
            listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            return {p for p in listed.split("\0") if p and (self.root / p).is_file()}
        return {
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if path.is_file() and path.relative_to(self.root).parts[0] != "build"
        }

    def _read(self, path):
        full = self.root / path
        try:
            text = full.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return None
        return SourceFile(path, text, os.access(full, os.X_OK))
