"""Create TLS certificates to try out a cluster: `python -m flows.certificates FOLDER`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from rich.console import Console

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import OUTPUT, Option, Overwrite, Repeatable
from storage.errors import DataError
from storage.stores.locations import check_outside_datasets

HELP = """Create certificates to try out a Dask cluster over TLS, valid for 30 days.

For development only: scheduler, workers and commands share one key, and the key of the CA is
discarded. In production, use certificates of your organisation.
"""
EXAMPLES = f"""Examples:

    python -m flows.certificates certificates --host scheduler.example.org

Writes ca.pem, node.pem and node-key.pem. Anyone who has node-key.pem can run code on the cluster.

{EXIT_CODES}"""
app = make_app("certificates", HELP, EXAMPLES)
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "node.pem", "node-key.pem"
LIFETIME = timedelta(days=30)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


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


@app.default
def main(
    folder: Annotated[Path, Option(group=OUTPUT, help="Folder to write the certificates to.")],
    *,
    host: Annotated[
        Repeatable,
        Option(group=OUTPUT, help="Name or address of a machine of the cluster. Repeatable."),
    ] = (),
    overwrite: Overwrite = False,
) -> None:
    """Write the files and print their paths."""
    check_outside_datasets(folder / KEY_FILE)
    for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
        if (folder / name).exists() and not overwrite:
            raise DataError(f"{folder / name} exists already. Add {{overwrite}} to replace it.")
    # Valid at once, even for a clock that is a little behind.
    files = issue_certificates(host, datetime.now(UTC) - timedelta(minutes=5))
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(soft_wrap=True, highlight=False)
    for name, content in files.items():
        _write_private_file(folder / name, content)
        console.print(str(folder / name), markup=False)
    console.print(f"For development, valid for {LIFETIME.days} days.")


def _write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


if __name__ == "__main__":
    run_app(app)
