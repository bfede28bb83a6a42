// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/limits.h"
#include "model/jinja/parser_internal.h"

namespace lamina::jinja {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kVariableBegin:
      return "{{";
    case TokenKind::kVariableEnd:
      return "}}";
    case TokenKind::kBlockBegin:
      return "{%";
    case TokenKind::kBlockEnd:
      return "%}";
    case TokenKind::kString:
      return absl::StrCat("\"", token.text.substr(0, 40), "\"");
    case TokenKind::kEnd:
      return "end of the template";
    case TokenKind::kName:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
    case TokenKind::kOperator:
      return token.text.substr(0, 40);
  }
  return "";
}

}  // namespace

bool ExpressionParser::IsOperator(absl::string_view op) const {
  return Current().kind == TokenKind::kOperator && Current().text == op;
}

bool ExpressionParser::IsName(absl::string_view name) const {
  return Current().kind == TokenKind::kName && Current().text == name;
}

bool ExpressionParser::SkipOperator(absl::string_view op) {
  if (!IsOperator(op)) {
    return false;
  }
  Skip();
  return true;
}

bool ExpressionParser::SkipName(absl::string_view name) {
  if (!IsName(name)) {
    return false;
  }
  Skip();
  return true;
}

absl::Status ExpressionParser::Unexpected() const {
  return ErrorAt(Current().line, absl::StrCat("unexpected ", Describe(Current())));
}

absl::Status ExpressionParser::ExpectOperator(absl::string_view op) {
  if (SkipOperator(op)) {
    return absl::OkStatus();
  }
  return ErrorAt(Current().line, absl::StrCat("expected '", op, "', found ", Describe(Current())));
}

absl::StatusOr<std::string> ExpressionParser::ExpectName() {
  if (Current().kind != TokenKind::kName) {
    return ErrorAt(Current().line, absl::StrCat("expected a name, found ", Describe(Current())));
  }
  std::string name = Current().text;
  Skip();
  return name;
}

bool ExpressionParser::Mentions(absl::string_view name, size_t from) const {
  return std::any_of(
      tokens_.begin() + static_cast<ptrdiff_t>(from), tokens_.begin() + static_cast<ptrdiff_t>(at_),
      [name](const Token& token) { return token.kind == TokenKind::kName && token.text == name; });
}

MutableExpression ExpressionParser::Make(ExpressionKind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = Current().line;
  return node;
}

ExpressionOr ExpressionParser::Finish(MutableExpression node) const {
  const auto consider = [&node](const ExpressionPtr& part) {
    if (part != nullptr) {
      node->depth = std::max(node->depth, 1 + part->depth);
    }
  };
  std::for_each(node->children.begin(), node->children.end(), consider);
  const CallArguments& arguments = node->arguments;
  std::for_each(arguments.positional.begin(), arguments.positional.end(), consider);
  for (const auto& [name, value] : arguments.named) {
    consider(value);
  }
  consider(arguments.more_positional);
  consider(arguments.more_named);
  if (node->depth > kNestingMax) {
    return ErrorAt(node->line, absl::StrCat("an expression is nested deeper than ", kNestingMax));
  }
  return node;
}

ExpressionOr ExpressionParser::ParseExpression(bool conditional) {
  if (nesting_ >= kNestingMax) {
    return ErrorAt(Current().line,
                   absl::StrCat("an expression is nested deeper than ", kNestingMax));
  }
  ++nesting_;
  const absl::Cleanup leave = [this] { --nesting_; };
  return conditional ? ParseConditional() : ParseOr();
}

ExpressionOr ExpressionParser::ParseConditional() {
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, ParseOr());
  while (SkipName("if")) {
    MutableExpression choice = Make(ExpressionKind::kConditional);
    LAMINA_ASSIGN_OR_RETURN(MutableExpression condition, ParseOr());
    choice->children.push_back(std::move(node));
    choice->children.push_back(std::move(condition));
    choice->children.push_back(nullptr);
    if (SkipName("else")) {
      LAMINA_ASSIGN_OR_RETURN(choice->children[2], ParseExpression());
    }
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(choice)));
  }
  return node;
}

ExpressionOr ExpressionParser::ParseOr() {
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, ParseAnd());
  while (SkipName("or")) {
    MutableExpression either = Make(ExpressionKind::kOr);
    either->children.push_back(std::move(node));
    LAMINA_ASSIGN_OR_RETURN(MutableExpression right, ParseAnd());
    either->children.push_back(std::move(right));
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(either)));
  }
  return node;
}

ExpressionOr ExpressionParser::ParseAnd() {
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, ParseNot());
  while (SkipName("and")) {
    MutableExpression both = Make(ExpressionKind::kAnd);
    both->children.push_back(std::move(node));
    LAMINA_ASSIGN_OR_RETURN(MutableExpression right, ParseNot());
    both->children.push_back(std::move(right));
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(both)));
  }
  return node;
}

