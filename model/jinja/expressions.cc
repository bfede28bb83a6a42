// SPDX-License-Identifier: Apache-2.0
//
// The part of the interpreter that evaluates expressions.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/lexer.h"
#include "model/jinja/operators.h"

namespace lamina::jinja {

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& expression) {
  const absl::Cleanup leave = [this, depth = depth_] { depth_ = depth; };
  LAMINA_RETURN_IF_ERROR(Enter(expression.line));
  absl::StatusOr<Value> value = EvaluateKind(expression);
  if (value.ok() || absl::StrContains(value.status().message(), "chat template")) {
    return value;
  }
  // The innermost expression says where.
  return absl::Status(value.status().code(),
                      ErrorAt(expression.line, value.status().message()).message());
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.value;
    case ExpressionKind::kName:
      return EvaluateName(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return EvaluateSequence(expression);
    case ExpressionKind::kDict:
      return EvaluateDict(expression);
    case ExpressionKind::kAttribute: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.children[0]));
      if (value.mapping() != nullptr) {
        LAMINA_RETURN_IF_ERROR(budget_.Spend(value.mapping()->entries.size() / 4));
      } else if (value.name_space() != nullptr) {
        LAMINA_RETURN_IF_ERROR(budget_.Spend(value.name_space()->attributes.size() / 8));
      }
      return GetAttribute(value, expression.name);
    }
    case ExpressionKind::kItem: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.children[0]));
      LAMINA_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.children[1]));
      return GetItem(budget_, value, key);
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(expression);
    case ExpressionKind::kCall: {
      LAMINA_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expression.children[0]));
      LAMINA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression.arguments));
      return Call(callee, std::move(arguments));
    }
    case ExpressionKind::kFilter:
      return EvaluateFilter(expression);
    case ExpressionKind::kTest:
      return EvaluateTest(expression);
    case ExpressionKind::kNot: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.children[0]));
      return Value::Bool(!value.truthy());
    }
    case ExpressionKind::kNegate:
    case ExpressionKind::kPositive:
      return EvaluateSign(expression);
    case ExpressionKind::kBinary: {
      LAMINA_ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.children[0]));
      LAMINA_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.children[1]));
      return Arithmetic(budget_, expression.name, left, right);
    }
    case ExpressionKind::kConcatenate:
      return EvaluateConcatenation(expression);
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
      return EvaluateBoolean(expression);
    case ExpressionKind::kConditional:
      return EvaluateConditional(expression);
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::EvaluateName(const Expression& expression) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    LAMINA_RETURN_IF_ERROR(budget_.Spend(1 + scope->variables.size() / 8));
    for (const auto& [name, value] : scope->variables) {
      if (name == expression.name) {
        return value;
      }
    }
  }
  LAMINA_RETURN_IF_ERROR(budget_.Spend(variables_.entries.size() / 8));
  if (const Value* found = variables_.Find(absl::string_view(expression.name))) {
    return *found;
  }
  return FindGlobal(expression.name);
}

absl::StatusOr<Value> Interpreter::EvaluateSequence(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& child : expression.children) {
    LAMINA_ASSIGN_OR_RETURN(Value item, Evaluate(*child));
    items.push_back(std::move(item));
  }
  return Value::List(std::move(items), expression.kind == ExpressionKind::kTuple
                                           ? SequenceKind::kTuple
                                           : SequenceKind::kList);
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expression& expression) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expression.children.size(); i += 2) {
    LAMINA_ASSIGN_OR_RETURN(Value key, Evaluate(*expression.children[i]));
    LAMINA_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.children[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return Value::Dict(std::move(entries));
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expression& expression) {
  LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.children[0]));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expression.children[i + 1] != nullptr) {
      LAMINA_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.children[i + 1]));
    }
  }
  return GetSlice(budget_, value, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const CallArguments& arguments) {
  Arguments out;
  for (const ExpressionPtr& argument : arguments.positional) {
    LAMINA_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : arguments.named) {
    LAMINA_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    out.named.emplace_back(name, std::move(value));
  }
  if (arguments.more_positional != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(const Value more, Evaluate(*arguments.more_positional));
    LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(budget_, more));
    out.positional.insert(out.positional.end(), items.begin(), items.end());
  }
  if (arguments.more_named != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(const Value more, Evaluate(*arguments.more_named));
    if (more.mapping() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("** needs a dict, not ", more.type_name()));
    }
    for (const auto& [key, value] : more.mapping()->entries) {
      if (key.string() == nullptr) {
        return absl::InvalidArgumentError("** with a key that is no text");
      }
      out.named.emplace_back(*key.string(), value);
    }
  }
  return out;
}

