# SPDX-License-Identifier: Apache-2.0
"""Rules over classes: a class is one story, of few methods in few files."""

import re

from source_tree import Finding

METHODS_MAX = 35
FILES_MAX = 2
PRODUCT = ("bench/", "tests/")  # Not these.
# Parsers whose methods are the productions of a grammar.
EXEMPT = ("model/jinja/",)
# Still larger than the rule allows. The list only gets shorter.
PENDING = set()

_CLASS = re.compile(r"\b(?:class|struct)\s+(?:alignas\([^)]*\)\s+)?((?:\w+::)*\w+)\s*(?:final\s*)?(?::[^;{]*)?\{")
_METHOD = re.compile(r"(?<![\w.>])(?:operator\s*\W{1,3}|~?\w+)\s*\((?![^()]*\)\s*\()")
_NO_METHODS = re.compile(r"^\s*(?:using|typedef|friend|static_assert|enum|public|private|protected)\b")
_MACRO = re.compile(r"\b[A-Z][A-Z0-9_]+\s*\([^()]*\)")


def _block_end(code, begin):
    """Where the brace at `begin` closes."""
    depth = 0
    for match in re.finditer(r"[{}]", code[begin:]):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return begin + match.start()
    return len(code)


def _without_templates(text):
    """Drops <...>, innermost first."""
    while True:
        shorter = re.sub(r"<[^<>;{}]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def _members(body):
    """The declarations of a class's own level: bodies and nested blocks are blanked."""
    depth = 0
    level = []
    for char in body:
        if char == "{":
            depth += 1
            level.append(";" if depth == 1 else "")
        elif char == "}":
            depth -= 1
        elif depth == 0:
            level.append(char)
    return _without_templates("".join(level)).split(";")


def methods_of(body):
    count = 0
    for member in _members(body):
        text = re.sub(r"\b(?:public|private|protected)\s*:", "", member)
        text = _MACRO.sub("", text).split("=", 1)[0] if "operator" not in text else text
        if not _NO_METHODS.match(text.strip()) and _METHOD.search(text):
            count += 1
    return count


def classes_of(source):
    """(name, line, number of methods) of each class that the file defines, nested ones too."""
    code = source.code
    found = []
    for match in _CLASS.finditer(code):
        if re.search(r"\benum\s*$", code[: match.start()]):
            continue
        body = code[match.end() : _block_end(code, match.end() - 1)]
        found.append((match.group(1), code.count("\n", 0, match.start()) + 1, methods_of(body)))
    return found


def _folder(path):
    return path.rsplit("/", 1)[0] + "/"


def check_class_size(tree):
    definitions = {}  # (folder, class) -> files with its methods
    for source in tree.files:
        if source.suffix == ".cc" and not source.path.startswith(PRODUCT):
            for name in set(re.findall(r"(?m)^[^\s#/}][^\n;={]*?\b((?:\w+::)*\w+)::~?\w+\(", source.code)):
                definitions.setdefault((_folder(source.path), name), set()).add(source.path)
    for source in tree.files:
        if source.suffix not in (".h", ".cc") or source.path.startswith(PRODUCT + EXEMPT):
            continue
        for name, line, methods in classes_of(source):
            files = definitions.get((_folder(source.path), name), set())
            if name in PENDING:
                continue
            if methods > METHODS_MAX:
                yield Finding("class-size", source.path, line, f"{name} has {methods} methods; at most {METHODS_MAX}")
            if len(files) > FILES_MAX:
                message = f"{name} is spread over {len(files)} .cc files; at most {FILES_MAX}"
                yield Finding("class-size", source.path, line, message)
                for path in sorted(files):
                    yield Finding("class-size", path, 1, message)


RULES = {"class-size": check_class_size}
