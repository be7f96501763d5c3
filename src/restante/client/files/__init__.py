"""Files and directories of a transfer, without the network: names, unfinished files, and archives of a peer."""
