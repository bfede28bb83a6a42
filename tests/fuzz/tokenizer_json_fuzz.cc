// SPDX-License-Identifier: Apache-2.0
//
// Any text as tokenizer.json: it is refused with a message, or makes a tokenizer that encodes and
// decodes, or says why not.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/tokenizer_json_internal.h"
#include "tests/fuzz/fuzz_target.h"

namespace lamina::model {
namespace {

constexpr absl::string_view kText =
    "Hi, you're 12 \xC3\xA9t\xC3\xA9s\n\n  <s>a b</s>\xE2\x96\x81 \xF0\x9F\x98\x80";

void Check(const Tokenizer& tokenizer) {
  for (const bool special : {false, true}) {
    const auto tokens = tokenizer.Encode(kText, {.add_special = special, .parse_special = special});
    if (!tokens.ok()) {
      LAMINA_CHECK(!tokens.status().message().empty());
      continue;
    }
    for (const TokenId token : *tokens) {
      LAMINA_CHECK(token >= 0 && static_cast<size_t>(token) < tokenizer.vocabulary_size());
    }
    LAMINA_CHECK(tokenizer.Decode(*tokens, special).ok());
  }
}

}  // namespace
}  // namespace lamina::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lamina::model;  // NOLINT
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto parsed = ParseTokenizerJson(text, "tokenizer.json");
  if (!parsed.ok()) {
    LAMINA_CHECK(!parsed.status().message().empty());
    return 0;
  }
  const auto tokenizer =
      BpeTokenizer::Create(std::move(parsed->pipeline), std::move(parsed->settings));
  if (tokenizer.ok()) {
    Check(**tokenizer);
  }
  return 0;
}
