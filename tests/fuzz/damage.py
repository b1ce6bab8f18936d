"""Damage to files: of bytes, of what lies in their place, and of the tables inside them."""

import json
import os
import random
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

NUMBERS = [
    *("0", "-1", "1", "2", "7", "3.5", "1e400", "-1e400", "nan", "inf", "-inf", "1e-400"),
    *("99999999999", "-99999999999", str(2**63), str(2**64 + 1), "9" * 400, "9" * 5000),
]
WORDS = [
    *("", " ", ".", "..", "../x", "/etc/hostname", "/dev/zero", "/dev/null", "fifo", "loop"),
    *("store", "[/x]=random", "[bold]x", "x=y=z", "é\u202e日本", "os:system", "json:loads", "~"),
    *("a" * 5000, "two\nlines", "\udc80", "\x1b[31mred", "true", "none", "[1, 2", "{}", "a/../b"),
    *("conv", "random", "unet", "greedy", "1,2,3", "0,0,0", "-", "missing.toml", "%s", "<script>"),
]
DEEP: Any = 0
for _ in range(400):
    DEEP = [DEEP]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 17, 10**9, 10**12, 2**62, 2**63, -(2**70), 10**300),
    *(0.5, -0.0, 1e308, [-1, -1], [1e9, 1e9], {"": ""}, [None], DEEP, "NaN", "os:system"),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "../x.npy", "/etc/hostname", "[/x]"),
    *("\x1b[31m", "é\u202e", "a" * 3000, [], {}, [0], [[1, 2], [3]], {"name": "x"}, ["a", "a"]),
    "<script>alert(1)</script>",
]

Change = Callable[[random.Random, bytes], bytes]


def _place(draw: random.Random, content: bytes) -> int:
    # Headers lie at the beginning: half of all damage does, too.
    end = min(len(content), 200) if draw.random() < 0.5 else len(content)
    return draw.randrange(max(end, 1))


def truncated(draw: random.Random, content: bytes) -> bytes:
    return content[: _place(draw, content)]


def flipped(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 3, 30)) if changed else 0):
        changed[_place(draw, content)] ^= draw.randrange(1, 256)
    return bytes(changed)


def zeroed(draw: random.Random, content: bytes) -> bytes:
    begin, length = _place(draw, content), draw.choice((1, 8, 64, 1000))
    length = min(length, len(content) - begin)
    return content[:begin] + bytes(max(length, 0)) + content[begin + length :]


def doubled(draw: random.Random, content: bytes) -> bytes:
    begin, length = _place(draw, content), draw.choice((1, 8, 64, 1000))
    return content[: begin + length] + content[begin:]


def inserted(draw: random.Random, content: bytes) -> bytes:
    begin = _place(draw, content)
    return content[:begin] + draw.randbytes(draw.choice((1, 4, 100))) + content[begin:]


