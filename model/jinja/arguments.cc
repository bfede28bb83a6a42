// SPDX-License-Identifier: Apache-2.0
//
// How builtins take their arguments.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"

namespace lamina::jinja {

absl::StatusOr<std::vector<Value>> Bind(absl::string_view what, Arguments& arguments,
                                        absl::Span<const absl::string_view> names,
                                        size_t required) {
  if (arguments.positional.size() > names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", what, "' takes at most ", names.size(), " arguments"));
  }
  const Value missing = Value::Undefined("an argument was not given");
  std::vector<Value> out(names.size(), missing);
  std::copy(arguments.positional.begin(), arguments.positional.end(), out.begin());
  size_t given = arguments.positional.size();
  for (auto& [name, value] : arguments.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat("'", what, "' has no argument '", name, "'"));
    }
    const auto index = static_cast<size_t>(place - names.begin());
    if (index < arguments.positional.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", what, "' got its argument '", name, "' twice"));
    }
    out[index] = std::move(value);
    given += index < required ? 1 : 0;
  }
  if (given < required) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", what, "' needs its argument '", names[given], "'"));
  }
  return out;
}

absl::Status SpendArguments(Budget& budget, const Arguments& arguments) {
  size_t bytes = 0;
  const auto add = [&bytes](const Value& value) {
    bytes += value.string() == nullptr ? 0 : value.string()->size();
  };
  std::for_each(arguments.positional.begin(), arguments.positional.end(), add);
  for (const auto& [name, value] : arguments.named) {
    bytes += name.size();
    add(value);
  }
  LAMINA_RETURN_IF_ERROR(budget.Spend(arguments.positional.size() + arguments.named.size()));
  return budget.Spend(bytes / kBytesPerStep);
}

absl::StatusOr<int64_t> IntOr(absl::string_view what, const Value& value, int64_t fallback) {
  if (value.is_undefined()) {
    return fallback;
  }
  int64_t out = 0;
  if (!value.AsInt(&out)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", what, "' needs a whole number, not ", value.type_name()));
  }
  return out;
}

absl::StatusOr<std::string> StringOr(absl::string_view what, const Value& value,
                                     absl::string_view fallback) {
  if (value.is_undefined()) {
    return std::string(fallback);
  }
  if (value.string() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", what, "' needs text, not ", value.type_name()));
  }
  return *value.string();
}

bool BoolOr(const Value& value, bool fallback) {
  return value.is_undefined() ? fallback : value.truthy();
}

}  // namespace lamina::jinja
