"""The secret that the nodes of a session share: from a variable, or from a file that only its owner may read."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TRAINBENCH_NODE_KEY"
"""The variable that holds the secret. It wins over the file."""

LEAST_CHARACTERS = 16
"""Minimum length of a secret. Somebody who records a connection can try short ones."""

MOST_BYTES = 4096

MAKE_ONE = "openssl rand -hex 32"


def key_file() -> Path:
    """The file of the secret, in the user's data folder. Machines with a shared home folder share it."""
    from platformdirs import user_data_path

    return user_data_path("pytest-trainbench", appauthor=False) / "node-key"


def find(environ: Mapping[str, str]) -> bytes | None:
    """The secret of this machine's user; ``None`` if there is none yet.

    Raises ``ValueError`` if the variable or the file cannot be used.
    """
    if given := environ.get(VARIABLE):
        return _checked(given, VARIABLE)
    path = key_file()
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise ValueError(f"{path} holds the nodes' key and others may read it: type chmod 600 {path}")
            text = file.read(MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path} holds the nodes' key and cannot be read: {error.strerror}") from None
    return _checked(text, str(path))


def find_or_make(environ: Mapping[str, str]) -> bytes:
    """The same, and a new secret in the file if there is none yet. Raises ``ValueError`` if it cannot be written."""
    if (found := find(environ)) is not None:
        return found
    path = key_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".node-key-")  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(secrets.token_hex(32) + "\n")
            os.link(temporary, path)  # fails if another session was faster; its secret is as good
        except FileExistsError:
            pass
        finally:
            Path(temporary).unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}): set {VARIABLE} on every node") from None
    made = find(environ)
    assert made is not None
    return made


def where(environ: Mapping[str, str]) -> str:
    """Where the secret is, for a sentence to the user."""
    return VARIABLE if environ.get(VARIABLE) else str(key_file())


def _checked(text: str, source: str) -> bytes:
    secret = text.strip().encode()
    if len(secret) < LEAST_CHARACTERS:
        raise ValueError(
            f"{source} has {len(secret)} characters, and a key needs at least {LEAST_CHARACTERS}: take {MAKE_ONE}"
        )
    return secret
