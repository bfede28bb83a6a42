# SPDX-License-Identifier: Apache-2.0
"""Writes tokenizers/: small tokenizers, strings, and the ids that the reference libraries give.

    python tests/fidelity/make_tokenizer_goldens.py [--model smollm2.gguf]

Needs the Python packages tokenizers and sentencepiece, and gguf for --model. Without --model the
golden of that model is left as it is.

corpus.txt      one string a line; bytes outside printable ASCII, and the backslash, as \\xNN.
NAME.golden     for each string: the number of ids, and FNV-1a (32 bits) over the ids as 4 bytes
                little-endian: with special tokens put around the text and parsed in it, then -1,
                then with neither. The first FULL_IDS lines go on with the ids of the first kind.
                "tie" where a unigram model has two best segmentations: the choice is then up to
                the order of additions in the version of the library.
NAME/           the tokenizer itself.
"""

import argparse
import json
import pathlib
import struct
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

import tokenizer_corpus

FULL_IDS = 60
VOCABULARY = 640
HERE = pathlib.Path(__file__).parent / "tokenizers"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(use_regex, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


def train(model, specials, added=(), pre=None, normalizer=None, decoder=None, alphabet=None, size=VOCABULARY):
    tokenizer = Tokenizer(model)
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoder or decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet,
        limit_alphabet=1000 if alphabet is None else 120)
    tokenizer.train_from_iterator(tokenizer_corpus.training_text(), trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


def with_bos(tokenizer, token):
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))])])
    return tokenizer


def flagged_tokens():
    """Every flag of an added token, on tokens that the corpus contains."""
    return [AddedToken("<mask>", lstrip=True, special=True), AddedToken("[R]", rstrip=True, normalized=False),
            AddedToken("wordy", single_word=True), AddedToken("naïve\u0301", normalized=True)]


def make_gpt2():
    tokenizer = train(models.BPE(), ["<|endoftext|>"], flagged_tokens(), byte_level(True))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def make_gpt_neox():
    spaces = [AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)]
    return train(models.BPE(), ["<|endoftext|>"], spaces + flagged_tokens(), byte_level(True), normalizers.NFC())


def make_llama3():
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer = train(models.BPE(), specials, (), split_then_bytes(LLAMA3))
    # As in the real one, some entries are out of reach of the merges.
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    data["model"]["merges"] = [m for i, m in enumerate(data["model"]["merges"]) if i % 29 != 28]
    return with_bos(Tokenizer.from_str(json.dumps(data)), "<|begin_of_text|>")


def make_qwen2():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return train(models.BPE(), specials, (), split_then_bytes(QWEN2), normalizers.NFC())


def make_smollm():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    return train(models.BPE(), specials, (), pre)


def make_falcon():
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation(behavior="contiguous"), byte_level(True), pre_tokenizers.Digits(False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    return train(models.BPE(), ["<|endoftext|>"], (), pre)


BYTE_TOKENS = [f"<0x{b:02X}>" for b in range(256)]
SPM_DECODER = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                 decoders.Strip(" ", 1, 0)])


def unspecial(tokenizer, names):
    """Tokens that had to be special while training become plain entries."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in names]
    return Tokenizer.from_str(json.dumps(data))


def make_llama2():
    """Spaces through the normaliser, no pre-tokenizer at all."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    # Trained on words, because whole lines would become tokens.
    tokenizer = train(model, ["<unk>", "<s>", "</s>"] + BYTE_TOKENS, (), pre_tokenizers.Metaspace(),
                      None, SPM_DECODER, [], VOCABULARY)
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizer
    tokenizer = unspecial(tokenizer, BYTE_TOKENS)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def make_metaspace():
    """Unknown characters without byte fallback; both ends get a token; a space only at the start."""
    model = models.BPE(unk_token="<unk>", fuse_unk=True)
    pre = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer = train(model, ["<unk>", "<s>", "</s>"], flagged_tokens(), pre, normalizers.NFKC(),
                      decoders.Metaspace(prepend_scheme="first"), [])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    # The vocabulary of an alphabet that is itself being normalised.
    return tokenizer


def compact(tokenizer, folder):
    folder.mkdir(exist_ok=True)
    data = json.loads(tokenizer.to_str())
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text.replace('],["', '],\n["') + "\n")


