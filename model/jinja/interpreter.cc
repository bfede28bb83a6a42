// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/interpreter.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/lexer.h"
#include "model/jinja/operators.h"

namespace lamina::jinja {

Interpreter::~Interpreter() {
  for (const std::shared_ptr<Loop>& loop : loops_) {
    loop->changed.clear();
  }
  for (const std::shared_ptr<Namespace>& space : namespaces_) {
    space->attributes.clear();
  }
  for (const std::shared_ptr<Scope>& scope : closures_) {
    scope->variables.clear();
  }
}

absl::StatusOr<std::string> Interpreter::Run(const Body& body) {
  LAMINA_RETURN_IF_ERROR(Execute(body).status());
  return std::move(out_);
}

std::shared_ptr<Namespace> Interpreter::NewNamespace() {
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

std::shared_ptr<Interpreter::Scope> Interpreter::NewScope() const {
  auto scope = std::make_shared<Scope>();
  scope->parent = scope_;
  return scope;
}

absl::Status Interpreter::Set(Scope& scope, absl::string_view name, Value value) {
  LAMINA_RETURN_IF_ERROR(budget_.Spend(scope.variables.size() / 8));
  for (auto& [known, place] : scope.variables) {
    if (known == name) {
      place = std::move(value);
      return absl::OkStatus();
    }
  }
  scope.variables.emplace_back(std::string(name), std::move(value));
  return absl::OkStatus();
}

absl::Status Interpreter::Enter(int line) {
  if (depth_ >= kDepthMax) {
    return ErrorAt(line, absl::StrCat("calls are nested deeper than ", kDepthMax));
  }
  ++depth_;
  return budget_.Spend(1);
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Body& body) {
  for (const auto& statement : body) {
    const absl::Cleanup leave = [this, depth = depth_] { depth_ = depth; };
    LAMINA_RETURN_IF_ERROR(Enter(statement->line));
    LAMINA_ASSIGN_OR_RETURN(const Flow flow, ExecuteOne(*statement));
    if (flow != Flow::kNext) {
      return flow;
    }
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteOne(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText:
      LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(statement.text.size()));
      out_ += statement.text;
      return Flow::kNext;
    case StatementKind::kOutput: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      const absl::Status status = Output(value);
      return status.ok()
                 ? absl::StatusOr<Flow>(Flow::kNext)
                 : absl::Status(status.code(), ErrorAt(statement.line, status.message()).message());
    }
    case StatementKind::kIf:
      return ExecuteIf(statement);
    case StatementKind::kFor:
      return ExecuteFor(statement);
    case StatementKind::kSet: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      LAMINA_RETURN_IF_ERROR(Assign(statement.target, value));
      return Flow::kNext;
    }
    case StatementKind::kSetBlock: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, CaptureFiltered(statement));
      LAMINA_RETURN_IF_ERROR(Assign(statement.target, value));
      return Flow::kNext;
    }
    case StatementKind::kMacro:
      LAMINA_RETURN_IF_ERROR(Set(*scope_, statement.name, MakeMacro(statement)));
      return Flow::kNext;
    case StatementKind::kCallBlock: {
      const Expression& call = *statement.expression;
      LAMINA_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.children[0]));
      LAMINA_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call.arguments));
      arguments.named.emplace_back("caller", MakeMacro(statement));
      LAMINA_ASSIGN_OR_RETURN(const Value value, Call(callee, std::move(arguments)));
      LAMINA_RETURN_IF_ERROR(Output(value));
      return Flow::kNext;
    }
    case StatementKind::kFilter: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, CaptureFiltered(statement));
      LAMINA_RETURN_IF_ERROR(Output(value));
      return Flow::kNext;
    }
    case StatementKind::kWith:
      LAMINA_RETURN_IF_ERROR(ExecuteWith(statement));
      return Flow::kNext;
    case StatementKind::kGeneration: {
      LAMINA_ASSIGN_OR_RETURN(const Value value, Capture(statement.body, NewScope()));
      LAMINA_RETURN_IF_ERROR(Output(value));
      return Flow::kNext;
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::Status Interpreter::Output(const Value& value) {
  if (const std::string* text = value.string()) {
    LAMINA_RETURN_IF_ERROR(budget_.SpendBytes(text->size()));
    out_ += *text;
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Str(budget_, value));
  out_ += text;
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Statement& statement) {
  for (size_t i = 0; i < statement.conditions.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.conditions[i]));
    if (condition.truthy()) {
      return Execute(statement.bodies[i]);
    }
  }
  return statement.bodies.size() > statement.conditions.size() ? Execute(statement.bodies.back())
                                                               : Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteInScope(const Body& body,
                                                              std::shared_ptr<Scope> scope) {
  std::swap(scope_, scope);
  const absl::Cleanup leave = [this, &scope] { std::swap(scope_, scope); };
  return Execute(body);
}

