"""HTTPS: who is served, who is not, what holds nothing up, and what a wrong file is told as."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import trustme

from octavo.errors import SettingsError
from octavo.server.edge import TlsFiles
from octavo.server.tls import tls_context
from tests.server.conftest import Server


class Files(NamedTuple):
    ca: trustme.CA
    cert: str
    key: str
    both: str
    roots: str

    def client(self) -> ssl.SSLContext:
        """What a client trusts."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1", "localhost")
    cert, key, both, roots = (str(folder / name) for name in ("cert.pem", "key.pem", "both.pem", "roots.pem"))
    for place, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(cert, append=place > 0)
    issued.private_key_pem.write_to_path(key)
    issued.private_key_and_cert_chain_pem.write_to_path(both)
    ca.cert_pem.write_to_path(roots)
    return Files(ca, cert, key, both, roots)


@pytest.fixture(scope="module")
def secure(tiny_engine: dict[str, Any], files: Files) -> Iterator[Server]:
    edge = {"tls": {"certfile": files.cert, "keyfile": files.key}}
    server = Server(tiny_engine, verify=files.client(), edge=edge)
    yield server
    assert server.stop() == 0


def _connect(server: Server) -> socket.socket:
    url = httpx2.URL(server.url)
    return socket.create_connection((url.host, url.port), timeout=60)


def test_the_openai_client_speaks_it(secure: Server) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    with secure.openai() as client:
        body: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "seed": 1}
        whole = client.completions.create(**body)
        events = list(client.completions.create(**body, stream=True))
    assert whole.choices[0].text == "".join(event.choices[0].text for event in events)


def test_nothing_older_than_tls_1_2(secure: Server, files: Files) -> None:
    old = files.client()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with _connect(secure) as plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain, server_hostname="127.0.0.1")


def test_plain_http_gets_no_answer_and_holds_nothing_up(secure: Server) -> None:
    with _connect(secure) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while data := plain.recv(4096):
            answer += data
        assert not answer.startswith(b"HTTP")
    assert secure.client.get("/health").status_code == 200


def test_handshakes_that_do_not_come_do_not_keep_others_out(secure: Server) -> None:
    silent = [_connect(secure) for _ in range(50)]
    try:
        assert secure.client.get("/health").status_code == 200
    finally:
        for one in silent:
            one.close()


def test_the_head_is_bounded_inside_too(secure: Server) -> None:
    response = secure.client.get("/health", headers={"x-long": "x" * (70 << 10)})
    assert response.status_code == 431


def test_a_client_needs_a_certificate_where_they_are_asked_for(
    tiny_engine: dict[str, Any], files: Files
) -> None:
    known = files.client()
    files.ca.issue_cert("client@example.org").configure_cert(known)
    server = Server(
        tiny_engine, verify=known, edge={"tls": {"certfile": files.both, "ca_certs": files.roots}}
    )
    assert server.client.get("/health").status_code == 200
    with (
        httpx2.Client(verify=files.client(), trust_env=False) as stranger,
        pytest.raises(httpx2.TransportError),
    ):
        stranger.get(f"{server.url}/health")
    assert server.stop() == 0


def test_a_new_certificate_is_taken_while_it_serves(
    tiny_engine: dict[str, Any], tmp_path: Path, files: Files
) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(Path(files.both).read_bytes())
    server = Server(tiny_engine, verify=files.client(), edge={"tls": {"certfile": str(own)}})

    def shown() -> bytes:
        with _connect(server) as plain, files.client().wrap_socket(plain, server_hostname="127.0.0.1") as tls:
            return tls.getpeercert(binary_form=True) or b""

    first = shown()
    own.write_text("nonsense")
    server.process.send_signal(signal.SIGHUP)
    assert server.client.get("/health").status_code == 200
    assert shown() == first
    files.ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(own))
    server.process.send_signal(signal.SIGHUP)
    server.until(lambda: shown() != first)
    assert server.client.get("/health").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    code, log = server.end()
    assert code == 0
    assert "holds no certificate" in log and "certificate read again" in log


def test_an_encrypted_key_has_its_password(tmp_path: Path, files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open sesame"),
        )
    )
    tls_context(TlsFiles(certfile=files.cert, keyfile=str(locked), password="open sesame"))
    for password, word in ((None, "missing"), ("guess", "wrong")):
        with pytest.raises(SettingsError, match=rf"OCTAVO_SSL_KEYFILE_PASSWORD\) is {word}") as refused:
            tls_context(TlsFiles(certfile=files.cert, keyfile=str(locked), password=password))
        assert "guess" not in str(refused.value)
    assert "open sesame" not in repr(TlsFiles(certfile="a", password="open sesame"))


def test_a_wrong_file_is_named(tmp_path: Path, files: Files) -> None:
    other, empty, damaged = tmp_path / "other.pem", tmp_path / "empty.pem", tmp_path / "damaged.pem"
    files.ca.issue_cert("localhost").private_key_pem.write_to_path(str(other))
    empty.touch()
    damaged.write_text("-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n")
    for given, words in (
        ({"certfile": "/no/cert"}, "--ssl-certfile /no/cert cannot be read: No such file"),
        ({"certfile": str(tmp_path)}, "cannot be read: Is a directory"),
        ({"certfile": files.cert, "keyfile": "/no/key"}, "--ssl-keyfile /no/key cannot be read"),
        ({"certfile": files.cert}, "holds no private key"),
        ({"certfile": str(empty), "keyfile": files.key}, "holds no certificate"),
        ({"certfile": files.cert, "keyfile": str(other)}, f"in {other} does not belong to"),
        ({"certfile": str(damaged), "keyfile": files.key}, f"in {damaged} or its key"),
        ({"certfile": files.both, "ca_certs": files.key}, "--ssl-ca-certs"),
        ({"certfile": files.both, "ca_certs": str(damaged)}, "--ssl-ca-certs"),
    ):
        with pytest.raises(SettingsError) as refused:
            tls_context(TlsFiles(**given))
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
