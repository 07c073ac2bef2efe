"""A store of texts by key for the nodes of a session. Each message proves that its sender has the session's secret.

One process opens a :class:`KeyedServer`, and the others connect with a :class:`KeyedClient`. A connection begins so:

1. The server sends 32 random bytes. A stranger hears nothing else.
2. The client sends 32 random bytes and its proof: an HMAC, under the secret, over both random numbers.
3. The server checks the proof, and sends its own. A server that cannot send a proof gets no request.

Each direction of a connection then has a key of its own, which follows from the secret and both random numbers. A
message is its length, an HMAC and JSON. The HMAC covers the number of the message in its direction, the length and the
JSON. So a message that somebody changed, repeated, reordered, left out, sent back or took from another connection does
not pass, and the connection ends. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

NONCE_BYTES, MAC_BYTES, LENGTH_BYTES = 32, 32, 4

PROVE_S = 10.0
"""How long one end waits until the other end has proved that it has the secret."""

MOST_STRANGERS = 64
"""Maximum number of connections that have not proved anything yet. The server closes further ones."""

ANSWER_S = 60.0
"""How long a client waits for an answer. The server answers at once, so a server that takes longer is gone."""

RETRY_S = 0.25
"""Time between two attempts to reach a server that has not started yet."""

MOST_BYTES = 64 * 2**20
"""Maximum size of one message."""


class Gone(ConnectionError):
    """The other end is gone, or cannot be reached."""


class WrongKey(ConnectionError):
    """The other end does not have the same secret, or somebody changed a message."""


class KeyedServer:
    """The end that holds the texts.

    Its methods are those of :class:`KeyedClient`. ``port``: the port that it listens on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        secret: bytes,
        texts: Mapping[str, str],
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``host``: the address to listen on; empty for all addresses of this machine. ``port``: 0 for any free port.

        ``texts``: the first content. ``refused`` is called, from a thread, with a sentence about each connection that
        is refused. The sentence is also logged. Raises ``OSError`` if the address or the port is not available.
        """
        self._secret, self._texts, self._refused = secret, dict(texts), refused
        self._lock = threading.Lock()
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        self._listening = listen(host, port)
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, name="trainbench-nodes", daemon=True).start()

    def set(self, key: str, text: str) -> None:
        with self._lock:
            self._texts[key] = text

    def get(self, key: str) -> str:
        with self._lock:
            return self._texts[key]

    def check(self, key: str) -> bool:
        with self._lock:
            return key in self._texts

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            total = int(self._texts.get(key, "0")) + amount
            self._texts[key] = str(total)
            return total

    def delete(self, key: str) -> None:
        with self._lock:
            self._texts.pop(key, None)

    def close(self) -> None:
        """Accept no more connections. Open connections end with this process."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError:  # closed
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, _told(address)), daemon=True).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        with connection:
            try:
                try:
                    channel = _accepted(connection, self._secret)
                finally:
                    self._strangers.release()
                while True:
                    channel.send(self._answer(channel.receive()))
            except WrongKey as error:
                sentence = f"refused {address}: {error}"
                log.warning(sentence)
                self._refused(sentence)
            except (Gone, OSError):
                pass  # the session notices a lost node by its heartbeat

    def _answer(self, request: Any) -> Any:
        """The answer to a request ``[name, *arguments]`` of a client that has the secret."""
        asks: dict[str, Callable[..., Any]] = {
            "set": self.set,
            "get": self.get,
            "check": self.check,
            "add": self.add,
            "delete": self.delete,
        }
        try:
            name, *arguments = request
            return {"answer": asks[name](*arguments)}
        except (KeyError, TypeError, ValueError) as error:
            return {"problem": f"{type(error).__name__}: {error}"}