absl::StatusOr<std::vector<Value>> Interpreter::LoopItems(const Statement& statement) {
  LAMINA_ASSIGN_OR_RETURN(const Value sequence, Evaluate(*statement.expression));
  absl::StatusOr<std::vector<Value>> items = Iterate(budget_, sequence);
  if (!items.ok()) {
    return ErrorAt(statement.line, items.status().message());
  }
  if (statement.condition == nullptr) {
    return items;
  }
  std::vector<Value> kept;
  for (Value& item : *items) {
    const std::shared_ptr<Scope> outer = std::exchange(scope_, NewScope());
    const absl::Cleanup leave = [this, &outer] { scope_ = outer; };
    LAMINA_RETURN_IF_ERROR(Assign(statement.target, item));
    LAMINA_ASSIGN_OR_RETURN(const Value keep, Evaluate(*statement.condition));
    if (keep.truthy()) {
      kept.push_back(std::move(item));
    }
  }
  return kept;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement) {
  const auto loop = std::make_shared<Loop>();
  LAMINA_ASSIGN_OR_RETURN(loop->items, LoopItems(statement));
  loop->depth = DepthOver(loop->items);
  LAMINA_RETURN_IF_ERROR(CheckDepth(loop->depth));
  // As in Jinja, the else also runs when no round came to its end.
  bool completed = false;
  for (; loop->index0 < loop->items.size(); ++loop->index0) {
    LAMINA_RETURN_IF_ERROR(budget_.Spend(1));
    std::shared_ptr<Scope> scope = NewScope();
    std::swap(scope_, scope);
    const absl::Cleanup leave = [this, &scope] { std::swap(scope_, scope); };
    LAMINA_RETURN_IF_ERROR(Assign(statement.target, loop->items[loop->index0]));
    LAMINA_RETURN_IF_ERROR(Set(*scope_, "loop", Value(Value::Data(loop))));
    LAMINA_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body));
    if (flow == Flow::kBreak) {
      break;
    }
    completed |= flow == Flow::kNext;
  }
  if (!completed && !statement.else_body.empty()) {
    return ExecuteInScope(statement.else_body, NewScope());
  }
  return Flow::kNext;
}

absl::Status Interpreter::ExecuteWith(const Statement& statement) {
  const std::shared_ptr<Scope> scope = NewScope();
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.values[i]));
    LAMINA_RETURN_IF_ERROR(Set(*scope, statement.targets[i].name, std::move(value)));
  }
  return ExecuteInScope(statement.body, scope).status();
}

absl::StatusOr<Value> Interpreter::Capture(const Body& body, std::shared_ptr<Scope> scope) {
  std::string outer = std::exchange(out_, std::string());
  const absl::StatusOr<Flow> flow = ExecuteInScope(body, std::move(scope));
  std::swap(out_, outer);  // `outer` is now what the body wrote.
  LAMINA_RETURN_IF_ERROR(flow.status());
  return Value::String(std::move(outer));
}

absl::StatusOr<Value> Interpreter::CaptureFiltered(const Statement& statement) {
  LAMINA_ASSIGN_OR_RETURN(Value text, Capture(statement.body, NewScope()));
  if (statement.expression == nullptr) {
    return text;
  }
  const Value outer = std::exchange(filtered_, std::move(text));
  absl::StatusOr<Value> value = Evaluate(*statement.expression);
  filtered_ = outer;
  return value;
}

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(budget_, value));
    if (items.size() != target.parts.size()) {
      return ErrorAt(target.line,
                     absl::StrCat(items.size(), " values for ", target.parts.size(), " variables"));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      LAMINA_RETURN_IF_ERROR(Assign(target.parts[i], items[i]));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    LAMINA_RETURN_IF_ERROR(budget_.Spend(1));
    return Set(*scope_, target.name, value);
  }
  Expression name;
  name.name = target.name;
  name.line = target.line;
  LAMINA_ASSIGN_OR_RETURN(const Value holder, EvaluateName(name));
  Namespace* space = holder.name_space();
  if (space == nullptr || target.attribute[0] == '_') {
    return ErrorAt(target.line,
                   absl::StrCat("cannot assign to ", target.name, ".", target.attribute,
                                "; only a namespace's attributes can be, and none "
                                "that begin with an underscore"));
  }
  LAMINA_RETURN_IF_ERROR(budget_.Spend(1 + space->attributes.size() / 8));
  if (Value* found = space->Find(target.attribute)) {
    *found = value;
  } else {
    space->attributes.emplace_back(target.attribute, value);
  }
  return absl::OkStatus();
}

