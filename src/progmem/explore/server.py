"""A page for this machine alone: bound to loopback, and deaf to what other pages ask for.

A page of the web can make a browser send requests to this machine; they are refused by the names
they carry. The browser is told to load nothing from elsewhere and to run no script but ours.
"""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from progmem.errors import InputError

HOST = "127.0.0.1"
PORT = 8050


@contextmanager
def serving(app: Any, port: int = PORT) -> Iterator[str]:
    """Answer for a Dash ``app`` in the background; its address. Port 0 takes a free one."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: Any) -> None:
            pass

    with _bound(port) as taken:
        port = taken.getsockname()[1]
        _guard(app, port)
        server = make_server(
            HOST, port, app.server, threaded=True, request_handler=Quiet, fd=taken.fileno()
        )
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _bound(port: int) -> socket.socket:
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # a port that was just left can be taken again at once
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((HOST, port))
        taken.listen(128)
    except OverflowError as error:
        taken.close()
        raise InputError(f"--port must be a number from 0 to 65535, got {port}") from error
    except OSError as error:
        taken.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise InputError(
            f"port {port} is in use or not allowed; give another with --port, or --port 0 for any"
        ) from error
    return taken


def _guard(app: Any, port: int) -> None:
    from flask import Response, request

    ours = {f"{HOST}:{port}", f"localhost:{port}"}
    scripts = " ".join(app.csp_hashes())
    policy = (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'none'; "
        "base-uri 'self'; form-action 'none'; object-src 'none'"
    )

    def refuse() -> Any:
        origin = request.headers.get("Origin")
        if request.host not in ours or (origin and urlsplit(origin).netloc not in ours):
            return Response("this page is for this machine alone", 403)
        return None

    def tell(response: Any) -> Any:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    app.server.before_request(refuse)
    app.server.after_request(tell)
