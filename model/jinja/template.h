// SPDX-License-Identifier: Apache-2.0
//
// Template: Jinja as transformers runs chat templates: sandboxed, with trim_blocks and
// lstrip_blocks, loop controls, {% generation %}, raise_exception, strftime_now, and a tojson that
// escapes no HTML.
//
// A construct that is not supported is an error that names it: of the text when it is parsed, of
// functions and methods when they are reached. What differs besides: a condition of a `for` is
// tested for all items before the first round; numbers have 64 bits; `first` uses up an iterator.
//
// Threading: immutable; Render from any thread.
// Limits: limits.h, on the text, on nesting, and on what one rendering may do.

#pragma once

#include <ctime>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/ast.h"
#include "model/jinja/value.h"

namespace lamina::jinja {

class Template {
 public:
  // Errors: kInvalidArgument  not Jinja, or beyond a limit; names the line.
  //         kUnimplemented    names the construct that is not supported, and its line.
  static absl::StatusOr<Template> Parse(absl::string_view source);

  // `variables` is a mapping. `now`: the local time that strftime_now shows.
  // Errors: kInvalidArgument  the template raised an exception, or did what Python would raise one
  //                           for, or is beyond a limit; says which, and where.
  //         kUnimplemented    as in Parse.
  // Cost: bounded by kStepsMax; a chat of n bytes typically costs a few steps per 32 bytes.
  absl::StatusOr<std::string> Render(const Value& variables, const std::tm& now) const;

 private:
  explicit Template(Body body) : body_(std::move(body)) {}

  Body body_;
};

}  // namespace lamina::jinja
