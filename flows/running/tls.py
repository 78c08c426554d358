"""TLS to a Dask scheduler: its files are checked first, then who answers at its address."""

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
_FILE_OPTIONS = {"tls_ca": "--tls-ca", "tls_cert": "--tls-cert", "tls_key": "--tls-key"}


def make_security(address: str, files: Mapping[str, SourcedValue]) -> Security:
    """Check the three files and give them to Dask.

    Raises
    ------
    FitError
        If one is missing or unreadable, has expired, or the key is not the certificate's.
    """
    for name, option in _FILE_OPTIONS.items():
        if name not in files:
            raise FitError(
                f"{option}: Expected a file for {address}, got none. Give {option} or set "
                f"LATENTBITS_{name.upper()}."
            )
    ca, certificate, key = (files[name] for name in _FILE_OPTIONS)
    _read_certificates(ca)
    if _read_certificates(certificate)[0].public_key() != _read_private_key(key).public_key():
        raise FitError(
            f"{key.source}: Expected the key of {certificate.value}, got that of another "
            f"certificate, {key.value}. Give both of one pair."
        )
    return Security(
        tls_ca_file=ca.value,
        tls_client_cert=certificate.value,
        tls_client_key=key.value,
        require_encryption=True,
    )


def _read_certificates(given: SourcedValue) -> list[x509.Certificate]:
    """Read certificates that are valid now."""
    content = _read_file(given)
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise FitError(
            f"{given.source}: Expected a certificate in PEM, got {given.value}, which is none."
        ) from error
    now = datetime.now(UTC)
    for certificate in found:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            raise FitError(
                f"{given.source}: Expected a certificate that is valid now, got {given.value}, "
                f"valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}. Have a new one made."
            )
    return found


def _read_private_key(given: SourcedValue) -> PrivateKeyTypes:
    content = _read_file(given)
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:  # a TypeError means a passphrase
        raise FitError(
            f"{given.source}: Expected a private key in PEM without a passphrase, got "
            f"{given.value}, which is none."
        ) from error


def _read_file(given: SourcedValue) -> bytes:
    try:
        return Path(given.value).read_bytes()
    except OSError as error:
        raise FitError(
            f"{given.source}: Expected a file that can be read, got {given.value} "
            f"({error.strerror})."
        ) from error


def check_scheduler(address: str, security: Security | None) -> None:
    """Tell why a scheduler cannot be talked to; Dask itself would only say that it cannot.

    Raises
    ------
    FitError
        If none answers, it speaks TLS where tcp:// was given or the reverse, or one side does not
        take the other's certificate.
    """
    connected = _connect(address)
    try:
        if security is None:
            _check_unencrypted(address, connected)
        else:
            _check_encrypted(address, connected, _get_ssl_context(security))
    except TimeoutError as error:
        raise _make_no_answer_error(address, "it stays silent") from error
    finally:
        connected.close()


def _connect(address: str) -> socket.socket:
    """Connect, and wait for a scheduler that is still starting."""
    parts = urlsplit(address)
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            left = max(deadline - time.monotonic(), 0.1)
            return socket.create_connection((parts.hostname, parts.port), timeout=left)
        except OSError as error:
            if time.monotonic() > deadline:
                raise _make_no_answer_error(address, error.strerror or "timed out") from error
            time.sleep(0.1)


def _make_no_answer_error(address: str, reason: str) -> FitError:
    return FitError(
        f"--cluster: Expected a Dask scheduler at {address}, got no answer within "
        f"{CONNECT_SECONDS:.0f} s ({reason}). Check the address."
    )


def _check_unencrypted(address: str, connected: socket.socket) -> None:
    """Wait for the greeting that a scheduler without TLS sends at once."""
    connected.settimeout(_GREETING_SECONDS)
    with suppress(OSError):
        if connected.recv(1):
            return
    if _is_tls_server(address):
        raise FitError(
            f"--cluster: Expected a scheduler without TLS at {address}, got one that speaks TLS. "
            f"Take {address.replace('tcp', 'tls', 1)}, with --tls-ca, --tls-cert and --tls-key."
        )


def _is_tls_server(address: str) -> bool:
    """Ask for TLS of any kind; a scheduler that misses our certificate refuses after that."""
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
            f"--tls-ca: Expected the CA of the certificate of {address}, got another or a "
            f"certificate that is not valid ({error.verify_message}). Take the cluster's files."
        ) from error
    except (ssl.SSLError, ConnectionError) as error:
        reason = str(getattr(error, "reason", None) or error.strerror).lower().replace("_", " ")
        if isinstance(error, ssl.SSLError) and "alert" not in reason:
            raise FitError(
                f"--cluster: Expected a scheduler that speaks TLS at {address}, got one that does "
                f"not ({reason}). Start it with --tls-ca-file, --tls-cert and --tls-key."
            ) from error
    raise FitError(
        f"--tls-cert: Expected a certificate that the scheduler at {address} takes, got its "
        f"refusal ({reason}). Take a certificate of the cluster's CA."
    )


def _get_ssl_context(security: Security) -> ssl.SSLContext:
    context: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
    return context
