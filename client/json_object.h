// SPDX-License-Identifier: Apache-2.0
//
// JsonObject: typed reading of the fields of a request body. A field that is null counts as absent,
// as clients send it. Every mistake names the field, what was expected and what came, with OpenAI's
// code for it.
//
// Fields that were read or named once are known; RefuseUnknown() names the first of the others that
// is not null.

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lamina::client {

using Json = nlohmann::ordered_json;  // Schemas of output mean an order.

// "a string", "an integer", ...: for messages.
absl::string_view JsonTypeName(const Json& value);

// An integer, also one that is written as a decimal (100.0), as JSON Schema has it. Nothing for
// others, and for decimals beyond 2^53, which stand for several integers.
std::optional<int64_t> ExactInteger(const Json& value);

// Errors of one field: it is not what is `expected`; it is not there.
absl::Status WrongType(absl::string_view path, absl::string_view expected, const Json& value);
absl::Status Missing(absl::string_view path);

class JsonObject {
 public:
  // `value` must be an object and outlive this. `path` is put before field names: "messages[0].".
  explicit JsonObject(const Json& value, std::string path = "")
      : value_(value), path_(std::move(path)) {}

  // Null when absent or null.
  const Json* Find(absl::string_view name);
  absl::StatusOr<const Json*> Object(absl::string_view name);
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view name);
  absl::StatusOr<std::optional<int64_t>> Integer(absl::string_view name, int64_t least,
                                                 int64_t most);
  absl::StatusOr<std::optional<double>> Number(absl::string_view name, double least, double most);
  absl::StatusOr<std::optional<std::string>> String(absl::string_view name);
  // A string, or a list of at most `count_max`.
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view name, size_t count_max);

  // Makes a field known without reading it: it changes nothing here.
  void Ignore(absl::string_view name) { known_.insert(std::string(name)); }
  // A field that this server cannot obey: any value but null and those of `neutral` is an error
  // that names it.
  absl::Status Refuse(absl::string_view name, const std::vector<Json>& neutral,
                      absl::string_view why);
  absl::Status RefuseUnknown() const;

  std::string PathOf(absl::string_view name) const { return path_ + std::string(name); }

 private:
  const Json& value_;
  const std::string path_;
  std::set<std::string> known_;
};

}  // namespace lamina::client
