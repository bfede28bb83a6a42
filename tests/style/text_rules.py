# SPDX-License-Identifier: Apache-2.0
"""Rules over the text of files: licence, forbidden calls, notes to self, links, white space, size."""

import posixpath
import re

from include_rules import includes, is_outside
from source_tree import CODE_SUFFIXES, Finding, line_comments

SPDX = "SPDX-License-Identifier: Apache-2.0"
LINES_MAX = 600
LINES_WARN = 400
HEADER_LINES_WARN = 200

# Besides main.cc: what the mains of all daemons share, and what they and `lamina` tell UCX and gRPC.
ENVIRONMENT_FILES = ("daemon/daemon.cc", "common/malloc_pages.cc", "common/name_lookup.cc", "common/ucx_environment.cc")

# The style rules name what they forbid.
_SELF = "tests/style/"

_FRAGMENT = re.compile(r"(?:Of|The same)\b")
_ENVIRONMENT = re.compile(r"\b(?:secure_)?(?:getenv|setenv|putenv|unsetenv)\s*\(")
_NOTE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_NOTE_FORM = re.compile(r"\bTODO\([a-z][a-z0-9_.-]*, (?:ADR \d{4}|#\d+)\): \S")
_MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|root|tmp|home|opt/ref)(?:/|\b(?!-))")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_FILE_NAME = re.compile(r"^[a-z0-9_]+(-inl)?\.(h|cc|cu|cuh)$")

# In coordinator/core and plan all of these; in policy and cost those that are I/O, clocks or chance.
_IMPURE_CODE = {
    r"\b\w+_clock\b": "a clock of its own; take common/clock.h's Clock",
    r"\b(?:RealClock|clock_gettime|gettimeofday)\s*\(|(?<![.>\w])time\s*\(": "the real clock",
    r"\b(?:random_device|mt19937(?:_64)?|BitGen|getrandom)\b": "unseeded randomness",
    r"(?<![.>\w])s?rand(?:om)?\s*\(": "unseeded randomness",
    r"\b(?:sleep|usleep|nanosleep|sleep_for|sleep_until|SleepFor)\s*\(": "waiting",
}
_CORE_CODE = {
    r"\b(?:std::j?thread|std::mutex|std::atomic|absl::Mutex|std::condition_variable)\b": "threads",
    r"\b(?:flat|node)_hash_(?:map|set)\b": "hash order",
    r"\bunordered_(?:multi)?(?:map|set)\b": "hash order",
}
_IO_HEADERS = re.compile(
    r"^(iostream|fstream|cstdio|stdio\.h|filesystem|unistd\.h|fcntl\.h|netdb\.h"
    r"|(sys|netinet|arpa|linux)/.*)$"
)
_CORE_HEADERS = re.compile(r"^(thread|mutex|shared_mutex|atomic|future|condition_variable|random)$")


def check_licence(tree):
    for file in tree.files:
        if file.suffix in CODE_SUFFIXES and not file.is_data():
            if SPDX not in "\n".join(file.lines[:2]):
                yield Finding("licence", file.path, 1, f"the first line must be '{SPDX}'")


def check_environment(tree):
    for file in filter(lambda f: f.is_cpp() and not is_outside(f.path), tree.files):
        if file.name == "main.cc" or file.path in ENVIRONMENT_FILES:
            continue
        for number, line in enumerate(file.code.split("\n"), start=1):
            if _ENVIRONMENT.search(line):
                yield Finding("environment", file.path, number, "only main.cc reads environment")


def _forbidden(file, patterns, where):
    for number, line in enumerate(file.code.split("\n"), start=1):
        for pattern, what in patterns.items():
            if re.search(pattern, line):
                yield Finding("purity", file.path, number, f"{what} is forbidden in {where}")


def check_purity(tree):
    for file in filter(lambda f: f.is_cpp(), tree.files):
        core = file.path.startswith(("coordinator/core/", "plan/"))
        if not core and not file.path.startswith(("policy/", "cost/")):
            continue
        where = file.path.rsplit("/", 1)[0]
        yield from _forbidden(file, {**_IMPURE_CODE, **(_CORE_CODE if core else {})}, where)
        for number, header in includes(file):
            if _IO_HEADERS.match(header) or (core and _CORE_HEADERS.match(header)):
                message = f"<{header}> is forbidden in {where}"
                yield Finding("purity", file.path, number, message)


