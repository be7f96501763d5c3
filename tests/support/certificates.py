"""Certificates for tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


class Certificate:
    """A certificate for 127.0.0.1 and localhost that nobody else has signed."""

    def __init__(
        self,
        folder: Path,
        days: int = 1,
        name: str = "server",
        password: bytes = b"",
        rsa_bits: int = 0,
        expires: float | None = None,
    ) -> None:
        """Write a certificate that is valid for so many days or until a time, for a key of P-256 or of RSA."""
        self.path = folder / f"{name}.pem"
        """The key and the certificate."""
        key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "restante test")])
        names = (x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost"))
        end = time.time() + days * 86_400 if expires is None else expires
        certificate = (
            x509.CertificateBuilder(issuer_name=subject, subject_name=subject, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(dt.datetime(1960, 1, 1, tzinfo=dt.UTC))
            .not_valid_after(dt.datetime.fromtimestamp(end, dt.UTC))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(key, hashes.SHA256())
        )
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        self.path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path)
        return context

    @property
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.path))

    @property
    def trust(self) -> dict[str, str]:
        return {"SSL_CERT_FILE": str(self.path), "SSL_CERT_DIR": "/nowhere"}
