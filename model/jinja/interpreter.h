// SPDX-License-Identifier: Apache-2.0
//
// Interpreter: runs the syntax tree of a template once.
//
// Scopes are Jinja's: loops, macros, `with` and blocks that capture open one, `if` does not; a
// macro sees the variables of where it was defined.
//
// Threading: one thread. Ownership: the tree and the variables must outlive it.

#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/ast.h"
#include "model/jinja/limits.h"
#include "model/jinja/value.h"

namespace lamina::jinja {

class Interpreter {
 public:
  // `variables`: what the template sees, a mapping. `now`: for strftime_now, local time.
  Interpreter(const Mapping& variables, const std::tm& now) : variables_(variables), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // The text that the template gives. Once.
  absl::StatusOr<std::string> Run(const Body& body);

  // For builtins.
  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }
  absl::StatusOr<Value> Call(const Value& callee, Arguments arguments);
  // Remembers a namespace, which may hold itself, so that it is emptied in the end.
  std::shared_ptr<Namespace> NewNamespace();
  // Remembers a loop that keeps arguments, of which it may be one, so that they are let go in the
  // end.
  void Remember(const Value& loop) {
    loops_.push_back(std::get<std::shared_ptr<Loop>>(loop.data()));
  }

 private:
  struct Scope {
    std::shared_ptr<Scope> parent;
    std::vector<std::pair<std::string, Value>> variables;
    bool is_loop = false;
  };
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // Statements.
  absl::StatusOr<Flow> Execute(const Body& body);
  absl::StatusOr<Flow> ExecuteOne(const Statement& statement);
  absl::StatusOr<Flow> ExecuteIf(const Statement& statement);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement);
  absl::Status ExecuteWith(const Statement& statement);
  absl::StatusOr<Flow> ExecuteInScope(const Body& body, std::shared_ptr<Scope> scope);
  absl::StatusOr<std::vector<Value>> LoopItems(const Statement& statement);
  // The text of a body that runs in a scope of its own.
  absl::StatusOr<Value> Capture(const Body& body, std::shared_ptr<Scope> scope);
  absl::StatusOr<Value> CaptureFiltered(const Statement& statement);
  absl::Status Output(const Value& value);
  absl::Status Assign(const Target& target, const Value& value);
  Value MakeMacro(const Statement& statement);
  absl::StatusOr<Value> CallMacro(const Statement& statement, std::shared_ptr<Scope> closure,
                                  Arguments& arguments);
  absl::Status BindMacro(const Statement& statement, Scope& scope, Arguments& arguments);

  // Expressions.
  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<Value> EvaluateKind(const Expression& expression);
  absl::StatusOr<Value> EvaluateName(const Expression& expression);
  absl::StatusOr<Value> EvaluateSequence(const Expression& expression);
  absl::StatusOr<Value> EvaluateDict(const Expression& expression);
  absl::StatusOr<Value> EvaluateSlice(const Expression& expression);
  absl::StatusOr<Value> EvaluateFilter(const Expression& expression);
  absl::StatusOr<Value> EvaluateTest(const Expression& expression);
  absl::StatusOr<Value> EvaluateSign(const Expression& expression);
  absl::StatusOr<Value> EvaluateConcatenation(const Expression& expression);
  absl::StatusOr<Value> EvaluateCompare(const Expression& expression);
  absl::StatusOr<bool> CompareOnce(absl::string_view op, const Value& a, const Value& b);
  absl::StatusOr<Value> EvaluateBoolean(const Expression& expression);
  absl::StatusOr<Value> EvaluateConditional(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const CallArguments& arguments);

  std::shared_ptr<Scope> NewScope() const;
  absl::Status Set(Scope& scope, absl::string_view name, Value value);
  absl::Status Enter(int line);

  const Mapping& variables_;
  const std::tm now_;
  Budget budget_;
  int depth_ = 0;
  std::string out_;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  // What a filter block puts through its filters.
  Value filtered_;
  // Scopes, namespaces and loops that may hold themselves.
  std::vector<std::shared_ptr<Scope>> closures_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Loop>> loops_;
};

}  // namespace lamina::jinja
