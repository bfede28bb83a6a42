// SPDX-License-Identifier: Apache-2.0
//
// Regex: a compiled tokenizer pattern (PCRE2, just-in-time compiled where the machine allows).
//
// Matching is bounded: a pattern that backtracks without end is an error, not a hang.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::model {

struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  bool matched = false;  // Set by Regex::Cut.
};

class Regex {
 public:
  // `pattern` in Oniguruma's syntax (regex_dialect.h).
  // Errors: kInvalidArgument  not a pattern: what, and at which byte of the translated pattern.
  //         kUnimplemented    a construct that we cannot translate.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Cuts every range of `text` (valid UTF-8) into its matches and what lies between them, in
  // order, none of them empty. Each range is matched as if it were the whole text.
  // Errors: kInvalidArgument  a match needs more steps than the limit.
  absl::Status Cut(absl::string_view text, const std::vector<TextRange>& ranges,
                   std::vector<TextRange>* out) const;

 private:
  struct Compiled;  // Owns the PCRE2 handles.
  explicit Regex(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace lamina::model
