"""The test kit: all that tests share and that is no test itself."""
