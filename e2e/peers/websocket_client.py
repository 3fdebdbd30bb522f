"""A WebSocket client by the `websockets` library: `URL ADDRESS SUBPROTOCOLS STEP...`.

Connects to ADDRESS whatever the URL's name resolves to, takes the steps, and prints one JSON
object for the handshake and for each step.
"""

import asyncio
import json
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

LIMIT = 20


def report(**facts):
    print(json.dumps(facts), flush=True)


async def step(socket, name, argument):
    if name == "text":
        await socket.send(argument)
        report(text=await asyncio.wait_for(socket.recv(), LIMIT))
    elif name == "binary":
        sent = bytes(index % 251 for index in range(int(argument)))
        await socket.send(sent)
        report(same=await asyncio.wait_for(socket.recv(), LIMIT) == sent)
    elif name == "ping":
        await asyncio.wait_for(await socket.ping(), LIMIT)
        report(pong=True)
    elif name == "rest":
        await asyncio.sleep(int(argument) / 1000)
        report(rested=True)
    elif name == "close":
        await socket.close(int(argument))
        report(closed=socket.close_code)
    elif name == "await-close":
        await asyncio.wait_for(socket.wait_closed(), LIMIT)
        report(closed=socket.close_code, reason=socket.close_reason)
    else:
        raise ValueError(f"unknown step {name}")


async def main():
    url, address, offer, *steps = sys.argv[1:]
    host, port = address.rsplit(":", 1)
    offered = [name for name in offer.split(",") if name] or None
    try:
        socket = await connect(
            url,
            host=host,
            port=int(port),
            subprotocols=offered,
            max_size=64 * 1024 * 1024,
            ping_interval=None,
            proxy=None,
        )
    except InvalidStatus as refusal:
        report(refused=refusal.response.status_code)
        return
    report(opened=socket.subprotocol)
    try:
        for text in steps:
            name, _, argument = text.partition(" ")
            await step(socket, name, argument)
    except ConnectionClosed:
        report(lost=socket.close_code)
    await socket.close()


asyncio.run(main())