def fnv(ids):
    value = 0x811C9DC5
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def write_golden(name, strings, encode, ambiguous=lambda text: False):
    """`encode(text, special)` gives ids with special tokens put and parsed, or with neither."""
    lines = []
    for i, data in enumerate(strings):
        text = data.decode("utf-8", errors="replace")
        if ambiguous(text):
            lines.append("tie")
            continue
        ids = encode(text, True)
        line = f"{len(ids)} {fnv(list(ids) + [-1] + list(encode(text, False))):08x}"
        lines.append(" ".join([line] + [str(t) for t in ids] * (i < FULL_IDS)))
    (HERE / f"{name}.golden").write_text("\n".join(lines) + "\n")
    print(name, len(lines), "strings")


def encoder_of(tokenizer):
    def encode(text, special):
        tokenizer.encode_special_tokens = not special
        return tokenizer.encode(text, add_special_tokens=special).ids
    return encode


def split_at(text, names):
    """The text cut at special tokens, the longest of the leftmost first."""
    out, start, position = [], 0, 0
    while position < len(text):
        found = max((n for n in names if text.startswith(n, position)), key=len, default=None)
        if found is None:
            position += 1
            continue
        out += [(False, text[start:position]), (True, found)]
        position += len(found)
        start = position
    return [(special, part) for special, part in out + [(False, text[start:])] if part]


def sentencepiece_encoder(processor):
    specials = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())
                if processor.is_control(i) or processor.is_unknown(i)}

    def encode(text, special):
        if not special:
            return processor.encode(text)
        ids = [processor.bos_id()]
        for is_special, part in split_at(text, specials):
            ids += [specials[part]] if is_special else processor.encode(part)
        return ids
    return encode


def has_tie(processor, text):
    for _, part in split_at(text, ["<s>", "</s>", "<unk>"]) + [(False, text)]:
        best = processor.nbest_encode(part, nbest_size=2)
        # Bytes have no scores: they stand for the same unknown characters in both.
        scores = [sum(processor.get_score(t) for t in ids if not processor.is_byte(t)) for ids in best]
        if len(best) == 2 and abs(scores[0] - scores[1]) < 1e-3:
            return True
    return False


def make_sentencepiece(name, strings, **options):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        text = pathlib.Path(scratch) / "text"
        lines = [line.replace("\n", " ").replace("\0", "") for line in tokenizer_corpus.training_text()]
        text.write_text("\n".join(lines))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{scratch}/tokenizer", vocab_size=1000, byte_fallback=True,
            character_coverage=0.98, minloglevel=2, num_threads=1, user_defined_symbols=["wordy", "<|im_end"],
            **options)
        model = (pathlib.Path(scratch) / "tokenizer.model").read_bytes()
    (folder / "tokenizer.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    write_golden(name, strings, sentencepiece_encoder(processor),
                 lambda text: options["model_type"] == "unigram" and has_tie(processor, text))
    return processor


def piece_type(processor, token):
    if processor.is_unknown(token):
        return 2
    if processor.is_control(token):
        return 3
    if processor.is_byte(token):
        return 6
    return 4 if processor.id_to_piece(token) in ("wordy", "<|im_end") else 1


def write_pieces(name, processor):
    """The vocabulary as a GGUF file lists it: text, score, type."""
    pieces = [[processor.id_to_piece(i), processor.get_score(i), piece_type(processor, i)]
              for i in range(processor.get_piece_size())]
    (HERE / name / "pieces.json").write_text(json.dumps(pieces).replace("], [", "],\n[") + "\n")


def smollm2_from_gguf(path):
    import gguf
    reader = gguf.GGUFReader(path)
    names = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False)
                                  for n, t in zip(names, types) if t == 3])
    return tokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="GGUF file of SmolLM2-135M-Instruct")
    arguments = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    strings = tokenizer_corpus.corpus()
    (HERE / "corpus.txt").write_text("\n".join(tokenizer_corpus.escape(s) for s in strings) + "\n")
    makers = {"gpt2": make_gpt2, "gpt_neox": make_gpt_neox, "llama3": make_llama3, "qwen2": make_qwen2,
              "smollm": make_smollm, "falcon": make_falcon, "llama2": make_llama2, "metaspace": make_metaspace}
    for name, make in makers.items():
        tokenizer = make()
        compact(tokenizer, HERE / name)
        write_golden(name, strings, encoder_of(Tokenizer.from_file(str(HERE / name / "tokenizer.json"))))
    processor = make_sentencepiece("spm_bpe", strings, model_type="bpe", normalization_rule_name="identity",
                                   remove_extra_whitespaces=False)
    write_pieces("spm_bpe", processor)
    make_sentencepiece("spm_unigram", strings, model_type="unigram", normalization_rule_name="nmt_nfkc")
    if arguments.model:
        write_golden("smollm2_gguf", strings, encoder_of(smollm2_from_gguf(arguments.model)))


if __name__ == "__main__":
    main()
