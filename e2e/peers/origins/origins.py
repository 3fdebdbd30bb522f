"""An origin for several of Python's servers: answers each request with what it has read of it, in the field `x-read`.

`wsgi` and `asgi` are for servers that take such an application; run as a program with a port, it is an origin by aiohttp.
"""

import sys


def read_of(method, target, content):
    return f"{method} {target} {content.hex()}"


def wsgi(environ, start_response):
    content = environ["wsgi.input"].read()
    read = read_of(environ["REQUEST_METHOD"], environ["RAW_URI"], content)
    start_response("200 OK", [("x-read", read), ("content-length", "0")])
    return []


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    content, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        content += message.get("body", b"")
        more = message.get("more_body", False)
    target = scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    read = read_of(scope["method"], target, content).encode("latin-1")
    headers = [(b"x-read", read), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def main():
    from aiohttp import web

    async def answer(request):
        content = await request.read()
        if request.method == "<unknown>":
            # Its parser in C does not say which one.
            return web.Response(status=501)
        read = read_of(request.method, request.raw_path, content)
        return web.Response(headers={"x-read": read})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
