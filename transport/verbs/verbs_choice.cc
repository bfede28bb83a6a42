// SPDX-License-Identifier: Apache-2.0
//
// The rule of ChooseVerbsPort, which is pure, so that it is tested without a device.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/network.h"
#include "common/status_macros.h"
#include "transport/verbs/verbs_device.h"

namespace lamina::transport {
namespace {

absl::string_view NameOf(GidKind kind) {
  switch (kind) {
    case GidKind::kInfiniBand:
      return "InfiniBand";
    case GidKind::kRoceV1:
      return "RoCE v1";
    case GidKind::kRoceV2:
      return "RoCE v2";
  }
  return "unknown";
}

// Lower is better.
std::tuple<int, int, uint32_t> RankOf(const VerbsGid& gid) {
  const int reach = gid.ipv4 ? 0 : gid.link_local ? 2 : 1;
  return {gid.kind == GidKind::kRoceV1 ? 1 : 0, reach, gid.index};
}

// GIDs of InfiniBand are no IP addresses: there the device that is named says which network it is.
bool IsOf(const VerbsGid& gid, const VerbsOptions& options) {
  return options.network.empty() || gid.interface == options.network ||
         (gid.kind == GidKind::kInfiniBand && !options.device.empty()) ||
         IsInNetwork(absl::StripPrefix(gid.text, "::ffff:"), options.network);
}

// "::ffff:192.0.2.1 of eth1", of all ports.
std::string AddressesOf(const std::vector<VerbsPort>& ports) {
  std::vector<std::string> texts;
  for (const VerbsPort& port : ports) {
    for (const VerbsGid& gid : port.gids) {
      texts.push_back(absl::StrCat(gid.text, " of ", port.device,
                                   gid.interface.empty() ? "" : " on ", gid.interface));
    }
  }
  return absl::StrJoin(texts, ", ");
}

std::string Describe(const std::vector<VerbsPort>& ports) {
  return absl::StrJoin(ports, ", ", [](std::string* out, const VerbsPort& port) {
    absl::StrAppend(out, port.device, " port ", port.port, " (",
                    port.refused.empty() ? port.state : port.refused, ")");
  });
}

absl::StatusOr<VerbsGid> ChooseGid(const VerbsPort& port, const VerbsOptions& options) {
  if (options.gid) {
    const auto found = std::find_if(port.gids.begin(), port.gids.end(),
                                    [&](const VerbsGid& gid) { return gid.index == *options.gid; });
    if (found == port.gids.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("verbs: ", port.device, " port ", port.port, " has no GID ", *options.gid,
                       "; `lamina doctor` lists those that it has"));
    }
    if (!IsOf(*found, options)) {
      return absl::FailedPreconditionError(
          absl::StrCat("verbs: GID ", *options.gid, " of ", port.device, " is ", found->text,
                       ", which is not of network ", options.network));
    }
    return *found;
  }
  if (port.gids.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("verbs: ", port.device, " port ", port.port,
                     " has no GID: give its network interface an IP address"));
  }
  return *std::min_element(
      port.gids.begin(), port.gids.end(), [&](const VerbsGid& a, const VerbsGid& b) {
        return std::pair(!IsOf(a, options), RankOf(a)) < std::pair(!IsOf(b, options), RankOf(b));
      });
}

absl::StatusOr<VerbsPort> ChoosePort(const std::vector<VerbsPort>& ports,
                                     const VerbsOptions& options, const PciPlace& near) {
  if (ports.empty()) {
    return absl::FailedPreconditionError(
        "verbs: this host has no RDMA device; use ucx:// over Ethernet, or `rdma link add rxe0 "
        "type "
        "rxe netdev INTERFACE` for Soft-RoCE");
  }
  std::vector<VerbsPort> fitting;
  for (const VerbsPort& port : ports) {
    if ((options.device.empty() || port.device == options.device) &&
        (!options.port || port.port == *options.port)) {
      fitting.push_back(port);
    }
  }
  if (fitting.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "verbs: no port is named by \"", options.device, "\"; this host has ", Describe(ports)));
  }
  if (std::all_of(fitting.begin(), fitting.end(),
                  [](const VerbsPort& port) { return !port.refused.empty(); })) {
    return absl::PermissionDeniedError(
        absl::StrCat("verbs: ", Describe(fitting),
                     ": this user needs read and write access to /dev/infiniband/uverbs*"));
  }
  std::erase_if(fitting, [](const VerbsPort& port) { return !port.active; });
  if (fitting.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("verbs: no port is active: ", Describe(ports),
                     "; look at the cable, and `ip link set INTERFACE up`"));
  }
  if (!options.network.empty()) {
    const std::vector<VerbsPort> active = fitting;
    std::erase_if(fitting, [&](const VerbsPort& port) {
      return std::none_of(port.gids.begin(), port.gids.end(),
                          [&](const VerbsGid& gid) { return IsOf(gid, options); });
    });
    if (fitting.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "verbs: no active port has an address of network ", options.network,
          "; there are: ", AddressesOf(active), "; on InfiniBand name the device (verbs.device)"));
    }
  }
  const auto rank = [&](const VerbsPort& port) {
    const PciDistance distance =
        near.path.empty() ? PciDistance::kHost : DistanceOf(near, port.place);
    return std::pair(distance, -port.gbit);
  };
  return *std::min_element(
      fitting.begin(), fitting.end(),
      [&](const VerbsPort& a, const VerbsPort& b) { return rank(a) < rank(b); });
}

}  // namespace

absl::StatusOr<VerbsChoice> ChooseVerbsPort(const std::vector<VerbsPort>& ports,
                                            const VerbsOptions& options, const PciPlace& near) {
  VerbsChoice choice;
  LAMINA_ASSIGN_OR_RETURN(choice.port, ChoosePort(ports, options, near));
  LAMINA_ASSIGN_OR_RETURN(choice.gid, ChooseGid(choice.port, options));
  choice.mtu = std::min(options.mtu.value_or(choice.port.mtu), choice.port.mtu);
  choice.reason =
      absl::StrCat(choice.port.device, " port ", choice.port.port, ", GID ", choice.gid.index, " (",
                   choice.gid.text, ", ", NameOf(choice.gid.kind), "), MTU ", choice.mtu);
  if (!near.path.empty()) {
    absl::StrAppend(&choice.reason, ", ", NameOf(DistanceOf(near, choice.port.place)), " as ",
                    near.address());
  }
  return choice;
}

absl::StatusOr<PciPlace> FindNear(const VerbsOptions& options) {
  if (options.near.empty()) {
    return PciPlace{};
  }
  PciPlace place = FindPciPlace("/sys/bus/pci/devices/" + options.near);
  if (place.path.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "verbs: near=", options.near,
        " is no PCI device of this host; `lspci -D` lists those that it has, like 0000:41:00.0"));
  }
  return place;
}

}  // namespace lamina::transport
