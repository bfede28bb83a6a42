// SPDX-License-Identifier: Apache-2.0
//
// The syntax tree of a template. Made by the parser, read by the interpreter, immutable between.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace lamina::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Body = std::vector<std::unique_ptr<const Statement>>;

enum class ExpressionKind : uint8_t {
  kConstant,     // value
  kName,         // name
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value, ...
  kAttribute,    // children[0].name
  kItem,         // children[0][children[1]]
  kSlice,        // children[0][children[1]:children[2]:children[3]], each of the three may be null
  kCall,         // children[0](arguments)
  kFilter,       // children[0] | name(arguments); children[0] is null in {% filter %}
  kTest,         // children[0] is name(arguments)
  kNot,          // not children[0]
  kNegate,       // -children[0]
  kPositive,     // +children[0]
  kBinary,       // children[0] name children[1]: + - * / // % **
  kConcatenate,  // children joined by ~
  kCompare,      // children[0] operators[0] children[1] operators[1] children[2] ...
  kAnd,
  kOr,
  kConditional,  // children[0] if children[1] else children[2], which may be null
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *x, or null.
  ExpressionPtr more_named;       // **x, or null.
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 0;
  int depth = 1;  // 1 more than that of the deepest part.
  std::string name;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  CallArguments arguments;
};

// What an assignment writes: a name, a namespace's attribute, or several of them.
struct Target {
  std::string name;
  std::string attribute;      // Empty for a plain name.
  std::vector<Target> parts;  // Not empty: unpack into these.
  int line = 0;
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // Or null.
};

enum class StatementKind : uint8_t {
  kText,        // text
  kOutput,      // expression
  kIf,          // conditions[i] -> bodies[i]; one more body is the else
  kFor,         // target in expression if condition: body, else_body
  kSet,         // target = expression
  kSetBlock,    // target = body, through `expression` (filters) if there is one
  kMacro,       // name(parameters): body
  kCallBlock,   // call(parameters) expression: body
  kFilter,      // body through `expression`
  kWith,        // targets[i] = values[i]: body
  kGeneration,  // body, in a scope of its own
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  std::string name;
  Target target;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<ExpressionPtr> conditions;
  std::vector<Body> bodies;
  Body body;
  Body else_body;
  std::vector<Parameter> parameters;
  // Whether the body of a macro mentions these, which is what makes it take them.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
  std::vector<Target> targets;
  std::vector<ExpressionPtr> values;
};

}  // namespace lamina::jinja
