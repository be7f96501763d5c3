"""When a certificate expires."""

from __future__ import annotations

import datetime as dt
import math
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from restante.common.certificate_dates import expires
from restante.common.tls import ServerCertificate
from support.certificates import Certificate
from support.effort import examples

KEY = ec.generate_private_key(ec.SECP256R1())
NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "restante test")])

EARLIEST = int(dt.datetime(1961, 1, 1, tzinfo=dt.UTC).timestamp())
LATEST = int(dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC).timestamp())


def certificate(end: dt.datetime) -> str:
    built = (
        x509.CertificateBuilder(issuer_name=NAME, subject_name=NAME, public_key=KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(1960, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(end)
        .sign(KEY, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM).decode()


@examples(50)
@given(seconds=st.integers(EARLIEST, LATEST))
def test_it_is_what_the_certificate_says(seconds: int) -> None:
    assert expires(certificate(dt.datetime.fromtimestamp(seconds, dt.UTC))) == seconds


def test_the_first_certificate_of_a_chain_counts_whatever_stands_before_it() -> None:
    first, second = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2049, 2050))
    text = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n" + certificate(first) + certificate(second)
    assert expires(text) == first.timestamp()


WHOLE = ssl.PEM_cert_to_DER_cert(certificate(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)))


@examples(50)
@given(size=st.integers(0, 150))
def test_what_is_cut_off_has_no_date(size: int) -> None:
    assert math.isnan(expires(ssl.DER_cert_to_PEM_cert(WHOLE[:size])))


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_no_date(text: str) -> None:
    assert math.isnan(expires(text))


async def test_a_new_certificate_has_its_own_date(tmp_path: Path) -> None:
    watched = ServerCertificate(Certificate(tmp_path, days=3).path, tmp_path / "server.pem")
    before = watched.expires
    Certificate(tmp_path, days=5)
    await watched.reload()
    assert 2 * 86_400 - 60 < watched.expires - before < 2 * 86_400 + 60
