// SPDX-License-Identifier: Apache-2.0
//
// Grammars: which tokens may come next, when an output has a form. A form is compiled once for a
// vocabulary; each sequence then has its own place in it. Made by XGrammar where it is built in.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/output_form.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::model {

// The place of one sequence in its grammar. Once it has taken more processor time than
// GrammarBudget has, nothing is allowed any more.
//
// Threading: one thread at a time.
class GrammarState {
 public:
  virtual ~GrammarState() = default;
  // A bit for each token of the vocabulary, the lowest of the first word for token 0: whether it
  // may come next. Empty when all may. Valid until the next call. Requires: !ended(). Cost:
  // microseconds to tens of them, at worst milliseconds.
  virtual absl::Span<const uint32_t> Allowed() = 0;
  // Goes on by a token. False, and no change, if it is not allowed. False as well if the budget is
  // exhausted, by this call too: the token fits then, and is the last one.
  virtual bool Accept(TokenId token) = 0;
  // An end token has come: nothing may follow.
  virtual bool ended() const = 0;
};

// A compiled form.
//
// Threading: any.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // The beginning. The tokenizer's end tokens are allowed wherever the output is whole.
  virtual std::unique_ptr<GrammarState> Begin() const = 0;
  virtual size_t bytes() const = 0;
  // Follows one long text of the form, to find grammars whose outputs would be cut for the time
  // that they take. Errors: kInvalidArgument  it took too long; says how to write it.
  // Cost: some milliseconds of processor time, at most about two seconds.
  virtual absl::Status CheckSpeed() const { return absl::OkStatus(); }
};

class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Errors: kInvalidArgument  the text is no such form, or needs what is not supported; says what.
  // Requires: a form other than kAny.
  // Cost: milliseconds to seconds of one thread; without a bound for forms made to be hard.
  virtual absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const OutputForm& form) = 0;
};

// For logits of `vocabulary` columns, of which the tokenizer may know fewer: the others, and
// special tokens, are never allowed. Errors: kUnimplemented       the program was built without
// XGrammar; says how to get it.
//         kFailedPrecondition  the tokenizer has no end token, so no output could end.
// Cost: tens of milliseconds.
absl::StatusOr<std::unique_ptr<GrammarCompiler>> MakeGrammarCompiler(const Tokenizer& tokenizer,
                                                                     size_t vocabulary);

}  // namespace lamina::model
