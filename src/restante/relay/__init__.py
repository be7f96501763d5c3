"""The transit relay: it connects two computers that cannot reach each other directly."""
