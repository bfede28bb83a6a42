// SPDX-License-Identifier: Apache-2.0
#include "common/tls.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/foreign_text.h"
#include "common/host_port.h"
#include "common/private_file.h"
#include "common/status_macros.h"

namespace lamina {
namespace {

constexpr int kProbeSeconds = 5;
constexpr size_t kReasonBytesMax = 200;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* owned) const {
    kFree(owned);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Free<SSL_free>>;

void FreeStack(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }
using Stack = std::unique_ptr<STACK_OF(X509), Free<FreeStack>>;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string LibraryReason() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

absl::Status CannotOpen(absl::string_view key, const std::string& path) {
  return absl::NotFoundError(
      absl::StrCat(key, ": cannot open ", path, ": ", std::strerror(errno),
                   "; deploy/cluster.sh certificates makes those of a cluster that has none"));
}

absl::Status Invalid(absl::string_view key, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " ", what));
}

absl::Status CheckKeyMode(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return CannotOpen("tls.key", path);
  }
  if (!IsPrivate(status.st_mode, status.st_uid, geteuid())) {
    return absl::PermissionDeniedError(absl::StrCat("tls.key: others than its owner may use ", path,
                                                    "; mend it: chmod 600 ", path));
  }
  return absl::OkStatus();
}

// "is over since ..." or the like; empty while it is valid.
std::string WhyNotNow(const X509& certificate) {
  const auto when = [](const ASN1_TIME* time) {
    const Bio text(BIO_new(BIO_s_mem()));
    ASN1_TIME_print(text.get(), time);
    char* data = nullptr;
    const long size = BIO_get_mem_data(text.get(), &data);
    return std::string(data, static_cast<size_t>(size));
  };
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0) {
    return absl::StrCat("expired at ", when(X509_get0_notAfter(&certificate)),
                        "; make a new one (deploy/cluster.sh certificates)");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0) {
    return absl::StrCat("is valid only from ", when(X509_get0_notBefore(&certificate)),
                        "; is this host's clock right?");
  }
  return "";
}

absl::Status CheckOwn(const TlsFiles& files) {
  LAMINA_RETURN_IF_ERROR(CheckKeyMode(files.key));
  const Bio certificate_file(BIO_new_file(files.certificate.c_str(), "r"));
  if (certificate_file == nullptr) {
    return CannotOpen("tls.certificate", files.certificate);
  }
  const Certificate certificate(
      PEM_read_bio_X509(certificate_file.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    return Invalid("tls.certificate", files.certificate, "has no certificate in PEM");
  }
  const Bio key_file(BIO_new_file(files.key.c_str(), "r"));
  if (key_file == nullptr) {
    return CannotOpen("tls.key", files.key);
  }
  // A passphrase could not be asked for: an empty one is tried.
  std::string empty;
  const Key key(PEM_read_bio_PrivateKey(key_file.get(), nullptr, nullptr, empty.data()));
  if (key == nullptr) {
    return Invalid("tls.key", files.key, "has no private key in PEM without a passphrase");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return Invalid("tls.key", files.key, absl::StrCat("is not the key of ", files.certificate));
  }
  if (const std::string why = WhyNotNow(*certificate); !why.empty()) {
    return Invalid("tls.certificate", files.certificate, why);
  }
  return absl::OkStatus();
}

// The first certificate of a text, and the others.
std::pair<Certificate, Stack> ReadChain(absl::string_view pem) {
  const Bio text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate first(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr));
  Stack others(sk_X509_new_null());
  while (first != nullptr) {
    X509* next = PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr);
    if (next == nullptr) {
      break;
    }
    sk_X509_push(others.get(), next);
  }
  ERR_clear_error();
  return {std::move(first), std::move(others)};
}

