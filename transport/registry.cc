// SPDX-License-Identifier: Apache-2.0
#include "transport/registry.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/string_distance.h"
#include "transport/decorators/decorated_transport.h"
#include "transport/fake/fake_network.h"
#include "transport/shm/shm_transport.h"
#include "transport/staging/device_transport.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/verbs/verbs_transport.h"

namespace lamina::transport {
namespace {

using MakeFn = absl::StatusOr<std::unique_ptr<Transport>> (*)(absl::string_view name,
                                                              DeviceMemory* device,
                                                              const ClusterSecret& secret);

absl::StatusOr<std::unique_ptr<Transport>> MakeShm(absl::string_view name, DeviceMemory* device,
                                                   const ClusterSecret&) {
  if (!name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport \"shm://", name, "\": shm takes nothing after \"shm://\""));
  }
  return MakeShmTransport(device);
}

absl::StatusOr<std::unique_ptr<Transport>> MakeFake(absl::string_view name, DeviceMemory* device,
                                                    const ClusterSecret&) {
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "transport \"fake://\": name the network, as in \"fake://test\"");
  }
  return FakeNetwork::Named(name)->MakeTransport(device);
}

bool Always() { return true; }

struct Backend {
  absl::string_view scheme;
  MakeFn make;
  bool (*is_built)();
  absl::string_view remedy;  // How to get it where it is not built.
};

constexpr std::array kBackends = {
    Backend{"fake", &MakeFake, &Always, ""},
    Backend{"shm", &MakeShm, &Always, ""},
    Backend{"ucx", &MakeUcxTransport, &UcxIsBuilt,
            "install libucx-dev, configure again and build; on one host use shm://"},
    Backend{
        "verbs", &MakeVerbsTransport, &VerbsIsBuilt,
        "install libibverbs-dev, configure again and build; on one host use shm://, between hosts "
        "ucx://"},
};

absl::Status UnknownScheme(absl::string_view uri, absl::string_view scheme) {
  std::vector<std::string> known;
  for (const Backend& backend : kBackends) {
    known.push_back(absl::StrCat(backend.scheme));
  }
  const std::string nearest = NearestName(scheme, known);
  return absl::InvalidArgumentError(
      absl::StrCat("transport \"", uri, "\": unknown scheme \"", scheme, "\"; known are ",
                   absl::StrJoin(known, ", "), nearest.empty() ? "" : "; did you mean \"", nearest,
                   nearest.empty() ? "" : "://\"?"));
}

// "NAME(OPTIONS)+URI".
absl::StatusOr<std::unique_ptr<Transport>> MakeDecorated(absl::string_view uri,
                                                         const ClusterSecret& secret) {
  const size_t open = uri.find('(');
  const size_t close = uri.find(")+");
  if (close == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transport \"", uri, "\": write a decorator as in \"throttle(latency=20us)+shm://\""));
  }
  LAMINA_ASSIGN_OR_RETURN(
      std::unique_ptr<LinkModel> model,
      MakeLinkModel(uri.substr(0, open), uri.substr(open + 1, close - open - 1)));
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Transport> inner,
                          MakeTransport(uri.substr(close + 2), nullptr, secret));
  return Decorate(std::move(inner), std::move(model), RealClock());
}

absl::StatusOr<std::unique_ptr<Transport>> MakeBackend(absl::string_view uri, DeviceMemory* device,
                                                       const ClusterSecret& secret) {
  constexpr absl::string_view kSeparator = "://";
  if (uri.find('(') < uri.find(kSeparator)) {
    return MakeDecorated(uri, secret);
  }
  const size_t colon = uri.find(kSeparator);
  const absl::string_view scheme = uri.substr(0, colon);
  for (const Backend& backend : kBackends) {
    if (backend.scheme != scheme) {
      continue;
    }
    if (colon == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("transport \"", uri, "\": not a URI; write \"", uri, "://\""));
    }
    if (!backend.is_built()) {
      return absl::UnimplementedError(
          absl::StrCat("transport \"", uri, "\": not in this build: ", backend.remedy,
                       " (built: ", absl::StrJoin(BuiltTransports(), ", "), ")"));
    }
    return backend.make(uri.substr(colon + kSeparator.size()), device, secret);
  }
  return UnknownScheme(uri, scheme);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(absl::string_view uri,
                                                         DeviceMemory* device,
                                                         const ClusterSecret& secret) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Transport> made, MakeBackend(uri, device, secret));
  return device == nullptr ? std::move(made) : OverDevice(std::move(made), *device);
}

std::vector<std::string> BuiltTransports() {
  std::vector<std::string> built;
  for (const Backend& backend : kBackends) {
    if (backend.is_built()) {
      built.push_back(absl::StrCat(backend.scheme));
    }
  }
  return built;
}

}  // namespace lamina::transport
