"""Seeded mutations of files: bytes, JSON and TOML trees, safetensors, `.npy` arrays and edge lists."""

import io
import json
import struct
from copy import deepcopy
from pathlib import Path

import numpy as np

HUGE = ("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" + "0" * 400, "1e-400", "-0", "00", "0x10")
TEXTS = ("", "../x", "/etc/passwd", "a\0b", "‮é", "\ud800", "</script><script>run()</script>", "x" * 20_000, "null", "1")
NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**30, -(2**63), 0.5, 1e308, 1e-320, float("nan"), float("inf"))
OTHERS = (None, True, False, [], {}, [[]], {"": 0}, [None] * 3)
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "C64", "Q9", "", 3, None)
NPY_DTYPES = ("<f8", "<f4", "<i8", "<i4", ">i8", "|b1", "|u1", "<c16", "|O", "<U8", "|S4", "<M8[s]", "<f2", "zz")


def mutated_bytes(rng, content):
    """Flip, cut, extend, splice, repeat or blank a part of a file."""
    content = bytearray(content)
    size = len(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(max(len(content), 1))
        kind = rng.randrange(7)
        if kind == 0 and content:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            content += rng.randbytes(rng.choice((1, 7, 1_000)))
        elif kind == 3:
            content[at:at] = content[rng.randrange(size + 1) :][: rng.choice((1, 16, 512))]
        elif kind == 4:
            length = rng.choice((1, 8, 64))
            content[at : at + length] = bytes(length)
        elif kind == 5:
            content[at : at + 8] = rng.choice((b"\xff" * 8, b"\x00" * 8, struct.pack("<Q", rng.choice((2**62, 10**6)))))
        else:
            content[at : at + 1] = rng.randbytes(1)
    return bytes(content)


def value(rng):
    """Something that a tree may hold, and that a reader may not expect."""
    kind = rng.randrange(3)
    return deepcopy(rng.choice((NUMBERS, TEXTS, OTHERS)[kind]))


def places(tree, found=None):
    """Every (container, key) of a tree of dicts and lists."""
    found = [] if found is None else found
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        found.append((tree, key))
        places(tree[key], found)
    return found


def mutated_tree(rng, tree):
    """Swap values for others, remove, rename, add or repeat keys."""
    tree = deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        spots = places(tree)
        if not spots:
            return value(rng)
        holder, key = rng.choice(spots if rng.random() < 0.5 else spots[: 1 + len(spots) // 20])
        kind = rng.randrange(7)
        if kind <= 2:
            holder[key] = value(rng)
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, dict):
            holder[rng.choice((*TEXTS[:4], f"{key}_"))] = holder.pop(key)
        elif kind == 5 and isinstance(holder, dict):
            holder[rng.choice(TEXTS[:5])] = value(rng)
        elif isinstance(holder, list):
            holder.extend(holder[:3])
        else:
            holder[key] = [holder[key]] if rng.random() < 0.5 else {"x": holder[key]}
    return value(rng) if rng.random() < 0.02 else tree


def json_text(rng, tree):
    """A tree as JSON that may hold literals which only some readers take, deep nesting, keys twice, other encodings."""
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.9)
    kind = rng.randrange(12)
    if kind == 0:
        digits = [i for i, sign in enumerate(text) if sign.isdigit() and not text[i - 1].isalnum()]
        at = rng.choice(digits or [0])
        text = text[:at] + rng.choice(HUGE) + text[at + 1 :]
    elif kind == 1:
        deep = rng.choice((10, 1_100, 100_000))
        at = text.find(":", rng.randrange(len(text))) + 1 or len(text) // 2
        text = (
            text[:at] + rng.choice(("[" * deep + "]" * deep, '{"a":' * deep + "0" + "}" * deep, "[" * deep)) + text[at:]
        )
    elif kind == 2:
        text = text.replace("{", '{"format": 0, "x": 1, ', 1)
    elif kind == 3:
        return text.encode(rng.choice(("utf-16", "utf-8-sig", "utf-32")), "surrogatepass")
    elif kind == 4:
        return mutated_bytes(rng, text.encode("utf-8", "surrogatepass"))
    return text.encode("utf-8", "surrogatepass")


def mutated_json(rng, content):
    """Another JSON file than this one: its tree or its bytes have changed."""
    if rng.random() < 0.25:
        return mutated_bytes(rng, content)
    return json_text(rng, mutated_tree(rng, json.loads(content)))


def mutated_toml(rng, content):
    """Another TOML file: lines removed, doubled, moved, or their values swapped for others."""
    if rng.random() < 0.25:
        return mutated_bytes(rng, content)
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        kind = rng.randrange(5)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, rng.choice(lines))
        elif kind == 2:
            deep = rng.choice((3, 2_000, 50_000))
            lines[at] = f"deep = {'[' * deep}{']' * deep}"
        else:
            name = lines[at].partition("=")[0]
            spelled = rng.choice(
                (*HUGE, "nan", "inf", "-inf", "[]", "{}", "''", "true", "'../x'", "1979-05-27", "[nan]")
            )
            lines[at] = f"{name}= {spelled}"
        lines = lines or [""]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def mutated_safetensors(rng, content):
    """Another safetensors file: its header's length, dtypes, shapes, offsets, names or metadata, or its numbers."""
    if rng.random() < 0.2 or len(content) < 8:
        return mutated_bytes(rng, content)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    names = [name for name in header if name != "__metadata__"]
    kind = rng.randrange(9) if names else 8
    entry = header[rng.choice(names)] if names else {}
    if kind == 0:
        entry["dtype"] = rng.choice(DTYPES)
    elif kind == 1:
        shape = entry["shape"]
        entry["shape"] = rng.choice(
            (
                [],
                [0],
                shape[::-1],
                [*shape, 1],
                [1, *shape],
                [-1],
                [2**62, 2],
                [2**40],
                [*shape[:-1], 2**33],
                "x",
                [0.5],
            )
        )
    elif kind == 2:
        entry["data_offsets"] = rng.choice(
            ([0, 0], [0, 2**62], [-1, 4], entry["data_offsets"][::-1], [4], None, [0, 4])
        )
    elif kind == 3:
        name = rng.choice(names)
        header[rng.choice((*TEXTS[:6], f"{name}x", name.upper()))] = header.pop(name)
    elif kind == 4:
        del header[rng.choice(names)]
    elif kind == 5:
        about = header.get("__metadata__", {})
        some = {key: rng.choice((*map(str, NUMBERS), "{}", "[]", "[" * 100_000, *TEXTS)) for key in about}
        header["__metadata__"] = rng.choice((some, {}, None, 3, {"a": 1}, [], some))
    elif kind in (6, 7):
        _poison(rng, header, names, data)
    else:
        header = mutated_tree(rng, header)
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    said = len(text) if rng.random() < 0.9 else rng.choice((0, 1, len(text) + 1, 2**40, 2**63, 2**64 - 1))
    return struct.pack("<Q", said) + text + bytes(data)


