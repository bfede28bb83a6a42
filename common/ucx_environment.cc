// SPDX-License-Identifier: Apache-2.0
#include "common/ucx_environment.h"

#include <cstdlib>

#include "common/network.h"
#include "common/status_macros.h"

namespace lamina {

absl::StatusOr<std::string> KeepUcxTo(const std::string& network, const PortRange& ports) {
  if (ports.is_set()) {
    setenv("UCX_TCP_PORT_RANGE", ToString(ports).c_str(), 0);
  }
  if (network.empty()) {
    return "";
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string interface, InterfaceOf(network));
  setenv("UCX_NET_DEVICES", interface.c_str(), 0);
  return interface;
}

}  // namespace lamina
