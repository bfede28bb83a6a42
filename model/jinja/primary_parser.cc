// SPDX-License-Identifier: Apache-2.0
//
// The part of the expression parser below the operators: literals, subscripts, calls, filters and
// tests.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/parser_internal.h"

namespace lamina::jinja {

ExpressionOr ExpressionParser::ParsePrimary() {
  MutableExpression node = Make(ExpressionKind::kConstant);
  switch (Current().kind) {
    case TokenKind::kName:
      return ParseName();
    case TokenKind::kString: {
      std::string text;
      for (; Current().kind == TokenKind::kString; Skip()) {
        text += Current().text;
      }
      node->value = Value::String(std::move(text));
      return node;
    }
    case TokenKind::kInteger: {
      int64_t value = 0;
      static_cast<void>(absl::SimpleAtoi(Current().text, &value));  // The lexer has checked it.
      node->value = Value::Int(value);
      Skip();
      return node;
    }
    case TokenKind::kFloat: {
      double value = 0;
      static_cast<void>(absl::SimpleAtod(Current().text, &value));
      node->value = Value::Float(value);
      Skip();
      return node;
    }
    case TokenKind::kOperator:
      break;
    case TokenKind::kData:
    case TokenKind::kVariableBegin:
    case TokenKind::kVariableEnd:
    case TokenKind::kBlockBegin:
    case TokenKind::kBlockEnd:
    case TokenKind::kEnd:
      return Unexpected();
  }
  if (SkipOperator("(")) {
    LAMINA_ASSIGN_OR_RETURN(node, ParseTuple(true, {}, true));
    LAMINA_RETURN_IF_ERROR(ExpectOperator(")"));
    return node;
  }
  if (IsOperator("[")) {
    return ParseListLiteral();
  }
  if (IsOperator("{")) {
    return ParseDictLiteral();
  }
  return Unexpected();
}

ExpressionOr ExpressionParser::ParseName() {
  MutableExpression node = Make(ExpressionKind::kConstant);
  LAMINA_ASSIGN_OR_RETURN(node->name, ExpectName());
  if (node->name == "true" || node->name == "True") {
    node->value = Value::Bool(true);
  } else if (node->name == "false" || node->name == "False") {
    node->value = Value::Bool(false);
  } else if (node->name != "none" && node->name != "None") {
    node->kind = ExpressionKind::kName;
  }
  return node;
}

bool ExpressionParser::IsTupleEnd(absl::Span<const absl::string_view> end) const {
  return Current().kind == TokenKind::kVariableEnd || Current().kind == TokenKind::kBlockEnd ||
         IsOperator(")") || std::any_of(end.begin(), end.end(), [this](absl::string_view name) {
           return IsName(name);
         });
}

ExpressionOr ExpressionParser::ParseTuple(bool conditional, absl::Span<const absl::string_view> end,
                                          bool parentheses) {
  MutableExpression tuple = Make(ExpressionKind::kTuple);
  bool is_tuple = false;
  MutableExpression last;
  while (!IsTupleEnd(end)) {
    LAMINA_ASSIGN_OR_RETURN(last, ParseExpression(conditional));
    if (!SkipOperator(",")) {
      if (!is_tuple) {
        return last;
      }
      tuple->children.push_back(std::move(last));
      break;
    }
    is_tuple = true;
    tuple->children.push_back(std::move(last));
  }
  if (!is_tuple && !parentheses) {
    return Unexpected();
  }
  return Finish(std::move(tuple));
}

ExpressionOr ExpressionParser::ParseListLiteral() {
  MutableExpression node = Make(ExpressionKind::kList);
  Skip();
  while (!IsOperator("]")) {
    LAMINA_ASSIGN_OR_RETURN(MutableExpression item, ParseExpression());
    node->children.push_back(std::move(item));
    if (!IsOperator("]")) {
      LAMINA_RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  Skip();
  return Finish(std::move(node));
}

ExpressionOr ExpressionParser::ParseDictLiteral() {
  MutableExpression node = Make(ExpressionKind::kDict);
  Skip();
  while (!IsOperator("}")) {
    LAMINA_ASSIGN_OR_RETURN(MutableExpression key, ParseExpression());
    LAMINA_RETURN_IF_ERROR(ExpectOperator(":"));
    LAMINA_ASSIGN_OR_RETURN(MutableExpression value, ParseExpression());
    node->children.push_back(std::move(key));
    node->children.push_back(std::move(value));
    if (!IsOperator("}")) {
      LAMINA_RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  Skip();
  return Finish(std::move(node));
}

ExpressionOr ExpressionParser::ParsePostfix(MutableExpression node) {
  for (;;) {
    if (IsOperator(".") || IsOperator("[")) {
      LAMINA_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (IsOperator("(")) {
      MutableExpression call = Make(ExpressionKind::kCall);
      call->children.push_back(std::move(node));
      LAMINA_RETURN_IF_ERROR(ParseArguments(call.get()));
      LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(call)));
    } else {
      return node;
    }
  }
}

ExpressionOr ExpressionParser::ParseSubscript(MutableExpression node) {
  MutableExpression out = Make(ExpressionKind::kItem);
  out->children.push_back(std::move(node));
  if (SkipOperator(".")) {
    if (Current().kind == TokenKind::kInteger) {
      LAMINA_ASSIGN_OR_RETURN(MutableExpression index, ParsePrimary());
      out->children.push_back(std::move(index));
    } else {
      out->kind = ExpressionKind::kAttribute;
      LAMINA_ASSIGN_OR_RETURN(out->name, ExpectName());
    }
    return Finish(std::move(out));
  }
  Skip();
  if (IsOperator("]")) {
    return Unexpected();
  }
  // At most start, stop and step; any may be left out.
  ExpressionPtr parts[3];
  size_t colons = 0;
  while (!IsOperator("]")) {
    if (SkipOperator(":")) {
      if (++colons > 2) {
        return Unexpected();
      }
      continue;
    }
    if (IsOperator(",")) {
      return UnsupportedAt(Current().line, "a subscript with commas");
    }
    if (parts[colons] != nullptr) {
      return Unexpected();
    }
    LAMINA_ASSIGN_OR_RETURN(parts[colons], ParseExpression());
  }
  Skip();
  if (colons > 0) {
    out->kind = ExpressionKind::kSlice;
  }
  for (size_t i = 0; i < (colons > 0 ? 3u : 1u); ++i) {
    out->children.push_back(std::move(parts[i]));
  }
  return Finish(std::move(out));
}

ExpressionOr ExpressionParser::ParseFilterChain(MutableExpression node, bool inline_start) {
  while (inline_start || SkipOperator("|")) {
    inline_start = false;
    MutableExpression filter = Make(ExpressionKind::kFilter);
    LAMINA_ASSIGN_OR_RETURN(filter->name, ExpectName());
    filter->children.push_back(std::move(node));
    if (IsOperator("(")) {
      LAMINA_RETURN_IF_ERROR(ParseArguments(filter.get()));
    }
    LAMINA_ASSIGN_OR_RETURN(node, Finish(std::move(filter)));
  }
  return node;
}

ExpressionOr ExpressionParser::ParseFilters(MutableExpression node) {
  for (;;) {
    if (IsOperator("|")) {
      LAMINA_ASSIGN_OR_RETURN(node, ParseFilterChain(std::move(node), false));
    } else if (IsName("is")) {
      LAMINA_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else if (IsOperator("(")) {
      LAMINA_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
    } else {
      return node;
    }
  }
}

ExpressionOr ExpressionParser::ParseTest(MutableExpression node) {
  MutableExpression test = Make(ExpressionKind::kTest);
  Skip();
  const bool negated = SkipName("not");
  LAMINA_ASSIGN_OR_RETURN(test->name, ExpectName());
  test->children.push_back(std::move(node));
  const TokenKind kind = Current().kind;
  const bool operand = kind == TokenKind::kName || kind == TokenKind::kString ||
                       kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
                       IsOperator("[") || IsOperator("{");
  if (IsOperator("(")) {
    LAMINA_RETURN_IF_ERROR(ParseArguments(test.get()));
  } else if (operand && !IsName("else") && !IsName("or") && !IsName("and")) {
    if (IsName("is")) {
      return ErrorAt(Current().line, "two tests with 'is' in a row");
    }
    LAMINA_ASSIGN_OR_RETURN(MutableExpression argument, ParsePrimary());
    LAMINA_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->arguments.positional.push_back(std::move(argument));
  }
  LAMINA_ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!negated) {
    return test;
  }
  MutableExpression inverse = Make(ExpressionKind::kNot);
  inverse->children.push_back(std::move(test));
  return Finish(std::move(inverse));
}

absl::Status ExpressionParser::ParseArguments(Expression* node) {
  Skip();
  while (!IsOperator(")")) {
    LAMINA_RETURN_IF_ERROR(ParseArgument(node));
    if (!IsOperator(")")) {
      LAMINA_RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  Skip();
  return absl::OkStatus();
}

absl::Status ExpressionParser::ParseArgument(Expression* node) {
  CallArguments& out = node->arguments;
  const int line = Current().line;
  if (SkipOperator("**")) {
    if (out.more_named != nullptr) {
      return ErrorAt(line, "a second ** in a call");
    }
    LAMINA_ASSIGN_OR_RETURN(out.more_named, ParseExpression());
    return absl::OkStatus();
  }
  if (out.more_named != nullptr) {
    return ErrorAt(line, "an argument after **");
  }
  if (SkipOperator("*")) {
    if (out.more_positional != nullptr) {
      return ErrorAt(line, "a second * in a call");
    }
    LAMINA_ASSIGN_OR_RETURN(out.more_positional, ParseExpression());
    return absl::OkStatus();
  }
  if (Current().kind == TokenKind::kName && Next().kind == TokenKind::kOperator &&
      Next().text == "=") {
    std::string name = Current().text;
    Skip();
    Skip();
    LAMINA_ASSIGN_OR_RETURN(MutableExpression value, ParseExpression());
    out.named.emplace_back(std::move(name), std::move(value));
    return absl::OkStatus();
  }
  if (!out.named.empty() || out.more_positional != nullptr) {
    return ErrorAt(line, "a positional argument after a named one");
  }
  LAMINA_ASSIGN_OR_RETURN(MutableExpression value, ParseExpression());
  out.positional.push_back(std::move(value));
  return absl::OkStatus();
}

}  // namespace lamina::jinja
