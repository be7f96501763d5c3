"""Texts, files and directories between people: what `wormhole send` and `wormhole receive` say to each other."""
