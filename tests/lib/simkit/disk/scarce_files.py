"""The Files port in a process that runs out of file descriptors."""

from __future__ import annotations

import errno

from broker.ports.system import File, Files


class ScarceFiles:
    """Passes everything on; after ``allowed`` more calls that need a descriptor there is none."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.allowed: int | None = None  # None: as many as anybody wants
        self.refused_count = 0
        self.exists, self.free_bytes = files.exists, files.free_bytes
        self.replace, self.remove = files.replace, files.remove

    def _take(self, path: str) -> None:
        if self.allowed is None:
            return
        if self.allowed == 0:
            self.refused_count += 1
            raise OSError(errno.EMFILE, "simulated: too many open files", path)
        self.allowed -= 1

    def open(self, path: str, *, create: bool = False) -> File:
        """Open, with a descriptor."""
        self._take(path)
        return self._files.open(path, create=create)

    def list(self, folder: str) -> list[str]:
        """List, with a descriptor."""
        self._take(folder)
        return self._files.list(folder)

    def make_folder(self, folder: str) -> None:
        """Make a folder; its parent is synced with a descriptor."""
        self._take(folder)
        self._files.make_folder(folder)

    def remove_folder(self, folder: str) -> None:
        """Remove, with a descriptor."""
        self._take(folder)
        self._files.remove_folder(folder)

    def sync_folder(self, folder: str) -> None:
        """Sync, with a descriptor."""
        self._take(folder)
        self._files.sync_folder(folder)


class CountedFiles(ScarceFiles):
    """Knows which files are open."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False) -> File:
        """Open, and note it until the file is closed."""
        file = super().open(path, create=create)
        self.opened.append(path)

        def close() -> None:
            self.opened.remove(path)
            close_it()

        close_it, file.close = file.close, close  # type: ignore[method-assign]
        return file
