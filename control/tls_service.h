// SPDX-License-Identifier: Apache-2.0
//
// gRPC's credentials of a cluster's certificates: TLS 1.2 at least, names checked, files read again
// when they change. Without files, none: everything in the clear.
//
// Users' calls need no certificate: a server asks for one and lets who has none go on. What members
// alone may do checks it then (CheckMember).
//
// Threading: any thread.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/tls.h"

namespace lamina::control {

// Files that have changed are seen after so long.
inline constexpr unsigned kTlsReloadSeconds = 5;

// Requires: CheckTlsFiles(files).ok().
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const TlsFiles& files);

// Requires: the same, and files.certificate where files.ca is.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files);

// Whether the caller has shown a certificate of that name, valid now, of our CA. OK without files.
// Errors: of VerifyCertificate().
absl::Status CheckMember(const TlsFiles& files, const grpc::ServerContextBase& context,
                         const std::string& name);

}  // namespace lamina::control
