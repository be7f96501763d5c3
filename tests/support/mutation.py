"""What a line, or an enemy, does to bytes: the input that every decoder must take."""

from hypothesis import strategies as st


@st.composite
def mutated(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that were right once: a few of them changed, left out, doubled, or cut off."""
    data = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "insert", "delete", "cut"])):
            case "change":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "insert":
                data[at:at] = draw(st.binary(max_size=4))
            case "delete":
                del data[at : at + draw(st.integers(1, 4))]
            case "cut":
                del data[at:]
    return bytes(data)
