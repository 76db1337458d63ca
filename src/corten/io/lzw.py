"""Decode `.Z` files (the Unix `compress` program): adaptive LZW with codes of 9 to 16 bits."""

from __future__ import annotations

MAGIC = b"\x1f\x9d"
_CLEAR = 256


def decompress(data: bytes, max_bytes: int = 2**31) -> bytes:
    """The content of a `.Z` file; a ValueError says at which byte damaged data stop making sense.

    Codes are packed from the low bit up, in groups of eight codes: when the code length changes, or the table
    is cleared, the rest of the group is padding.
    """
    if len(data) < 3 or data[:2] != MAGIC:
        raise ValueError("byte 0: expected the two bytes 1f 9d that open a .Z file")
    widest, block_mode = data[2] & 0x1F, bool(data[2] & 0x80)
    if not 9 <= widest <= 16:
        raise ValueError(f"byte 2: expected a code length of 9 to 16 bits, found {widest}")
    first_free = 257 if block_mode else 256
    words: list[bytes] = [bytes([i]) for i in range(256)] + ([b""] if block_mode else [])
    out: list[bytes] = []
    size = 0
    width, position, group = 9, 24, 24  # in bits; `group` is where the present group of eight codes began
    end = 8 * len(data)
    previous = b""
    while position + width <= end:
        byte = position >> 3
        code = (int.from_bytes(data[byte : byte + 4], "little") >> (position & 7)) & ((1 << width) - 1)
        position += width
        if block_mode and code == _CLEAR:
            del words[first_free:]
            position = group = _next_group(position, group, width)
            width, previous = 9, b""
            continue
        if code < len(words):
            word = words[code]
        elif code == len(words) and previous:
            word = previous + previous[:1]
        else:
            raise ValueError(f"byte {byte}: code {code} refers to a word that is not known yet")
        out.append(word)
        size += len(word)
        if size > max_bytes:
            raise ValueError(f"byte {byte}: decompresses to more than the limit of {max_bytes} bytes")
        if previous and len(words) < 1 << widest:
            words.append(previous + word[:1])
        previous = word
        # The encoder is one word ahead: its next code needs another bit once our table fills this width.
        if len(words) >= 1 << width and width < widest:
            position = group = _next_group(position, group, width)
            width += 1
    return b"".join(out)


def _next_group(position: int, group: int, width: int) -> int:
    """The end of the present group of eight codes of `width` bits, in bits."""
    span = 8 * width
    return group + -(-(position - group) // span) * span
