// SPDX-License-Identifier: Apache-2.0
//
// JsonConfig: typed, range-checked look-ups in a config.json. A null counts as absent, as it does
// for the libraries that write these files, except where Contains() asks.
//
// Threading: const calls from any thread.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace lamina::model {

class JsonConfig {
 public:
  // Errors: kDataLoss         not a JSON object.
  //         kInvalidArgument  beyond kSettingsLimits, by bytes, values or depth.
  static absl::StatusOr<JsonConfig> Parse(absl::Span<const uint8_t> text);
  JsonConfig() : json_(nlohmann::json::object()) {}

  bool Contains(const char* key) const { return json_.contains(key); }  // Also when it is null.
  bool Has(const char* key) const;                                      // And is not null.

  // Errors of all: kInvalidArgument, naming the key, for a missing key without default or a value
  // of another type or out of range.
  absl::StatusOr<uint32_t> GetUint(const char* key) const;
  absl::StatusOr<uint32_t> GetUint(const char* key, uint32_t otherwise) const;
  absl::StatusOr<float> GetFloat(const char* key) const;  // Finite.
  absl::StatusOr<float> GetFloat(const char* key, float otherwise) const;
  absl::StatusOr<bool> GetBool(const char* key, bool otherwise) const;
  absl::StatusOr<std::string> GetString(const char* key, absl::string_view otherwise) const;
  // One number or an array of them; absent gives none.
  absl::StatusOr<std::vector<uint32_t>> GetUints(const char* key) const;
  absl::StatusOr<std::vector<std::string>> GetStrings(const char* key) const;
  absl::StatusOr<std::vector<float>> GetFloats(const char* key) const;
  // Returns the settings, with those of `object` (JSON text) for what is missing.
  JsonConfig WithDefaults(absl::string_view object) const;
  JsonConfig Without(const char* key) const;
  // The object under `key`; an empty one when it is absent.
  absl::StatusOr<JsonConfig> Section(const char* key) const;
  // Whether any value is itself an object.
  bool HasSections() const;

 private:
  nlohmann::json json_;
};

}  // namespace lamina::model
