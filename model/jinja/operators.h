// SPDX-License-Identifier: Apache-2.0
//
// What Python does with values: comparison, arithmetic, access, and their texts.
//
// All spend from a budget for what they look at. Errors, everywhere: kInvalidArgument for what
// Python would raise TypeError and the like for, and when the budget is spent.
//
// Threading: free functions without state.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/limits.h"
#include "model/jinja/value.h"

namespace lamina::jinja {

absl::StatusOr<bool> Equal(Budget& budget, const Value& a, const Value& b);
absl::StatusOr<bool> Less(Budget& budget, const Value& a, const Value& b);
// `item in container`.
absl::StatusOr<bool> Contains(Budget& budget, const Value& item, const Value& container);

// `op` is one of + - * / // % **.
absl::StatusOr<Value> Arithmetic(Budget& budget, absl::string_view op, const Value& a,
                                 const Value& b);

// value.name: a method or attribute first, else an item. Undefined when there is neither.
absl::StatusOr<Value> GetAttribute(const Value& value, absl::string_view name);
// value[key]: an item first, else a method or attribute. Undefined when there is neither.
absl::StatusOr<Value> GetItem(Budget& budget, const Value& value, const Value& key);
// value[start:stop:step]; none for what is left out.
absl::StatusOr<Value> GetSlice(Budget& budget, const Value& value, const Value& start,
                               const Value& stop, const Value& step);
// What iterating gives; empty for undefined.
absl::StatusOr<std::vector<Value>> Iterate(Budget& budget, const Value& value);

// Python's str() and repr(). kUnimplemented for what has no text worth having, as an iterator.
absl::StatusOr<std::string> Str(Budget& budget, const Value& value);
absl::StatusOr<std::string> Repr(Budget& budget, const Value& value);
std::string FloatRepr(double value);
// &, <, > and quotes as entities.
std::string EscapeHtml(absl::string_view text);

struct JsonOptions {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // One level.
  std::optional<std::string> item_separator;
  std::string key_separator = ": ";
};
// Python's json.dumps().
absl::StatusOr<std::string> ToJson(Budget& budget, const Value& value, const JsonOptions& options);

}  // namespace lamina::jinja