def filled(draw: random.Random, content: bytes) -> bytes:
    """Write the largest numbers over a few bytes, which makes declared sizes huge."""
    begin, length = _place(draw, content), draw.choice((2, 4, 8))
    word = draw.choice((b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f", b"99999999"))
    return content[:begin] + word[:length] + content[begin + length :]


def replaced(draw: random.Random, content: bytes) -> bytes:
    deep = (b"[" * 100_000, b'{"a":' * 50_000, b"x = " + b"[" * 3000)
    other = (b"", b"\x00" * 300, b"\xff\xfe\x80 not UTF-8", b"null", b"[]", b"{}", b"\n\n")
    return draw.choice((*deep, *other, draw.randbytes(500)))


BYTES: list[Change] = [truncated, flipped, zeroed, doubled, inserted, filled, replaced]


def damage_bytes(draw: random.Random, path: Path) -> str:
    """Change the bytes of a file; return what was done."""
    change = draw.choice(BYTES)
    path.write_bytes(change(draw, path.read_bytes()))
    return f"{path.name} {change.__name__}"


def misplace(draw: random.Random, path: Path) -> str:
    """Put something else in the place of a file, or take it away."""
    done = draw.choice(
        ("missing", "folder", "fifo", "loop", "dangling", "device", "locked", "huge")
    )
    if done in ("locked", "huge"):
        # A sparse file takes no room on the disk; one without rights stops all but root.
        if done == "locked":
            path.chmod(0)
        else:
            os.truncate(path, 1 << 40)
        return f"{path.name} {done}"
    path.unlink()
    if done == "folder":
        path.mkdir()
    elif done == "fifo":
        os.mkfifo(path)
    elif done != "missing":
        target = {"loop": path, "dangling": Path("nowhere"), "device": Path("/dev/zero")}[done]
        path.symlink_to(target)
    return f"{path.name} {done}"


def damage_table(draw: random.Random, path: Path) -> str:
    """Change one value of a JSON or TOML file, or of one line of JSON lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        table, done = changed_table(draw, tomllib.loads(text))
        try:
            path.write_text(tomli_w.dumps(table), encoding="utf-8")
        except (TypeError, AttributeError):  # TOML has no null.
            path.write_text("x = null\n")
        except RecursionError:  # Its writer goes less deep than ours.
            path.write_text(f"x = {'[' * 400}{']' * 400}\n")
        return f"{path.name}: {done}"
    if path.suffix == ".jsonl":
        lines = text.splitlines()
        index = draw.randrange(len(lines))
        value, done = changed_table(draw, json.loads(lines[index]))
        lines[index] = json.dumps(value)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return f"{path.name} line {index + 1}: {done}"
    value, done = changed_table(draw, json.loads(text))
    path.write_text(json.dumps(value), encoding="utf-8")
    return f"{path.name}: {done}"


def changed_table(draw: random.Random, value: Any) -> tuple[Any, str]:
    """Return a value of JSON with one thing in it changed, and what that is."""
    if draw.random() < 0.04:
        return draw.choice(VALUES), "all replaced"
    spots: list[tuple[Any, Any, str]] = []
    _collect(value, "", spots)
    if not spots:
        return draw.choice(VALUES), "all replaced"
    holder, key, where = draw.choice(spots)
    action = draw.choice(("set", "set", "set", "delete", "double", "rename"))
    if action == "set":
        holder[key] = new = draw.choice(VALUES)
        return value, f"{where} = {repr(new)[:40]}"
    if action == "delete":
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[str(key) + "x"] = holder[key] if action == "double" else holder.pop(key)
    return value, f"{where} {action}d"


def damage_header(draw: random.Random, path: Path) -> str:
    """Change the description inside a weights file, or what it says of a tensor."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    roll = draw.random()
    if roll < 0.6:
        key = draw.choice(sorted(metadata))
        try:
            value, what = changed_table(draw, json.loads(metadata[key]))
            metadata[key] = json.dumps(value)
        except ValueError:
            metadata[key] = draw.choice(("", "x", "[", "../x", "os:system", "a" * 3000))
            what = f"= {metadata[key][:30]!r}"
        what = f"metadata {key} {what}"
    else:
        if roll < 0.75:
            header["__metadata__"], what = changed_table(draw, metadata)
        else:
            name = draw.choice(sorted(set(header) - {"__metadata__"}))
            header[name], what = changed_table(draw, header[name])
            what = f"tensor {what}"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    return what


def _collect(value: Any, where: str, spots: list[tuple[Any, Any, str]]) -> None:
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inner in pairs:
        spots.append((value, key, f"{where}.{key}".lstrip(".")))
        _collect(inner, f"{where}.{key}", spots)


def damage_file(draw: random.Random, path: Path) -> str:
    """Damage a file in one of the ways that suit it."""
    has_table = path.suffix in (".json", ".jsonl", ".toml")
    roll = draw.random()
    if has_table and roll < 0.6:
        return damage_table(draw, path)
    if roll < 0.8:
        return damage_bytes(draw, path)
    return misplace(draw, path)
