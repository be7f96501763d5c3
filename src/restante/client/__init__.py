"""The Magic Wormhole client library for asyncio (docs/design.md, "Layout")."""
