"""A WebSocket server by the `websockets` library: echoes what it is sent.

Prints `listening PORT`, then a line for each connection: `opened PATH SUBPROTOCOL` and
`closed CODE`. A text `close CODE` makes the server close with that code; `ping` makes it send a
ping and answer `pong` once its pong has come.
"""

import asyncio

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed


def say(text):
    print(text, flush=True)


def select(_, offered):
    """The first that both know. Unlike the library's own choice, none is good too."""
    return next((name for name in ["chat.v2", "chat.v1"] if name in offered), None)


async def talk(socket):
    say(f"opened {socket.request.path} {socket.subprotocol}")
    try:
        async for message in socket:
            if isinstance(message, str) and message.startswith("close "):
                await socket.close(int(message.split()[1]), "as you asked")
                break
            if message == "ping":
                await (await socket.ping())
                message = "pong"
            await socket.send(message)
        await socket.wait_closed()
    except ConnectionClosed:
        pass
    say(f"closed {socket.close_code}")


async def main():
    server = await serve(
        talk,
        "127.0.0.1",
        0,
        select_subprotocol=select,
        max_size=64 * 1024 * 1024,
        ping_interval=None,
    )
    say(f"listening {server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


asyncio.run(main())
