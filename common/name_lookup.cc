// SPDX-License-Identifier: Apache-2.0
#include "common/name_lookup.h"

#include <cstdlib>

namespace lamina {

void LookUpNamesAsTheSystemDoes() { setenv("GRPC_DNS_RESOLVER", "native", 0); }

}  // namespace lamina
