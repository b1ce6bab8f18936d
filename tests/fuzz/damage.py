"""Damage to files: of bytes, of what lies in their place, and of the tables inside them."""

import json
import os
import random
import struct
import tomllib
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
_REPLACEMENTS = [
    *(b"[" * 100_000, b'{"a":' * 50_000, b"x = " + b"[" * 3000, b"", b"\x00" * 300, b"null"),
    *(b"\xff\xfe\x80 not UTF-8", b"[]", b"{}", b"\n\n"),
]
_LARGEST = [b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f", b"99999999"]
"""Bytes that make a declared size huge."""


def damage_bytes(draw: random.Random, path: Path) -> str:
    """Change the bytes of a file; return what was done."""
    content = path.read_bytes()
    # Headers lie at the beginning: half of all damage does, too.
    end = min(len(content), 200) if draw.random() < 0.5 else len(content)
    place = draw.randrange(max(end, 1))
    length = draw.choice((1, 2, 4, 8, 64, 1000))
    before, middle, after = (
        content[:place],
        content[place : place + length],
        content[place + length :],
    )
    changes = {
        "truncated": before,
        "flipped": before + bytes(byte ^ 255 for byte in middle[:8]) + middle[8:] + after,
        "one bit flipped": before + bytes(byte ^ 4 for byte in middle[:1]) + middle[1:] + after,
        "zeroed": before + bytes(len(middle)) + after,
        "doubled": before + middle + middle + after,
        "inserted": before + draw.randbytes(length) + middle + after,
        "filled": before + draw.choice(_LARGEST)[:length] + middle[8:] + after,
        "replaced": draw.choice(_REPLACEMENTS),
    }
    done = draw.choice(list(changes))
    path.write_bytes(changes[done])
    return f"{path.name} {done}"


def misplace(draw: random.Random, path: Path) -> str:
    """Put something else in the place of a file, or take it away."""
    done = draw.choice(
        ("missing", "folder", "fifo", "loop", "dangling", "device", "locked", "huge")
    )
    if done == "locked":  # which stops all but root
        path.chmod(0)
    elif done == "huge":  # sparse, so that it takes no room on the disk
        os.truncate(path, 1 << 40)
    else:
        path.unlink()
    if done == "folder":
        path.mkdir()
    elif done == "fifo":
        os.mkfifo(path)
    elif done in ("loop", "dangling", "device"):
        path.symlink_to({"loop": path, "dangling": "nowhere", "device": "/dev/zero"}[done])
    return f"{path.name} {done}"


def damage_table(draw: random.Random, path: Path) -> str:
    """Change one value of a JSON or TOML file, or of one line of JSON lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        table, done = changed_table(draw, tomllib.loads(text))
        try:
            text = tomli_w.dumps(table)
        except (TypeError, AttributeError):  # TOML has no null.
            text = "x = null\n"
        except RecursionError:  # Its writer goes less deep than ours.
            text = f"x = {'[' * 400}{']' * 400}\n"
    else:
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        index = draw.randrange(len(lines))
        value, done = changed_table(draw, json.loads(lines[index]))
        text = "\n".join([*lines[:index], json.dumps(value), *lines[index + 1 :]])
    path.write_text(text, encoding="utf-8")
    return f"{path.name}: {done}"


def changed_table(draw: random.Random, value: Any) -> tuple[Any, str]:
    """Return a value of JSON with one thing in it changed, and what that is."""
    spots: list[tuple[Any, Any, str]] = []
    _collect(value, "", spots)
    if not spots or draw.random() < 0.04:
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


def _collect(value: Any, where: str, spots: list[tuple[Any, Any, str]]) -> None:
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inner in pairs:
        spots.append((value, key, f"{where}.{key}".lstrip(".")))
        _collect(inner, f"{where}.{key}", spots)


def damage_header(draw: random.Random, path: Path) -> str:
    """Change the description inside a weights file, or what it says of a tensor."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    if draw.random() < 0.6:
        key = draw.choice(sorted(metadata))
        try:
            value, what = changed_table(draw, json.loads(metadata[key]))
            metadata[key] = json.dumps(value)
        except ValueError:
            metadata[key] = draw.choice(("", "x", "[", "../x", "os:system", "a" * 3000))
            what = f"= {metadata[key][:30]!r}"
        what = f"metadata {key} {what}"
    else:
        header, what = changed_table(draw, header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    return what


def damage_file(draw: random.Random, path: Path) -> str:
    """Damage a file in one of the ways that suit it."""
    roll = draw.random()
    if path.suffix in (".json", ".jsonl", ".toml") and roll < 0.6:
        return damage_table(draw, path)
    if path.suffix == ".safetensors" and roll < 0.6:
        return damage_header(draw, path)
    return (damage_bytes if roll < 0.85 else misplace)(draw, path)
