// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/peer_server.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/doctor/peer_link.h"
#include "common/host_port.h"
#include "common/status_macros.h"
#include "lamina/v1/doctor.grpc.pb.h"
#include "transport/link_probe.h"
#include "transport/registry.h"

namespace lamina::doctor {
namespace {

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

grpc::Status ToGrpc(const absl::Status& status) {
  return status.ok() ? grpc::Status::OK
                     : grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                                    std::string(status.message()));
}

// One end of a link, which answers until it is closed.
class AnsweringEnd {
 public:
  static absl::StatusOr<std::unique_ptr<AnsweringEnd>> Open(const std::string& uri,
                                                            const std::string& peer,
                                                            const ClusterSecret& secret) {
    auto end = std::make_unique<AnsweringEnd>();
    LAMINA_ASSIGN_OR_RETURN(end->transport_, transport::MakeTransport(uri, nullptr, secret));
    LAMINA_ASSIGN_OR_RETURN(
        end->region_,
        end->transport_->CreateRegion(
            {.name = "doctor", .bytes = kPeerRegionBytes, .signal_words = kPeerWords}));
    LAMINA_ASSIGN_OR_RETURN(end->remote_, end->transport_->OpenRegion(peer, 0));
    end->thread_ = std::thread([raw = end.get()] { raw->Answer(); });
    return end;
  }

  AnsweringEnd() = default;
  ~AnsweringEnd() {
    abort_.store(1, std::memory_order_release);
    if (thread_.joinable()) {
      thread_.join();
    }
    remote_.reset();
    region_.reset();
  }
  AnsweringEnd(const AnsweringEnd&) = delete;
  AnsweringEnd& operator=(const AnsweringEnd&) = delete;

  std::string descriptor() const { return region_->Descriptor(); }

  absl::Status Join() {
    thread_.join();
    return status_;
  }

 private:
  void Answer() {
    const std::array answerers = {transport::LinkAnswerer{
        .peer = remote_.get(), .ask_word = kAskWord, .answer_word = kAnswerWord}};
    size_t late = 0;
    status_ =
        transport::AnswerLinks(*transport_, *region_, answerers,
                               {.deadline = RealClock().Now() + kPeerWait, .abort = &abort_}, late);
  }

  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Region> region_;
  std::unique_ptr<transport::RemoteRegion> remote_;
  transport::AbortWord abort_{0};
  absl::Status status_;  // Result of the thread.
  std::thread thread_;
};

// Challenges that may still be answered, each once. Threading: any thread.
class Challenges {
 public:
  std::string Draw() {
    const std::lock_guard lock(mutex_);
    if (open_.size() == kOpenMax) {
      open_.pop_front();
    }
    return open_.emplace_back(DrawNonce());
  }

  // Whether it was open.
  bool Take(const std::string& challenge) {
    const std::lock_guard lock(mutex_);
    return std::erase(open_, challenge) > 0;
  }

 private:
  static constexpr size_t kOpenMax = 16;

  std::mutex mutex_;
  std::deque<std::string> open_;  // Guarded by mutex_; the oldest first.
};

class Service final : public v1::Doctor::Service {
 public:
  explicit Service(PeerServerOptions options) : options_(std::move(options)) {}

  grpc::Status Greet(grpc::ServerContext*, const v1::GreetRequest* request,
                     v1::GreetResponse* response) override {
    response->set_padding(request->padding());
    response->set_version(options_.version);
    response->set_host(HostName());
    for (const Interface& interface : options_.interfaces) {
      v1::NetworkInterface* one = response->add_interfaces();
      one->set_name(interface.name);
      one->set_address(interface.address);
      one->set_mtu(interface.mtu);
    }
    response->set_challenge(challenges_.Draw());
    response->set_unix_nanos(options_.unix_nanos());
    return grpc::Status::OK;
  }

  grpc::Status OpenLink(grpc::ServerContext*, const v1::OpenLinkRequest* request,
                        v1::OpenLinkResponse* response) override {
    const std::string& scheme = request->transport();
    if (!challenges_.Take(request->challenge()) ||
        !options_.secret.Verify(request->proof(), kAskerLabel,
                                {request->challenge(), scheme, request->region()})) {
      return {
          grpc::StatusCode::PERMISSION_DENIED,
          "this doctor opens links for those alone who know its cluster's secret: give both the "
          "same file, by --cluster-token-file or cluster_token_file of the cluster file"};
    }
    const std::lock_guard lock(mutex_);
    end_.reset();
    auto end = AnsweringEnd::Open(UriOf(scheme, options_.ucx_uri, options_.verbs_uri),
                                  request->region(), options_.secret);
    if (!end.ok()) {
      return ToGrpc(end.status());
    }
    end_ = *std::move(end);
    link_ = DrawNonce();
    response->set_link(link_);
    response->set_region(end_->descriptor());
    return grpc::Status::OK;
  }

  grpc::Status CloseLink(grpc::ServerContext*, const v1::CloseLinkRequest* request,
                         v1::CloseLinkResponse*) override {
    const std::lock_guard lock(mutex_);
    if (end_ == nullptr || request->link() != link_) {
      return {grpc::StatusCode::NOT_FOUND, "there is no such link"};
    }
    const std::unique_ptr<AnsweringEnd> end = std::move(end_);
    return ToGrpc(end->Join());
  }

 private:
  const PeerServerOptions options_;
  Challenges challenges_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unique_ptr<AnsweringEnd> end_;
  std::string link_;
};

}  // namespace

struct PeerServer::Impl {
  explicit Impl(PeerServerOptions options) : service(std::move(options)) {}
  Service service;
  std::unique_ptr<grpc::Server> server;
};

PeerServer::PeerServer() = default;

PeerServer::~PeerServer() {
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Wait();
}

absl::StatusOr<std::unique_ptr<PeerServer>> PeerServer::Start(const PeerServerOptions& options) {
  LAMINA_RETURN_IF_ERROR(RequireSecretBeyondLoopback(options.secret, "--serve", options.listen));
  return OpenWithin(options.ports, options.listen,
                    [&options](const std::string& listen) { return StartAt(listen, options); });
}

absl::StatusOr<std::unique_ptr<PeerServer>> PeerServer::StartAt(const std::string& listen,
                                                                const PeerServerOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&impl->service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("could not listen on ", listen, "; choose another HOST:PORT"));
  }
  std::unique_ptr<PeerServer> server(new PeerServer());
  server->impl_ = std::move(impl);
  server->address_ = WithPort(listen, port);
  return server;
}

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace lamina::doctor