class KeyedClient:
    """The end that connects. Every method raises :class:`Gone` if the server is gone, and :class:`WrongKey` if somebody
    changed its answer. A client may be used by one thread at a time."""

    def __init__(self, host: str, port: int, *, secret: bytes, wait_s: float = ANSWER_S) -> None:
        """Connect, and wait up to ``wait_s`` for the server to start.

        Raises :class:`Gone` if there is no server by then, and :class:`WrongKey` if the server has another secret.
        """
        until = time.monotonic() + wait_s
        while True:
            try:
                connection = socket.create_connection((host, port), timeout=max(0.1, min(PROVE_S, wait_s)))
                break
            except OSError as error:  # also a name that is not known yet
                if time.monotonic() > until:
                    raise Gone(str(error)) from None
                time.sleep(RETRY_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._channel = _connected(connection, secret)
            connection.settimeout(ANSWER_S)
        except BaseException:
            connection.close()
            raise

    def set(self, key: str, text: str) -> None:
        self._ask("set", key, text)

    def get(self, key: str) -> str:
        """Raises ``LookupError`` if no text has this key."""
        return str(self._ask("get", key))

    def check(self, key: str) -> bool:
        """Whether there is a text for this key."""
        return bool(self._ask("check", key))

    def add(self, key: str, amount: int) -> int:
        """Add to a whole number, which starts at 0. Returns the sum."""
        return int(self._ask("add", key, amount))

    def delete(self, key: str) -> None:
        self._ask("delete", key)

    def _ask(self, *request: Any) -> Any:
        try:
            self._channel.send(list(request))
            answer = self._channel.receive()
        except (Gone, WrongKey):
            raise
        except OSError as error:
            raise Gone(str(error)) from None
        if "problem" in answer:
            raise LookupError(answer["problem"])
        return answer["answer"]


class Channel:
    """One connection, after both ends have proved that they have the secret.

    ``sends`` and ``receives``: the keys of both directions. Messages are JSON values.
    """

    def __init__(self, connection: socket.socket, *, sends: bytes, receives: bytes) -> None:
        self._connection, self._sends, self._receives = connection, sends, receives
        self._sent = self._received = 0

    def send(self, message: Any) -> None:
        """Raises ``ValueError`` for a message of more than :data:`MOST_BYTES`."""
        body = json.dumps(message).encode()
        if len(body) > MOST_BYTES:
            raise ValueError(f"a message of {len(body):,} bytes is too large: at most {MOST_BYTES:,} can be sent")
        self._connection.sendall(_sealed(self._sends, self._sent, body))
        self._sent += 1

    def receive(self) -> Any:
        """Raises :class:`Gone` at the end of the connection, and :class:`WrongKey` for a message with a wrong HMAC."""
        length = _exactly(self._connection, LENGTH_BYTES)
        size = int.from_bytes(length, "big")
        if size > MOST_BYTES:
            raise WrongKey("it sent a message that is longer than any of this session")
        mac, body = _exactly(self._connection, MAC_BYTES), _exactly(self._connection, size)
        if not hmac.compare_digest(mac, _mac(self._receives, _number(self._received), length, body)):
            raise WrongKey("it sent a message that was changed, repeated or made without this session's key")
        self._received += 1
        return json.loads(body)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on one address, or on all addresses of this machine if ``host`` is empty.

    Raises ``OSError`` if the address or the port is not available.
    """
    if not host:
        both = socket.has_dualstack_ipv6()
        return socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both, backlog=128
        )
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=128)


def _accepted(connection: socket.socket, secret: bytes) -> Channel:
    """The server's side of the proofs."""
    until = time.monotonic() + PROVE_S
    connection.settimeout(PROVE_S)
    mine = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(mine)
    try:
        theirs, proof = _exactly(connection, NONCE_BYTES, until), _exactly(connection, MAC_BYTES, until)
    except (Gone, OSError):
        raise WrongKey("it did not prove that it has this session's key") from None
    if not hmac.compare_digest(proof, _mac(secret, b"client", mine, theirs)):
        raise WrongKey("it does not have this session's key")
    connection.sendall(_mac(secret, b"server", mine, theirs))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Channel(
        connection,
        sends=_mac(secret, b"to client", mine, theirs),
        receives=_mac(secret, b"to server", mine, theirs),
    )


def _connected(connection: socket.socket, secret: bytes) -> Channel:
    """The client's side of the proofs."""
    until = time.monotonic() + PROVE_S
    try:
        theirs, mine = _exactly(connection, NONCE_BYTES, until), secrets.token_bytes(NONCE_BYTES)
        connection.sendall(mine + _mac(secret, b"client", theirs, mine))
        proof = _exactly(connection, MAC_BYTES, until)
    except (Gone, OSError):
        raise WrongKey("it closed the connection, so it is no session with this key") from None
    if not hmac.compare_digest(proof, _mac(secret, b"server", theirs, mine)):
        raise WrongKey("it does not have this session's key")
    return Channel(
        connection,
        sends=_mac(secret, b"to server", theirs, mine),
        receives=_mac(secret, b"to client", theirs, mine),
    )


def _sealed(key: bytes, number: int, body: bytes) -> bytes:
    """Message ``number`` (from 0) of a direction, as it is sent."""
    length = len(body).to_bytes(LENGTH_BYTES, "big")
    return length + _mac(key, _number(number), length, body) + body


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over all parts. Every part but the last has a fixed length for its purpose, so no two lists of parts
    give the same bytes."""
    return hmac.digest(key, b"".join(parts), "sha256")


def _exactly(connection: socket.socket, size: int, until: float | None = None) -> bytes:
    """The next ``size`` bytes. Raises :class:`Gone` if the connection ends, or if they have not come by ``until``."""
    found = bytearray()
    while len(found) < size:
        if until is not None:
            connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(min(size - len(found), 2**20))
        if not part:
            raise Gone("the connection has ended")
        found += part
    return bytes(found)


def _told(address: tuple[Any, ...]) -> str:
    """An address of a peer for a sentence."""
    return f"{str(address[0]).removeprefix('::ffff:')} (port {address[1]})"
