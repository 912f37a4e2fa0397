"""The papers in `paper/` as Markdown: `[@key]` and `@key` become authors and years, with a list of references."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

GROUP, SINGLE = re.compile(r"\[(@[\w-]+(?:;\s*@[\w-]+)*)\]"), re.compile(r"(?<![\w\[`/.])@([\w-]+)")
FIELD = re.compile(r"(\w+)\s*=\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
Entries = dict[str, dict[str, str]]


def read_bibliography(path: Path) -> Entries:
    """The entries of a BibTeX file by key; every field is in braces."""
    entries = {}
    for part in re.split(r"^@", path.read_text(), flags=re.M)[1:]:
        key, rest = part.split("{", 1)[1].split(",", 1)
        fields = {name.lower(): re.sub(r"[{}]", "", text) for name, text in FIELD.findall(rest)}
        entries[key.strip()] = {name: " ".join(text.split()) for name, text in fields.items()}
    return entries


def cited(text: str) -> list[str]:
    """The keys that a text cites, in order, each once."""
    return list(dict.fromkeys(re.findall(r"(?<![\w`/.])@([\w-]+)", _body(text)[1])))


def rendered(text: str, entries: Entries) -> str:
    """The text with its title, its citations as authors and years, and its references."""
    title, body = _body(text)
    keys = cited(text)
    body = GROUP.sub(lambda match: "(" + "; ".join(_short(key, entries) for key in _keys(match[1])) + ")", body)
    body = SINGLE.sub(lambda match: re.sub(r", (\d+)$", r" (\1)", _short(match[1], entries)), body)
    body = re.sub(r"^# ", "## ", body, flags=re.M).replace("](../docs/", "](../")
    references = "".join(f"- {_long(entries[key])}\n" for key in sorted(keys))
    return f"# {title}\n{body}\n## References\n\n{references}"


def _body(text: str) -> tuple[str, str]:
    """The title of the front matter, and the text below it without a heading for references."""
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front)["title"], re.sub(r"\n# References\n.*", "\n", body, flags=re.S)


def _keys(group: str) -> list[str]:
    return re.findall(r"@([\w-]+)", group)


def _authors(entry: dict[str, str]) -> list[str]:
    """The last names of the authors."""
    names = entry["author"].split(" and ")
    last = [name.split(",")[0] if "," in name else name.split()[-1] for name in names]
    return [name if name != "others" else "et al." for name in last]


def _short(key: str, entries: Entries) -> str:
    names = _authors(entries[key])
    who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"{who}, {entries[key]['year']}"


def _long(entry: dict[str, str]) -> str:
    where = next(entry[name] for name in ("journal", "booktitle", "publisher", "howpublished") if name in entry)
    link = f"https://doi.org/{entry['doi']}" if "doi" in entry else entry.get("url", "")
    return f"{', '.join(_authors(entry))} ({entry['year']}). {entry['title']}. {where}. <{link}>"
