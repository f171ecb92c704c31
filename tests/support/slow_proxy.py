"""A proxy that passes each request on after a while: python -m tests.support.slow_proxy TARGET_PORT DELAY_S

It prints its own port. A request is what a client sends at once; answers pass through as they come.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

_PIECE_BYTES = 1 << 18


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float) -> None:
    with suppress(ConnectionError):
        while data := await source.read(_PIECE_BYTES):
            if delay_s:
                await asyncio.sleep(delay_s)
            target.write(data)
            await target.drain()
    target.close()


async def _serve(target_port: int, delay_s: float) -> None:
    async def connected(source: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        behind, requests = await asyncio.open_connection("127.0.0.1", target_port, limit=_PIECE_BYTES)
        await asyncio.gather(_pass_on(source, requests, delay_s), _pass_on(behind, answers, 0))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512, limit=_PIECE_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
