// SPDX-License-Identifier: Apache-2.0
//
// Byte-level BPE writes each byte as a printable character: itself where it is one, otherwise the
// next unused code point from U+0100 on.

#include "tests/support/tiny_tokenizer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace lamina::test_support {
namespace {

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;  // "left right"
  std::vector<int32_t> types;       // GGUF: 1 normal, 3 control, 5 unused.
};

// Code points below U+0800 only.
std::string Utf8(uint32_t code) {
  if (code < 0x80) {
    return std::string(1, static_cast<char>(code));
  }
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

bool IsPrintable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

Vocabulary MakeVocabulary(uint32_t size) {
  LAMINA_CHECK(size >= kTinyTokenizerSizeMin);
  Vocabulary vocabulary;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(Utf8(IsPrintable(byte) ? byte : next++));
  }
  vocabulary.types.assign(256, 1);
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"<|begin|>", "<|end|>"});
  vocabulary.types.insert(vocabulary.types.end(), {3, 3});
  const std::string space = vocabulary.tokens[' '];
  const std::vector<std::pair<std::string, std::string>> merges = {
      {space, "t"}, {"h", "e"}, {"i", "n"},         {space, "a"},
      {"o", "n"},   {"r", "e"}, {space + "t", "he"}};
  for (const auto& [left, right] : merges) {
    if (vocabulary.tokens.size() < size) {
      vocabulary.merges.push_back(absl::StrCat(left, " ", right));
      vocabulary.tokens.push_back(left + right);
      vocabulary.types.push_back(1);
    }
  }
  while (vocabulary.tokens.size() < size) {
    vocabulary.tokens.push_back(absl::StrCat("<unused", vocabulary.tokens.size(), ">"));
    vocabulary.types.push_back(5);
  }
  return vocabulary;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
  return out + "\"";
}

std::string AddedToken(uint32_t id, const std::string& content) {
  return absl::StrCat("{\"id\":", id, ",\"content\":", Quoted(content),
                      ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":true}");
}

}  // namespace

std::string TinyTokenizerJson(uint32_t size) {
  const Vocabulary vocabulary = MakeVocabulary(size);
  std::vector<std::string> entries;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    entries.push_back(absl::StrCat(Quoted(vocabulary.tokens[id]), ":", id));
  }
  std::vector<std::string> merges;
  for (const std::string& merge : vocabulary.merges) {
    merges.push_back(Quoted(merge));
  }
  constexpr char kByteLevel[] =
      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":"
      "true}";
  return absl::StrCat(
      "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[",
      AddedToken(kTinyTokenizerBos, vocabulary.tokens[kTinyTokenizerBos]), ",",
      AddedToken(kTinyTokenizerEos, vocabulary.tokens[kTinyTokenizerEos]),
      "],\"normalizer\":null,\"pre_tokenizer\":", kByteLevel,
      ",\"post_processor\":null,\"decoder\":", kByteLevel,
      ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
      "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
      "\"byte_fallback\":false,\"vocab\":{",
      absl::StrJoin(entries, ","), "},\"merges\":[", absl::StrJoin(merges, ","), "]}}\n");
}

void AddTinyTokenizer(uint32_t size, GgufWriter& writer) {
  const Vocabulary vocabulary = MakeVocabulary(size);
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "gpt-2");
  writer.AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.AddInts("tokenizer.ggml.token_type", vocabulary.types);
  writer.AddStrings("tokenizer.ggml.merges", vocabulary.merges);
  writer.AddUint("tokenizer.ggml.bos_token_id", kTinyTokenizerBos);
  writer.AddUint("tokenizer.ggml.eos_token_id", kTinyTokenizerEos);
  writer.AddBool("tokenizer.ggml.add_bos_token", false);
}

}  // namespace lamina::test_support
