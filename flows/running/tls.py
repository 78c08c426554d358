"""Check TLS certificates, and whether a Dask scheduler accepts them."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from distributed.security import Security

from flows.cli.options import SourcedValue
from pipeline.errors import FitError

CONNECT_SECONDS = 10.0
_GREETING_SECONDS = 2.0
_FILE_NAMES = ("tls_ca", "tls_cert", "tls_key")


def make_security(address: str, files: Mapping[str, SourcedValue]) -> Security:
    """Check the three TLS files, and make Dask's security settings of them.

    Raises `FitError` if a file is missing or unreadable or has expired, or the key does not fit the
    certificate.
    """
    for name in _FILE_NAMES:
        if name not in files:
            raise FitError(f"{address} needs {{{name}}}. Set it, or LATENTBITS_{name.upper()}.")
    ca, certificate, key = (files[name] for name in _FILE_NAMES)
    _read_certificates(ca)
    if _read_certificates(certificate)[0].public_key() != _read_private_key(key).public_key():
        raise FitError(
            f"{key.source}: {key.value} is not the private key of {certificate.value}. "
            "Use the two files of one pair."
        )
    return Security(
        tls_ca_file=ca.value,
        tls_client_cert=certificate.value,
        tls_client_key=key.value,
        require_encryption=True,
    )


def _read_certificates(file: SourcedValue) -> list[x509.Certificate]:
    """Read the certificates in a file, and check that they are valid now."""
    content = _read_file(file)
    try:
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise FitError(
            f"{file.source}: {file.value} is not a certificate in PEM format."
        ) from error
    now = datetime.now(UTC)
    for certificate in certificates:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            raise FitError(
                f"{file.source}: {file.value} is not valid now, but valid from {start:%Y-%m-%d} "
                f"to {end:%Y-%m-%d}. Use a new certificate."
            )
    return certificates


def _read_private_key(file: SourcedValue) -> PrivateKeyTypes:
    content = _read_file(file)
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:  # TypeError: it has a passphrase
        raise FitError(
            f"{file.source}: {file.value} is not a private key in PEM format without a passphrase."
        ) from error


def _read_file(file: SourcedValue) -> bytes:
    try:
        return Path(file.value).read_bytes()
    except OSError as error:
        raise FitError(f"{file.source}: {file.value} cannot be read ({error.strerror}).") from error


def check_scheduler(address: str, security: Security | None) -> None:
    """Check that a scheduler can be reached; name the cause if not, which Dask does not.

    Raises `FitError` if no scheduler answers, only one side uses TLS, or one side rejects the
    other's certificate.
    """
    connected = _connect(address)
    try:
        if security is None:
            _check_unencrypted(address, connected)
        else:
            _check_encrypted(address, connected, _get_ssl_context(security))
    except TimeoutError as error:
        raise _make_no_answer_error(address, "it sends nothing") from error
    finally:
        connected.close()


def _connect(address: str) -> socket.socket:
    """Connect; retry while the scheduler may still be starting."""
    parts = urlsplit(address)
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            timeout = max(deadline - time.monotonic(), 0.1)
            return socket.create_connection((parts.hostname, parts.port), timeout=timeout)
        except OSError as error:
            if time.monotonic() > deadline:
                raise _make_no_answer_error(address, error.strerror or "timed out") from error
            time.sleep(0.1)


def _make_no_answer_error(address: str, reason: str) -> FitError:
    return FitError(
        f"{{cluster}}: no Dask scheduler answered at {address} within {CONNECT_SECONDS:.0f} s "
        f"({reason}). Check the address."
    )


def _check_unencrypted(address: str, connected: socket.socket) -> None:
    """Check that the scheduler sends its greeting, as it does at once without TLS."""
    connected.settimeout(_GREETING_SECONDS)
    with suppress(OSError):
        if connected.recv(1):
            return
    if _is_tls_server(address):
        raise FitError(
            f"{{cluster}}: the scheduler at {address} uses TLS. Use "
            f"{address.replace('tcp', 'tls', 1)}, with {{tls_ca}}, {{tls_cert}} and {{tls_key}}."
        )


def _is_tls_server(address: str) -> bool:
    """Return whether a server answers a TLS handshake, even by asking for a certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connected = _connect(address)
    connected.settimeout(_GREETING_SECONDS)
    try:
        context.wrap_socket(connected).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    finally:
        connected.close()
    return True


def _check_encrypted(address: str, connected: socket.socket, context: ssl.SSLContext) -> None:
    try:
        with context.wrap_socket(connected) as encrypted:
            if encrypted.recv(1):
                return
        reason = "connection closed"
    except ssl.SSLCertVerificationError as error:
        raise FitError(
            f"{{tls_ca}}: the certificate of {address} is not valid for this CA "
            f"({error.verify_message}). Use the cluster's files."
        ) from error
    except (ssl.SSLError, ConnectionError) as error:
        reason = str(getattr(error, "reason", None) or error.strerror).lower().replace("_", " ")
        if isinstance(error, ssl.SSLError) and "alert" not in reason:
            raise FitError(
                f"{{cluster}}: the scheduler at {address} does not use TLS ({reason}). "
                "Start it with --tls-ca-file, --tls-cert and --tls-key."
            ) from error
    raise FitError(
        f"{{tls_cert}}: the scheduler at {address} rejected the certificate ({reason}). "
        "Use a certificate of the cluster's CA."
    )


def _get_ssl_context(security: Security) -> ssl.SSLContext:
    context: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
    return context
