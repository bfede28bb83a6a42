// SPDX-License-Identifier: Apache-2.0
//
// The tables of filters: those of texts and numbers, and those of sequences.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"

namespace lamina::jinja {

struct FilterCall {
  absl::string_view name;
  const Value& value;
  Interpreter& interpreter;
  Arguments& arguments;

  Budget& budget() const { return interpreter.budget(); }
  absl::StatusOr<std::vector<Value>> Take(absl::Span<const absl::string_view> names,
                                          size_t required) const {
    return Bind(name, arguments, names, required);
  }
};

struct Filter {
  absl::string_view name;
  absl::StatusOr<Value> (*call)(const FilterCall&);
};

absl::Span<const Filter> TextFilters();
absl::Span<const Filter> SequenceFilters();

}  // namespace lamina::jinja