def _poison(rng, header, names, data):
    """Numbers that are not finite, or very large, among the tensors of floats."""
    floats = [name for name in names if header[name].get("dtype") == "F32"] or names
    first, last = header[rng.choice(floats)]["data_offsets"]
    for _ in range(rng.choice((1, 1, 5))):
        if last - first >= 4:
            at = first + 4 * rng.randrange((last - first) // 4)
            data[at : at + 4] = struct.pack("<f", rng.choice((float("nan"), float("inf"), float("-inf"), 3e38, 1e-45)))


def mutated_npy(rng, content):
    """Another `.npy` file: other dtype, shape or order in its header, other numbers, or other bytes."""
    kind = rng.randrange(6)
    if kind == 0:
        return mutated_bytes(rng, content)
    if kind == 1:
        return mutated_bytes(rng, content[:80]) + content[80:]
    array = np.load(io.BytesIO(content))
    if kind == 2:
        return _npy(other_array(rng, array))
    shapes = ((0,), (), array.shape[::-1], (*array.shape, 1), (2**62,), (2**31, 2**31), (-1,), (10**12,), "x")
    about = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    about |= {"descr": rng.choice(NPY_DTYPES)} if kind in (3, 5) else {"shape": rng.choice(shapes)}
    about |= {rng.choice(("fortran_order", "extra")): rng.choice((True, 3, "x"))} if rng.random() < 0.3 else {}
    text = rng.choice((repr(about), repr(about), "{" * 3_000, "(" * 200 + ")" * 200, repr(about)[:-1])).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + array.tobytes()


def _npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def other_array(rng, array):
    """An array of another shape or type, or with numbers that are out of range or not finite."""
    choices = [array[:-1], array[:0], array.astype("f8"), array.astype(">i4"), array.astype(str), array.astype(object)]
    choices += [np.asarray(0), array.T, array.reshape(-1), np.repeat(array, 2, 0), array.astype(np.int8)]
    choices += [np.full(array.shape, number, "f4") for number in (np.nan, np.inf)]
    choices += [np.full(array.shape, number) for number in (-1, 10**12, 2**62)]
    changed = array.copy()
    if changed.size:
        bad = (np.nan, np.inf, -np.inf, 1e38) if changed.dtype.kind == "f" else (-1, 100, 2**31 - 1)
        changed.reshape(-1)[rng.randrange(changed.size)] = rng.choice(bad) if changed.dtype.itemsize > 2 else 1
    return rng.choice((*choices, changed, changed, changed))


def mutated_edges(rng, content):
    """Another edge list: ids that are negative, enormous or no numbers, lines that are short or long, other scripts."""
    if rng.random() < 0.2:
        return mutated_bytes(rng, content)
    lines = content.decode().splitlines()
    strange = (
        "0 99999999999",
        "9223372036854775807 0",
        "-1 0",
        "0",
        "0 1 2",
        "0,1",
        "a b",
        "nan 0",
        "1e3 0",
        "0.5 1",
        "",
    )
    strange += (
        "# note",
        "٣ ٤",
        "0\t1",
        "1" * 5_000 + " 0",
        "0 18446744073709551616",
        "\0 1",
        "0 1;",
        '"0" 1',
        "inf inf",
    )
    for _ in range(rng.choice((1, 1, 3))):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(strange))
    text = rng.choice(("\n", "\n", "\r\n", "\r", "\n\n")).join(lines)
    return text.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig")))


def mutated_file(rng, path):
    """Another content of a file, by the ending of its name."""
    content, ending = Path(path).read_bytes(), Path(path).suffix
    kinds = {".json": mutated_json, ".toml": mutated_toml, ".safetensors": mutated_safetensors}
    kinds |= {".npy": mutated_npy, ".txt": mutated_edges}
    return kinds.get(ending, mutated_bytes)(rng, content)
