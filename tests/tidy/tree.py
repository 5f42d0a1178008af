# SPDX-License-Identifier: Apache-2.0
"""The tree that the rules look at: which files there are, their text, and how a finding is written down."""
import dataclasses
import functools
import os
import pathlib
import subprocess

# Never ours to judge: what was built or downloaded, and generated data.
SKIPPED = {".git", "build", ".venv", "node_modules", "__pycache__", "target"}


@dataclasses.dataclass
class Finding:
    path: str
    line: int
    what: str
    soft: bool = False

    def __str__(self):
        return f"{self.path}:{self.line}: {self.what}" if self.line else f"{self.path}: {self.what}"


class Tree:
    def __init__(self, root, build=None):
        self.root = pathlib.Path(root).resolve()
        self.build = pathlib.Path(build).resolve() if build else None

    @functools.cached_property
    def files(self):
        """Paths below the root, with '/', of all files that git does not ignore (all files where there is no git)."""
        if (self.root / ".git").exists():
            listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                                     "--exclude-standard"], cwd=self.root, capture_output=True, check=True).stdout
            names = listed.decode().split("\0")
            return sorted({name for name in names if name and (self.root / name).is_file()})
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name not in SKIPPED]
            found += [(pathlib.Path(folder) / name).relative_to(self.root).as_posix() for name in names]
        return sorted(found)

    def matching(self, folders, suffixes):
        """Files below one of `folders` ("" for all) that end in one of `suffixes`."""
        return [path for path in self.files
                if path.endswith(tuple(suffixes)) and any(path.startswith(f"{folder}/") if folder else True
                                                          for folder in folders)]

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def exists(self, path):
        return (self.root / path).exists()
