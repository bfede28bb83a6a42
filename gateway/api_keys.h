// SPDX-License-Identifier: Apache-2.0
//
// ApiKeys: who may ask. Keys are kept and compared as digests: the comparison takes the same time
// wherever two keys differ, and every key is looked at.
//
// Threading: const calls from any thread.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::gateway {

class ApiKeys {
 public:
  // No keys: everybody may.
  ApiKeys() = default;
  explicit ApiKeys(const std::vector<std::string>& keys);

  // One key per line; empty lines and those that begin with '#' do not count.
  // Errors: kNotFound         no such file.
  //         kInvalidArgument  it has no key, or one with a space in it; names the line.
  static absl::StatusOr<ApiKeys> Load(const std::string& path);

  bool required() const { return !digests_.empty(); }
  // Takes the value of an Authorization header: "Bearer KEY".
  bool Allows(absl::string_view authorization) const;
  // Returns what tells the requests of such a value's key from others'
  // (GenerateOptions::cache_salt); it tells nothing of the key. Empty where no keys are asked for.
  std::string SaltOf(absl::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  std::vector<Digest> digests_;
};

}  // namespace lamina::gateway
