"""The lines of the table of bench/client.py. Targets: docs/design.md, "Speed"."""

from __future__ import annotations

from figures import Figure, own, times

FIGURES = {
    "cpu": Figure("code to verified key, CPU ms of both", target=times(8, 15)),
    "cpu_of_code": Figure("  the part of it after the code, CPU ms"),
    "cpu_in_all": Figure("  the same with closing, CPU ms"),
    "wall": Figure("code to verified key, p50, ms", target=own(15, 8)),
    "wall_p99": Figure("  the same, slowest of a round, ms"),
    "rate": Figure("messages of 300 bytes/s, no limits", True, own(10_000, 20_000)),
    "sender_cpu": Figure("  sender's CPU a message, µs"),
    "receiver_cpu": Figure("  receiver's CPU a message, µs"),
    "server_cpu": Figure("  server's CPU a message, µs"),
    "few": Figure("  {n} messages, default limits, ms"),
    "import": Figure("import of all that a wormhole needs, ms", target=own(100, 60)),
    "import_cpu": Figure("  CPU of that import, ms"),
    "import_package": Figure("  import of the package alone, ms"),
    "import_package_cpu": Figure("  CPU of the package alone, ms"),
    "first_frame": Figure("  process start to first frame, ms"),
    "first_frame_cpu": Figure("  CPU of that process until then, ms"),
    "file": Figure("large file, direct TCP, MB/s", True, times(1.5, 4)),
    "file_rust": Figure("  the same beside magic-wormhole.rs, MB/s", True, times(0.6, 1)),
    "file_seconds": Figure("  wall time of both commands, s"),
    "file_sender_cpu": Figure("  sender's CPU, s"),
    "file_receiver_cpu": Figure("  receiver's CPU, s"),
    "file_sender_memory": Figure("  sender's peak memory, MiB", target=own(60, 45)),
    "file_receiver_memory": Figure("  receiver's peak memory, MiB", target=own(60, 45)),
    "directory": Figure("directory of {n} small files, s", target=times(1, 2)),
    "directory_sender_cpu": Figure("  sender's CPU, s"),
    "directory_receiver_cpu": Figure("  receiver's CPU, s"),
}
