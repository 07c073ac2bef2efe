"""The nodes' store, on real sockets: without the key nothing is read, run or said."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_trainbench.launch import cluster, keyed_store, node_key
from pytest_trainbench.launch.keyed_store import Channel, Gone, KeyedClient, KeyedServer, WrongKey

KEY, OTHER = b"a key that is long enough", b"another key, as long as it"


class Opened:
    """A server, and the sentences about connections that it refused."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.refused: list[str] = []
        self.server = KeyedServer(host, 0, secret=KEY, texts={"session": "{}"}, refused=self.refused.append)
        self.port = self.server.port

    def client(self, key: bytes = KEY) -> KeyedClient:
        return KeyedClient("127.0.0.1", self.port, secret=key, wait_s=5)

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def says(self, what: str) -> None:
        wait_for(lambda: any(what in sentence for sentence in self.refused))


@pytest.fixture
def opened() -> Iterator[Opened]:
    one = Opened()
    yield one
    one.server.close()


def wait_for(what: Callable[[], object], *, within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_clients_share_texts_with_the_server(opened: Opened) -> None:
    one, two = opened.client(), opened.client()
    one.set("a", "ä" * 70_000)
    assert (two.get("a"), two.check("a"), two.check("b")) == ("ä" * 70_000, True, False)
    assert [one.add("n", 1), two.add("n", 1), opened.server.add("n", 1)] == [1, 2, 3]
    two.delete("a")
    assert not opened.server.check("a")
    with pytest.raises(LookupError, match="KeyError: 'a'"):
        one.get("a")
    assert opened.refused == []


def test_a_client_with_another_key_reads_and_writes_nothing(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(WrongKey, match="closed the connection, so it is no session with this key"):
        opened.client(OTHER)
    opened.says("it does not have this session's key")
    assert opened.refused[0].startswith("refused 127.0.0.1 (port ")
    assert opened.refused[0] in caplog.messages, "the log names the address"


def test_a_client_refuses_a_server_with_another_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(bytes(32))
                connection.recv(64)
                connection.sendall(bytes(32))

        threading.Thread(target=pretend, daemon=True).start()
        with pytest.raises(WrongKey, match="does not have this session's key"):
            KeyedClient("127.0.0.1", listening.getsockname()[1], secret=KEY, wait_s=5)


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 64, b"x" * 100_000])
def test_a_stranger_hears_only_random_bytes(opened: Opened, words: bytes) -> None:
    with opened.stranger() as stranger:
        heard = b""
        try:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            while part := stranger.recv(1000):
                heard += part
        except ConnectionError:  # the server closed the connection before it read everything
            pass
    assert len(heard) <= 32
    opened.says("refused 127.0.0.1")
    assert opened.client().check("session"), "the session goes on"


def test_a_silent_stranger_is_cut_off(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_store, "PROVE_S", 0.3)
    with opened.stranger() as stranger:
        stranger.recv(32)
        for _ in range(8):  # each byte in time does not make the whole proof in time
            time.sleep(0.1)
            try:
                stranger.sendall(b"x")
            except ConnectionError:
                break
        opened.says("it did not prove that it has this session's key")


def test_many_strangers_keep_no_node_out_for_long(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_store, "PROVE_S", 0.5)
    strangers = [opened.stranger() for _ in range(keyed_store.MOST_STRANGERS + 10)]
    wait_for(lambda: len(opened.refused) >= keyed_store.MOST_STRANGERS)
    assert opened.client().check("session")
    for stranger in strangers:
        stranger.close()


class Between:
    """A machine between client and server. ``change`` gets each message of the client, and returns what is sent on."""

    def __init__(self, port: int, change: Callable[[int, bytes], bytes]) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.client: list[bytes] = []
        self.server: list[bytes] = []
        self._to, self._change = port, change
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self.listening.accept()
        server = socket.create_connection(("127.0.0.1", self._to))
        with client, server:
            client.sendall(server.recv(32))
            server.sendall(client.recv(64))
            client.sendall(server.recv(32))
            number = 0
            while asked := client.recv(10_000):
                self.client.append(asked)
                server.sendall(self._change(number, asked))
                number += 1
                if not (answer := server.recv(10_000)):
                    return
                self.server.append(answer)
                client.sendall(answer)


def test_a_message_that_is_repeated_is_refused(opened: Opened) -> None:
    between = Between(opened.port, lambda number, asked: between.client[0] if number == 1 else asked)
    client = KeyedClient("127.0.0.1", between.port, secret=KEY, wait_s=5)
    assert client.add("n", 1) == 1
    with pytest.raises((Gone, WrongKey)):
        client.add("n", 1)
    opened.says("changed, repeated or made without this session's key")
    assert opened.server.get("n") == "1"


