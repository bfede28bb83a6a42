# SPDX-License-Identifier: Apache-2.0
"""Renders kustomizations as far as deploy/kubernetes uses them, for machines whose kubectl cannot; kubernetes_test compares it with one
that can. What it does not know it refuses: resources, labels, configMapGenerator of files, images, and JSON patches of a target.
"""

import copy
import re
from pathlib import Path

import yaml

KNOWN = {"apiVersion", "kind", "resources", "labels", "configMapGenerator", "images", "patches"}


def render(folder):
    """The documents of a folder with a kustomization.yaml. Names of config maps have no hash behind them."""
    folder = Path(folder)
    with open(folder / "kustomization.yaml", encoding="utf-8") as file:
        rules = yaml.safe_load(file)
    if unknown := set(rules) - KNOWN:
        raise ValueError(f"{folder}: {unknown}")
    documents = []
    for resource in rules.get("resources", []):
        path = folder / resource
        documents += render(path) if path.is_dir() else [d for d in yaml.safe_load_all(path.read_text()) if d]
    for generator in rules.get("configMapGenerator", []):
        _generate(documents, folder, generator)
    for label in rules.get("labels", []):
        _label(documents, label)
    for image in rules.get("images", []):
        _name_images(documents, image)
    for patch in rules.get("patches", []):
        _patch(documents, patch)
    return documents


def _generate(documents, folder, generator):
    behavior = generator.get("behavior", "create")
    data = {Path(name).name: (folder / name).read_text() for name in generator["files"]}
    there = [d for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["name"] == generator["name"]]
    if behavior == "create" and not there:
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    elif behavior == "replace" and there:
        there[0]["data"] = data
    else:
        raise ValueError(f"{generator}: {len(there)} config maps of that name")


def _label(documents, label):
    if label["includeSelectors"] or set(label) != {"pairs", "includeSelectors"}:
        raise ValueError(label)
    for document in documents:
        document["metadata"].setdefault("labels", {}).update(label["pairs"])


def _name_images(documents, image):
    for document in documents:
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"


def _patch(documents, patch):
    target = patch["target"]
    for document in documents:
        if document["kind"] == target["kind"] and re.fullmatch(target["name"], document["metadata"]["name"]):
            for operation in yaml.safe_load(patch["patch"]):
                _add(document, operation)


def _add(document, operation):
    """RFC 6902's `add`."""
    if operation["op"] != "add":
        raise ValueError(operation)
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    at = document
    for part in path:
        at = at[int(part)] if isinstance(at, list) else at[part]
    value = copy.deepcopy(operation["value"])
    if isinstance(at, list):
        at.insert(len(at) if last == "-" else int(last), value)
    else:
        at[last] = value
