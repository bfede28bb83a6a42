// SPDX-License-Identifier: Apache-2.0
//
// XGrammar's errors are exceptions; none leaves this file.

#include "model/grammar/grammar.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "model/grammar/grammar_budget.h"
#include "model/grammar/grammar_speed.h"
#include "model/grammar/repeated_rules.h"
#include "model/grammar/schema_keywords.h"
#include "model/grammar/xgrammar_warnings.h"

namespace lamina::model {
namespace {

// A bit for each token.
class TokenMask {
 public:
  explicit TokenMask(size_t vocabulary)
      : words_(static_cast<size_t>(xgrammar::GetBitmaskSize(static_cast<int>(vocabulary)))),
        shape_(static_cast<int64_t>(words_.size())) {}

  // Sets what may come next, or throws. False if it is every token.
  bool Fill(xgrammar::GrammarMatcher& matcher) {
    DLTensor mask{.data = words_.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape_,
                  .strides = nullptr,
                  .byte_offset = 0};
    return matcher.FillNextTokenBitmask(&mask);
  }
  void Clear() { std::fill(words_.begin(), words_.end(), 0); }
  absl::Span<const uint32_t> words() const { return words_; }

 private:
  std::vector<uint32_t> words_;
  int64_t shape_;
};

class XGrammarState final : public GrammarState {
 public:
  XGrammarState(const xgrammar::CompiledGrammar& grammar, size_t vocabulary)
      : matcher_(grammar), mask_(vocabulary) {}

  absl::Span<const uint32_t> Allowed() override {
    if (budget_.exhausted()) {
      mask_.Clear();
      return mask_.words();
    }
    try {
      const Nanos began = ThreadTime();
      const bool some_not = mask_.Fill(matcher_);
      Spend(began);
      return some_not ? mask_.words() : absl::Span<const uint32_t>();
    } catch (const std::exception& error) {
      LogError("XGrammar finds no next tokens, so the output is cut: ", error.what());
      mask_.Clear();
      return mask_.words();
    }
  }

  bool Accept(TokenId token) override {
    if (ended() || budget_.exhausted()) {
      return false;
    }
    try {
      const Nanos began = ThreadTime();
      const bool fits = matcher_.AcceptToken(token);
      budget_.AddToken();
      Spend(began);
      return fits && !budget_.exhausted();
    } catch (const std::exception& error) {
      LogError("XGrammar does not take token ", token, ": ", error.what());
      return false;
    }
  }
  bool ended() const override { return matcher_.IsTerminated(); }

 private:
  void Spend(Nanos began) {
    budget_.Spend(ThreadTime() - began);
    if (budget_.exhausted()) {
      LogWarning("following the form of an output took more than ",
                 GrammarBudget::kCallMax / Millis(1), " ms of processor time at once, or ",
                 GrammarBudget::kInAll / Seconds(1),
                 " s in all, so the output is cut: its grammar is too ambiguous");
    }
  }

  xgrammar::GrammarMatcher matcher_;
  GrammarBudget budget_;
  TokenMask mask_;
};

class XGrammar final : public Grammar {
 public:
  XGrammar(xgrammar::CompiledGrammar grammar, size_t vocabulary)
      : grammar_(std::move(grammar)), vocabulary_(vocabulary) {}

  std::unique_ptr<GrammarState> Begin() const override {
    return std::make_unique<XGrammarState>(grammar_, vocabulary_);
  }
  size_t bytes() const override { return grammar_.MemorySizeBytes(); }
  absl::Status CheckSpeed() const override;

 private:
  const xgrammar::CompiledGrammar grammar_;
  const size_t vocabulary_;
};

// Without the place in XGrammar's sources that its messages begin with.
std::string Reason(const std::exception& error) {
  constexpr size_t kBytesMax = 400;  // It may quote the whole form.
  std::string text = error.what();
  if (text.size() > kBytesMax) {
    text = absl::StrCat(WholeCharacters(text, kBytesMax), " ...");
  }
  text = std::string(absl::StripTrailingAsciiWhitespace(text));
  const size_t check = text.find("Check failed: ");
  const size_t behind =
      check == std::string::npos ? std::string::npos : text.find(": ", check + 14);
  if (behind != std::string::npos) {
    return text.substr(behind + 2);
  }
  const size_t place = text.find(".cc:");
  const size_t begin = place == std::string::npos ? std::string::npos : text.find(": ", place);
  return begin == std::string::npos ? text : text.substr(begin + 2);
}

class XGrammarWalk final : public GrammarWalk {
 public:
  XGrammarWalk(const xgrammar::CompiledGrammar& grammar, size_t vocabulary)
      : matcher_(grammar), mask_(vocabulary) {}

  // By the byte before, or, if that does not fit, by the first that does.
  bool GoOn() override {
    if (matcher_.AcceptString(byte_)) {
      return true;
    }
    // From 'a' on, so that texts go on with letters where they may.
    for (int i = 0; i < 256; ++i) {
      byte_[0] = static_cast<char>('a' + i);
      if (matcher_.AcceptString(byte_)) {
        return true;
      }
    }
    return false;
  }
  void FindTokens() override { mask_.Fill(matcher_); }

