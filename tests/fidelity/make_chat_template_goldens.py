#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/chat_templates.json: what transformers' apply_chat_template makes of conversations.

    python tests/fidelity/make_chat_template_goldens.py [--templates FOLDER] [--output FILE]

Needs the Python packages transformers and jinja2. The templates are those of chat_templates/, and
language.json, whose entries are small templates that show the language itself.

Each template is given every conversation of chat_conversations.py. A result is its text, or null
where the template raises an exception. strftime_now shows 4 July 2026, 13:05.
"""

import argparse
import datetime
import json
import pathlib

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

import chat_conversations

HERE = pathlib.Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 7, 4, 13, 5)


def render(tokenizer, arguments):
    arguments = dict(arguments)
    try:
        return tokenizer.apply_chat_template(arguments.pop("messages"), tokenize=False, **arguments)
    except Exception:  # Whatever Python raises in a template.
        return None


def render_language(entry):
    try:
        template = chat_template_utils._compile_jinja_template(entry["template"])
        return template.render(**entry.get("variables", {}))
    except Exception:
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=pathlib.Path, default=HERE / "chat_templates")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "goldens" / "chat_templates.json")
    arguments = parser.parse_args()
    chat_template_utils.datetime = FixedTime
    cases = dict(chat_conversations.cases())
    results = {}
    for path in sorted(arguments.templates.glob("*.jinja")):
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.BPE()), chat_template=path.read_text(), **TOKENS)
        results[path.stem] = {name: render(tokenizer, case) for name, case in cases.items()}
    language = json.loads((HERE / "chat_templates" / "language.json").read_text())
    for entry in language:
        entry["text"] = render_language(entry)
    golden = {"tokens": TOKENS, "cases": cases, "results": results, "language": language}
    arguments.output.write_text(json.dumps(golden, indent=1, ensure_ascii=True) + "\n")
    rendered = sum(text is not None for texts in results.values() for text in texts.values())
    print(len(results), "templates,", rendered, "texts,", len(language), "snippets")


if __name__ == "__main__":
    main()