absl::StatusOr<Value> Interpreter::Call(const Value& callee, Arguments arguments) {
  if (callee.is_undefined()) {
    return absl::InvalidArgumentError(*callee.undefined().what);
  }
  const Callable* callable = callee.callable();
  if (callable == nullptr) {
    if (callee.loop() != nullptr) {
      return absl::UnimplementedError("a recursive loop is not supported");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", callee.type_name(), " cannot be called"));
  }
  LAMINA_RETURN_IF_ERROR(SpendArguments(budget_, arguments));
  return callable->call(*this, arguments);
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expression& expression) {
  Value value = filtered_;
  if (expression.children[0] != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(value, Evaluate(*expression.children[0]));
  }
  LAMINA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression.arguments));
  return CallFilter(*this, expression.name, value, std::move(arguments));
}

absl::StatusOr<Value> Interpreter::EvaluateTest(const Expression& expression) {
  LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.children[0]));
  LAMINA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression.arguments));
  LAMINA_ASSIGN_OR_RETURN(const bool holds,
                          CallTest(*this, expression.name, value, std::move(arguments)));
  return Value::Bool(holds);
}

absl::StatusOr<Value> Interpreter::EvaluateSign(const Expression& expression) {
  LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.children[0]));
  if (!value.is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", value.type_name(), " has no sign"));
  }
  return Arithmetic(budget_, expression.kind == ExpressionKind::kNegate ? "-" : "+",
                    value.floating() != nullptr ? Value::Float(-0.0) : Value::Int(0), value);
}

absl::StatusOr<Value> Interpreter::EvaluateConcatenation(const Expression& expression) {
  std::string out;
  for (const ExpressionPtr& child : expression.children) {
    LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*child));
    LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(budget_, value));
    out += text;
  }
  LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(out.size()));
  return Value::String(std::move(out));
}

absl::StatusOr<bool> Interpreter::CompareOnce(absl::string_view op, const Value& a,
                                              const Value& b) {
  if (op == "==" || op == "!=") {
    LAMINA_ASSIGN_OR_RETURN(const bool same, Equal(budget_, a, b));
    return same == (op == "==");
  }
  if (op == "in" || op == "not in") {
    LAMINA_ASSIGN_OR_RETURN(const bool within, Contains(budget_, a, b));
    return within == (op == "in");
  }
  const bool swapped = op == ">" || op == "<=";
  LAMINA_ASSIGN_OR_RETURN(const bool less, swapped ? Less(budget_, b, a) : Less(budget_, a, b));
  if (op.size() == 1) {
    return less;
  }
  // Every comparison with a NaN is false, so <= is not just the inverse of >.
  LAMINA_ASSIGN_OR_RETURN(const bool same, Equal(budget_, a, b));
  LAMINA_ASSIGN_OR_RETURN(const bool strict, swapped ? Less(budget_, a, b) : Less(budget_, b, a));
  return same || strict;
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expression& expression) {
  LAMINA_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.children[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.children[i + 1]));
    LAMINA_ASSIGN_OR_RETURN(const bool holds, CompareOnce(expression.operators[i], left, right));
    if (!holds) {
      return Value::Bool(false);
    }
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvaluateBoolean(const Expression& expression) {
  LAMINA_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.children[0]));
  if (left.truthy() == (expression.kind == ExpressionKind::kOr)) {
    return left;
  }
  return Evaluate(*expression.children[1]);
}

absl::StatusOr<Value> Interpreter::EvaluateConditional(const Expression& expression) {
  LAMINA_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.children[1]));
  if (condition.truthy()) {
    return Evaluate(*expression.children[0]);
  }
  if (expression.children[2] == nullptr) {
    return Value::Undefined("an inline if without else has no value here");
  }
  return Evaluate(*expression.children[2]);
}

}  // namespace lamina::jinja