 private:
  xgrammar::GrammarMatcher matcher_;
  TokenMask mask_;
  std::string byte_ = "a";
};

absl::Status XGrammar::CheckSpeed() const {
  try {
    XGrammarWalk walk(grammar_, vocabulary_);
    return CheckGrammarSpeed(walk);
  } catch (const std::exception& error) {
    // An output would be cut there, which says nothing of its speed.
    LogWarning("XGrammar does not follow a form to its end: ", Reason(error));
  }
  return absl::OkStatus();
}

class XGrammarCompiler final : public GrammarCompiler {
 public:
  XGrammarCompiler(const xgrammar::TokenizerInfo& tokens, size_t vocabulary)
      : tokens_(tokens),
        compiler_(tokens, /*max_threads=*/1, /*cache_enabled=*/false),
        vocabulary_(vocabulary) {}

  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const OutputForm& form) override {
    LAMINA_ASSIGN_OR_RETURN(const OutputForm prepared, Prepared(form));
    TakeDropped();
    try {
      LAMINA_ASSIGN_OR_RETURN(xgrammar::CompiledGrammar compiled, CompileOrThrow(prepared));
      auto grammar = std::make_shared<XGrammar>(std::move(compiled), vocabulary_);
      if (const std::string dropped = TakeDropped(); !dropped.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("part of it would not be obeyed: ", dropped));
      }
      return grammar;
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(Reason(error));
    }
  }

 private:
  // The form as it is to be compiled.
  static absl::StatusOr<OutputForm> Prepared(const OutputForm& form) {
    const bool is_schema = form.kind == OutputForm::Kind::kJsonSchema;
    if (!is_schema && form.kind != OutputForm::Kind::kStructuralTag) {
      return form;
    }
    auto json = nlohmann::ordered_json::parse(form.text, nullptr, false);
    if (json.is_discarded()) {
      // The compiler takes text behind its end, and would see what is not looked at here.
      return absl::InvalidArgumentError("it is not valid JSON");
    }
    LAMINA_ASSIGN_OR_RETURN(const bool changed,
                            is_schema ? PrepareSchema(json) : PrepareStructuralTag(json));
    if (!changed) {
      return form;
    }
    return OutputForm{form.kind, json.dump()};
  }

  // Compiles rules that a client wrote.
  absl::StatusOr<xgrammar::CompiledGrammar> CompileRules(const xgrammar::Grammar& rules) {
    LAMINA_RETURN_IF_ERROR(CheckRepeatedRules(rules.ToString()));
    return compiler_.CompileGrammar(rules);
  }

  absl::StatusOr<xgrammar::CompiledGrammar> CompileStructuralTag(const std::string& text) {
    const auto rules = xgrammar::Grammar::FromStructuralTag(text, tokens_);
    if (const auto* error = std::get_if<xgrammar::StructuralTagError>(&rules)) {
      return absl::InvalidArgumentError(
          std::visit([](const std::exception& what) { return Reason(what); }, *error));
    }
    return CompileRules(std::get<xgrammar::Grammar>(rules));
  }

  absl::StatusOr<xgrammar::CompiledGrammar> CompileOrThrow(const OutputForm& form) {
    switch (form.kind) {
      case OutputForm::Kind::kRegex:
        return compiler_.CompileRegex(form.text);
      case OutputForm::Kind::kGrammar:
        return CompileRules(xgrammar::Grammar::FromEBNF(form.text));
      case OutputForm::Kind::kStructuralTag:
        return CompileStructuralTag(form.text);
      case OutputForm::Kind::kAny:
      case OutputForm::Kind::kJsonSchema:
        break;
    }
    // White space as Python's json.dumps puts it: where any is allowed, small models write nothing
    // but white space.
    return compiler_.CompileJSONSchema(form.text, /*any_whitespace=*/false,
                                       /*indent=*/std::nullopt, /*separators=*/std::nullopt,
                                       /*strict_mode=*/true);
  }

  const xgrammar::TokenizerInfo tokens_;
  xgrammar::GrammarCompiler compiler_;
  const size_t vocabulary_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrammarCompiler>> MakeGrammarCompiler(const Tokenizer& tokenizer,
                                                                     size_t vocabulary) {
  if (tokenizer.end_tokens().empty()) {
    return absl::FailedPreconditionError(
        "the model's tokenizer has no end token, so output of a given form could not end");
  }
  // Tokens without bytes are never allowed: special ones are not part of the text.
  std::vector<std::string> bytes(std::min(vocabulary, tokenizer.vocabulary_size()));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = tokenizer.TokenBytes(static_cast<TokenId>(i), /*skip_special=*/true);
  }
  const std::vector<int32_t> ends(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end());
  try {
    const xgrammar::TokenizerInfo tokens(bytes, xgrammar::VocabType::RAW,
                                         static_cast<int>(vocabulary), ends);
    return std::make_unique<XGrammarCompiler>(tokens, vocabulary);
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat("XGrammar does not take the vocabulary: ", Reason(error)));
  }
}

}  // namespace lamina::model