Value Interpreter::MakeMacro(const Statement& statement) {
  closures_.push_back(scope_);
  return Value(Value::Data(std::make_shared<const Callable>(Callable{
      .name = statement.name,
      .call = [&statement, closure = std::weak_ptr<Scope>(scope_)](
                  Interpreter& interpreter, Arguments& arguments) -> absl::StatusOr<Value> {
        return interpreter.CallMacro(statement, closure.lock(), arguments);
      },
      .is_macro = true})));
}

absl::StatusOr<Value> Interpreter::CallMacro(const Statement& statement,
                                             std::shared_ptr<Scope> closure, Arguments& arguments) {
  const absl::Cleanup leave = [this, depth = depth_] { depth_ = depth; };
  LAMINA_RETURN_IF_ERROR(Enter(statement.line));
  auto scope = std::make_shared<Scope>();
  scope->parent = std::move(closure);
  // Defaults may use earlier parameters.
  const std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  const absl::Status status = BindMacro(statement, *scope, arguments);
  scope_ = outer;
  LAMINA_RETURN_IF_ERROR(status);
  return Capture(statement.body, std::move(scope));
}

absl::Status Interpreter::BindMacro(const Statement& statement, Scope& scope,
                                    Arguments& arguments) {
  const auto refuse = [&statement](absl::string_view what) {
    return ErrorAt(statement.line, absl::StrCat("the macro '", statement.name, "' ", what));
  };
  const size_t count = statement.parameters.size();
  std::vector<std::pair<std::string, Value>>& named = arguments.named;
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = statement.parameters[i];
    LAMINA_RETURN_IF_ERROR(budget_.Spend(named.size() / 8));
    const auto found = std::find_if(named.begin(), named.end(), [&parameter](const auto& entry) {
      return entry.first == parameter.name;
    });
    if (i < arguments.positional.size()) {
      LAMINA_RETURN_IF_ERROR(Set(scope, parameter.name, arguments.positional[i]));
    } else if (found != named.end()) {
      LAMINA_RETURN_IF_ERROR(Set(scope, parameter.name, found->second));
      named.erase(found);
    } else if (parameter.fallback != nullptr) {
      LAMINA_ASSIGN_OR_RETURN(Value value, Evaluate(*parameter.fallback));
      LAMINA_RETURN_IF_ERROR(Set(scope, parameter.name, std::move(value)));
    } else {
      LAMINA_RETURN_IF_ERROR(
          Set(scope, parameter.name,
              Value::Undefined(absl::StrCat("parameter '", parameter.name, "' was not provided"))));
    }
  }
  if (statement.uses_caller) {
    const auto caller = std::find_if(named.begin(), named.end(),
                                     [](const auto& entry) { return entry.first == "caller"; });
    LAMINA_RETURN_IF_ERROR(
        Set(scope, "caller",
            caller == named.end() ? Value::Undefined("No caller defined") : caller->second));
    if (caller != named.end()) {
      named.erase(caller);
    }
  }
  if (statement.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i) {
      rest.push_back(arguments.positional[i]);
    }
    LAMINA_ASSIGN_OR_RETURN(Value value, Value::List(std::move(rest), SequenceKind::kTuple));
    LAMINA_RETURN_IF_ERROR(Set(scope, "varargs", std::move(value)));
  } else if (arguments.positional.size() > count) {
    return refuse(absl::StrCat("takes at most ", count, " arguments"));
  }
  if (statement.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [name, value] : named) {
      entries.emplace_back(Value::String(name), value);
    }
    LAMINA_ASSIGN_OR_RETURN(Value value, Value::Dict(std::move(entries)));
    LAMINA_RETURN_IF_ERROR(Set(scope, "kwargs", std::move(value)));
  } else if (!named.empty()) {
    return refuse(absl::StrCat("has no argument '", named[0].first, "'"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::jinja
