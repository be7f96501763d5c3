"""The Waku v1 node: wire formats, cores, engines and the shell (docs/design.md section 2)."""
