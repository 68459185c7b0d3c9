"""The baseline of `benchmarks.federation`: the same bytes in the same pattern over plain grpc.aio
with mutual TLS, and nothing else. One process for each party, given its name and a plan (JSON).

A plan: {"rounds", "hubs": {name: port}, "clients": {hub: [names]}, "folder", "sizes": {kind: n}}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import grpc

CHUNK = 1 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK + (1 << 16)),
    ("grpc.max_send_message_length", CHUNK + (1 << 16)),
    ("grpc.use_local_subchannel_pool", 1),
]
METHOD = "/baseline.Exchange/Talk"


class Stream:
    """One end of a stream: messages of known sizes, in pieces of a megabyte."""

    def __init__(self, stream: Any):
        self._stream, self.over = stream, asyncio.Event()

    async def send(self, size: int, data: bytes) -> None:
        view = memoryview(data)
        for at in range(0, size, CHUNK):
            await self._stream.write(bytes(view[at : min(at + CHUNK, size)]))

    async def take(self, size: int) -> None:
        left = size
        while left:
            left -= len(await self._stream.read())


class Party:
    def __init__(self, name: str, plan: dict[str, Any]):
        self.name, self.plan, self.sizes = name, plan, plan["sizes"]
        self.data = bytes(max(self.sizes.values()))
        self.streams: dict[str, Stream] = {}
        self.joined = asyncio.Event()

    def _keys(self, name: str) -> tuple[bytes, bytes]:
        folder = Path(self.plan["folder"]) / "parties" / name.replace("/", "-")
        return (folder / "party.key").read_bytes(), (folder / "party.pem").read_bytes()

    def _cas(self) -> bytes:
        folder = Path(self.plan["folder"]) / "keys"
        return b"".join((folder / hub / "ca.pem").read_bytes() for hub in self.plan["hubs"])

    async def listen(self, expected: int) -> Any:
        async def answer(_: Any, context: Any) -> None:
            stream = Stream(context)
            self.streams[(await context.read()).decode()] = stream
            if len(self.streams) == expected:
                self.joined.set()
            await stream.over.wait()

        class Handler(grpc.GenericRpcHandler):
            def service(self, details: Any) -> Any:
                return grpc.stream_stream_rpc_method_handler(answer)

        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((Handler(),))
        secure = grpc.ssl_server_credentials([self._keys(self.name)], self._cas(), True)
        server.add_secure_port(f"127.0.0.1:{self.plan['hubs'][self.name]}", secure)
        await server.start()
        return server

    async def dial(self, hub: str) -> Any:
        from fedloom.deployment.keys.certificates import host_name

        key, certificate = self._keys(self.name)
        secure = grpc.ssl_channel_credentials(self._cas(), key, certificate)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", host_name(hub))]
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{self.plan['hubs'][hub]}", secure, options=options
        )
        call = channel.stream_stream(METHOD)(wait_for_ready=True)
        await call.write(self.name.encode())
        self.streams[hub] = Stream(call)
        return channel

    async def each(self, names: list[str], verb: str, kind: str) -> None:
        size = self.sizes[kind]
        if verb == "send":
            await asyncio.gather(*(self.streams[name].send(size, self.data) for name in names))
        else:
            await asyncio.gather(*(self.streams[name].take(size) for name in names))


async def hub(party: Party) -> list[float]:
    order = list(party.plan["hubs"])
    others = [name for name in order if name != party.name]
    clients = [f"{party.name}/{name}" for name in party.plan["clients"][party.name]]
    earlier = order[: order.index(party.name)]
    server = await party.listen(len(others) + len(clients))
    channels = [await party.dial(name) for name in earlier]
    if len(party.streams) == len(others) + len(clients):
        party.joined.set()
    await asyncio.wait_for(party.joined.wait(), 120)
    seconds = []
    for _ in range(party.plan["rounds"]):
        began = time.perf_counter()
        await party.each(clients, "send", "model")
        await party.each(clients, "take", "embedding")
        await asyncio.gather(
            party.each(others, "send", "hub-embedding"), party.each(others, "take", "hub-embedding")
        )
        await party.each(clients, "send", "rest")
        await party.each(clients, "take", "update")
        seconds.append(time.perf_counter() - began)
    for stream in party.streams.values():
        stream.over.set()
    for channel in channels:
        await channel.close()
    await server.stop(1)
    return seconds


async def client(party: Party) -> list[float]:
    own = party.name.split("/")[0]
    channel = await party.dial(own)
    for _ in range(party.plan["rounds"]):
        for verb, kind in (
            ("take", "model"),
            ("send", "embedding"),
            ("take", "rest"),
            ("send", "update"),
        ):
            await party.each([own], verb, kind)
    await channel.close()
    return []


def main() -> None:
    name, plan = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())

    async def work() -> list[float]:
        party = Party(name, plan)
        return await (client(party) if "/" in name else hub(party))

    print(json.dumps(asyncio.run(work())))


if __name__ == "__main__":
    main()