def test_a_message_that_is_changed_is_refused(opened: Opened) -> None:
    between = Between(opened.port, lambda _, asked: asked.replace(b'"1"', b'"7"'))
    client = KeyedClient("127.0.0.1", between.port, secret=KEY, wait_s=5)
    with pytest.raises((Gone, WrongKey)):
        client.set("n", "1")
    opened.says("changed, repeated")
    assert not opened.server.check("n")


def test_messages_in_another_order_are_refused() -> None:
    one, two = socket.socketpair()
    with one, two:
        sends, receives = Channel(one, sends=b"a", receives=b"b"), Channel(two, sends=b"b", receives=b"a")
        sends.send("first")
        sends.send("second")
        size = len(keyed_store._sealed(b"a", 0, b'"first"'))
        first, second = two.recv(size), two.recv(100)
        one.sendall(second + first)
        with pytest.raises(WrongKey, match="changed, repeated"):
            receives.receive()


def test_a_message_does_not_pass_in_the_other_direction() -> None:
    """Somebody may send a client's message back to the client as the server's answer."""
    one, two = socket.socketpair()
    with one, two:
        channel = Channel(one, sends=b"to server", receives=b"to client")
        channel.send("first")
        two.sendall(two.recv(1000))
        with pytest.raises(WrongKey, match="changed, repeated"):
            channel.receive()


def test_a_recorded_connection_does_not_pass_again(opened: Opened) -> None:
    """The server's random bytes differ, so neither the proof nor the messages fit."""
    recorded: list[bytes] = []

    def record(_: int, asked: bytes) -> bytes:
        recorded.append(asked)
        return asked

    between = Between(opened.port, record)
    assert KeyedClient("127.0.0.1", between.port, secret=KEY, wait_s=5).add("n", 1) == 1
    with opened.stranger() as stranger:
        stranger.recv(32)
        stranger.sendall(bytes(64) + recorded[0])
        opened.says("it does not have this session's key")
    assert opened.server.get("n") == "1"


def test_a_length_beyond_all_messages_is_refused_before_it_is_read() -> None:
    one, two = socket.socketpair()
    with one, two:
        two.sendall(b"\xff" * 36)
        with pytest.raises(WrongKey, match="longer than any"):
            Channel(one, sends=b"a", receives=b"b").receive()
        with pytest.raises(ValueError, match="too large"):
            Channel(one, sends=b"a", receives=b"b").send("x" * (keyed_store.MOST_BYTES + 1))


def test_a_client_of_a_dead_server_says_so(opened: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Gone):
        KeyedClient("127.0.0.1", port, secret=KEY, wait_s=0.1)


def test_only_the_address_that_was_asked_for_listens() -> None:
    one = Opened("127.0.0.1")
    with socket.socket() as elsewhere, pytest.raises(ConnectionRefusedError):
        elsewhere.connect(("127.0.0.2", one.port))
    everywhere = Opened("")
    with socket.create_connection(("127.0.0.2", everywhere.port)):
        pass
    for opened in (one, everywhere):
        opened.server.close()
    store = cluster._meeting("127.0.0.1")
    with socket.socket() as elsewhere, pytest.raises(ConnectionRefusedError):
        elsewhere.connect(("127.0.0.2", store.port))


# The key


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_the_variable_wins_over_the_file() -> None:
    made = node_key.find_or_make({})
    assert node_key.find({}) == made
    assert node_key.find({"TRAINBENCH_NODE_KEY": " from a secret store \n"}) == b"from a secret store"
    assert node_key.where({"TRAINBENCH_NODE_KEY": "x"}) == "TRAINBENCH_NODE_KEY"


def test_the_first_node_writes_a_key_that_only_its_user_reads() -> None:
    assert node_key.find({}) is None
    made = node_key.find_or_make({})
    path = node_key.key_file()
    assert node_key.find_or_make({}) == node_key.find({}) == made and len(made) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["node-key"]
    assert node_key.where({}) == str(path)


def test_a_key_that_others_may_read_is_refused() -> None:
    node_key.find_or_make({})
    node_key.key_file().chmod(0o640)
    with pytest.raises(ValueError, match=r"others may read it: type chmod 600 .*/node-key"):
        node_key.find({})


@pytest.mark.parametrize("environ", [{"TRAINBENCH_NODE_KEY": "short"}, {}])
def test_a_short_key_is_refused(environ: dict[str, str]) -> None:
    node_key.key_file().parent.mkdir(parents=True)
    os.close(os.open(node_key.key_file(), os.O_CREAT | os.O_WRONLY, 0o600))
    with pytest.raises(ValueError, match=r"has \d characters, and a key needs at least 16: take openssl rand -hex 32"):
        node_key.find(environ)
