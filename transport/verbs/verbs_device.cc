// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_device.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/verbs/verbs_handles_internal.h"

namespace lamina::transport {
namespace {

constexpr size_t kGidsMax = 256;

uint32_t BytesOf(ibv_mtu mtu) { return 128u << mtu; }

double LanesOf(uint8_t width) {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 1;
  }
}

// Gbit/s of one lane.
double SpeedOf(uint8_t speed) {
  switch (speed) {
    case 1:
      return 2.5;
    case 2:
      return 5;
    case 4:
    case 8:
      return 10;
    case 16:
      return 14;
    case 32:
      return 25;
    case 64:
      return 50;
    case 128:
      return 100;
    default:
      return 0;
  }
}

GidKind KindOf(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return GidKind::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidKind::kRoceV2;
    default:
      return GidKind::kInfiniBand;
  }
}

// Empty for InfiniBand, whose index is 0.
std::string InterfaceOfIndex(uint32_t index) {
  std::array<char, IF_NAMESIZE> name = {};
  return if_indextoname(index, name.data()) == nullptr ? "" : name.data();
}

std::vector<VerbsGid> GidsOf(ibv_context* context, uint32_t port) {
  std::array<ibv_gid_entry, kGidsMax> entries;
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  std::vector<VerbsGid> gids;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port) {
      continue;
    }
    std::array<char, INET6_ADDRSTRLEN> text = {};
    inet_ntop(AF_INET6, entry.gid.raw, text.data(), text.size());
    in6_addr address;
    std::memcpy(&address, entry.gid.raw, sizeof address);
    gids.push_back({.index = entry.gid_index,
                    .kind = KindOf(entry.gid_type),
                    .text = text.data(),
                    .ipv4 = IN6_IS_ADDR_V4MAPPED(&address) != 0,
                    .link_local = IN6_IS_ADDR_LINKLOCAL(&address) != 0,
                    .interface = InterfaceOfIndex(entry.ndev_ifindex)});
  }
  return gids;
}

void AddPorts(ibv_device* device, std::vector<VerbsPort>& ports) {
  const std::string name = ibv_get_device_name(device);
  const VerbsContext context(ibv_open_device(device));
  ibv_device_attr attributes = {};
  if (context == nullptr || ibv_query_device(context.get(), &attributes) != 0) {
    ports.push_back({.device = name, .port = 1, .refused = std::strerror(errno)});
    return;
  }
  for (uint32_t number = 1; number <= attributes.phys_port_cnt; ++number) {
    ibv_port_attr port = {};
    if (ibv_query_port(context.get(), static_cast<uint8_t>(number), &port) != 0) {
      continue;
    }
    ports.push_back({.device = name,
                     .port = number,
                     .active = port.state == IBV_PORT_ACTIVE,
                     .state = ibv_port_state_str(port.state),
                     .ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET,
                     .mtu = BytesOf(port.active_mtu),
                     .gbit = LanesOf(port.active_width) * SpeedOf(port.active_speed),
                     .message_bytes_max = port.max_msg_sz,
                     .gids = GidsOf(context.get(), number),
                     .place = FindPciPlace("/sys/class/infiniband/" + name + "/device")});
  }
}

}  // namespace

std::vector<VerbsPort> ListVerbsPorts() {
  std::vector<VerbsPort> ports;
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (devices == nullptr) {
    return ports;
  }
  for (int i = 0; i < count; ++i) {
    AddPorts(devices[i], ports);
  }
  ibv_free_device_list(devices);
  std::stable_sort(ports.begin(), ports.end(),
                   [](const VerbsPort& a, const VerbsPort& b) { return a.device < b.device; });
  return ports;
}

}  // namespace lamina::transport
