// SPDX-License-Identifier: Apache-2.0
//
// Tokenizer: text to token ids and back, as the model's own tokenizer does it.
//
// Kinds: byte-level BPE (GGUF "gpt2", tokenizer.json) and SentencePiece (GGUF "llama",
// tokenizer.model, tokenizer.json with a SentencePiece-like BPE).
//
// Threading: const calls from any thread. A StreamDecoder belongs to one stream.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/sampling_params.h"

namespace lamina::model {

struct EncodeOptions {
  bool add_special = true;    // Put BOS / EOS where the model's tokenizer does.
  bool parse_special = true;  // "<|im_start|>" in the text is the token, not its characters.
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Takes any bytes: invalid UTF-8 is replaced as the model's tokenizer replaces it (U+FFFD).
  // Cost: O(n log n) in the length; no input takes longer than that (no regex blow-up: bounded).
  virtual absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                                      const EncodeOptions& options) const = 0;

  // Bytes of the tokens; may end in half a character. Ids outside the vocabulary are
  // kInvalidArgument. Special tokens are left out with `skip_special`.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const TokenId> tokens,
                                             bool skip_special) const = 0;

  // The bytes that one token adds inside a text (empty for special ones when skipped).
  virtual std::string TokenBytes(TokenId token, bool skip_special) const = 0;

  // The raw vocabulary entry, for people: "Ġthe", "<|im_end|>".
  virtual absl::string_view TokenName(TokenId token) const = 0;

  // Encode() makes at least so many tokens of `text`: the bytes that cannot vanish, by the most
  // that one token stands for. 0 where nothing can be promised, such as of a step that drops what
  // it reads. Cost: at most O(n), some milliseconds for 4 MiB.
  virtual size_t tokens_min(absl::string_view text) const = 0;

  virtual size_t vocabulary_size() const = 0;
  virtual TokenId bos() const = 0;  // -1 for none.
  virtual TokenId eos() const = 0;  // -1 for none.
  // Tokens after which a generation ends: eos and the end-of-turn tokens.
  virtual absl::Span<const TokenId> end_tokens() const = 0;
  // The id of a vocabulary entry, or -1.
  virtual TokenId Find(absl::string_view name) const = 0;
  // The model's own chat template (Jinja source); empty for none.
  virtual absl::string_view chat_template() const = 0;
};

// `path` as for OpenModel().
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

// Turns a stream of tokens into a stream of text: never half a character, and text is held back
// only while the bytes so far are a proper prefix of a character. Bytes that can never become a
// character turn into U+FFFD at once. Of a stream that goes on behind no text, all
// outputs together are the lossy UTF-8 decoding of Decode().
class StreamDecoder {
 public:
  // The stream goes on behind the tokens `before`: where these have text, the space of its first
  // word stays, as it would inside a text. The tokenizer must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special,
                absl::Span<const TokenId> before = {});
  std::string Push(TokenId token);
  // What is still held back, as U+FFFD.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  bool first_;  // Nothing was shown yet.
  std::string pending_;
};

}  // namespace lamina::model
