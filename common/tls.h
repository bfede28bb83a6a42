// SPDX-License-Identifier: Apache-2.0
//
// Certificates of a cluster: the files, whether they fit, whose a certificate is, and why two
// processes do not understand each other. What is encrypted is gRPC's business
// (control/tls_service.h).
//
// Threading: pure functions over files and sockets; ExplainTls() blocks.
// See: docs/security.md, docs/adr/0132-certificates-for-members.md.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina {

// PEM files. `ca` alone suits a process that only calls: clients, the gateway.
struct TlsFiles {
  std::string ca;           // Certificates of the CAs that this process trusts.
  std::string certificate;  // This process's certificate, with the chain between it and the CA.
  std::string key;

  // Whether gRPC is encrypted.
  bool is_set() const { return !ca.empty(); }
  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

// OK where none are set.
// Errors: kInvalidArgument    a certificate without its key or the reverse, either without `ca`, a
//                             file that is no PEM, a key that is not the certificate's, a
//                             certificate that is not valid now; names the file.
//         kNotFound           a file that cannot be opened.
//         kPermissionDenied   the key's group or others may use it; says how to mend that.
absl::Status CheckTlsFiles(const TlsFiles& files);

// Whether `pem`, a certificate and what lies between it and the CA, is valid now, comes from that
// CA, and is of `name`: a DNS name of it, exactly.
// Errors: kPermissionDenied  it is not; says which of these, and what to do.
absl::Status VerifyCertificate(absl::string_view pem, const std::string& ca_file,
                               const std::string& name);

// Why a connection to `address`, host:port, with these files does not come about, by trying it: the
// gRPC library does not say. Takes up to 5 s. OK where TLS is not the reason.
// Errors: kFailedPrecondition  one end speaks TLS and the other does not; the certificate there is
//                              of another CA, over, or of another name; it refuses ours.
absl::Status ExplainTls(const std::string& address, const TlsFiles& files);

}  // namespace lamina
