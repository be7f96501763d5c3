"""The Waku v1 node: words, cores, engines and the shell (docs/design.md section 2)."""
