// SPDX-License-Identifier: Apache-2.0
//
// The two halves of the parser: expressions, and the statements made of them.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/jinja/ast.h"
#include "model/jinja/lexer.h"

namespace lamina::jinja {

using MutableExpression = std::unique_ptr<Expression>;
using ExpressionOr = absl::StatusOr<MutableExpression>;

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Skip() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  bool IsOperator(absl::string_view op) const;
  bool IsName(absl::string_view name) const;
  bool SkipOperator(absl::string_view op);
  bool SkipName(absl::string_view name);
  absl::Status ExpectOperator(absl::string_view op);
  absl::StatusOr<std::string> ExpectName();
  // Whether `name` stands among the tokens from `from` to here.
  bool Mentions(absl::string_view name, size_t from) const;
  size_t position() const { return at_; }
  // "unexpected '...'" at the current token.
  absl::Status Unexpected() const;

  // `conditional`: whether `a if b else c` may stand here.
  ExpressionOr ParseExpression(bool conditional = true);
  // One expression, or several with commas: a tuple. `end` names where it may end after a comma.
  ExpressionOr ParseTuple(bool conditional, absl::Span<const absl::string_view> end,
                          bool parentheses);
  ExpressionOr ParsePrimary();
  ExpressionOr ParsePostfix(MutableExpression node);
  // Filters only, from the first's name on: `upper|trim`.
  ExpressionOr ParseFilterChain(MutableExpression node, bool inline_start);

 private:
  ExpressionOr ParseConditional();
  ExpressionOr ParseOr();
  ExpressionOr ParseAnd();
  ExpressionOr ParseNot();
  ExpressionOr ParseCompare();
  absl::StatusOr<std::string> TakeComparison();
  ExpressionOr ParseSum();
  ExpressionOr ParseConcatenation();
  ExpressionOr ParseProduct();
  ExpressionOr ParsePower();
  ExpressionOr ParseUnary(bool with_filter);
  ExpressionOr ParseName();
  ExpressionOr ParseListLiteral();
  ExpressionOr ParseDictLiteral();
  ExpressionOr ParseSubscript(MutableExpression node);
  ExpressionOr ParseFilters(MutableExpression node);
  ExpressionOr ParseTest(MutableExpression node);
  ExpressionOr ParseBinary(absl::Span<const absl::string_view> operators,
                           ExpressionOr (ExpressionParser::*operand)());
  absl::Status ParseArguments(Expression* node);
  absl::Status ParseArgument(Expression* node);
  // Computes the depth. Errors: kInvalidArgument  more than kNestingMax.
  ExpressionOr Finish(MutableExpression node) const;
  MutableExpression Make(ExpressionKind kind) const;
  bool IsTupleEnd(absl::Span<const absl::string_view> end) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace lamina::jinja
