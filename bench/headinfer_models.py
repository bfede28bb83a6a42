# SPDX-License-Identifier: Apache-2.0
"""The memory that contexts of real models' shapes take, from what compute nodes with two layers of such a shape account for: HeadInfer's Tables
3, 5 and 10. Weights and scratch are scaled to all layers and the whole vocabulary; windows grow with the context. Two nodes, one with chunks twice as
long as the other's, tell what a token of a chunk takes from what is there whatever the chunk."""

import dataclasses
import functools
import math
import pathlib
import subprocess
import tempfile

import cluster
import node_memory
import random_llama
from paper_shared import NOT_BUILT, Steps
from programs import program

KIB, MIB, GIB = 2**10, 2**20, 2**30
ELEMENT = 2
TRIED_CHUNK = 2048  # Tokens, of the longer chunks by which the chunk is chosen.
ALL = 17 * GIB  # At most, of Llama-3-8B at 1M tokens, as the paper measured its own.
LOGIT_ROWS = 64  # That are there at once.
CARD = 24 * GIB
STORES = 512 * GIB  # The paper's, for K and V.
TOKENS = 64 * KIB  # Of the node that accounts.


@dataclasses.dataclass
class Model:
    layers: int
    vocabulary: int
    shape: random_llama.Shape  # With two layers: a layer has all the windows and activations of the whole model.
    tables: int = 2  # Embedding and LM head; 1 where they are one.


def _model(layers, vocabulary, width, hidden, heads, kv_heads, tables=2, head_width=0):
    return Model(layers, vocabulary, random_llama.Shape(layers=2, width=width, hidden=hidden, heads=heads, kv_heads=kv_heads, positions=MIB, head_width=head_width), tables)


MODELS = {
    "Llama-3-8B": _model(32, 128256, 4096, 14336, 32, 8),
    "Llama-2-7B": _model(32, 32000, 4096, 11008, 32, 32),
    "Mistral-7B": _model(32, 32000, 4096, 14336, 32, 8),
    "Qwen2-7B": _model(28, 152064, 3584, 18944, 28, 4),
    "Gemma-2-9b": _model(42, 256000, 3584, 14336, 16, 8, tables=1, head_width=256),
}
# Thousands of tokens in 24 GB.
PAPER = {
    "standard": (25, 10, 30, 35, 10),
    "chunked prefill": (30, 20, 40, 70, 10),
    "4-bit KV": (45, 30, 40, 50, 20),
    "layer by layer": (45, 60, 45, 50, 35),
    "head by head": (4096, 1024, 4096, 4200, 1300),
}


@dataclasses.dataclass
class Line:
    """Bytes by the tokens of a chunk."""

    fixed: float
    token: float

    def at(self, tokens):
        return self.fixed + self.token * tokens


