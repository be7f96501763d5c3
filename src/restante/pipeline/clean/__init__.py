"""A row as it was, to the lake's row or its fault."""
