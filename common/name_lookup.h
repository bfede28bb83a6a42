// SPDX-License-Identifier: Apache-2.0
//
// Who looks up names of hosts for gRPC.
//
// Threading: before gRPC is used, while no other thread reads the environment.

#pragma once

namespace lamina {

// Has gRPC ask the C library, as ssh, UCX and all other programs of a host do: by nsswitch.conf, so
// that a name of /etc/hosts needs no name server. Its own resolver asks one for IPv6 addresses even
// then, and waits seconds for one that does not answer. An environment with GRPC_DNS_RESOLVER
// stays.
void LookUpNamesAsTheSystemDoes();

}  // namespace lamina