def check_notes(tree):
    for file in filter(lambda f: f.is_text() and not f.path.startswith(_SELF), tree.files):
        for number, line in enumerate(file.lines, start=1):
            if _NOTE.search(line) and not _NOTE_FORM.search(line):
                message = "write 'TODO(owner, ADR 0001): sentence' or '#12', or do it now"
                yield Finding("notes", file.path, number, message)


def check_fragments(tree):
    for file in filter(lambda f: f.is_cpp(), tree.files):
        for number, words in line_comments(file.text):
            match = _FRAGMENT.match(words)
            if match:
                message = f"'{match.group(0)}' begins a comment; write a sentence with its subject"
                yield Finding("fragments", file.path, number, message)


def _heading_anchors(text):
    anchors = set()
    for line in _without_fences(text):
        match = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if match:
            words = re.sub(r"[^\w\- ]", "", match.group(1).lower())
            anchors.add(words.replace(" ", "-"))
    return anchors


def _without_fences(text):
    fenced = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        fenced = fenced != fence
        yield "" if fenced or fence else re.sub(r"`[^`]*`", "", line)


def check_links(tree):
    texts = {file.path: file.text for file in tree.files}
    for file in filter(lambda f: f.suffix == ".md", tree.files):
        for number, line in enumerate(_without_fences(file.text), start=1):
            for target in _LINK.findall(line):
                if re.match(r"[a-z][a-z0-9+.-]*:", target):
                    continue
                path, _, anchor = target.partition("#")
                found = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), path))
                found = found if path else file.path
                if not tree.exists(found):
                    yield Finding("links", file.path, number, f"dead link {target}")
                elif anchor and found.endswith(".md"):
                    if anchor not in _heading_anchors(texts.get(found, "")):
                        yield Finding("links", file.path, number, f"no heading for {target}")


def check_white_space(tree):
    for file in filter(lambda f: f.is_text(), tree.files):
        for number, line in enumerate(file.lines, start=1):
            if "\t" in line:
                yield Finding("white-space", file.path, number, "a tab")
            if line != line.rstrip():
                yield Finding("white-space", file.path, number, "space at the end of a line")
        if file.text and not file.text.endswith("\n"):
            yield Finding("white-space", file.path, len(file.lines), "no newline at the end")


def check_length(tree):
    for file in tree.files:
        if file.suffix not in CODE_SUFFIXES or file.is_data():
            continue
        length = file.text.count("\n")
        warn = HEADER_LINES_WARN if file.suffix in (".h", ".cuh") else LINES_WARN
        if length > LINES_MAX:
            yield Finding("length", file.path, length, f"{length} lines; at most {LINES_MAX}")
        elif length > warn:
            yield Finding("length", file.path, length, f"{length} lines; aim for {warn}", True)


def check_executables(tree):
    for file in tree.files:
        shebang = file.text.startswith("#!")
        if file.executable and not shebang:
            yield Finding("executables", file.path, 1, "executable, but without a shebang")
        if shebang and not file.executable:
            yield Finding("executables", file.path, 1, "has a shebang, but is not executable")


def check_machine_paths(tree):
    for file in filter(lambda f: f.is_text() and not f.path.startswith(_SELF), tree.files):
        for number, line in enumerate(file.lines, start=1):
            match = _MACHINE_PATH.search(line)
            if match:
                message = f"'{match.group(0)}' is a path of one machine"
                yield Finding("machine-paths", file.path, number, message)


def check_file_names(tree):
    for file in filter(lambda f: f.is_cpp(), tree.files):
        if not _FILE_NAME.match(file.name):
            yield Finding("file-names", file.path, 1, "C++ files are named snake_case")


def check_folder_sentence(tree):
    for file in tree.files:
        mirrored = re.match(r"tests/unit/.+/", file.path)  # What it is, its source folder says.
        if file.name != "CMakeLists.txt" or mirrored:
            continue
        if not re.match(r"# \S.*", file.lines[0]):
            message = "the first line is a comment that says what the folder is"
            yield Finding("folder-sentence", file.path, 1, message)


RULES = {
    "licence": check_licence,
    "environment": check_environment,
    "purity": check_purity,
    "notes": check_notes,
    "fragments": check_fragments,
    "links": check_links,
    "white-space": check_white_space,
    "length": check_length,
    "executables": check_executables,
    "machine-paths": check_machine_paths,
    "file-names": check_file_names,
    "folder-sentence": check_folder_sentence,
}
