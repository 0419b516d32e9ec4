"""The page is for this machine alone, and one line says why it cannot be served."""

import socket
import urllib.error
import urllib.request

import pytest

from progmem.errors import InputError
from progmem.explore.server import serving


@pytest.fixture(scope="module")
def app():
    dash = pytest.importorskip("dash")

    app = dash.Dash("progmem.explore.test", add_log_handler=False)
    app.layout = dash.html.Div("<script>alert(1)</script>")
    return app


def get(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers, answer.read().decode()


def test_a_page_answers_on_loopback_and_lets_the_browser_load_nothing_else(app, capfd):
    with serving(app, 0) as address:
        assert address.startswith("http://127.0.0.1:")
        headers, page = get(address)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy and "script-src 'self' 'sha256-" in policy
        assert "https:" not in policy and "'unsafe-eval'" not in policy
        assert "<script>alert" not in page
        assert "<script>alert" not in get(f"{address}/_dash-layout")[1].replace("\\u003c", "")
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                get(address, **headers)
        get(address, Origin=address)
    with pytest.raises(urllib.error.URLError):
        get(address)
    assert capfd.readouterr() == ("", "")


def test_a_port_in_use_and_one_that_does_not_exist_are_told_in_one_line(app):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(InputError, match=rf"^port {port} is in use.*--port 0"),
            serving(app, port),
        ):
            pass
    with (
        pytest.raises(InputError, match=r"--port must be .* 65535, got 70000"),
        serving(app, 70_000),
    ):
        pass