ExpressionOr ExpressionParser::ParseNot() {
  size_t count = 0;
  while (SkipName("not")) {
    ++count;
  }
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, ParseCompare());
  for (; count > 0; --count) {
    MutableExpression inverse = Make(ExpressionKind::kNot);
    inverse->children.push_back(std::move(node));
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(inverse)));
  }
  return node;
}

// The comparison that stands here, or "".
absl::StatusOr<std::string> ExpressionParser::TakeComparison() {
  if (Current().kind == TokenKind::kOperator) {
    for (const absl::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (SkipOperator(op)) {
        return std::string(op);
      }
    }
    return std::string();
  }
  if (SkipName("in")) {
    return std::string("in");
  }
  if (IsName("not") && Next().kind == TokenKind::kName && Next().text == "in") {
    Skip();
    Skip();
    return std::string("not in");
  }
  return std::string();
}

ExpressionOr ExpressionParser::ParseCompare() {
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, ParseSum());
  LAMINA_ASSIGN_OR_RETURN(std::string comparison, TakeComparison());
  if (comparison.empty()) {
    return node;
  }
  MutableExpression out = Make(ExpressionKind::kCompare);
  out->children.push_back(std::move(node));
  while (!comparison.empty()) {
    out->operators.push_back(std::move(comparison));
    LAMINA_ASSIGN_OR_RETURN(MutableExpression operand, ParseSum());
    out->children.push_back(std::move(operand));
    LAMINA_ASSIGN_OR_RETURN(comparison, TakeComparison());
  }
  return Finish(std::move(out));
}

ExpressionOr ExpressionParser::ParseBinary(absl::Span<const absl::string_view> operators,
                                           ExpressionOr (ExpressionParser::*operand)()) {
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, (this->*operand)());
  for (;;) {
    const auto found = std::find_if(operators.begin(), operators.end(),
                                    [this](absl::string_view op) { return IsOperator(op); });
    if (found == operators.end()) {
      return node;
    }
    MutableExpression out = Make(ExpressionKind::kBinary);
    out->name = std::string(*found);
    Skip();
    out->children.push_back(std::move(node));
    LAMINA_ASSIGN_OR_RETURN(MutableExpression right, (this->*operand)());
    out->children.push_back(std::move(right));
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(out)));
  }
}

ExpressionOr ExpressionParser::ParseSum() {
  static constexpr absl::string_view kOperators[] = {"+", "-"};
  return ParseBinary(kOperators, &ExpressionParser::ParseConcatenation);
}

ExpressionOr ExpressionParser::ParseConcatenation() {
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, ParseProduct());
  if (!IsOperator("~")) {
    return node;
  }
  MutableExpression out = Make(ExpressionKind::kConcatenate);
  out->children.push_back(std::move(node));
  while (SkipOperator("~")) {
    LAMINA_ASSIGN_OR_RETURN(MutableExpression part, ParseProduct());
    out->children.push_back(std::move(part));
  }
  return Finish(std::move(out));
}

ExpressionOr ExpressionParser::ParseProduct() {
  static constexpr absl::string_view kOperators[] = {"*", "/", "//", "%"};
  return ParseBinary(kOperators, &ExpressionParser::ParsePower);
}

ExpressionOr ExpressionParser::ParsePower() {
  LAMINA_ASSIGN_OR_RETURN(MutableExpression node, ParseUnary(true));
  while (IsOperator("**")) {
    MutableExpression out = Make(ExpressionKind::kBinary);
    out->name = "**";
    Skip();
    out->children.push_back(std::move(node));
    LAMINA_ASSIGN_OR_RETURN(MutableExpression right, ParseUnary(true));
    out->children.push_back(std::move(right));
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(out)));
  }
  return node;
}

ExpressionOr ExpressionParser::ParseUnary(bool with_filter) {
  MutableExpression node;
  if (IsOperator("-") || IsOperator("+")) {
    if (nesting_ >= kNestingMax) {
      return ErrorAt(Current().line,
                     absl::StrCat("an expression is nested deeper than ", kNestingMax));
    }
    ++nesting_;
    const absl::Cleanup leave = [this] { --nesting_; };
    MutableExpression out =
        Make(IsOperator("-") ? ExpressionKind::kNegate : ExpressionKind::kPositive);
    Skip();
    LAMINA_ASSIGN_OR_RETURN(MutableExpression operand, ParseUnary(false));
    out->children.push_back(std::move(operand));
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(out)));
  } else {
    LAMINA_ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  LAMINA_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  return with_filter ? ParseFilters(std::move(node)) : ExpressionOr(std::move(node));
}

}  // namespace lamina::jinja
