// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_options.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/string_distance.h"

namespace lamina::transport {
namespace {

struct Key {
  absl::string_view name;
  uint32_t least;
  uint32_t most;
  void (*set)(VerbsOptions& options, uint32_t value);
};

constexpr std::array kKeys = {
    Key{"port", 1, 254, [](VerbsOptions& o, uint32_t v) { o.port = v; }},
    Key{"gid", 0, 255, [](VerbsOptions& o, uint32_t v) { o.gid = v; }},
    Key{"mtu", 256, 4096, [](VerbsOptions& o, uint32_t v) { o.mtu = v; }},
    Key{"timeout", 1, 31, [](VerbsOptions& o, uint32_t v) { o.timeout = v; }},
    Key{"retries", 0, 6, [](VerbsOptions& o, uint32_t v) { o.retries = v; }},
    Key{"rnr_retries", 0, 7, [](VerbsOptions& o, uint32_t v) { o.rnr_retries = v; }},
    Key{"queue", 128, 8192, [](VerbsOptions& o, uint32_t v) { o.queue = v; }},
};

absl::Status UnknownKey(absl::string_view name) {
  std::vector<std::string> known = {"near", "network", "peers", "ports"};
  for (const Key& key : kKeys) {
    known.push_back(std::string(key.name));
  }
  const std::string nearest = NearestName(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat("verbs: unknown option \"", name,
                   "\"; known are near, network, peers, ports, port, gid, mtu, timeout, retries, "
                   "rnr_retries, queue",
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

absl::Status SetOption(absl::string_view text, VerbsOptions& options) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.first == "near") {
    options.near = std::string(parts.second);
    return absl::OkStatus();
  }
  if (parts.first == "network") {
    options.network = std::string(parts.second);
    return absl::OkStatus();
  }
  if (parts.first == "peers") {
    options.local_peers = parts.second == "local";
    return options.local_peers ? absl::OkStatus()
                               : absl::InvalidArgumentError(absl::StrCat(
                                     "verbs: option peers=\"", parts.second, "\": expected local"));
  }
  if (parts.first == "ports") {
    LAMINA_ASSIGN_OR_RETURN(options.ports, ParsePortRange(parts.second));
    return absl::OkStatus();
  }
  const auto* key = std::find_if(kKeys.begin(), kKeys.end(),
                                 [&](const Key& known) { return known.name == parts.first; });
  if (key == kKeys.end()) {
    return UnknownKey(parts.first);
  }
  uint32_t value = 0;
  if (!absl::SimpleAtoi(parts.second, &value) || value < key->least || value > key->most) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: option ", key->name, "=\"", parts.second,
                                                   "\": expected a number from ", key->least,
                                                   " to ", key->most));
  }
  key->set(options, value);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<VerbsOptions> ParseVerbsOptions(absl::string_view name) {
  VerbsOptions options;
  const size_t question = name.find('?');
  options.device = std::string(name.substr(0, question));
  if (question != absl::string_view::npos && question + 1 < name.size()) {
    for (const absl::string_view text : absl::StrSplit(name.substr(question + 1), '&')) {
      LAMINA_RETURN_IF_ERROR(SetOption(text, options));
    }
  }
  if (options.mtu && (*options.mtu & (*options.mtu - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: option mtu=", *options.mtu,
                                                   ": expected one of 256, 512, 1024, 2048, 4096"));
  }
  return options;
}

}  // namespace lamina::transport