def line_through(half, whole, chunk):
    """By the bytes with chunks of half as many tokens, and of so many."""
    token = (whole - half) / (chunk - chunk // 2)
    return Line(whole - token * chunk, token)


@dataclasses.dataclass
class Accounting:
    """Bytes of a whole model on a node that holds all its weights."""

    model: Model
    weights: float
    scratch_line: Line  # K and V of a chunk, in all layers.
    activation_line: Line  # Values of a chunk's rows; fixed are those of a tile of rows, and logits.
    header_line: Line  # What windows have besides K and V of the context.
    chunk: int  # Tokens.

    @property
    def lines(self):
        return self.scratch_line, self.activation_line, self.header_line

    @property
    def scratch(self):
        return self.scratch_line.at(self.chunk)

    @property
    def activations(self):
        return self.activation_line.at(self.chunk)

    @property
    def headers(self):
        return self.header_line.at(self.chunk)

    @property
    def head(self):
        """K and V of a token and head."""
        return 2 * ELEMENT * self.model.shape.head_dim

    @property
    def token_kv(self):
        return self.model.layers * self.model.shape.kv_bytes()

    @property
    def token(self):
        """Activations of a token, of a chunk or of a prompt that is not cut into chunks."""
        return self.activation_line.token

    def contexts(self, groups=()):
        """Tokens that fit into the card: {way: tokens}, with ways and so many heads a group."""
        rest = CARD - self.weights
        chunked = rest - self.activations - self.scratch - self.headers
        whole = rest - self.activation_line.fixed
        found = {"standard": whole / (self.token_kv + self.token), "layer by layer": whole / (2 * self.model.shape.kv_heads * self.head + self.token),
                 "chunked prefill": (rest - self.activations) / self.token_kv}
        found |= {heads: chunked / (2 * self.head * heads) for heads in groups}
        return {way: max(0, int(tokens)) for way, tokens in found.items()}


def weights_of(model):
    shape = model.shape
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = 2 * shape.width * query + 2 * shape.width * kv + 3 * shape.width * shape.hidden
    return ELEMENT * (model.layers * layer + model.tables * model.vocabulary * shape.width)


def accounting(model, parts, tokens, chunk):
    """`parts`: bytes by name of two nodes with two layers, windows of one head a group for contexts of so many tokens, and chunks of half as many as `chunk`
    and of so many."""
    scratch, activations, headers = (line_through(*(of[part] for of in parts), chunk) for part in ("kv", "activations", "windows"))
    scratch = Line(scratch.fixed * model.layers / model.shape.layers, scratch.token * model.layers / model.shape.layers)
    activations.fixed += 4 * LOGIT_ROWS * (model.vocabulary - random_llama.BYTES - 1)
    headers.fixed -= 2 * tokens * 2 * ELEMENT * model.shape.head_dim
    return Accounting(model, weights_of(model), scratch, activations, headers, chunk)


def node_parts(model, tokens, chunk):
    """What two real nodes of such a shape account for, by name: one with chunks of half as many tokens, and one with chunks of so many."""
    shape = model.shape
    window = 2 * tokens * 2 * ELEMENT * shape.head_dim
    found = []
    with tempfile.TemporaryDirectory(prefix="lamina-headinfer-") as folder:
        random_llama.write(pathlib.Path(folder), shape)
        for size in (chunk // 2, chunk):
            with cluster.Cluster(1, memory_nodes=1, model=folder, running_max=1, chunk_tokens=size, scratch_tokens=size, sequence_tokens_max=tokens,
                                 capacity=f"{2 * tokens * shape.layers * shape.kv_bytes()}B", fetch=("fetch_heads", {"window": f"{window}B", "heads": 1})) as running:
                found.append(node_memory.of(running, "c0").parts)
    return found


def largest_chunk(counted, budget, tokens):
    """By policy fetch_heads (policy/fetch_heads.h): the largest power of two with which a context of so many tokens, one head a group, fits into so many
    bytes, with what a token of another chunk takes."""
    taken = {"budget": budget, "weights": math.ceil(counted.weights + sum(line.fixed for line in counted.lines)), "head_token": counted.head,
             "chunk_token": math.ceil(sum(line.token for line in counted.lines)), "tokens": tokens, "group": 1}
    command = [program("lamina-bench-heads"), *(f"--{name}={value}" for name, value in taken.items())]
    chunk = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if chunk == 0:
        raise RuntimeError(f"no chunk fits: {taken}")
    return chunk


@functools.cache
def chosen_chunk():
    """One for all models, as the paper has one."""
    model = MODELS["Llama-3-8B"]
    counted = accounting(model, node_parts(model, TOKENS, TRIED_CHUNK), TOKENS, TRIED_CHUNK)
    return largest_chunk(counted, ALL, MIB)


def order(values):
    return sorted(values, key=lambda name: values[name])


def table3():
    """(head and rows of the table, {model: {way: tokens}}, {model: whether the order is the paper's})."""
    found, chunk, steps = {}, chosen_chunk(), Steps(len(MODELS))
    for name, model in MODELS.items():
        steps.say(name)
        counted = accounting(model, node_parts(model, TOKENS, chunk), TOKENS, chunk)
        contexts = counted.contexts(groups=(1,))
        found[name] = {way: contexts[way] for way in ("standard", "chunked prefill", "layer by layer")}
        found[name]["head by head"] = min(contexts[1], STORES // counted.token_kv)
        print(f"  {name}: {counted.weights / GIB:.1f} GiB of weights, {counted.token / KIB:.0f} KiB of activations and {counted.token_kv / KIB:.0f} KiB of K and V a token", flush=True)
    rows = []
    for way, paper in PAPER.items():
        cells = [f"{of[way] / 1000:,.0f}k" if way in of else NOT_BUILT for of in found.values()]
        rows.append([way, *(f"{cell} ({number:,}k)" for cell, number in zip(cells, paper))])
    same = {name: order(of) == order({way: PAPER[way][index] for way in of}) for index, (name, of) in enumerate(found.items())}
    return ["tokens in 24 GiB: ours (paper's)", *found], rows, found, same
