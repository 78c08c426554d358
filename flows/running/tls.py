"""TLS: check certificates and whether a Dask scheduler accepts them, or issue some to try it."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from distributed.security import Security

from flows.cli.options import SourcedValue
from pipeline.errors import FitError
from storage.errors import DataError

CONNECT_SECONDS = 10.0
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "node.pem", "node-key.pem"
LIFETIME = timedelta(days=30)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
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


def issue_certificates(hosts: Sequence[str], start: datetime) -> dict[str, bytes]:
    """Issue a certificate for some hosts and this machine, signed by a new CA.

    It is valid from `start`, for `hosts` and localhost. Returns the contents of the files by name.
    """
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _make_x509_name("latentbits development CA")
    ca = (
        _make_builder(issuer, issuer, authority.public_key(), authority, start)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _make_builder(
            _make_x509_name("latentbits development"), issuer, key.public_key(), authority, start
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(
            x509.SubjectAlternativeName(
                [_make_alternative_name(host) for host in (*_LOCAL_HOSTS, *hosts)]
            ),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    return {
        CA_FILE: ca.public_bytes(Encoding.PEM),
        CERTIFICATE_FILE: certificate.public_bytes(Encoding.PEM),
        KEY_FILE: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }


def _make_x509_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _make_builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    authority: ec.EllipticCurvePrivateKey,
    start: datetime,
) -> x509.CertificateBuilder:
    """Start a certificate; key identifiers distinguish CAs of the same name."""
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issuer_key, critical=False)
    )


def _make_alternative_name(host: str) -> x509.GeneralName:
    try:
        address: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        try:
            return x509.DNSName(host)
        except ValueError as error:
            raise DataError(f"{{host}} is {host!r}, which is not ASCII.") from error
    return x509.IPAddress(address)
