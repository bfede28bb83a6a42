// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace lamina::gateway {
namespace {

constexpr char kScheme[] = "bearer ";
constexpr size_t kSchemeBytes = sizeof(kScheme) - 1;
// Some editors put it first in a file.
constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::array<uint8_t, 32> DigestOf(absl::string_view key) {
  std::array<uint8_t, 32> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

// Requires: it begins with the scheme.
absl::string_view KeyIn(absl::string_view authorization) {
  return absl::StripAsciiWhitespace(authorization.substr(kSchemeBytes));
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    digests_.push_back(DigestOf(key));
  }
}

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot open gateway.api_keys_file '", path, "': ", std::strerror(errno)));
  }
  std::vector<std::string> keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const absl::string_view mark = number == 1 ? kByteOrderMark : "";
    const absl::string_view key = absl::StripAsciiWhitespace(absl::StripPrefix(line, mark));
    if (key.empty() || key.front() == '#') {
      continue;
    }
    if (key.find_first_of(" \t") != absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": a key has no space in it"));
    }
    keys.emplace_back(key);
  }
  if (keys.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has no key; write one per line, or leave gateway.api_keys_file out"));
  }
  return ApiKeys(keys);
}

bool ApiKeys::Allows(absl::string_view authorization) const {
  if (digests_.empty()) {
    return true;
  }
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return false;
  }
  const Digest given = DigestOf(KeyIn(authorization));
  bool allowed = false;
  for (const Digest& digest : digests_) {
    allowed |= CRYPTO_memcmp(digest.data(), given.data(), given.size()) == 0;
  }
  return allowed;
}

std::string ApiKeys::SaltOf(absl::string_view authorization) const {
  if (digests_.empty() || !absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return "";
  }
  constexpr size_t kBytes = 16;
  const Digest digest = DigestOf(absl::StrCat("prefix cache of ", KeyIn(authorization)));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), kBytes));
}

}  // namespace lamina::gateway
