"""The servers of a plan: reached, fit for its documents, and the same as when the run began."""

import asyncio
from typing import Any

from specbench.base.console import warn
from specbench.config import UserError
from specbench.config.servers import server_settings
from specbench.plan import Plan
from specbench.servers.client import Client
from specbench.servers.reply import Refusal

SAME = ("engine", "model", "version")  # of a server, when a run goes on


def connect(plan: Plan) -> dict[str, Client]:
    """The clients of a plan's servers, by name; a server that cannot be reached gets a warning.

    Raises UserError for settings that do not fit, and for an API key that the environment lacks.
    """
    clients = {spec.name: Client(spec.name, server_settings(spec)) for spec in plan.servers}

    async def meet(client: Client) -> None:
        async with client:
            await client.meet()

    for name, client in clients.items():
        try:
            asyncio.run(meet(client))
        except Refusal as refusal:
            warn(f"server {name}: {refusal}")
    return clients


def check_served(plan: Plan) -> None:
    """Raise UserError if a plan's servers cannot be measured on its documents."""
    if plan.servers and plan.time_documents:
        raise UserError("--time-documents is for methods decoded here; leave it out with --server")
    if plan.chat_template and not plan.prompts:
        for spec in plan.servers:
            if server_settings(spec).api == "chat":
                raise UserError(
                    f"prompts are wrapped in a chat template, and the chat endpoint of {spec.name} adds its own; "
                    "give --no-apply-chat-template instead of --apply-chat-template"
                )


def check_same_servers(stored: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise UserError if a server is another one than when the run began, as far as both times tell."""
    for name, facts in now.items():
        before = stored.get(name, {})
        for key in SAME:
            if before.get(key) and facts.get(key) and before[key] != facts[key]:
                raise UserError(f"server {name} has another {key} than when the run began; start a new run")
