"""The rules of a wormhole: state, frames of the server in, frames and events out. No I/O, no clock, no randomness."""
