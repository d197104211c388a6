"""The local certificate authority and the server's certificate, for `skerry up --tls`."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skerry.core import Corrupted, InvalidArgument, SkerryError, replace_file

log = logging.getLogger("skerry.server")

DAY = datetime.timedelta(days=1)
CA_LIFETIME = 3650 * DAY
LIFETIME = 397 * DAY
"""The longest validity that browsers accept."""
RENEW = 30 * DAY
LOOK = 60.0
"""Seconds after which a running server looks for a new certificate."""


@dataclass(frozen=True, slots=True)
class Certificates:
    cert: Path
    key: Path
    ca: Path
    fingerprint: str
    """SHA-256 of the authority's certificate."""


def local_certificates(directory: Path, names: frozenset[str]) -> Certificates:
    """The certificates in `directory`, made or renewed if they are missing, about to expire, or for other names.

    Raises InvalidArgument for an invalid name, Corrupted for an authority that cannot be read.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca_cert, ca_key = _authority(directory)
    cert_path, key_path = directory / "server.pem", directory / "server.key"
    wanted = names | {"localhost", "127.0.0.1", "::1", "*.sb.localhost"}
    if not _serves(cert_path, key_path, wanted, ca_cert):
        key = ec.generate_private_key(ec.SECP256R1())
        cert = _leaf(wanted, key, ca_cert, ca_key)
        _write_key(key_path, key)
        chain = cert.public_bytes(serialization.Encoding.PEM) + ca_cert.public_bytes(serialization.Encoding.PEM)
        replace_file(cert_path, chain, flush=True, mode=0o644, several=True)
    fingerprint = ca_cert.fingerprint(hashes.SHA256()).hex(":").upper()
    return Certificates(cert_path, key_path, directory / "ca.pem", fingerprint)


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    cert_path, key_path = directory / "ca.pem", directory / "ca.key"
    if cert_path.exists() and key_path.exists():
        try:
            cert, found = _read(cert_path, key_path)
        except ValueError as error:
            hint = "restore it, or remove both to make a new authority, which clients then have to trust"
            raise Corrupted(f"{cert_path} or {key_path} is damaged: {error}", hint=hint) from error
        lasts = cert.not_valid_after_utc > _now() + LIFETIME
        if isinstance(found, ec.EllipticCurvePrivateKey) and lasts and cert.public_key() == found.public_key():
            return cert, found
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Skerry on {os.uname().nodename}"[:64])])
    cert = (
        _builder(name, name, key.public_key(), CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_path, key)
    replace_file(cert_path, cert.public_bytes(serialization.Encoding.PEM), flush=True, mode=0o644, several=True)
    return cert, key


def _leaf(
    names: frozenset[str],
    key: ec.EllipticCurvePrivateKey,
    ca_cert: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skerry")])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _builder(subject, ca_cert.subject, key.public_key(), LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in sorted(names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: datetime.timedelta
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=_now() - DAY,
        not_valid_after=_now() + lifetime,
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _serves(cert_path: Path, key_path: Path, names: frozenset[str], ca: x509.Certificate) -> bool:
    """Whether the certificate covers these names, is of this authority, and stays valid for some time."""
    wanted = {_general(name) for name in names}
    try:
        cert, key = _read(cert_path, key_path)
        cert.verify_directly_issued_by(ca)  # by its key: a new authority has the same name
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, InvalidSignature, x509.ExtensionNotFound):
        return False
    # A process that was killed between the two files has left a key that is not the certificate's.
    fits = key.public_key() == cert.public_key()
    return fits and set(found) == wanted and cert.not_valid_after_utc > _now() + RENEW


def _read(cert_path: Path, key_path: Path) -> tuple[x509.Certificate, PrivateKeyTypes]:
    """Raises ValueError for a name that is neither."""
    cert = x509.load_pem_x509_certificate(cert_path.read_bytes())
    return cert, serialization.load_pem_private_key(key_path.read_bytes(), None)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        hint = "write names with other letters as in DNS: xn--…"
        raise InvalidArgument(f"{name!r} cannot be a name in a certificate: {error}", hint=hint) from error


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    plain = serialization.NoEncryption()
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    replace_file(path, text, flush=True, several=True)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def check_pair(cert: str | Path, key: str | Path) -> None:
    """Raises InvalidArgument."""
    try:
        # With a password, so that OpenSSL refuses an encrypted key instead of asking for its password.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:
        hint = "use PEM for both: the chain with the server's certificate first, and its key without a password"
        raise InvalidArgument(f"tls_cert {cert} and tls_key {key} cannot be used: {error}", hint=hint) from error


async def follow(context: ssl.SSLContext, cert: Path, key: Path, renew: Callable[[], object] | None) -> None:
    """Let `context` use the certificate that the files have now; `renew` renews it if it is ours."""

    def stamps() -> list[tuple[int, int, int]]:
        return [(st.st_ino, st.st_size, st.st_mtime_ns) for st in (os.stat(cert), os.stat(key))]

    def look() -> list[tuple[int, int, int]]:
        if renew is not None:
            renew()
        found = stamps()
        if found != taken:
            check_pair(cert, key)  # fails while only one of the two is new
        return found

    taken = stamps()
    while True:
        await asyncio.sleep(LOOK)
        try:
            found = await asyncio.to_thread(look)
            if found != taken:
                context.load_cert_chain(cert, key)
                taken = found
                log.info("a new certificate is in use", extra={"file": str(cert)})
        except (SkerryError, OSError) as error:
            log.error("cannot load the new certificate, keeping the old one: %s", str(error))
