"""A certificate for a server of a bench: ECDSA with P-256, for 127.0.0.1, signed by itself."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wire import HOST

if TYPE_CHECKING:
    from pathlib import Path


class Certificate:
    """A file with a certificate and its key."""

    def __init__(self, folder: Path) -> None:
        path = folder / "certificate.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "restante bench")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        self.flags = ("--tls-cert", str(path), "--tls-key", str(path))
        """Flags with which the server uses it."""
        self.client = ssl.create_default_context(cafile=str(path))
