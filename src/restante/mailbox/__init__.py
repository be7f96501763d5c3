"""The mailbox server: words, cores, engines and the shell (docs/design.md section 2)."""
