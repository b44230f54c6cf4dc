"""From certificate files to what a listening socket needs for TLS, with errors that name the file. Knows no HTTP."""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from pathlib import Path

from octavo.errors import SettingsError
from octavo.server.edge import TlsFiles

__all__ = ["HANDSHAKE_S", "SHUTDOWN_S", "Tls", "tls_context"]

_logger = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
"""From the connection to the end of the handshake; asyncio would wait a minute for one that does not come."""
SHUTDOWN_S = 2.0
"""How long a peer may take to say goodbye as TLS wants it."""


class Tls:
    """What a socket listens with. Its certificate may change while it does."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises SettingsError."""
        self._files = files
        self.context = tls_context(files)

    def renew(self) -> None:
        """Read certificate and key again, for connections from now on; what cannot be used changes nothing. Who signs
        clients' certificates stays: OpenSSL can forget nobody."""
        try:
            tls_context(self._files)
        except SettingsError as error:
            _logger.error("the certificate stays as it is: %s", error)
            return
        files = self._files
        self.context.load_cert_chain(files.certfile, files.keyfile, files.password or "")
        _logger.warning("certificate read again: %s", files.certfile)


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 and later, HTTP/1.1 inside. Raises SettingsError: which file, and what is wrong with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with suppress(NotImplementedError):
        context.set_alpn_protocols(["http/1.1"])
    _check(files.certfile, "--ssl-certfile", "CERTIFICATE")
    _check(
        files.keyfile or files.certfile, "--ssl-keyfile" if files.keyfile else "--ssl-certfile", "PRIVATE KEY"
    )
    asked = False

    def password() -> str:
        nonlocal asked
        asked = True  # without this, OpenSSL would ask the terminal
        return files.password or ""

    try:
        context.load_cert_chain(files.certfile, files.keyfile, password)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(_reason(files, error, asked=asked)) from None
    if files.ca_certs is not None:
        _check(files.ca_certs, "--ssl-ca-certs", "CERTIFICATE")
        try:
            context.load_verify_locations(files.ca_certs)
        except ssl.SSLError as error:
            raise SettingsError(
                f"--ssl-ca-certs {files.ca_certs}: its certificates cannot be read ({error.reason or error})."
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check(path: str, option: str, kind: str) -> None:
    """Raise SettingsError where there is no such file, or nothing of this kind is in it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{option} {path} cannot be read: {error.strerror}.") from None
    if f"{kind}-----".encode() not in data:
        what = "certificate" if kind == "CERTIFICATE" else "private key"
        hint = (
            "; give its file with --ssl-keyfile"
            if option == "--ssl-certfile" and what != "certificate"
            else ""
        )
        raise SettingsError(f"{option} {path} holds no {what} in PEM form (-----BEGIN …{kind}-----){hint}.")


def _reason(files: TlsFiles, error: ssl.SSLError | ValueError, *, asked: bool) -> str:
    key = files.keyfile or files.certfile
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"The private key in {key} does not belong to the certificate in {files.certfile}."
    if asked:
        word = "wrong" if files.password else "missing"
        return f"The private key in {key} is encrypted, and its password (OCTAVO_SSL_KEYFILE_PASSWORD) is {word}."
    return f"The certificate in {files.certfile} or its key in {key} cannot be used: {reason}."
