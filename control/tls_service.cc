// SPDX-License-Identifier: Apache-2.0
#include "control/tls_service.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <vector>

namespace lamina::control {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

std::shared_ptr<FileWatcherCertificateProvider> Watch(const TlsFiles& files) {
  return std::make_shared<FileWatcherCertificateProvider>(files.key, files.certificate, files.ca,
                                                          kTlsReloadSeconds);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const TlsFiles& files) {
  if (!files.is_set()) {
    return grpc::InsecureChannelCredentials();
  }
  // Names are checked against the host that was asked for: the library's default verifier does.
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  options.watch_root_certs();
  if (!files.certificate.empty()) {
    options.watch_identity_key_cert_pairs();
  }
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files) {
  if (!files.is_set()) {
    return grpc::InsecureServerCredentials();
  }
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // The library would end a connection over a bad certificate without a word to either end: who
  // needs a good one is told so by CheckMember().
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::Status CheckMember(const TlsFiles& files, const grpc::ServerContextBase& context,
                         const std::string& name) {
  if (!files.is_set()) {
    return absl::OkStatus();
  }
  std::string pem;
  // The chain of a client, as a server has it, is without the client's own certificate.
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer != nullptr) {
    for (const char* property :
         {GRPC_X509_PEM_CERT_PROPERTY_NAME, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME}) {
      for (const grpc::string_ref& value : peer->FindPropertyValues(property)) {
        pem.append(value.data(), value.size());
      }
    }
  }
  return VerifyCertificate(pem, files.ca, name);
}

}  // namespace lamina::control
