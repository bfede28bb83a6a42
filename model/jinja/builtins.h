// SPDX-License-Identifier: Apache-2.0
//
// The functions, filters, tests and methods that templates may use, by name.
//
// Threading: tables that are made once; what they name belongs to one rendering.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/value.h"

namespace lamina::jinja {

// Names are looked up when they are reached: a template may name in one branch what it does not
// need in the others.
// Errors: kUnimplemented    one of Jinja's that we do not have.
//         kInvalidArgument  not one of Jinja's.
absl::Status CheckFilterName(absl::string_view name);
absl::Status CheckTestName(absl::string_view name);

absl::StatusOr<Value> CallFilter(Interpreter& interpreter, absl::string_view name,
                                 const Value& value, Arguments arguments);
absl::StatusOr<bool> CallTest(Interpreter& interpreter, absl::string_view name, const Value& value,
                              Arguments arguments);

// A method of `value` bound to it; undefined when Python's type has no such method.
// Errors: kUnimplemented    a method of Python's that we do not have.
//         kInvalidArgument  one that changes its object, which the sandbox refuses.
absl::StatusOr<Value> FindMethod(const Value& value, absl::string_view name);

// range, dict, namespace, ...; undefined when there is no such function.
// Errors: kUnimplemented  one of Jinja's that we do not have.
absl::StatusOr<Value> FindGlobal(absl::string_view name);

// Puts arguments into the places of `names`; a place without an argument stays undefined, which is
// what an argument cannot otherwise be told from.
// Errors: kInvalidArgument  too many, unknown or double ones, or fewer than `required`; says whose.
absl::StatusOr<std::vector<Value>> Bind(absl::string_view what, Arguments& arguments,
                                        absl::Span<const absl::string_view> names, size_t required);

// An argument of a type, or a fallback when it was not given.
// Errors: kInvalidArgument  of another type; says whose.
// What passing the arguments costs: they are copied, texts as well.
absl::Status SpendArguments(Budget& budget, const Arguments& arguments);
absl::StatusOr<int64_t> IntOr(absl::string_view what, const Value& value, int64_t fallback);
absl::StatusOr<std::string> StringOr(absl::string_view what, const Value& value,
                                     absl::string_view fallback);
bool BoolOr(const Value& value, bool fallback);

}  // namespace lamina::jinja
