"""The remote tier of the compile cache: a store that machines share, at any URL that fsspec knows.

``TORCH_TPU_REMOTE_CACHE`` names it; without that variable nothing here is imported. Programs are read while a call waits,
at most ``TORCH_TPU_REMOTE_TIMEOUT`` seconds, and written by a thread. The first failure (no such host, no permission, too
slow) gives the store up for the rest of the process with one warning: programs are then compiled. The core checks what is read.
"""

import contextlib
import functools
import queue
import threading
import warnings
from collections.abc import Callable
from typing import Any

import fsspec

from torch_tpu import _C

# Entries that wait for the writer; a store that is too slow for more gets the rest from the next process.
_QUEUE_SIZE = 256
_DEFAULT_TIMEOUT = 10.0  # seconds, as in core/run/env.h


class _LateError(Exception):
    """The store did not answer in time."""


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Returns what ``call`` returns or raises what it raises; ``_LateError`` if that takes longer.

    The call then goes on in its thread, which does not keep the process alive.
    """
    outcome: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((True, call()))
        except BaseException as error:
            outcome.put((False, error))

    threading.Thread(target=run, name="torch_tpu remote cache call", daemon=True).start()
    try:
        succeeded, result = outcome.get(timeout=seconds)
    except queue.Empty:
        raise _LateError(f"no answer within {seconds:g} s") from None
    if succeeded:
        return result
    raise result


class RemoteCache:
    """Entries by name in the folder at ``url``; ``timeout`` in seconds."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._lock = threading.Lock()  # guards _given_up and _writer
        self._given_up = False
        self._writer: threading.Thread | None = None
        self._waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_QUEUE_SIZE)
        self._opened: tuple[Any, str] | None = None

    def _open(self) -> tuple[Any, str]:
        """The file system and the folder in it; opened on first use, since that may ask the network."""
        if self._opened is None:
            self._opened = fsspec.core.url_to_fs(self.url)
        return self._opened

    def _give_up(self, doing: str, error: BaseException) -> None:
        with self._lock:
            told, self._given_up = self._given_up, True
        if not told:
            reason = str(error) or type(error).__name__
            warnings.warn(
                f"torch_tpu: the remote compile cache {self.url} is given up for this process, {doing} failed: {reason}. "
                "Programs that are not on disk are compiled.",
                stacklevel=2,
            )

    def _read(self, name: str) -> bytes | None:
        fs, folder = self._open()
        try:
            return fs.cat_file(f"{folder}/{name}")
        except FileNotFoundError:
            return None

    def _write(self, name: str, entry: bytes) -> None:
        fs, folder = self._open()
        if fs.protocol in ("file", ("file", "local")):
            # Readers must not see half of it; stores on a network write whole objects.
            fs.makedirs(folder, exist_ok=True)
            part = f"{folder}/.{name}.{threading.get_native_id()}"
            fs.pipe_file(part, entry)
            fs.mv(part, f"{folder}/{name}")
        else:
            fs.pipe_file(f"{folder}/{name}", entry)

    def fetch(self, name: str) -> bytes | None:
        """The entry's bytes, ``None`` if the store has none or was given up. Never raises."""
        if self._given_up:
            return None
        try:
            return _within(self.timeout, functools.partial(self._read, name))
        except Exception as error:
            self._give_up("reading", error)
            return None

    def store(self, name: str, entry: bytes) -> None:
        """Hands the entry to the writer and returns. Never raises."""
        if self._given_up:
            return
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="torch_tpu remote cache", daemon=True)
                self._writer.start()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((name, entry))

    def _write_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            name, entry = item
            if self._given_up:
                continue
            try:
                _within(self.timeout, functools.partial(self._write, name, entry))
            except Exception as error:
                self._give_up("writing", error)

    def close(self) -> None:
        """Lets the writer finish, at most ``timeout`` seconds. For the end of the process."""
        if self._writer is None or self._given_up:
            return
        try:
            self._waiting.put(None, timeout=self.timeout)
        except queue.Full:
            return
        self._writer.join(self.timeout)

    def names(self) -> list[str]:
        """The names of all entries.

        Raises:
            OSError: the store cannot be listed.
        """
        fs, folder = self._open()
        try:
            paths = fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in paths)
        return sorted(name for name in names if len(name) == 64 and not name.strip("0123456789abcdef"))


_installed: RemoteCache | None = None


def installed() -> RemoteCache | None:
    """The store in use."""
    return _installed


def install(url: str, timeout: str) -> None:
    """Makes the store at ``url`` the cache's third tier until the process ends.

    Of a faulty ``timeout`` the core tells when the first device is used; ``import torch`` must not fail for it.
    """
    global _installed
    _installed = RemoteCache(url, float(timeout) if timeout.isdecimal() else _DEFAULT_TIMEOUT)
    _C._cache_set_remote(_installed.fetch, _installed.store)
    # Before Python forbids new threads at its end, which file systems need for their last writes; atexit comes after that.
    threading._register_atexit(_installed.close)  # type: ignore[attr-defined]
