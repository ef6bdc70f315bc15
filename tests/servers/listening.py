"""A server of a test on a free port of this machine, in a thread of its own."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web


@contextmanager
def listening(server: Any, certificate: Path | None = None) -> Iterator[None]:
    """Have `server.answer` answer every request at `server.url`, which is set; over TLS with a certificate."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        tls = None
        if certificate:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        server.url = f"http{'s' * bool(tls)}://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