// Connected, with a limit on each read and write. None where nobody answers.
std::optional<Socket> ConnectTo(const HostPort& at) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, Free<freeaddrinfo>> owned(found);
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    Socket socket(::socket(next->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit = {.tv_sec = kProbeSeconds, .tv_usec = 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (socket.fd() >= 0 && connect(socket.fd(), next->ai_addr, next->ai_addrlen) == 0) {
      return socket;
    }
  }
  return std::nullopt;
}

// Whether the port's first bytes are TLS's, whatever its certificate.
bool SpeaksTls(const HostPort& at) {
  const std::optional<Socket> socket = ConnectTo(at);
  const Context context(SSL_CTX_new(TLS_client_method()));
  const Session session(SSL_new(context.get()));
  if (!socket.has_value() || SSL_set_fd(session.get(), socket->fd()) != 1) {
    return false;
  }
  const bool speaks = SSL_connect(session.get()) == 1;
  ERR_clear_error();
  return speaks;
}

// What the far end says of us behind the handshake, which TLS 1.3 ends before it has looked.
absl::Status ReadAlert(SSL& session, const std::string& address) {
  char byte = 0;
  const int got = SSL_read(&session, &byte, 1);
  if (got <= 0 && SSL_get_error(&session, got) == SSL_ERROR_SSL) {
    return absl::FailedPreconditionError(
        absl::StrCat(address, " refuses this process's certificate: ", LibraryReason()));
  }
  ERR_clear_error();
  return absl::OkStatus();
}

absl::Status ExplainWithCa(const std::string& address, const HostPort& at, const TlsFiles& files) {
  const std::optional<Socket> socket = ConnectTo(at);
  if (!socket.has_value()) {
    return absl::OkStatus();
  }
  const Context context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  if (SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr) != 1) {
    return Invalid("tls.ca", files.ca, absl::StrCat("cannot be read: ", LibraryReason()));
  }
  if (!files.certificate.empty()) {
    SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str());
    SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM);
  }
  const Session session(SSL_new(context.get()));
  X509_VERIFY_PARAM* wanted = SSL_get0_param(session.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, at.host.c_str()) != 1) {
    ERR_clear_error();
    SSL_set1_host(session.get(), at.host.c_str());
    SSL_set_tlsext_host_name(session.get(), at.host.c_str());
  }
  SSL_set_fd(session.get(), socket->fd());
  if (SSL_connect(session.get()) == 1) {
    return ReadAlert(*session, address);
  }
  if (const long verified = SSL_get_verify_result(session.get()); verified != X509_V_OK) {
    ERR_clear_error();
    return absl::FailedPreconditionError(
        absl::StrCat("the certificate of ", address, " is not believed: ",
                     X509_verify_cert_error_string(verified), " (tls.ca is ", files.ca, ")"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      address,
      " does not speak TLS, and this process has tls.ca: give its coordinator tls too, or ",
      "neither (", LibraryReason(), ")"));
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        "tls: certificate and key go together; give both files or none");
  }
  if (files.ca.empty() && !files.certificate.empty()) {
    return absl::InvalidArgumentError(
        "tls: certificate and key need ca, the file of the CA that the others' certificates are "
        "of");
  }
  if (!files.is_set()) {
    return absl::OkStatus();
  }
  const Bio ca_file(BIO_new_file(files.ca.c_str(), "r"));
  if (ca_file == nullptr) {
    return CannotOpen("tls.ca", files.ca);
  }
  const Certificate ca(PEM_read_bio_X509(ca_file.get(), nullptr, nullptr, nullptr));
  if (ca == nullptr) {
    ERR_clear_error();
    return Invalid("tls.ca", files.ca, "has no certificate in PEM");
  }
  return files.certificate.empty() ? absl::OkStatus() : CheckOwn(files);
}

absl::Status VerifyCertificate(absl::string_view pem, const std::string& ca_file,
                               const std::string& name) {
  const auto [certificate, between] = ReadChain(pem);
  if (certificate == nullptr) {
    return absl::PermissionDeniedError(
        "it showed no certificate; give it tls.certificate and tls.key, of this cluster's CA");
  }
  const Store store(X509_STORE_new());
  if (X509_STORE_load_locations(store.get(), ca_file.c_str(), nullptr) != 1) {
    return absl::PermissionDeniedError(
        absl::StrCat("tls.ca: ", ca_file, " cannot be read: ", LibraryReason()));
  }
  const StoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), certificate.get(), between.get());
  if (X509_verify_cert(context.get()) != 1) {
    ERR_clear_error();
    return absl::PermissionDeniedError(
        absl::StrCat("its certificate is not believed: ",
                     X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())),
                     "; give it one of the CA in ", ca_file, " that is valid now"));
  }
  if (X509_check_host(certificate.get(), name.c_str(), name.size(),
                      X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS,
                      nullptr) != 1) {
    return absl::PermissionDeniedError(absl::StrCat(
        "its certificate is not of ", ForeignText(name, kReasonBytesMax),
        ": a node's has its name among its DNS names (deploy/cluster.sh certificates)"));
  }
  return absl::OkStatus();
}

absl::Status ExplainTls(const std::string& address, const TlsFiles& files) {
  const std::optional<HostPort> at = ParseHostPort(address);
  if (!at.has_value()) {
    return absl::OkStatus();
  }
  if (files.is_set()) {
    return ExplainWithCa(address, *at, files);
  }
  return SpeaksTls(*at) ? absl::FailedPreconditionError(absl::StrCat(
                              address,
                              " speaks TLS, and this process does not: name its CA (tls.ca of the "
                              "cluster file; --tls-ca, LAMINA_TLS_CA)"))
                        : absl::OkStatus();
}

}  // namespace lamina
