"""One exchange with a server over HTTP: every failure becomes one line, and nothing is read without end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from specbench.base.untrusted import brief
from specbench.servers.reply import Refusal
from specbench.servers.stream import words_of

CONNECT = 10.0  # seconds to connect
LINGER = 0.5  # seconds for the end of an answer, after its last event
SHORT = 10.0  # seconds for what a server tells of itself
MOST_TOLD = 2**22  # bytes of that
ERROR_BYTES = 4096  # of an error's text
Read = Callable[[aiohttp.ClientResponse], Awaitable[None]]


class Unanswered(Refusal):
    """The connection was closed before a word of the answer; llama.cpp closes it after each stream without a word."""


class Declined(Refusal):
    """The server answered, with a status of an error."""


@dataclass(frozen=True)
class Wire:
    """The way to one server."""

    name: str
    url: str
    clean: Callable[[str], str]  # a text without the API key

    async def text(self, session: aiohttp.ClientSession, path: str) -> str:
        """What a server tells at a path. Raises Refusal, whatever goes wrong."""
        timeout = aiohttp.ClientTimeout(total=SHORT, sock_connect=CONNECT)
        parts: list[bytes] = []

        async def read(response: aiohttp.ClientResponse) -> None:
            size = 0
            async for data in response.content.iter_any():
                parts.append(data)
                size += len(data)
                if size > MOST_TOLD:
                    raise Refusal(f"{path} has more than {MOST_TOLD // 2**20} MiB")

        await self.ask(session, "GET", path, timeout, read)
        return self.clean(b"".join(parts).decode(errors="replace"))

    async def ask(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        timeout: aiohttp.ClientTimeout,
        read: Read,
        body: dict[str, Any] | None = None,
    ) -> None:
        """Send a request and `read` its answer. Raises Refusal, whatever goes wrong."""
        url, answered = self.url + path, False
        try:
            async with session.request(method, url, json=body, timeout=timeout, allow_redirects=False) as response:
                answered = True
                if 300 <= response.status < 400:
                    where = brief(self.clean(response.headers.get("Location", "nowhere")))
                    raise Refusal(f"{path} redirects to {where}, which is refused; if you trust it, give its address")
                if response.status != 200:
                    text = self.clean((await _beginning(response)).decode(errors="replace"))
                    raise Declined(f"{path} answers {response.status}: {words_of(text)}")
                await read(response)
        except aiohttp.ConnectionTimeoutError:
            raise Refusal(f"no connection to {self.url}: no answer in {CONNECT:g} s") from None
        except asyncio.TimeoutError:
            seconds = timeout.sock_read or timeout.total or CONNECT
            raise Refusal(self.hung("no byte", seconds)) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise Refusal(f"no trusted connection: {brief(error.certificate_error)}") from None
        except aiohttp.ClientConnectorError as error:
            raise Refusal(f"no connection to {self.url}: {brief(error.os_error.strerror or error)}") from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError) as error:
            kind = Refusal if answered else Unanswered
            raise kind(f"the stream was cut: {self._brief(error)}") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise Refusal(f"invalid answer: {self._brief(error)}") from None

    def _brief(self, error: Exception) -> str:
        """The beginning of an error that may quote the server, whose key is masked before it could be cut in two."""
        return brief(self.clean(str(error)) or type(error).__name__)

    def hung(self, what: str, seconds: float) -> str:
        """Why an answer was given up."""
        return f"the server hung: {what} in {seconds:g} s; a longer wait: --set {self.name}.timeout=…"


async def drain(response: aiohttp.ClientResponse) -> None:
    """Read to the end of an answer whose last event has come: else its connection would not be kept for the next one.

    A server that does not end its answer is not waited for.
    """

    async def rest() -> None:
        async for _ in response.content.iter_any():
            pass

    with contextlib.suppress(asyncio.TimeoutError, aiohttp.ClientError, ConnectionError):
        await asyncio.wait_for(rest(), LINGER)


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """The first bytes of an error's text, as far as they come soon."""
    text = b""
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(SHORT):
            while len(text) < ERROR_BYTES and (data := await response.content.read(ERROR_BYTES - len(text))):
                text += data
    return text
