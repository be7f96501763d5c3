"""Keccak as the MAC of frames uses it: a running hash whose digest is read after each frame. See bench/README.md.

python bench/waku_keccak.py [--rounds N]

SHA-3 is not what RLPx needs: it is the same permutation, padded otherwise. It shows what OpenSSL's Keccak would cost.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from ssl import OPENSSL_VERSION

import sha3
from Crypto.Hash import keccak
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives import hashes

SIZES = (100, 1024, 64 * 1024, 1024 * 1024)
BYTES = 4_000_000
"""Hashed in a round, about; fewer for small frames."""
MOST = 20_000

Mac = Callable[[bytes], bytes]


def pysha3() -> Mac:
    running = sha3.keccak_256()

    def mac(frame: bytes) -> bytes:
        running.update(frame)
        digest: bytes = running.digest()
        return digest

    return mac


def pycryptodome() -> Mac:
    running = keccak.new(digest_bits=256, update_after_digest=True)

    def mac(frame: bytes) -> bytes:
        running.update(frame)
        return running.digest()

    return mac


def of_hashlib() -> Mac:
    running = hashlib.sha3_256()

    def mac(frame: bytes) -> bytes:
        running.update(frame)
        return running.digest()

    return mac


def of_cryptography() -> Mac:
    running = hashes.Hash(hashes.SHA3_256())

    def mac(frame: bytes) -> bytes:
        running.update(frame)
        return running.copy().finalize()

    return mac


CANDIDATES = {
    f"safe-pysha3 {version('safe-pysha3')}": pysha3,
    f"pycryptodome {version('pycryptodome')}": pycryptodome,
    f"hashlib, SHA-3, {OPENSSL_VERSION.rsplit(' ', 3)[0]}": of_hashlib,
    f"cryptography, SHA-3, {backend.openssl_version_text().rsplit(' ', 3)[0]}": of_cryptography,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    macs = {name: make() for name, make in CANDIDATES.items()}
    print(f"{'µs of CPU a frame, median of ' + str(options.rounds) + ' rounds':40}", end="")
    print("".join(f"{size:>12,} B" for size in SIZES))
    used: dict[tuple[str, int], list[float]] = {}
    for size in SIZES:
        frame, count = bytes(size), max(1, min(MOST, BYTES // size))
        for _ in range(options.rounds):
            for name, mac in macs.items():
                started = time.process_time()
                for _ in range(count):
                    mac(frame)
                used.setdefault((name, size), []).append((time.process_time() - started) / count * 1e6)
    for name in macs:
        print(f"{name:40}" + "".join(f"{statistics.median(used[name, size]):14.4g}" for size in SIZES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
