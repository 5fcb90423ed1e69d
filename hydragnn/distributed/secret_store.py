"""Store of keys for ranks on several nodes, guarded by a secret.

torch's ``TCPStore`` has no secret and lists its keys to everyone who connects, so that not even a secret prefix would
protect them. Here both sides prove that they know the secret (HMAC-SHA256 over fresh numbers of both) before anything is
read or written, and once all ranks are connected nobody listens any more.
What this protects from: processes on the network, and of other users on the same nodes, that connect to the port. What it
does not: whoever can read or change packets between the nodes, because what follows the proof is not encrypted; and the
connections of gloo and NCCL themselves, which have no secret and trust the network between the nodes of a job.
"""

import asyncio
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hydragnn.distributed.launch import LaunchError

SECONDS_FOR_PROOF = 10.0
"""How long whoever connects may take to prove that it knows the secret."""

STRANGERS = 256
"""Connections without proof that are held at one time; more are closed at once, and ranks among them try again."""

SECONDS_OF_SILENCE = 120.0
"""After how long without an answer the first rank counts as gone; it answers every question within two."""

LONGEST = 2**26
"""Bytes of the longest message."""

_NONCE = _PROOF = 32
_SECONDS_OF_ONE_ANSWER = 2.0


@contextmanager
def served_store(address: str, secret: bytes, ranks: int) -> Iterator[int]:
    """Serve an empty store in the block; yield its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=max(128, ranks))
    server = _Server(secret, ranks)
    thread = threading.Thread(target=asyncio.run, args=(server.serve(listener),), daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.end()
        thread.join(SECONDS_FOR_PROOF)


class _Server:
    """Keys, values and connections, all in one thread."""

    def __init__(self, secret: bytes, ranks: int) -> None:
        self._secret, self._absent, self._strangers = secret, ranks, 0
        self._values: dict[str, bytes] = {}
        self._ready = threading.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Answer until ``end``."""
        self._loop, self._over, self._changed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Condition()
        self._server = await asyncio.start_server(self._talk, sock=listener, limit=LONGEST)
        self._ready.set()
        await self._over.wait()
        self._server.close()

    def end(self) -> None:
        """Answer no more."""
        if self._ready.wait(SECONDS_FOR_PROOF):
            self._loop.call_soon_threadsafe(self._over.set)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if await self._knows_secret(reader, writer):
                while True:
                    answer = await self._answer(*json.loads(await _read_message(reader)))
                    writer.write(_message(answer))
                    await writer.drain()
        writer.close()

    async def _knows_secret(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return True after both sides proved that they know the secret."""
        if self._strangers >= STRANGERS:
            return False
        self._strangers += 1
        try:
            async with asyncio.timeout(SECONDS_FOR_PROOF):
                ours = secrets.token_bytes(_NONCE)
                writer.write(ours)
                theirs, proof = await reader.readexactly(_NONCE), await reader.readexactly(_PROOF)
                if not hmac.compare_digest(proof, _proof(self._secret, b"rank", ours, theirs)):
                    return False
                writer.write(_proof(self._secret, b"store", ours, theirs))
                await writer.drain()
        finally:
            self._strangers -= 1
        self._absent -= 1
        if not self._absent:
            self._server.close()  # all ranks are connected: from now on nobody listens
        return True

    async def _answer(self, what: str, keys: list[str], values: list[str], number: int | float) -> Any:
        async with self._changed:
            if what == "get":
                with suppress(TimeoutError):
                    async with asyncio.timeout(number):
                        await self._changed.wait_for(lambda: all(key in self._values for key in keys))
                return [self._values[key].hex() if key in self._values else None for key in keys]
            if what == "count":
                return len(self._values)
            answer = self._change(what, keys, [bytes.fromhex(value) for value in values], int(number))
            self._changed.notify_all()
            return answer

    def _change(self, what: str, keys: list[str], values: list[bytes], number: int) -> Any:
        match what:
            case "set":
                return self._values.update(zip(keys, values, strict=True))
            case "append":
                self._values[keys[0]] = self._values.get(keys[0], b"") + values[0]
                return None
            case "add":
                self._values[keys[0]] = str(int(self._values.get(keys[0], b"0")) + number).encode()
                return int(self._values[keys[0]])
            case "swap":
                expected, desired = values
                if self._values.get(keys[0], b"") == expected:
                    self._values[keys[0]] = desired
                return self._values.get(keys[0], expected).hex()
            case "delete":
                return self._values.pop(keys[0], None) is not None
        raise ValueError(f"a store cannot {what}")


class SecretStore(dist.Store):
    """Client of the store, with the operations that torch needs.

    LaunchError where the store cannot be reached within ``patience``, or does not know the secret.
    """

    def __init__(self, address: str, port: int, secret: bytes, patience: timedelta) -> None:
        """Connect, and prove both sides."""
        super().__init__()
        self._patience = patience
        self._lock = threading.Lock()  # NCCL asks from threads of its own
        self._socket = _connect(address, port, secret, patience.total_seconds())

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value."""
        self._ask("set", [key], [value])

    def get(self, key: str) -> bytes:
        """The value, once it is there."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of all keys; DistStoreError names missing ones."""
        return self._present(keys, self._patience)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Write several values."""
        self._ask("set", keys, values)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set; DistStoreError names missing ones."""
        self._present(keys, timeout or self._patience)

    def check(self, keys: Sequence[str]) -> bool:
        """Return True where all keys are there."""
        return None not in self._ask("get", keys)

    def add(self, key: str, amount: int) -> int:
        """Count up; gives the number after it."""
        return int(self._ask("add", [key], number=amount))

    def append(self, key: str, value: bytes | str) -> None:
        """Write behind what is there."""
        self._ask("append", [key], [value])

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Write ``desired`` where ``expected`` stands; gives what stands there then."""
        return bytes.fromhex(self._ask("swap", [key], [expected, desired]))

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return bool(self._ask("delete", [key]))

    def num_keys(self) -> int:
        """The number of keys."""
        return int(self._ask("count"))

    def has_extended_api(self) -> bool:
        """Several keys are read and written at once."""
        return True

    def clone(self) -> "SecretStore":
        """This store: its connection may be used by several threads."""
        return self

    deleteKey, getNumKeys, compareSet = delete_key, num_keys, compare_set
    multiGet, multiSet, hasExtendedApi = multi_get, multi_set, has_extended_api

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def _present(self, keys: Sequence[str], timeout: timedelta) -> list[bytes]:
        """Return the values of all keys, by short requests between threads."""
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            remaining = deadline - time.monotonic()
            values = self._ask("get", keys, number=max(0.0, min(remaining, _SECONDS_OF_ONE_ANSWER)))
            missing = [key for key, value in zip(keys, values, strict=True) if value is None]
            if not missing:
                return [bytes.fromhex(value) for value in values]
            if remaining <= 0:
                raise dist.DistStoreError(f"{', '.join(missing)} not set by a peer within {timeout}")

    def _ask(
        self, what: str, keys: Sequence[str] = (), values: Sequence[bytes | str] = (), number: int | float = 0
    ) -> Any:
        written = [(value.encode() if isinstance(value, str) else bytes(value)).hex() for value in values]
        with self._lock:
            try:
                self._socket.sendall(_message([what, list(keys), written, number]))
                (length,) = struct.unpack("!I", _receive(self._socket, 4))
                return json.loads(_receive(self._socket, length))
            except (OSError, ValueError) as error:
                raise dist.DistNetworkError(
                    f"the first rank's store is gone ({error}): connection closed by peer"
                ) from error


def _connect(address: str, port: int, secret: bytes, seconds: float) -> socket.socket:
    """A connection whose two sides know the secret."""
    deadline, pause = time.monotonic() + seconds, 0.05
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=SECONDS_FOR_PROOF)
            try:
                _prove(connection, secret)
            except BaseException:
                connection.close()
                raise
            connection.settimeout(SECONDS_OF_SILENCE)
            return connection
        except OSError as error:
            if time.monotonic() + pause > deadline:
                raise LaunchError(
                    f"the first rank's store at {address} port {port} does not answer ({error}); name the interface that "
                    "joins the nodes in GLOO_SOCKET_IFNAME"
                ) from error
        time.sleep(pause)
        pause = min(1.0, 2 * pause)


def _prove(connection: socket.socket, secret: bytes) -> None:
    """Prove this side, then check the other; LaunchError on failure."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs, ours = _receive(connection, _NONCE), secrets.token_bytes(_NONCE)
    connection.sendall(ours + _proof(secret, b"rank", theirs, ours))
    if not hmac.compare_digest(_receive(connection, _PROOF), _proof(secret, b"store", theirs, ours)):
        address, port = connection.getpeername()[:2]
        raise LaunchError(
            f"what answers at {address} port {port} is not the first rank of this run; start the run again"
        )


def _proof(secret: bytes, side: bytes, store: bytes, rank: bytes) -> bytes:
    return hmac.digest(secret, b"hydragnn " + side + store + rank, "sha256")


def _message(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("!I", len(text)) + text


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    if length > LONGEST:
        raise ValueError(f"a message of {length} bytes is longer than {LONGEST}")
    return await reader.readexactly(length)


def _receive(connection: socket.socket, count: int) -> bytes:
    """Return that many bytes; ConnectionError at an early end."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 2**20))
        if not part:
            raise ConnectionError("closed by the other side")
        parts += part
    return bytes(parts)
